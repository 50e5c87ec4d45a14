"""Recipes with tied weights, plans, ranks in grids and fewer keys than ranks; their gradients."""

import pytest
import torch
import torch.distributed as dist

from lib.parallel.grid import full_gradients, full_state_dict
from lib.parallel.sequence import unshard_sequence
from lib.parallel.sharded import FSDP, ShardedDataParallel
from lib.parallel.tensor import gather_from_group
from lib.parallel.tensor.transform import placements
from lib.predict.shape import GPTShape
from lib.ranks.mesh import mesh
from lib.recipe import context, ddp, fsdp, grid, parallelize, tensor, zero1, zero2
from lib.single import GPT, next_token_loss
from tests.test_recipe import assert_refused, close, odd

SHAPE = GPTShape(width=16, heads=4, kv_heads=2, layers=2, vocabulary=50, sequence=8, tied=True)
STEPS, ADAMW = 3, {"lr": 1e-2, "weight_decay": 0.1}
TP, SP, CP = (tensor, ("tp",), {}), (tensor, ("tp",), {"sequence": True}), (context, ("cp",), {})
ULYSSES = (context, ("cp", "ulysses", "contiguous"), {})
DP = (ddp, ("dp",), {})
DP_TP, DP_CP = {"dp": 2, "tp": 2}, {"dp": 2, "cp": 2}
SMALL = {"bucket_bytes": 2000}
GATHERED = {"*.up": "column", "*.down": "row", "*.linear": "gathered vocabulary",
            "*.tokens": "vocabulary"}  # fmt: skip
RECIPES = {
    "tensor": ({"tp": 4}, [TP]),
    "sequence": ({"tp": 4}, [SP]),
    "tensor, DDP": (DP_TP, [TP, DP]),
    "a plan, DDP": (DP_TP, [(tensor, ("tp", GATHERED), {}), DP]),
    "tensor, ZeRO-1": (DP_TP, [TP, (zero1, ("dp",), SMALL)]),
    "tensor, FSDP": (DP_TP, [TP, (fsdp, ("dp",), {})]),
    "sequence, DDP": (DP_TP, [SP, (ddp, ("dp",), SMALL)]),
    "sequence, ZeRO-2": (DP_TP, [SP, (zero2, ("dp",), {})]),
    "ring, DDP": (DP_CP, [CP, DP]),
    "Ulysses, DDP": (DP_CP, [ULYSSES, (ddp, ("dp",), SMALL)]),
    "ring, ZeRO-1": (DP_CP, [CP, (zero1, ("dp",), {})]),
    "tensor, ring": ({"cp": 2, "tp": 2}, [TP, CP]),
    "grid": ({"row": 2, "column": 2}, [(grid, ("row", "column"), {})]),
}
EIGHT = {
    "tensor, ring, DDP": ({"dp": 2, "cp": 2, "tp": 2}, [TP, CP, DP]),
    "grid, DDP": ({"dp": 2, "row": 2, "column": 2}, [(grid, ("row", "column"), {}), DP]),
    "cube": ({"x": 2, "y": 2, "z": 2}, [(grid, ("x", "y", "z"), {})]),
}


def gpt(shape=SHAPE):
    return GPT(shape).double()


def batch_of(step):
    tokens = torch.randint(50, (8, 9), generator=torch.Generator().manual_seed(step))
    return tokens[:, :-1], tokens[:, 1:]


def spread(axes, methods):
    """The model before and after, of which only the first rank's weights may matter."""
    model = gpt()
    for parameter in model.parameters():
        parameter.data.add_(dist.get_rank())
    made = [method(*args, **options) for method, args, options in methods]
    return model, parallelize(model, mesh(**axes), *made)


def whole(run, model, tensors):
    """Join a rank's shards over tp, by the plain model's names."""
    if not hasattr(model, "tensor_parallel_group"):
        return dict(tensors)
    group, places, joined = model.tensor_parallel_group, placements(model), {}
    for name, shard in tensors.items():
        if shard is None:
            joined[name] = None
            continue
        shards = [torch.empty_like(shard) for _ in range(dist.get_world_size(group))]
        dist.all_gather(shards, shard.contiguous(), group)
        joined[name] = places[name].whole(shards)
    return joined


def trained(axes, methods):
    """Losses, the whole gradients of the last step and the whole weights after it."""
    model, run = spread(axes, methods)
    optimizer, losses = run.optimizer(torch.optim.AdamW, **ADAMW), []
    for n in range(STEPS):
        optimizer.zero_grad()
        losses.append(run.forward_backward(*run.share(batch_of(n))))
        gradients = gradients_of(run, model)
        optimizer.step()
    return losses, gradients, weights_of(run, model), run.data.rank if run.data else 0


def gradients_of(run, model):
    if methods_of(run) == "A grid":
        return full_gradients(model)
    if isinstance(run.model, FSDP):
        return whole(run, model, run.model.full_gradients())
    if isinstance(run.model, ShardedDataParallel):
        return {}  # slices, which the weights after the step need
    return whole(run, model, {name: p.grad for name, p in model.named_parameters()})


