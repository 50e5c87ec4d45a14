"""Operations in their formats: as autocast has them for the GPT, and where autocast differs."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.overrides import _get_current_function_mode_stack

from lib.predict.shape import GPTShape
from lib.single import GPT, Batches, next_token_loss
from lib.single.precision.mixed import FP32, KEEP, PRODUCTS, Formats, mixed
from lib.single.recompute import recompute
from tests.every import every

SHAPE = GPTShape(width=32, heads=2, layers=2, sequence=32)
formats = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


def explicit_attention(q, k, v, dropout=0.0):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(-1) @ v


def gpt(core=None, tied=False):
    model = GPT(GPTShape(width=32, heads=2, layers=2, sequence=32, tied=tied))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # so that softmax and norms have something to round
    for block in list(model.blocks.values())[1:-1]:
        block.attention.core = core or block.attention.core
    return model


def results(model, inside):
    tokens, targets = Batches(4, SHAPE.sequence)[0]
    with inside:
        loss = next_token_loss(model(tokens), targets)
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


def ours_and_autocasts(dtype, **options):
    torch.manual_seed(0)
    plain = gpt(**options)
    ours = results(mixed(copy.deepcopy(plain), dtype), torch.enable_grad())
    theirs = results(plain, torch.autocast("cpu", dtype))
    return ours, theirs


@formats
def test_the_gpt_is_that_of_autocast_bit_for_bit(dtype):
    ours, theirs = ours_and_autocasts(dtype)
    assert every(map(torch.equal, ours, theirs))
    in_fp32 = results(gpt(), torch.enable_grad())
    assert not torch.equal(ours[0], in_fp32[0])


@formats
def test_a_softmax_by_itself_is_in_fp32_here_and_not_in_autocast_on_the_cpu(dtype):
    """On GPUs autocast widens it too; on the CPU it runs in the format of its input."""
    scores = torch.randn(2, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    with Formats(dtype):
        ours = scores.softmax(-1)
    with torch.autocast("cpu", dtype):
        theirs = scores.softmax(-1)
    assert (ours.dtype, theirs.dtype) == (torch.float32, dtype)
    gpts, autocasts = ours_and_autocasts(dtype, core=explicit_attention)
    assert torch.equal(gpts[0], autocasts[0])  # the next product rounds what softmax did not
    assert not every(map(torch.equal, gpts, autocasts))  # backward has the probabilities in fp32
    plain = gpt(core=explicit_attention)
    left_out = mixed(plain, dtype, keep=set(KEEP) - {"softmax"})
    assert every(map(torch.equal, results(left_out, torch.enable_grad()), autocasts))


@formats
def test_a_weight_used_twice_sums_its_gradients_in_fp32_here(dtype):
    """Autocast rounds a weight once for all its uses, so that their gradients meet in 16 bits."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8, bias=False)

        def forward(self, x):
            return self.linear(self.linear(x))

    torch.manual_seed(0)
    plain, x = Twice(), torch.randn(4, 8)
    ours = mixed(copy.deepcopy(plain), dtype)
    ours(x).sum().backward()
    with torch.autocast("cpu", dtype):
        plain(x).float().sum().backward()
    gradient, theirs = ours.linear.weight.grad, plain.linear.weight.grad
    assert torch.equal(theirs.to(dtype).float(), theirs)
    assert not torch.equal(gradient.to(dtype).float(), gradient)
    torch.testing.assert_close(gradient, theirs, rtol=0.05, atol=0.05)


def test_each_operation_runs_where_the_table_says():
    with Formats(torch.bfloat16) as seen:
        tokens, targets = Batches(2, SHAPE.sequence)[0]
        next_token_loss(gpt()(tokens), targets)
    blocks = 2
    assert seen.operations == {
        ("linear", torch.bfloat16): 4 * blocks + 1,
        ("scaled_dot_product_attention", torch.bfloat16): blocks,
        ("layer_norm", torch.float32): 2 * blocks + 1,
        ("cross_entropy", torch.float32): 1,
    }


def test_a_product_can_be_kept_in_fp32():
    with Formats(torch.bfloat16, keep={*KEEP, "attention"}) as seen:
        gpt()(Batches(2, SHAPE.sequence)[0][0])
    assert seen.operations["scaled_dot_product_attention", torch.float32] == 2


