"""Mixed precision by operation: products in 16 bits, and what adds up or divides in fp32.

    weight (fp32) -> 16 bits ·  x -> 16 bits -> product (16 bits)        norm, softmax, loss in fp32

Source: Micikevicius et al. 2018, "Mixed Precision Training" (arXiv 1710.03740), section 3; the
tables are those of `torch.autocast` (PyTorch's documentation of torch.amp, "Op-Specific Behavior").

[Note: three kinds of operations]
1. Products of matrices have the most arithmetic, and 16-bit units are fast at it. Their inputs are
   rounded to the format; the hardware adds up in fp32 and rounds the result once.
2. Operations that add up many numbers, square or exponentiate them leave the range of 16 bits, or
   lose the small ones: norms, softmax, losses, sums, powers. Their inputs are widened to fp32. (As
   in autocast on CUDA, not those of batch norm and `mean`, for which it has no rule.)
3. All others run in the formats in which their inputs come, and PyTorch widens where two meet: in a
   GPT the sum of the residual stream (fp32) and a product (16 bits) is in fp32.
Weights stay in fp32 and are rounded anew for each product, so they are master weights by
themselves, and their gradients arrive in fp32. Backward runs each operation in forward's format.
"""

from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

PRODUCTS = {
    "linear": {"linear", "addmm", "addmv", "baddbmm", "addbmm"},
    "matmul": {"matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "einsum", "chain_matmul"},
    "convolution": {f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)},
    "attention": {"scaled_dot_product_attention"},
}
FP32 = {
    "norm": {"layer_norm", "rms_norm", "group_norm", "normalize"},
    "softmax": {"softmax", "log_softmax", "logsumexp", "softmin"},
    "loss": {"cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
             "kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits"},
    "sum": {"sum", "prod", "cumsum", "cumprod", "norm", "vector_norm", "dist", "cdist"},
    "power": {"exp", "expm1", "log", "log2", "log10", "log1p", "pow", "__pow__", "__rpow__",
              "rsqrt", "reciprocal", "acos", "asin", "cosh", "sinh", "tan", "softplus"},
}  # fmt: skip
KEEP = tuple(FP32)  # the rows of the table that run in fp32 unless the caller says otherwise


def mixed(
    model: nn.Module, format: torch.dtype = torch.bfloat16, keep: Collection[str] = KEEP
) -> nn.Module:
    """Make the forward of a model run its products in `format`, and what `keep` names in fp32.

    `keep` holds names of rows of the tables PRODUCTS and FP32, and names of modules of the model,
    in which everything then runs in fp32. A product that it names runs in fp32; a row of FP32 that
    it leaves out runs in whatever format its input has. Weights stay as they are, and outputs leave
    in fp32, so that the loss is computed in fp32. The model itself is changed and returned, and
    copies of it are mixed too. Raises ValueError for another format, a name that is neither, or a
    model that is mixed already.
    """
    if format not in (torch.float16, torch.bfloat16):
        raise ValueError(
            f"Products run in torch.float16 or torch.bfloat16, not in {format}. For smaller "
            "formats see lib.single.precision.fp8."
        )
    if any(getattr(hook, "__func__", None) is _Around.enter
           for hook in model._forward_pre_hooks.values()):  # fmt: skip
        raise ValueError("This model is mixed already; build a new one for another format.")
    modules = dict(model.named_modules())
    rows = {*PRODUCTS, *FP32}
    for name in keep:
        if name not in rows and (name not in modules or not name):
            raise ValueError(
                f"keep names {name!r}, which is neither a module of the model nor one of the rows "
                f"{', '.join(sorted(rows))}."
            )
    around = _Around(Formats(format, keep))
    model.register_forward_pre_hook(around.enter)
    model.register_forward_hook(around.leave, always_call=True)
    for name in (name for name in keep if name in modules and name not in rows):
        modules[name].register_forward_pre_hook(around.enter_fp32)
        modules[name].register_forward_hook(around.leave_fp32, always_call=True)
    return model


class Formats(TorchFunctionMode):
    """Runs each operation with its inputs in the format that the tables give it.

    Use it as `with Formats(torch.float16):` around any code; `operations` counts what ran where,
    as (operation, dtype) -> times.
    """

    def __init__(self, format: torch.dtype, keep: Collection[str] = KEEP):
        super().__init__()
        self.whole_fp32 = 0  # inside how many modules that are kept in fp32
        self.dtypes = {name: format for row in PRODUCTS for name in PRODUCTS[row]}
        for row in keep:
            names = {**PRODUCTS, **FP32}.get(row, set())
            self.dtypes |= dict.fromkeys(names, torch.float32)
        self.operations: dict[tuple[str, torch.dtype], int] = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        dtype = torch.float32 if self.whole_fp32 and name in self.dtypes else self.dtypes.get(name)
        if dtype is None:
            return func(*args, **(kwargs or {}))
        self.operations[name, dtype] = self.operations.get((name, dtype), 0) + 1
        args, kwargs = in_format((args, kwargs or {}), dtype)
        return func(*args, **kwargs)


def in_format(values, dtype: torch.dtype):
    """Return nested values whose tensors in fp32, fp16 and bf16 are converted to `dtype`.

    Others stay, as tensors of indices and those in fp64 do.
    """
    narrow = (torch.float32, torch.float16, torch.bfloat16)
    return tree_map_only(Tensor, lambda t: t.to(dtype) if t.dtype in narrow else t, values)


class _Around:
    """Enters the formats before a module's forward and leaves them after it, also by an error."""

    def __init__(self, formats: Formats):
        self.formats = formats

    def enter(self, module, args) -> None:
        self.formats.__enter__()

    def leave(self, module, args, output):
        self.formats.__exit__(None, None, None)
        return in_format(output, torch.float32)

    def enter_fp32(self, module, args):
        self.formats.whole_fp32 += 1
        return in_format(args, torch.float32)

    def leave_fp32(self, module, args, output) -> None:
        self.formats.whole_fp32 -= 1
