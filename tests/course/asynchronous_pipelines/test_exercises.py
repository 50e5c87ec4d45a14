"""The checkers of chapter 7, from the start state to the solution, and its lessons."""

import pytest
import torch
import torch.distributed as dist

from lib.course.asynchronous_pipelines import exercises as chapter
from lib.course.asynchronous_pipelines import learning, lessons, partitioner
from lib.parallel.pipeline import PipeDream
from lib.predict.pipeline import schedules
from lib.predict.pipeline.cuts import Partition
from lib.predict.pipeline.play import play
from lib.single.models import MLP
from lib.single.train import mean_squares
from tests.every import every


@pytest.fixture
def world(worlds):
    return worlds(4)


# --- predict


def test_the_answers_are_closed_forms():
    answers = {name: answer() for name, answer in chapter.predict.answers.items()}
    p, m, j = 8, 8, 23
    assert answers == {
        "kept_by_stage_2": p - 2,
        "behind_on_stage_7": p - 1,
        "version_of_23": max(j // m - 1, 0),
        "updates_by_23": (j + 1 - p) // m,
    }
    assert chapter.predict.check(**answers).solved
    wrong = chapter.predict.check(**answers | {"version_of_23": 2})
    assert not wrong.solved and "version_of_23: 2 is too much" in wrong.text
    assert chapter.predict.check().text.startswith("Not solved yet: no number is there.")


# --- write


def unbegun(*_): ...


def by_trying(times, stages):
    def slowest(lengths):
        ends = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
        return max(sum(times[a:b]) for a, b in zip(ends, ends[1:]))

    if stages == 1:
        return [len(times)]
    cuts = [
        [first, *by_trying(times[first:], stages - 1)]
        for first in range(1, len(times) - stages + 2)
    ]
    return min(cuts, key=slowest)


def by_counting(times, stages):
    return [len(times) - stages + 1] + [1] * (stages - 1)


def with_an_empty_stage(times, stages):
    return [len(times)] + [0] * (stages - 1)


def of_another_model(times, stages):
    return [1] * stages


def as_text(times, stages):
    return "0:3 | 3:6"


def failing(times, stages):
    return times[100]


def test_a_best_cut_is_accepted():
    assert by_trying([3, 1, 1, 1, 2, 4], 2) == [4, 2]  # the example of the chapter
    assert chapter.write.check(by_trying).solved


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (unbegun, "Not solved yet: `unbegun` returns nothing. Fill in the body of `my_cut`"),
        (by_counting, "returns [5, 1], whose slowest stage takes 8. A cut whose slowest stage "
                      "takes 6 exists."),
        (with_an_empty_stage, "returns [6, 0]: 2 numbers of at least 1 were wanted."),
        (of_another_model, "they add up to 2 layers, and the model has 6."),
        (as_text, "a list of whole numbers was wanted."),
        (failing, "fails: IndexError: list index out of range"),
    ],
)  # fmt: skip
def test_other_cuts_hear_what_is_wrong(attempt, words):
    verdict = chapter.write.check(attempt)
    assert not verdict.solved and words in verdict.text and "write.hint()" in verdict.text


# --- repair


def over_all_ranks(gradients):
    total = gradients.mean(0)
    dist.all_reduce(total)
    return total / 4


def over_the_replicas(gradients):
    total = gradients.sum(0)
    dist.all_reduce(total, group=lessons.replica_group((3, 1)))
    return total / 6


def with_a_mean_too_many(gradients):
    total = gradients.mean(0)
    dist.all_reduce(total, group=lessons.replica_group((3, 1)))
    return total / 6


def test_the_planted_average_over_all_ranks_is_found(world):
    verdict = chapter.repair.check(over_all_ranks, world)
    assert not verdict.solved and "rank 0 differs first" in verdict.text
    assert "repair.hint()" in verdict.text


def test_an_average_over_the_replicas_is_accepted(world):
    assert chapter.repair.check(over_the_replicas, world).solved
    verdict = chapter.repair.check(with_a_mean_too_many, world)
    assert not verdict.solved and "Rank" in verdict.text
    assert chapter.repair.check(unbegun, world).text.startswith("Not solved yet")


# --- plan


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Not solved yet: there is no text yet."),
        ("0:3 x2 | 3:6 x2", "Legal, and its slowest part takes"),
        ("0:4 x4 | 4:6", "It needs 5 ranks, and there are 4."),
        ("0:4 x3 | 4:7", "It has 7 layers, and the model 6."),
        ("0:4 /3 | 4:6", "These ranks take turns: write x for replicas, not /."),
        ("hello", "'hello' is not a stage."),
    ],
)
def test_other_plans_hear_how_far_they_are(text, words):
    verdict = chapter.plan.check(text)
    assert not verdict.solved and words in verdict.text and "plan.hint()" in verdict.text


def test_the_plan_of_the_chapter_is_at_par():
    text = chapter.plan.check("0:4 x3 | 4:6").text
    assert text == "Solved: its slowest part takes 2.67 ms, that of the best 2.67 ms."


