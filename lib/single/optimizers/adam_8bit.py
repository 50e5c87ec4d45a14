"""Adam whose two moments are kept in 8 bits: a byte a number, and a maximum for each block.

    m = β₁·m + (1 - β₁)·g        v = β₂·v + (1 - β₂)·g²
    w = w - lr · m̂ / (√v̂ + ε),        m̂ = m / (1 - β₁ᵗ),  v̂ = v / (1 - β₂ᵗ)

Between two steps m and v are codes (code_maps.py). A step decodes them, computes as Adam does in
fp32, updates the weights, and encodes the new moments. So the update itself never sees the error of
this step's encoding, only that of the steps before.

[Note: what a block costs and protects]
Each block has a maximum of its own, 4 bytes. With one maximum for the whole tensor, one outlier of
1000 times the usual size leaves all other numbers the coarse codes near 0.

[Note: a second moment that becomes 0]
Values below about 1.6e-7 of their block's maximum become 0. The update of the next step is then
m̂ / (√((1 - β₂)·g²/..) + ε): harmless where g is as large as it was, but huge where g is 0 while m
is not, as for rare tokens of an embedding. Of a linear map that is true for all below 1/510 of the
maximum, which is why it does not train. The source keeps embeddings in 32 bits (`smallest` or a
group of AdamW does that here).

Source: Dettmers et al. 2021, "8-bit Optimizers via Block-wise Quantization" (arXiv 2110.02861),
with blocks of 2,048; bitsandbytes, the authors' library, now uses 256.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from lib.predict.arguments import whole
from lib.single.optimizers.adam import AdamW
from lib.single.optimizers.code_maps import CodeMap, code_map
from lib.single.optimizers.listwise import counted, counter, short_lists, with_gradient

CHUNK = 2**18  # numbers that are decoded at a time on a CPU, in 4 MiB of memory to work in
GPU_CHUNK = 2**24
MOMENTS = {"exp_avg": True, "exp_avg_sq": False}  # which of them can be negative


class Adam8bit(AdamW):
    """AdamW with both moments in blocks of 8-bit codes.

    `block` numbers share one fp32 maximum (None: all of a tensor); tensors of fewer than `smallest`
    numbers keep AdamW's moments, in fp32. `kind` is "dynamic" or "linear" (code_maps.py). The state
    of a large tensor is `exp_avg_codes` and `exp_avg_sq_codes`, [N] uint8, and `exp_avg_maxima` and
    `exp_avg_sq_maxima`, [N/block]. Raises ValueError for options that make no sense, and
    RuntimeError in a step for sparse or complex numbers.
    """

    def __init__(
        self, params, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.0, *, block: int | None = 256,
        smallest: int = 4096, kind: str = "dynamic",
    ):  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay)
        code_map(kind, True)  # refuses other names
        whole(smallest, "smallest", 0)
        if block is not None:
            whole(block, "block")
        own = {"block": block, "smallest": smallest, "kind": kind}
        self.defaults.update(own)
        for group in self.param_groups:
            for name, value in own.items():
                group.setdefault(name, value)

    def lists(self, parameters: list[Tensor]) -> Iterator[list[Tensor]]:
        """Yield all parameters of one device and dtype that have a gradient as one list."""
        alike: dict[tuple, list[Tensor]] = {}
        for parameter in with_gradient(parameters, type(self).__name__):
            alike.setdefault((parameter.device, parameter.dtype), []).append(parameter)
        yield from alike.values()

    def update(self, group: dict, parameters: list[Tensor]) -> None:
        """Update these parameters: small ones as AdamW does, others in chunks of whole blocks."""
        by_size: tuple[list, list] = [], []
        for parameter in parameters:
            small = parameter.numel() < group["smallest"] and parameter.dtype == torch.float32
            by_size[small].append(parameter)
        large, small_ones = by_size
        for together in short_lists(small_ones):
            super().update(group, together)
        for parameter in large:
            if not self.state[parameter]:
                state = first_state(parameter.numel(), parameter.device, group)
                self.state[parameter].update(state)
        states = [self.state[parameter] for parameter in large]
        for parameter, state, step in zip(large, states, counted(states) if large else ()):
            weights = parameter.contiguous().view(-1)
            update_flat(weights, parameter.grad.reshape(-1), state, group, step)
            if weights.data_ptr() != parameter.data_ptr():  # it lay in memory in another order
                parameter.copy_(weights.view_as(parameter))

    def load_state_dict(self, state_dict: dict) -> None:
        """Load a state dict; codes stay bytes, which PyTorch's own method would make floats."""
        super().load_state_dict(state_dict)
        numbers = [n for group in state_dict["param_groups"] for n in group["params"]]
        parameters = [p for group in self.param_groups for p in group["params"]]
        for number, parameter in zip(numbers, parameters):
            for key, value in state_dict["state"].get(number, {}).items():
                device = value.device if key == "step" else parameter.device
                self.state[parameter][key] = value.to(device, copy=True)


