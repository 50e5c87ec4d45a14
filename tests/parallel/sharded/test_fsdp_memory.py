"""The memory of a step of FSDP over time, by kind: recorded beside predicted, to the byte."""

import pytest
import torch

from lib.draw.timelines.stacks import stacks
from lib.parallel.sharded import FSDP
from lib.predict.roofline import speeds
from lib.predict.shape import GPTShape, MLPShape
from lib.predict.sharded.fsdp_step import fsdp_step
from lib.ranks.memory import Memory
from lib.ranks.mesh import mesh
from lib.single import GPT, MLP, mean_squares, next_token_loss

SMALL = GPTShape(vocabulary=64, sequence=8, width=16, heads=2, layers=2)
CHAIN = MLPShape((6, 30, 20, 4))  # 4 ranks do not divide what these layers have
ROWS = 2
NARROW = {"param_dtype": torch.bfloat16}
MIXED = NARROW | {"reduce_dtype": torch.float32}
KINDS = ("parameters", "gradients", "optimizer", "activations", "other")


def counted(shape, options, ends=True, replicas=1, optimizer="adamw", blocks=None):
    """The peak of the second step by kind, the most of each kind, and what is left at the end."""
    gpt = isinstance(shape, GPTShape)
    model = (GPT if gpt else MLP)(shape)
    units = None if ends else list(model.blocks.values())[1:-1]
    if blocks:
        ends = [sum(blocks[: n + 1]) for n in range(len(blocks))]
        model = torch.nn.Sequential(*(model[end - n : end] for n, end in zip(blocks, ends)))
    ranks = {"group_or_mesh": mesh(replicate=replicas, shard=2)} if replicas > 1 else {}
    fsdp = FSDP(model, units=units, **ranks, **options)
    kind = torch.optim.AdamW if optimizer == "adamw" else torch.optim.SGD
    steps, loss = kind(fsdp.parameters(), lr=0.01), next_token_loss if gpt else mean_squares
    for _ in range(2):
        steps.zero_grad()
        if gpt:
            x, y = (torch.ones(ROWS, shape.sequence, dtype=torch.long) for _ in range(2))
        else:
            x, y = torch.ones(ROWS, shape.widths[0]), torch.ones(ROWS, shape.widths[-1])
            y = y.to(options.get("param_dtype"))
        with Memory(fsdp, steps) as memory:
            loss(fsdp(x), y).backward()
            steps.step()
    most = {kind: max((row.bytes for row in memory.rows if row.op == kind), default=0)
            for kind in KINDS}  # fmt: skip
    alive = {kind: nbytes for kind, nbytes in memory.at_peak.items() if nbytes}
    return alive, most, {kind: memory.now[kind] for kind in KINDS}


def predicted(shape, world, options, ends=True, replicas=1, optimizer="adamw", blocks=None):
    """The same of each rank of a predicted step."""
    sizes = {f"{of}_bytes": options[f"{of}_dtype"].itemsize
             for of in ("param", "reduce") if f"{of}_dtype" in options}  # fmt: skip
    ledger = fsdp_step(
        shape, [ROWS] * world.size, speeds("H100"), prefetch=options.get("prefetch", 1),
        resharded=options.get("reshard_after_forward", True), ends=ends, blocks=blocks,
        ranks=world.size // replicas, optimizer=optimizer, backend="gloo", **sizes,
    )  # fmt: skip
    by_rank = []
    for stack in stacks(ledger, range(world.size), 0.0, 10**9, list(KINDS)):
        most, end = (
            dict(zip(KINDS, alive.tolist())) for alive in (stack.alive.max(0), stack.alive[-1])
        )
        by_rank.append((stack.peak.kinds, most, end))
    return by_rank


def is_as_predicted(world, shape, options, **more):
    assert world.run(counted, shape, options, **more) == predicted(shape, world, options, **more)


