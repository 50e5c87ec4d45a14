"""A predicted step of FSDP: by hand, its collectives and bytes, what hides, and what is held."""

import pytest

from lib.predict import step
from lib.predict.data.ddp_step import data_parallel_step
from lib.predict.memory import activations, outputs
from lib.predict.roofline import speeds
from lib.predict.shape import GPTShape, MLPShape
from lib.predict.sharded.fsdp_step import fsdp_step, hidden
from lib.predict.sharded.traffic import of_fsdp
from lib.predict.sharded.units import alive, optimizer_states, units_of
from tests.every import every

FOUR = MLPShape((8, 8, 8, 8, 8), bias=False)  # four units of 256 bytes


class Speeds:
    """A matrix product takes 1 s and all else nothing; a collective takes what it is given."""

    def __init__(self, gather, reduce=None):
        self.seconds = {"all_gather": gather, "reduce_scatter": reduce or gather, "all_reduce": 1.0}

    def compute(self, flop, nbytes):
        return 1.0 if flop else 0.0

    def moving(self, op, ranks, nbytes):
        return self.seconds[op]


def makespan(gather, **more):
    return fsdp_step(FOUR, [1, 1], Speeds(gather), **more).makespan


def test_four_equal_units_by_hand():
    """4 forward products; 7 backward (the first layer's input needs no gradient)."""
    # Without prefetch every gather is waited for; the reduction before it holds the lane.
    late = [("all_gather", 0.0, 0.5), ("all_gather", 1.5, 2.0), ("all_gather", 3.0, 3.5),
            ("all_gather", 4.5, 5.0), ("all_gather", 6.0, 6.5), ("reduce_scatter", 8.5, 9.0),
            ("all_gather", 8.5, 9.5)]  # fmt: skip
    rows = fsdp_step(FOUR, [1, 1], Speeds(0.5), prefetch=0).where(rank=0, lane="comm")
    assert [(row.op, row.start, row.end) for row in rows][:7] == late
    # With prefetch only the first gather of forward, and of backward, is waited for.
    rows = fsdp_step(FOUR, [1, 1], Speeds(0.5), prefetch=1).where(rank=0, lane="comm")
    times = [(row.op, row.start, row.end) for row in rows]
    assert times[:5] == [("all_gather", 0.0, 0.5), ("all_gather", 0.5, 1.0),
                         ("all_gather", 1.5, 2.0), ("all_gather", 2.5, 3.0),
                         ("all_gather", 4.5, 5.0)]  # fmt: skip
    assert makespan(0.5) == 0.5 + 4 + 0.5 + 7 + 0.5
    assert makespan(0.5, prefetch=0) == 4 * 1.5 + 0.5 + 2 + 3 * 0.5 + (3 * 2 - 1) + 3 * 0.5 + 0.5


def test_prefetch_changes_nothing_but_the_time():
    steps = [fsdp_step(FOUR, [1, 1], Speeds(0.5), prefetch=n) for n in range(3)]
    kinds = [sorted((row.op, row.bytes) for row in s.where(lane="comm")) for s in steps]
    assert kinds[0] == kinds[1] == kinds[2]
    assert steps[0].makespan > steps[1].makespan >= steps[2].makespan


