"""Chapter 9's lessons: each table says what its formula or its ranks say."""

import re

import pytest
import torch
import torch.distributed as dist

from lib.course.recomputation import cover, further, lessons, published
from lib.parallel.tensor import tensor_parallel, vocab_parallel_cross_entropy
from lib.predict.recompute import BlockCost, every, none, square_root, use_of
from lib.predict.tensor.memory import published_layer
from lib.single import next_token_loss
from lib.single.recompute import recompute
from tests.every import every as every_one


def numbers(line: str) -> list[float]:
    return [float(found) for found in re.findall(r"\d+\.?\d*", line.replace(",", ""))]


# --- memory


def test_gpt_3_keeps_what_the_published_formula_says():
    layer = 34 * 2048 * 12_288 + 5 * 96 * 2048**2
    gpt_3 = {"width": 12_288, "heads": 96, "sequence": 2048, "batch": 1, "ranks": 1}
    assert published_layer(**gpt_3) == pytest.approx(layer)
    assert round(96 * layer / 1e9) == 275
    assert round(96 * published_layer(**gpt_3 | {"ranks": 8}) / 1e9) == 56


def peaks_of(blocks: int, inside: int, choices) -> dict[int, int]:
    costs = [BlockCost(1, inside, 1.0)] * blocks
    return {k: use_of(every(blocks, k), costs).peak for k in choices}


def test_the_root_of_the_blocks_is_best_where_blocks_hold_their_input_alone():
    dividing = [k for k in range(1, 65) if 64 % k == 0]
    peaks = peaks_of(64, 0, dividing)
    assert min(peaks, key=peaks.get) == 8 and peaks[8] == 15
    assert peaks == {k: (64 // k - 1) + k for k in dividing}  # the chapter's formula
    heavy = peaks_of(64, 14, dividing)
    assert min(heavy, key=heavy.get) == 2  # near √(64/15)
    others = peaks_of(64, 0, range(1, 65))
    assert min(others.values()) >= 14  # a last checkpoint with fewer blocks gains little


def test_the_growth_is_counted_and_predicted_alike():
    for blocks in (4, 16, 64):
        costs = [BlockCost(1, 0, 1.0)] * blocks
        kept, root = (lessons.peak_in_inputs(blocks, policy) for policy in ("none", "sqrt"))
        assert kept == use_of(none(blocks), costs).peak == blocks
        assert root == use_of(square_root(blocks), costs).peak + 1 == 2 * blocks**0.5


def test_scores_grow_with_the_square_and_selective_forgets_them():
    rows = [numbers(row) for row in lessons.scores_table().splitlines()[1:]]
    assert [row[0] for row in rows] == [64, 128, 256]
    for (_, none_1, some_1, _), (_, none_2, some_2, _) in zip(rows, rows[1:]):
        assert none_2 / none_1 > 2.3 and some_2 / some_1 == pytest.approx(2, abs=0.03)


def test_a_large_transformer_needs_one_or_two_blocks_in_a_checkpoint():
    costs = lessons.large_costs()
    peaks = {k: use_of(every(len(costs), k), costs).peak for k in range(1, len(costs) + 1)}
    assert min(peaks, key=peaks.get) == 2 and peaks[5] > 1.7 * peaks[2]
    assert use_of(none(len(costs)), costs).peak / peaks[1] > 10


# --- on ranks


def test_collectives_that_run_again(worlds):
    counted = lessons.counted_collectives(worlds(4))
    rows = [row.split() for row in lessons.collectives_table(counted).splitlines()[1:]]
    counts = {row[-3]: [] for row in rows}
    for row in rows:
        counts[row[-3]].append((int(row[-2]), int(row[-1])))
    assert counts["all_to_all"] == [(48, 72)]  # dispatch and combine of 12 layers once more
    assert counts["reduce_scatter"] == [(14, 14)]
    assert counts["all_gather"][0] == (28, 28)  # FSDP's
    assert (52, 65) in counts["all_reduce"]  # one in each layer, and the embedding's


def in_parts():
    model = tensor_parallel(lessons.gpt())
    inputs, targets = lessons.batch()
    dist.barrier()
    logits = model(inputs)
    dist.barrier()
    loss = vocab_parallel_cross_entropy(logits, targets)
    dist.barrier()
    loss.backward()


def test_where_the_52_all_reduces_are(worlds):
    run = worlds(4).record(in_parts)
    rows = sorted(run.where(rank=0, lane="comm"), key=lambda row: row.start)
    parts = " ".join(row.op for row in rows).split("barrier")[1:]
    assert [part.split().count("all_reduce") for part in parts] == [25, 2, 25]


def test_checkpoints_in_shares_change_no_gradient(worlds):
    runs = [worlds(4).record(lessons.tensor_step, "all", shared) for shared in (False, True)]
    gathers = [lessons.collectives(run)["all_gather"] for run in runs]
    assert gathers == [0, 14] and runs[0].results == runs[1].results
    plain = worlds(4).run(lessons.tensor_step, "none")
    assert plain == runs[0].results and plain[0] > 0


def test_a_step_with_memory_has_its_activations_at_the_peak(worlds):
    peaks = {policy: worlds(1).run(lessons.with_memory, policy)[0] for policy in ("none", "all")}
    assert peaks["none"] > 8 * peaks["all"] > 0


# --- what breaks


def stepped(model):
    inputs, targets = lessons.batch()
    torch.manual_seed(0)
    next_token_loss(model(inputs), targets).backward()
    return [p.grad for p in model.parameters()]


def test_dropout_is_drawn_alike_the_second_time():
    plain = stepped(lessons.gpt_with_dropout())
    again = stepped(recompute(lessons.gpt_with_dropout(), "all"))
    assert every_one(torch.equal(a, b) for a, b in zip(plain, again))
    lines = lessons.folded(ValueError("word " * 40)).splitlines()
    assert len(lines) > 2 and max(map(len, lines)) <= 49


# --- published, and what goes further


def test_published_and_predicted_stand_side_by_side():
    everything, selective = published.one_layer("all", "selective").splitlines()[1:]
    assert numbers(everything) == [7.6, 39, 7.7, 39] and numbers(selective) == [1.3, 7, 0.9, 4]
    assert published.one_layer("all").splitlines()[1:] == [everything]


def test_nested_checkpoints_hold_less_for_more_runs():
    rows = [numbers(row)[-2:] for row in further.nested().splitlines()[1:]]
    held, runs = zip(*rows)
    assert held == (61, 23, 20, 18, 17) and runs[0] == 2 and list(runs) == sorted(runs)


def test_offloading_every_layer_takes_longer_than_computing_it_again():
    rows = {row[:16].strip(): numbers(row[16:]) for row in further.offloads().splitlines()[1:]}
    kept, again = rows["all kept"][0], rows["all again"][0]
    for link in further.LINKS:
        assert not further.layer_is_better_offloaded(link)
        assert rows[f"{link}, all"][0] > again > kept == rows[f"{link}, hidden"][0]
    assert rows["PCIe5, hidden"][2] == 9.0 > rows["PCIe4, hidden"][2] > 0


def test_the_cover_draws_the_predicted_peaks():
    costs = lessons.large_costs()
    for name, plan in {"everything kept": none(34), "each block recomputed": every(34, 1)}.items():
        rows = cover.both()[name].where(lane="memory")
        assert max(row.bytes for row in rows) == use_of(plan, costs).peak
