"""Schedules as PyTorch orders and reads them, and spoiled ones, which are told apart."""

import random
from unittest import mock

import pytest
from torch.distributed.pipelining import schedules as torch_schedules
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from lib.predict.pipeline import schedules as rules
from lib.predict.pipeline.actions import Schedule, ScheduleError
from lib.predict.pipeline.play import play

# --- PyTorch's own


def pytorch(name, ranks, microbatches, per_rank=None):
    """The computing order of a schedule class of torch.distributed.pipelining, as ours."""
    ops = get_schedule_ops(name, ranks, microbatches, per_rank)
    rows = [[a for a in row if a is not None and a.is_compute_op] for row in ops]
    return Schedule([list(map(str, row)) for row in rows])


def executed_1f1b(ranks, microbatches):
    """What torch's Schedule1F1B really does on each rank; its table lacks an F on the last."""
    return Schedule([executed(rank, ranks, microbatches) for rank in range(ranks)])


def executed(rank, ranks, microbatches):
    row = []
    stage = mock.MagicMock(stage_index=rank, num_stages=ranks, is_last=False)
    for ops in ("fwd_recv", "fwd_send", "bwd_recv", "bwd_send"):
        getattr(stage, f"get_{ops}_ops").return_value = []
    stage.forward_one_chunk.side_effect = lambda j, *_, **__: row.append(f"{rank}F{j}")
    stage.backward_one_chunk.side_effect = lambda j, *_, **__: row.append(f"{rank}B{j}")
    schedule = torch_schedules.Schedule1F1B(stage, microbatches, loss_fn=lambda *_: None)
    with mock.patch.object(schedule, "_initialize_stage"):
        schedule._step_microbatches([()] * microbatches, [{}] * microbatches, losses=None)
    return row


@pytest.mark.parametrize("ranks", range(2, 9))
@pytest.mark.parametrize("microbatches", [1, 3, 8, 20])
def test_the_order_is_pytorchs(ranks, microbatches):
    m = microbatches
    assert rules.gpipe(ranks, m) == pytorch("GPipe", ranks, m)
    if m >= ranks:
        assert rules.one_f_one_b(ranks, m) == executed_1f1b(ranks, m)
    assert rules.zb_v(2 * ranks, m) == pytorch("ZBVZeroBubble", ranks, m)
    for v in (2, 3):
        assert rules.breadth_first(v * ranks, m, v) == pytorch("LoopedBFS", ranks, m, v)
        if m % max(1, m // ranks) == 0:
            ours = rules.interleaved(v * ranks, m, v)
            assert ours == pytorch("Interleaved1F1B", ranks, m, v)
        else:
            with pytest.raises(ValueError, match="rounds cannot share them equally"):
                rules.interleaved(v * ranks, m, v)
            with pytest.raises(ValueError, match="multiple of the number of rounds"):
                pytorch("Interleaved1F1B", ranks, m, v)
    if m >= 2 * ranks:
        assert rules.dualpipe_v(2 * ranks, m) == pytorch("DualPipeV", ranks, m)


def test_pytorchs_table_of_1f1b_lacks_the_first_forward_of_the_last_rank():
    """Why `executed_1f1b` does not read that table; when this fails, PyTorch has mended it."""
    last = [str(a) for a in get_schedule_ops("1F1B", 4, 8)[3] if a is not None]
    assert "3F1" in last and "3F0" not in last


def test_1f1b_with_fewer_microbatches_than_stages_is_ours_alone():
    with pytest.raises(ValueError, match="must be greater than"):
        executed_1f1b(4, 3)
    assert play(rules.one_f_one_b(4, 3)).makespan == 3 * (3 + 3)


def test_pytorch_reads_our_csv(tmp_path):
    path = tmp_path / "zb_v.csv"
    path.write_text(str(rules.zb_v(8, 8)))
    stage = mock.MagicMock(group_size=4, group_rank=0, num_stages=8, submod=None)
    runtime = torch_schedules._PipelineScheduleRuntime([stage, stage], 8)
    runtime._load_csv(str(path))
    ours = [[str(a) for a in rules.zb_v(8, 8)[rank]] for rank in range(4)]
    theirs = [
        [str(a) for a in runtime.pipeline_order_with_comms[rank] if a.is_compute_op]
        for rank in range(4)
    ]
    assert theirs == ours
    runtime.pipeline_order = {rank: [None, *row] for rank, row in runtime.pipeline_order.items()}
    runtime._dump_csv(str(path), format="compute_only")  # with idle cells, as its generators have
    assert path.read_text().startswith(",") and Schedule.read(path.read_text()) == rules.zb_v(8, 8)


# --- whatever is written, the answer is a schedule or a sentence


def possible(rows):
    """Whether ranks could carry the rows out, by carrying them out; for tests alone."""
    cells = [cell for row in rows for cell in row]
    stages = 1 + max(cell.stage for cell in cells)
    microbatches = 1 + max(cell.microbatch for cell in cells)
    homes = {(cell.stage, rank) for rank, row in enumerate(rows) for cell in row}
    if not all(rows) or len(homes) != stages or len(set(cells)) != len(cells):
        return False
    for s in range(stages):
        for j in range(microbatches):
            kinds = "".join(sorted(c.kind for c in cells if (c.stage, c.microbatch) == (s, j)))
            if kinds not in ("BF", "FIW"):
                return False
    done, at, moved = set(), [0] * len(rows), True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            if at[rank] == len(row):
                continue
            s, kind, j = row[at[rank]]
            needs = {"F": [(s - 1, "F")], "W": [(s, "I")]}.get(kind, [(s, "F"), (s + 1, "BI")])
            if all(
                not 0 <= stage < stages or any((stage, k, j) in done for k in letters)
                for stage, letters in needs
            ):
                done.add((s, kind, j))
                at[rank] += 1
                moved = True
    return len(done) == len(cells)


def spoiled(rng):
    """Rows of a good schedule with one to three cells moved, swapped or renamed."""
    rule = rng.choice([rules.gpipe, rules.one_f_one_b, rules.interleaved, rules.zb_h1, rules.zb_v])
    rows = [list(row) for row in rule(4, rng.randint(1, 4))]
    for _ in range(rng.randint(1, 3)):
        row = rng.choice([row for row in rows if row])
        at, other = rng.randrange(len(row)), rng.randrange(len(row))
        match rng.randrange(5):
            case 0 | 1:
                row[at], row[other] = row[other], row[at]
            case 2:
                row.insert(other, row.pop(at))
            case 3:
                row[at] = row[at]._replace(kind=rng.choice("FBIW"))
            case 4:
                rng.choice(rows).append(row.pop(at))
    return rows


@pytest.mark.parametrize("seed", range(20))
def test_a_spoiled_schedule_is_told_apart_from_a_good_one(seed):
    rng = random.Random(seed)
    for rows in [spoiled(rng) for _ in range(20)]:
        if possible(rows):
            assert [list(row) for row in Schedule(rows)] == rows
        else:
            with pytest.raises(ScheduleError) as caught:
                Schedule(rows)
            assert caught.value.sentence.endswith(".")