@pytest.mark.parametrize(
    "shape", [GPTShape(layers=3, kv_heads=2), GPTShape(layers=3, tied=True), FOUR], ids=str
)
@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("resharded", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_the_rows_are_the_predicted_exchanges_in_their_order(shape, prefetch, resharded, ends):
    more = {"prefetch": prefetch, "resharded": resharded}
    ledger = fsdp_step(shape, [2] * 4, speeds("H100"), ends=ends, **more)
    wanted = [(e.op, e.bytes) for e in of_fsdp(units_of(shape, ends=ends), 4, **more)]
    ops = [row.op for row in ledger.where(rank=0, lane="compute")]
    plain = [op.name for op in step.forward(shape, 2) + step.backward(shape, 2)]
    assert [op for op in ops if op in {"mm", "addmm"}] == [op for op in plain if op.endswith("mm")]
    for rank in range(4):
        rows = sorted(ledger.where(rank=rank, lane="comm"), key=lambda row: row.number)
        assert [(row.op, row.bytes) for row in rows] == wanted


@pytest.mark.parametrize("reduce_bytes", [2, 4])
def test_mixed_precision_gathers_two_bytes_and_keeps_four(reduce_bytes):
    shape, times = GPTShape(layers=3), speeds("H100")
    more = {"param_bytes": 2, "reduce_bytes": reduce_bytes}
    ledger, units = fsdp_step(shape, [2] * 4, times, **more), units_of(shape)
    rows = sorted(ledger.where(rank=0, lane="comm"), key=lambda row: row.number)
    assert [(row.op, row.bytes) for row in rows] == [
        (e.op, e.bytes) for e in of_fsdp(units, 4, **more)
    ]
    kept, held = 4 * sum(unit.share(4) for unit in units), list(alive(units, 4, **more))
    found = {kind: [r.bytes for r in ledger.where(rank=0, lane="memory", op=kind)]
             for kind in ("parameters", "gradients")}  # fmt: skip
    assert max(found["parameters"]) == kept + max(state.whole for state in held)
    assert found["parameters"][-1] == found["gradients"][-1] == kept
    wide = fsdp_step(shape, [2] * 4, times)
    assert ledger.makespan < wide.makespan
    # A cast for each of 10 gathers of a unit, and one for each of 5 shards that arrive in bf16.
    casts = len(ledger.where(rank=0, op="_to_copy"))
    assert casts == 10 + 5 * (reduce_bytes == 2) and not wide.where(op="_to_copy")


def test_hybrid_rows_are_in_two_groups():
    ledger = fsdp_step(FOUR, [1] * 4, speeds("H100"), ranks=2)
    wanted = [(e.op, e.ranks, e.bytes) for e in of_fsdp(units_of(FOUR), 2, replicas=2)]
    rows = ledger.where(rank=3, lane="comm")
    assert sorted((row.op, len(row.members), row.bytes) for row in rows) == sorted(wanted)
    members = {(row.group, row.members) for row in rows}
    assert members == {("shard", (2, 3)), ("replicate", (1, 3))}
    with pytest.raises(ValueError, match="There are 4 ranks; Groups of 3 cannot share them"):
        fsdp_step(FOUR, [1] * 4, speeds("H100"), ranks=3)


def test_a_straggler_holds_everyone_up():
    ledger = fsdp_step(FOUR, [1, 64], speeds("H100"))
    waits = [sum(r.seconds for r in ledger.where(rank=rank, lane="wait")) for rank in (0, 1)]
    assert waits[0] > waits[1]
    ends = [max(r.end for r in ledger.where(rank=rank, op="reduce_scatter")) for rank in (0, 1)]
    assert ends[0] == ends[1]


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_the_memory_rows_are_shards_and_what_is_alive(prefetch):
    shape = GPTShape(layers=3)
    units = units_of(shape)
    ledger = fsdp_step(shape, [2, 2], speeds("H100"), prefetch=prefetch, optimizer="adamw")
    kept = 4 * sum(unit.share(2) for unit in units)
    held = list(alive(units, 2, prefetch=prefetch))
    rows = {kind: [r.bytes for r in ledger.where(rank=1, lane="memory", op=kind)]
            for kind in ("parameters", "gradients", "optimizer")}  # fmt: skip
    assert rows["optimizer"] == [optimizer_states(units, 2, 1)]
    assert max(rows["parameters"]) == kept + max(state.whole for state in held)
    assert rows["parameters"][-1] == rows["gradients"][-1] == kept
    assert every(a != b for a, b in zip(rows["parameters"], rows["parameters"][1:]))


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_activations_come_in_forward_and_go_in_backward(backend):
    """A larger batch of one rank is held by this rank alone; the end has what the start had."""
    shape = GPTShape(layers=3)
    ledger = fsdp_step(shape, [2, 5], speeds("H100"), backend=backend)
    for rank, batch in enumerate([2, 5]):
        rows = ledger.where(rank=rank, lane="memory", op="activations")
        held = [row.bytes for row in rows]
        assert max(held) == activations(shape, batch) + outputs(shape, batch) and held[-1] == 0
        other = [row.bytes for row in ledger.where(rank=rank, lane="memory", op="other")]
        assert other[-1] == 2 * 8 * batch * shape.sequence, "the tokens and their targets"
        computed = ledger.where(rank=rank, lane="compute")
        assert "embedding" in computed[1].op  # before it there are positions and nothing to keep
        begin, end = rows[0].start, rows[-1].end
        assert begin == computed[1].end and end <= computed[-1].end


def test_with_gloo_a_reduce_scatter_has_a_buffer_of_its_own():
    steps = [fsdp_step(FOUR, [1, 1], speeds("H100"), backend=name) for name in ("nccl", "gloo")]
    born = [[row.bytes for row in step.where(rank=0, lane="memory", op="other")] for step in steps]
    pairs = [[b - a for a, b in zip(held, held[1:])] for held in born]
    assert pairs[1].count(256) - pairs[0].count(256) == 4, "a copy of 256 bytes for each unit"


def test_one_rank_computes_what_data_parallel_computes():
    """The same operations, but for copies into flat gradients and the step on shards."""
    shape, times = GPTShape(layers=2), speeds("H100")
    ours, theirs = fsdp_step(shape, [4], times), data_parallel_step(shape, [4], times)
    products = [[(r.op, r.seconds) for r in one if r.op.endswith("mm")] for one in (ours, theirs)]
    assert products[0] == products[1] and products[0]
    assert not ours.where(lane="wait").column("seconds").sum()


def test_at_nvlink_12_equal_units_hide_most_of_their_gathers():
    """Only the first gather of forward and the first of backward have nothing to lie under."""
    shape, times = MLPShape((8192,) * 13, bias=False), speeds("H100")
    late, early = (fsdp_step(shape, [2**14] * 8, times, prefetch=n, itemsize=2) for n in (0, 1))
    assert hidden(late, times) == pytest.approx(0)
    assert hidden(early, times) == pytest.approx(22 / 24) and 22 / 24 >= 0.85
    assert early.makespan < late.makespan
    assert hidden(early, times, "reduce_scatter") == pytest.approx(11 / 12)
    few = fsdp_step(shape, [64] * 8, times, itemsize=2)
    assert hidden(few, times) < 0.85, "a small batch computes too little to hide a gather"


def test_a_step_without_ranks_is_refused():
    with pytest.raises(ValueError, match="A step needs at least one rank."):
        fsdp_step(FOUR, [], speeds("H100"))