# --- lessons


def on_ranks(rule, m, rate, seed):
    schedule = learning.schedule_of("1F1B" if rule == "flush" else rule, m, 4, 12)
    pipe = PipeDream(MLP(lessons.SHAPE, seed).double(), schedule,
                     lambda weights: torch.optim.SGD(weights, rate), rule=rule, every=m,
                     loss=mean_squares)  # fmt: skip
    return pipe.run(*lessons.regression(seed, 12))


RULES = [("stashing", 1), ("vertical sync", 1), ("2BW", 4), ("latest", 1), ("flush", 4)]


@pytest.mark.parametrize(("rule", "m"), RULES)
def test_the_reference_on_one_device_is_the_stream_on_ranks(world, rule, m):
    losses = world.run(on_ranks, rule, m, 0.05, 1)[0]
    way = "1F1B" if rule == "flush" else rule
    together = learning.trained(way, m, (0.02, 0.05), (0, 1), microbatches=12)
    assert list(together) == [(0.02, 0), (0.02, 1), (0.05, 0), (0.05, 1)]
    assert losses == pytest.approx(together[0.05, 1], rel=1e-9)
    schedule = learning.schedule_of(way, m, 4, 12)
    assert losses == pytest.approx(learning.on_one_device(schedule, rule, m, 0.05, 1), rel=1e-9)