def test_a_module_can_be_kept_in_fp32():
    inputs = {}
    model = gpt()
    model.get_submodule("blocks.3.linear").register_forward_hook(
        lambda module, args, output: inputs.update(head=(args[0].dtype, output.dtype))
    )
    tokens = Batches(2, SHAPE.sequence)[0][0]
    model = mixed(model, torch.bfloat16, keep=(*KEEP, "blocks.3"))
    model(tokens)
    assert inputs["head"] == (torch.float32, torch.float32)
    bare = gpt()
    outputs = mixed(bare, torch.bfloat16)(tokens)
    assert torch.equal(outputs.bfloat16().float(), outputs)  # the head's product was in bf16


def test_weights_and_gradients_stay_in_fp32_and_outputs_leave_in_fp32():
    model = mixed(gpt(), torch.float16)
    tokens, targets = Batches(2, SHAPE.sequence)[0]
    outputs = model(tokens)
    cross_entropy(outputs.flatten(0, 1), targets.flatten()).backward()
    assert outputs.dtype == torch.float32
    assert every(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())


def test_formats_are_left_also_after_an_error():
    model = mixed(gpt(), torch.float16, keep=(*KEEP, "blocks.1"))
    with pytest.raises(IndexError):
        model(torch.full((2, 4), 999))
    assert _get_current_function_mode_stack() == []
    model.get_submodule("blocks.1").mlp = nn.Linear(3, 3)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            model(torch.zeros(2, 4, dtype=torch.long))
    assert _get_current_function_mode_stack() == []
    x = torch.ones(2, 2)
    assert (x @ x).dtype == torch.float32


@formats
@pytest.mark.parametrize("inside", [False, True])
def test_a_block_that_runs_again_in_backward_does_so_in_its_formats(dtype, inside):
    """Also where backward itself runs in the same formats."""
    plain = results(mixed(gpt(), dtype), torch.enable_grad())
    again = mixed(recompute(gpt(), "all"), dtype)
    tokens, targets = Batches(4, SHAPE.sequence)[0]
    loss = next_token_loss(again(tokens), targets)
    with Formats(dtype) if inside else torch.enable_grad():
        loss.backward()
    found = [loss.detach(), *(p.grad for p in again.parameters())]
    assert every(map(torch.equal, found, plain))
    assert _get_current_function_mode_stack() == []


def test_integers_and_fp64_are_left_alone():
    with Formats(torch.float16):
        assert (torch.ones(2, 2).double() @ torch.ones(2, 2).double()).dtype == torch.float64
        assert torch.ones(3, dtype=torch.long).sum().dtype == torch.long


def test_misuse_is_refused_in_words():
    with pytest.raises(ValueError, match="torch.float16 or torch.bfloat16, not in torch.float64"):
        mixed(gpt(), torch.float64)
    with pytest.raises(ValueError, match="keep names 'softmaxx'"):
        mixed(gpt(), torch.float16, keep=("softmaxx",))
    model = mixed(gpt(), torch.float16)
    with pytest.raises(ValueError, match="mixed already"):
        mixed(model, torch.bfloat16)


def test_every_function_of_the_table_has_its_rule_in_autocast_on_cuda():
    """And what PyTorch writes as others that have one; batch_norm and mean have none."""
    listed = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    ruled = {name.removeprefix("aten::").split(".")[0] for name in listed}
    ruled |= {"vector_norm"} & {name.removeprefix("linalg_") for name in ruled}
    composed = {"normalize", "softmin", "cross_entropy"}  # of vector_norm, softmax, log_softmax
    for row, names in (PRODUCTS | FP32).items():
        assert {name.strip("_") for name in names} - ruled - composed <= {"rmatmul", "rpow"}, row
    assert not {"batch_norm", "instance_norm", "mean", "var", "std"} & ruled


def test_autocast_on_a_cpu_has_no_rule_for_layer_norm():
    """There its norms are in fp32 because their inputs are: the residual stream is."""
    listed = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")
    assert not {"aten::layer_norm", "aten::native_layer_norm"} & set(listed)
    x, weight = torch.ones(2, 4, dtype=torch.bfloat16), torch.ones(4, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.nn.functional.layer_norm(x, (4,), weight).dtype == torch.bfloat16
        assert torch.nn.functional.layer_norm(x.float(), (4,)).dtype == torch.float32
