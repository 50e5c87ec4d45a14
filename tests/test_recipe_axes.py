"""Tensor and context parallelism in recipes: the training of the plain model, and refusals."""

import pytest
import torch
import torch.distributed as dist

from lib.parallel.sharded import FSDP
from lib.parallel.tensor import plain_gradients, to_plain
from lib.predict.pipeline import schedules
from lib.predict.shape import GPTShape
from lib.ranks.mesh import mesh
from lib.recipe import context, ddp, fsdp, parallelize, pipeline, tensor, zero1, zero2
from lib.single import GPT, next_token_loss
from tests.every import every
from tests.test_recipe import assert_refused, odd

SHAPE = GPTShape(width=16, heads=4, kv_heads=2, layers=3, vocabulary=50, sequence=16)
STEPS, ADAMW = 3, {"lr": 1e-2, "weight_decay": 0.1}
TP, SP, CP = (tensor, ("tp",), {}), (tensor, ("tp",), {"sequence": True}), (context, ("cp",), {})
ULYSSES = (context, ("cp", "ulysses"), {})
INNER = (context, ("cp",), {"inner": "ulysses"})
DDP, ZERO1, ZERO2, SHARDED = ((one, ("dp",), {}) for one in (ddp, zero1, zero2, fsdp))
BOTH, TOKENS = {"dp": 2, "tp": 2}, {"dp": 2, "cp": 2}
RECIPES = {
    "tp": ({"tp": 2}, [TP]),
    "sp": ({"tp": 2}, [SP]),
    "cp": ({"cp": 4}, [CP]),
    "tp, DDP": (BOTH, [TP, DDP]),
    "sp, DDP": (BOTH, [SP, DDP]),
    "tp, ZeRO-1": (BOTH, [TP, ZERO1]),
    "tp, ZeRO-2": (BOTH, [TP, ZERO2]),
    "tp outside, DDP": ({"tp": 2, "dp": 2}, [TP, DDP]),
    "cp, DDP": (TOKENS, [CP, DDP]),
    "ulysses, DDP": (TOKENS, [ULYSSES, DDP]),
    "cp, ZeRO-1": (TOKENS, [CP, ZERO1]),
    "cp, ZeRO-2": (TOKENS, [CP, ZERO2]),
    "cp, FSDP over both": (TOKENS, [CP, SHARDED]),
    "ulysses inside a ring": ({"cp": 2, "ulysses": 2}, [INNER]),
    "ulysses inside a ring, DDP": ({"dp": 2, "cp": 2, "ulysses": 2}, [INNER, DDP]),
    "ulysses inside a ring, FSDP over all": ({"dp": 2, "cp": 2, "ulysses": 2}, [INNER, SHARDED]),
    "tp, cp": ({"cp": 2, "tp": 2}, [TP, CP]),
}


def gpt():
    torch.manual_seed(1)
    return GPT(SHAPE).double()


def batch(step, ignored=False):
    draw = torch.Generator().manual_seed(step)
    tokens = torch.randint(50, (4, 17), generator=draw)
    labels = tokens[:, 1:].clone()
    if ignored:  # of the last two samples all but a few labels
        labels[2:, 3 + step :] = -100
    return tokens[:, :-1], labels


def trained(axes, methods, ignored=False):
    """Losses of this rank's shares, the whole weights afterwards, and where its share lies."""
    model = gpt()
    for parameter in model.parameters():
        parameter.data.add_(dist.get_rank())  # all begin with the first's
    made = [method(*args, **more) for method, args, more in methods]
    run = parallelize(model, mesh(**axes), *made)
    optimizer, losses = run.optimizer(torch.optim.AdamW, **ADAMW), []
    for step in range(STEPS):
        optimizer.zero_grad()
        losses.append(run.forward_backward(*run.share(batch(step, ignored))).item())
        optimizer.step()
    split = any(method is tensor for method, _, _ in methods)
    if isinstance(run.model, FSDP):
        weights = run.model.full_state_dict()
    else:
        weights = to_plain(model) if split else model.state_dict()
    return losses, weights, run.data.rank if run.data else 0