def weights_of(run, model):
    if methods_of(run) == "A grid":
        return full_state_dict(model)
    if isinstance(run.model, FSDP):
        return whole(run, model, run.model.full_state_dict())
    return whole(run, model, {name: p.detach().clone() for name, p in model.named_parameters()})


def methods_of(run):
    return run.methods[0].name


def plain():
    model, losses = gpt(), []
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    for n in range(STEPS):
        x, y = batch_of(n)
        optimizer.zero_grad()
        losses.append(next_token_loss(model(x), y))
        losses[-1].backward()
        optimizer.step()
    return losses, dict(model.named_parameters())


def assert_same(answers, name):
    truth, parameters = plain()
    by_share = {share: losses for losses, *_, share in answers}
    for n, loss in enumerate(truth):
        found = [losses[n] for losses in by_share.values()]
        assert close(sum(found) / len(found), loss.detach()), n
    for losses, gradients, weights, share in answers:
        assert losses == by_share[share]
        assert bool(gradients) == ("ZeRO-2" not in name) and parameters.keys() <= weights.keys()
        for key, gradient in gradients.items():
            if key in parameters:  # a tied weight has two names in a state dict
                assert close(gradient, parameters[key].grad), key
        for key, parameter in parameters.items():
            assert close(weights[key], parameter.detach()), key


@pytest.mark.parametrize("name", RECIPES)
def test_three_steps_are_those_of_the_plain_model(worlds, name):
    """Losses, gradients and weights of AdamW in float64 on four ranks."""
    assert_same(worlds(4).run(trained, *RECIPES[name]), name)


@pytest.mark.parametrize("name", EIGHT)
def test_three_axes_train_the_plain_model(worlds, name):
    assert_same(worlds(8).run(trained, *EIGHT[name]), name)


def outputs_of(axes, methods):
    """The logits of this rank's samples, whole, and which samples they are."""
    model, run = spread(axes, methods)
    inputs, _ = run.share(batch_of(0))
    with torch.no_grad():
        logits = run.model(inputs)
    if run.context is not None:
        logits = unshard_sequence(logits, run.context.group, run.context.layout)
    if logits.shape[-1] != SHAPE.vocabulary:
        logits = gather_from_group(logits, group=model.tensor_parallel_group)[
            ..., : SHAPE.vocabulary
        ]
    return logits, run.data.rank


@pytest.mark.parametrize("name", ["tensor, DDP", "tensor, FSDP", "sequence, DDP", "ring, DDP"])
def test_outputs_are_those_of_the_plain_model(worlds, name):
    expected = gpt()(batch_of(0)[0]).detach().chunk(2)
    for logits, share in worlds(4).run(outputs_of, *RECIPES[name]):
        assert close(logits, expected[share])


# --- what is refused


FS = (fsdp, ("dp",), {})
ROW_COLUMN = (grid, ("row", "column"), {})
SUMMED = (tensor, ("tp", {"*.up": "column", "*.down": "row", "*.norm1": "summed"}), {})
SPLIT = (tensor, ("tp", {"*.linear": "vocabulary", "*.tokens": "vocabulary"}), {})
REFUSED = {
    "each rank needs whole rows of logits": (gpt, {"cp": 2, "tp": 2}, [SPLIT, CP]),
    "the hooks that sum the gradients": (gpt, DP_TP, [SP, FS]),
    "FSDP keeps flat shards": (gpt, DP_TP, [SUMMED, FS]),
    "Beside tensor parallelism FSDP takes one axis": (
        gpt, {"dp": 2, "s": 1, "tp": 2}, [TP, (fsdp, ("dp", "s"), {})],
    ),
    "No grid has the axes column, row": (
        gpt, {"row": 2, "column": 2}, [(grid, ("column", "row"), {})],
    ),
    "A grid takes the plain GPT of lib.single, not a": (
        odd, {"row": 2, "column": 2}, [ROW_COLUMN],
    ),
    "Tensor parallelism and A grid both make a tensor": (
        gpt, {"tp": 1, "row": 2, "column": 2}, [TP, ROW_COLUMN],
    ),
    "A grid comes before DDP": (gpt, {"dp": 1, "row": 2, "column": 2}, [DP, ROW_COLUMN]),
    "FSDP of a model whose tensors are tiles": (
        gpt, {"dp": 1, "row": 2, "column": 2}, [ROW_COLUMN, FS],
    ),
    "Context parallelism of a model whose tensors": (
        gpt, {"cp": 1, "row": 2, "column": 2}, [ROW_COLUMN, CP],
    ),
    "matches no module": (gpt, {"tp": 4}, [(tensor, ("tp", {"*.none": "row"}), {})]),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_work_is_refused_before_anything_is_sent(worlds, words):
    assert_refused(worlds(4), words, *REFUSED[words])


def shared_alone():
    _, run = spread({"cp": 4}, [CP])
    with pytest.raises(ValueError, match="a batch is a pair, \\(tokens, labels\\)"):
        run.share(batch_of(0)[0])
    return True


def test_tokens_without_labels_are_refused(worlds):
    assert worlds(4).run(shared_alone) == [True] * 4