@pytest.mark.parametrize("shape", [SMALL, CHAIN], ids=["GPT", "MLP"])
@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("reshard", [True, False], ids=["resharded", "kept"])
@pytest.mark.parametrize("dtypes", [{}, NARROW], ids=["float32", "bfloat16"])
def test_the_memory_of_a_step_is_as_predicted(world, shape, prefetch, reshard, dtypes):
    options = {"prefetch": prefetch, "reshard_after_forward": reshard}
    is_as_predicted(world, shape, options | dtypes)


@pytest.mark.parametrize(
    "shape",
    [
        GPTShape(50, 8, 24, heads=6, layers=2, hidden=40, kv_heads=2),
        GPTShape(50, 8, 24, heads=6, layers=2, kv_heads=1, positions="rotary"),
        GPTShape(50, 8, 24, heads=6, layers=2, positions="rotary", tied=True),
        MLPShape((16,) * 4, bias=False),
    ],
    ids=["grouped", "rotary", "tied", "no bias"],
)
@pytest.mark.parametrize("dtypes", [{}, MIXED], ids=["float32", "mixed"])
def test_other_models_hold_what_is_predicted(worlds, shape, dtypes):
    is_as_predicted(worlds(2), shape, dtypes)


@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("reshard", [True, False], ids=["resharded", "kept"])
def test_both_ends_in_the_root_are_held_as_predicted(world, prefetch, reshard):
    options = {"prefetch": prefetch, "reshard_after_forward": reshard}
    is_as_predicted(world, SMALL, options, ends=False, optimizer="sgd")


@pytest.mark.parametrize("blocks", [[3], [1, 2], [2, 1]], ids=str)
def test_units_of_several_blocks_are_held_as_predicted(worlds, blocks):
    """One unit for all holds its weights until the end: its samples need no gradient."""
    is_as_predicted(worlds(2), CHAIN, {}, blocks=blocks)


@pytest.mark.parametrize("dtypes", [{}, MIXED], ids=["float32", "mixed"])
def test_a_mesh_holds_what_is_predicted(worlds, dtypes):
    is_as_predicted(worlds(4), SMALL, dtypes, replicas=2)


def test_tied_weights_with_learned_positions_differ_for_a_moment_only(worlds):
    """The first unit has only positions then, and sends them before its backward is over."""
    shape = GPTShape(50, 8, 24, heads=6, layers=2, tied=True)
    found, wanted = worlds(2).run(counted, shape, {}), predicted(shape, worlds(2), {})
    for (at, most, end), (peak, expected, left) in zip(found, wanted, strict=True):
        assert (at, end) == (peak, left)
        extra = most["other"] - expected["other"]
        assert 0 < extra <= 2 * 4 * shape.vocabulary * shape.width
        assert most | {"other": 0} == expected | {"other": 0}


def test_with_dropout_each_kind_is_as_predicted_and_the_peak_is_near(worlds):
    shape = GPTShape(50, 8, 24, heads=6, layers=2, dropout=0.1)
    found, wanted = worlds(2).run(counted, shape, {}), predicted(shape, worlds(2), {})
    for (at, most, end), (peak, expected, left) in zip(found, wanted, strict=True):
        assert end == left
        for kind in ("parameters", "gradients", "optimizer", "activations"):
            assert most[kind] == expected[kind]
        assert abs(sum(peak.values()) / sum(at.values()) - 1) < 0.1


def in_every_step(times):
    """The different sequences of memory rows in many equal steps."""
    fsdp = FSDP(MLP(CHAIN), **NARROW)
    x, y = torch.ones(ROWS, CHAIN.widths[0]), torch.ones(ROWS, CHAIN.widths[-1])
    found = set()
    for _ in range(times):
        for parameter in fsdp.parameters():
            parameter.grad = None
        with Memory(fsdp) as memory:
            mean_squares(fsdp(x), y.bfloat16()).backward()
        found.add(tuple((row.op, row.bytes) for row in memory.rows))
    return len(found)


def test_a_shard_that_was_cast_is_gone_when_its_gather_is_over(worlds):
    """Gloo's thread drops it a little later, so each step would hold something else."""
    assert worlds(4).run(in_every_step, 60) == [1] * 4