def test_with_a_flush_after_each_microbatch_the_reference_is_plain_training():
    model, plain = MLP(lessons.SHAPE).double(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for x, y in zip(*lessons.regression(0, 12)):
        optimizer.zero_grad()
        loss = mean_squares(model(x), y)
        loss.backward()
        optimizer.step()
        plain.append(loss.item())
    flushed = learning.schedule_of("1F1B", 1, 4, 12)
    losses = learning.on_one_device(flushed, "flush", 1, 0.05)
    assert losses == pytest.approx(plain, rel=1e-12)


def test_zero_bubble_steps_learn_what_flushes_learn():
    by_rule = [learning.trained(rule, 8, (0.05,), (0,), microbatches=24)
               for rule in ("1F1B", "ZB-H2")]  # fmt: skip
    assert by_rule[0][0.05, 0] == by_rule[1][0.05, 0]


def test_the_number_of_threads_is_left_as_it_was():
    threads = torch.get_num_threads()
    learning.trained("stashing", 1, (0.05,), (0,), microbatches=4)
    assert torch.get_num_threads() == threads


def test_losses_are_summed_up():
    nan, inf = float("nan"), float("inf")
    rows = [[9.0, 1.0, 1.0], [9.0, 3.0, 3.0], [9.0, 4.0, nan]]
    losses = {(0.1, seed): row for seed, row in enumerate(rows)}
    rows = [[1.0, 1.0, 99.0], [inf, inf, nan], [1.0, 1.0, 1.0]]
    losses |= {(0.2, seed): row for seed, row in enumerate(rows)}
    assert learning.ends(losses, 0.1, last=2) == [1.0, 3.0, inf]
    assert learning.shown([1.0, 2.0, 4.0]) == "2.00"
    assert learning.shown(learning.ends(losses, 0.1, last=2)) == "3.00 (1)"
    assert learning.shown(learning.ends(losses, 0.2, last=2)) == "- (2)"
    assert learning.medians(losses, 0.1, width=1) == {1: 9.0, 2: 3.0, 3: 3.0}
    assert learning.medians(losses, 0.2, width=1) == {1: 1.0, 2: 1.0, 3: 99.0}


def test_the_time_until_a_loss_is_simulated():
    losses = {(0.1, 0): [9.0] * 8 + [1.0] * 8, (0.2, 0): [0.4] * 16}
    assert learning.until(losses, "stashing", 1, 0.5) == (3 * 8 + 9, 0.2)
    assert learning.until(losses, "1F1B", 1, 0.5) == (12 * 8, 0.2)
    assert learning.until(losses, "1F1B", 1, 0.1)[0] == float("inf")
    assert learning.by_time(losses, "1F1B", 8, 0.1) == ([33.0, 66.0], [9.0, 1.0])
    by_rule = {("1F1B", 8): losses, ("stashing", 1): losses}
    reached = "rule, m          time  rate\n1F1B          8    33  0.2\nstashing      1    33  0.2"
    assert learning.times_until(by_rule, 0.5) == reached
    never = "rule, m          time  rate\n1F1B          8   >66  -\nstashing      1   >57  -"
    assert learning.times_until(by_rule, 0.1) == never  # both need longer than all microbatches
    lines = learning.by_time_and_rule(by_rule, 0.5, [("1F1B", 8)], end=50)
    assert lines == {"1F1B, 8": ([33.0], [0.4])}  # at rate 0.2, with which it is the first


def test_a_seed_draws_the_initial_weights_too():
    first = learning.trained("stashing", 1, (0.05,), (0, 1), microbatches=1)
    for seed in (0, 1):
        x, y = (column[0] for column in lessons.regression(seed, 1))
        loss = mean_squares(MLP(lessons.SHAPE, seed).double()(x), y).item()
        assert first[0.05, seed] == pytest.approx([loss], rel=1e-12)


def test_the_deeper_stream_has_as_many_microbatches_in_the_pipe_as_zb_h2():
    for stages, many in ((4, 32), (2, 8), (3, 2)):
        deep = lessons.deep_stream(stages, many)
        assert (deep.stages, deep.microbatches) == (stages, many)
        most = play(deep).peak_microbatches
        assert list(most) == [min(2 * (stages - 1 - s) + 1, many) for s in range(stages)]


def test_recordings_stand_above_one_another(world):
    schedule = schedules.pipedream(4, 12)
    recorded = [world.record(on_ranks, "stashing", 1, 0.05, 0) for _ in range(2)]
    both = lessons.above_one_another(*recorded)
    assert list(both) == ["1F1B", "stream"]
    for one in both.values():
        assert one.ranks == (0, 1, 2, 3) and set(one.column("op")) == {"F", "B"}
        assert len(one) == 2 * 4 * schedule.microbatches


def test_the_updates_before_each_forward_are_counted():
    order = schedules.pipedream(2, 4)
    assert str(order).splitlines() == [
        "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3",
        "1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3",
    ]
    assert lessons.updates_before_forwards(order) == [[0, 0, 1, 2], [0, 1, 2, 3]]


def test_replicas_take_microbatches_in_turn():
    seen = [["a0", "a3"], ["a1", "a4"], ["a2"], ["b0", "b1", "b2", "b3", "b4"]]
    assert lessons.seen_by_stage(seen, (3, 1)) == [["a0", "a1", "a2", "a3", "a4"], seen[3]]


def test_the_traffic_of_a_rank_is_counted(world):
    ledger = world.record(on_ranks, "stashing", 1, 0.05, 0)
    messages = [lessons.recorded_traffic(ledger, rank) for rank in range(4)]
    sends = [ledger.where(lane="comm", rank=rank, op="send") for rank in range(4)]
    expected = [(len(rows), sum(row.bytes for row in rows), 0, 0) for rows in sends]
    assert messages == expected and messages[0][0] == 13  # twelve activations and one form


def test_the_table_of_final_losses():
    nan = float("nan")
    losses = {
        ("1F1B", 16): {(0.1, 0): [1.0] * 8, (0.4, 0): [2.0] * 8},
        ("latest", 1): {(0.1, 0): [3.0] * 8, (0.4, 0): [nan] * 8},
    }
    assert learning.table(losses).splitlines() == [
        "rule, m          0.1  0.4",
        "1F1B          16 1.00 2.00",
        "latest        1  3.00 - (1)",
    ]


def test_without_the_average_the_replicas_differ(world):
    def first_weights():
        pipe = PipeDream(MLP(lessons.SHAPE).double(), schedules.round_robin((3, 1), 12),
                         lambda weights: torch.optim.SGD(weights, 0.05), every=3,
                         loss=mean_squares)  # fmt: skip
        pipe.run(*lessons.regression(0, 12))
        return pipe.weights[0].norm().item()

    same = world.run(first_weights)
    apart = world.run(lessons.without_average, first_weights)
    assert len(set(same[:3])) == 1 and len(set(apart[:3])) == 3


def test_what_a_stage_with_replicas_is_expected_to_take():
    layers, speed = lessons.EIGHT, 20e9
    assert lessons.expected_seconds(Partition.read("0:4 | 4:8"), layers, speed) == 7e-3
    added = (9.5e-3 + 2 * 2 / 3 * 14e6 / speed) / 3  # layers 0 to 6: 9.5 ms, 14 MB
    found = lessons.expected_seconds(Partition.read("0:7 x3 | 7:8"), layers, speed)
    assert found == pytest.approx(added)


def test_measured_seconds_are_of_every_rank(worlds):
    world = worlds(2)
    assert every(speed > 0 for speed in world.run(lessons.bandwidth, 40_000))
    tokens, targets = lessons.text_stream(4)
    assert tokens.shape == targets.shape == (4, 4, 64)
    seconds = world.run(lessons.seconds_each, Partition.read("0:4 | 4:8"), tokens, targets, 1)
    assert every(0 < second < 10 for second in seconds)


def test_a_group_of_replicas_needs_a_stage_for_every_rank(world):
    from lib import RankError

    with pytest.raises(RankError, match="Rank 3 has no stage"):
        world.run(lambda: lessons.replica_group((2, 1)) and None)


def test_the_first_stages_are_those_of_the_partitioner():
    layers = lessons.EIGHT
    table = partitioner.first_stages(layers, speeds=(20, 900), gpus=(4,)).splitlines()
    assert table == ["GPUs        4", "20   GB/s   0:7 x3", "900  GB/s   0:8 x4"]
    free = partitioner.free_messages(layers)
    assert [layer.activation for layer in free] == [0] * 8
    assert [layer.weights for layer in free] == [layer.weights for layer in layers]