def plain(ignored=False):
    model, losses = gpt(), []
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    for step in range(STEPS):
        optimizer.zero_grad()
        tokens, targets = batch(step, ignored)
        loss = next_token_loss(model(tokens), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


UNEQUAL = [name for name in RECIPES if name.startswith(("cp", "ulysses"))]


@pytest.mark.parametrize(
    ("name", "ignored"), [*((name, False) for name in RECIPES), *((name, True) for name in UNEQUAL)]
)
def test_three_steps_are_those_of_the_plain_model(worlds, name, ignored):
    """Losses and all weights after AdamW in float64, whatever the combination.

    Where tokens are split, also with replicas of which one has few labels that count.
    """
    axes, methods = RECIPES[name]
    ranks = torch.Size(axes.values()).numel()
    answers = worlds(ranks).run(trained, axes, methods, ignored)
    losses, weights = plain(ignored)
    by_share = {share: found for found, _, share in answers}
    for step, loss in enumerate(losses):
        found = [share[step] for share in by_share.values()]
        assert sum(found) / len(found) == pytest.approx(loss, rel=1e-9)
    for _, found, _ in answers:
        assert found.keys() == weights.keys()
        close = (torch.allclose(found[key], weights[key], rtol=1e-8, atol=1e-11) for key in weights)
        assert every(close), name


def sharded_matrices():
    """Gradients of one step under FSDP of tensor-parallel matrices, gathered along both axes."""
    model, here = gpt(), mesh(dp=2, tp=2)
    run = parallelize(model, here, tensor("tp"), fsdp("dp"))
    loss = run.forward_backward(*run.share(batch(0))).item()
    with run.model.unshard():
        shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    return loss, run.model.full_gradients(), shapes, here["tp"].rank


def test_fsdp_shards_what_tensor_parallelism_has_left(worlds):
    split = gpt()
    loss = next_token_loss(split(batch(0)[0]), batch(0)[1])
    loss.backward()
    answers = worlds(4).run(sharded_matrices)
    assert sum(answer[0] for answer in answers) / 4 == pytest.approx(loss.item(), rel=1e-9)
    down = split.get_parameter("blocks.1.mlp.down.weight").grad.chunk(2, 1)
    norm = split.get_parameter("blocks.1.norm1.weight").grad
    for _, gradients, shapes, rank in answers:
        assert shapes["blocks.1.mlp.down.weight"] == (16, 32)
        assert torch.allclose(gradients["blocks.1.mlp.down.weight"], down[rank], atol=1e-12)
        assert torch.allclose(gradients["blocks.1.norm1.weight"], norm, atol=1e-12)


def in_stages():
    """Loss and gradients of a pipeline whose stages have split matrices."""
    model, schedule = gpt(), schedules.one_f_one_b(2, 4)
    run = parallelize(model, mesh(pp=2, tp=2), tensor("tp"), pipeline("pp", schedule))
    loss = run.forward_backward(*batch(0)).item()
    named = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return loss, named, dist.get_rank() % 2


def test_a_pipeline_cuts_a_model_whose_matrices_are_split(worlds):
    whole = gpt()
    loss = next_token_loss(whole(batch(0)[0]), batch(0)[1])
    loss.backward()
    seen = set()
    for found, gradients, rank in worlds(4).run(in_stages):
        assert found == pytest.approx(loss.item(), rel=1e-9)
        for name, gradient in gradients.items():
            expected = whole.get_parameter(name).grad
            if name.endswith("mlp.down.weight"):
                expected = expected.chunk(2, 1)[rank]
            if expected.shape == gradient.shape:
                seen.add(name)
                assert torch.allclose(gradient, expected, atol=1e-12), name
    assert {f"blocks.{n}.mlp.down.weight" for n in (1, 2, 3)} <= seen
    assert "blocks.4.norm.weight" in seen


def whole_gradients():
    model = gpt()
    run = parallelize(model, mesh(cp=2, tp=2), tensor("tp"), context("cp"))
    run.forward_backward(*run.share(batch(0)))
    return plain_gradients(model)


def test_gradients_of_tensor_and_context_parallel_ranks_are_whole(worlds):
    model = gpt()
    next_token_loss(model(batch(0)[0]), batch(0)[1]).backward()
    for found in worlds(4).run(whole_gradients):
        for name, parameter in model.named_parameters():
            assert torch.allclose(found[name], parameter.grad, atol=1e-12), name


SCHEDULE = schedules.one_f_one_b(2, 4)
CUT = (pipeline, ("pp", SCHEDULE), {})
REFUSED = {
    "Tensor parallelism comes before DDP: it splits matrices": (gpt, BOTH, [DDP, TP]),
    "Context parallelism comes before DDP: it changes the attention": (gpt, TOKENS, [DDP, CP]),
    "Tensor parallelism comes before A pipeline": (gpt, {"pp": 2, "tp": 2}, [CUT, TP]),
    "Context parallelism sums the gradients": (gpt, {"cp": 2, "pp": 2}, [CP, CUT]),
    "both split the tokens": (gpt, {"cp": 2, "tp": 2}, [SP, CP]),
    "both make a tensor parallelism. Choose one.": (gpt, BOTH, [TP, TP]),
    "Sequence parallelism takes no plan": (
        gpt, {"tp": 4}, [(tensor, ("tp", {"*": "mlp"}), {"sequence": True})],
    ),
    "has no attention of lib.single.models": (odd, {"cp": 4}, [CP]),
    "FSDP shards over both axes together": (
        gpt, {"dp": 2, "cp": 2, "s": 1}, [CP, (fsdp, ("dp", "s"), {})],
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_work_is_refused_before_anything_is_sent(worlds, words):
    assert_refused(worlds(4), words, *REFUSED[words])