def first_state(
    numel: int, device: torch.device, group: dict, whole_numel: int | None = None
) -> dict:
    """Return the state of `numel` numbers before the first step: both moments are zeros.

    `whole_numel` counts the numbers of the whole parameter where these are a part of it.
    """
    state: dict = {"step": counter()}
    for name, signed in MOMENTS.items():
        numbers = torch.zeros(numel, device=device, dtype=torch.float32)
        if (numel if whole_numel is None else whole_numel) < group["smallest"]:
            state[name] = numbers
        else:
            codes = code_map(group["kind"], signed).to(device)
            encoded = codes.encode(numbers, group["block"] or max(numel, 1))
            state[f"{name}_codes"], state[f"{name}_maxima"] = encoded
    return state


def update_flat(weights: Tensor, gradient: Tensor, state: dict, group: dict, step: float) -> None:
    """Update the numbers of one parameter, [N], and its state, in place."""
    if "exp_avg" in state:
        adam_(weights, gradient.float(), state["exp_avg"], state["exp_avg_sq"], group, step)
        return
    block = group["block"] or weights.numel()
    maps = [code_map(group["kind"], signed).to(weights.device) for signed in MOMENTS.values()]
    blocks = max(1, (CHUNK if weights.device.type == "cpu" else GPU_CHUNK) // block)
    longest = min(blocks * block, len(weights))
    room = torch.empty(4, longest, device=weights.device, dtype=torch.float32)
    for first in range(0, len(state["exp_avg_maxima"]), blocks):
        part = slice(first * block, (first + blocks) * block)
        kept = [
            (state[f"{name}_codes"][part], state[f"{name}_maxima"][first : first + blocks])
            for name in MOMENTS
        ]
        numbers = weights[part], gradient[part].float()
        update_chunk(*numbers, kept, maps, block, group, step, room[:, : len(numbers[0])])


def adam_(
    w: Tensor, g: Tensor, m: Tensor, v: Tensor, group: dict, step: float,
    room: Tensor | None = None,
) -> None:  # fmt: skip
    """Do one step of Adam in place on numbers [N], in PyTorch's order of operations.

    `room` [N] is memory to work in, which is allocated where it is not given.
    """
    beta1, beta2 = group["betas"]
    m.lerp_(g, 1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    if group["weight_decay"]:
        w.mul_(1 - group["lr"] * group["weight_decay"])
    root = torch.sqrt(v, out=room).div_((1 - beta2**step) ** 0.5).add_(group["eps"])
    w.addcdiv_(m, root, value=-group["lr"] / (1 - beta1**step))


def update_chunk(
    weights: Tensor, gradient: Tensor, kept: list[tuple[Tensor, Tensor]], maps: list[CodeMap],
    block: int, group: dict, step: float, room: Tensor,
) -> None:  # fmt: skip
    """Decode the moments of some blocks, step, and encode them again, all in place.

    `room` [4, N] of fp32 is memory to work in. What is written over again and again stays in the
    cache of a CPU, as new memory for each operation would not.
    """
    moments, integers = room[:2], room[2:].view(torch.int32)
    for one, moment, (codes, maxima) in zip(maps, moments, kept, strict=True):
        one.decode(codes, maxima, block, moment, integers[0])
    adam_(weights, gradient, *moments, group, step, room[2])
    for one, moment, out in zip(maps, moments, kept, strict=True):
        one.encode_in_place(moment, block, out, integers)
