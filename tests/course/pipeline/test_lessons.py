"""What chapter 6's functions return: bytes kept, messages, times of stages, runs in slow motion."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from lib import RankError
from lib.course.pipeline.bubbles import idle_share
from lib.course.pipeline.lessons import (
    bytes_by_rank,
    check_against,
    gradients_for_w,
    idle_shares,
    in_slow_motion,
    kept_bytes,
    measured_costs,
    median_run,
    messages,
    one_step,
    refusal,
    work_and_idle,
)
from lib.parallel.pipeline import Pipeline, stage_costs
from lib.parallel.pipeline.runtime import _Step
from lib.predict.larger import Larger
from lib.predict.pipeline import schedules as rules
from lib.predict.pipeline.actions import Schedule
from lib.predict.pipeline.play import Costs, play
from lib.predict.shape import GPTShape
from lib.ranks.slow_motion import SlowMotion
from lib.single.batches import Batches
from lib.single.models import GPT
from lib.single.split import SplitBackward
from lib.single.train import next_token_loss
from tests.course.stored_chapter import stored_chapter, text_of

SHAPE = GPTShape(layers=2, width=16, heads=2, sequence=8)
BATCH = Batches(4, sequence=8)[0]


def make_model():
    return GPT(SHAPE)


def test_kept_bytes_are_predicted_from_those_of_a_microbatch(worlds):
    gpipe, one_f_one_b = rules.gpipe(2, 4), rules.one_f_one_b(2, 4)
    of_gpipe = worlds(2).run(kept_bytes, make_model, gpipe, BATCH)
    run = play(one_f_one_b, Costs(activation=[nbytes // 4 for nbytes in of_gpipe]))
    assert worlds(2).run(kept_bytes, make_model, one_f_one_b, BATCH) == list(run.peak_bytes)


@pytest.mark.parametrize("rule", [rules.zb_h1, rules.zb_h2])
def test_kept_bytes_of_a_split_backward_fall_when_its_w_is_done(worlds, rule):
    """Case 32: a rank keeps 2 or 3 of 6 microbatches, and all 6 if a split graph stayed alive."""
    gpipe, split = rules.gpipe(2, 6), rule(2, 6)
    batch = Batches(6, sequence=8)[0]
    of_gpipe = worlds(2).run(kept_bytes, make_model, gpipe, batch)
    run = play(split, Costs(activation=[nbytes // 6 for nbytes in of_gpipe]))
    assert max(run.peak_microbatches) < 6
    assert worlds(2).run(kept_bytes, make_model, split, batch) == list(run.peak_bytes)


def test_what_a_waiting_w_keeps_is_1_69_microbatches_as_the_chapter_says():
    """Two layers: 16 D of activations for each token and layer, and 11 D of gradients."""
    shape = GPTShape(layers=6, width=24, heads=2, sequence=20)
    stage = GPT(shape)[2:4]
    x, gradient = torch.randn(2, 1, 20, 24).unbind()
    activations, gradients = (2 * layer * 24 * 20 * 4 for layer in (16, 11))
    assert (activations, gradients) == (61_440, 42_240)
    assert f"{(activations + gradients) / activations:.2f}" == "1.69"
    halves = SplitBackward(stage(x.requires_grad_()), x)
    assert halves.waiting_bytes == 0  # before I
    halves.inputs(gradient)
    assert halves.waiting_bytes == gradients
    assert gradients_for_w(GPT(shape), rules.zb_h1(4, 8), Batches(8, sequence=20)[0])[1] == 42_240
    halves.weights()
    assert halves.waiting_bytes == 0


def most_gradients(order):
    """Return the most bytes of gradients that wait for a W on this rank, counted after each I."""
    sums, ordinary = [], _Step.input

    def counting(step, stage, microbatch):
        ordinary(step, stage, microbatch)
        sums.append(sum(halves.waiting_bytes for halves, _ in step.alive.values()))

    _Step.input = counting
    try:
        Pipeline(make_model(), order).step(*BATCH)
    finally:
        _Step.input = ordinary
    return max(sums)


@pytest.mark.parametrize("rule", [rules.zb_h1, rules.zb_h2])
def test_gradients_wait_for_their_w_on_real_ranks_as_many_as_predicted(worlds, rule):
    order = rule(2, 4)
    of_each = gradients_for_w(make_model(), order, BATCH)
    run = play(order, Costs(activation=0, kept=of_each))
    assert list(run.peak_bytes) == worlds(2).run(most_gradients, order)
    assert run.peak_bytes[1] == of_each[1] * (2 if rule is rules.zb_h1 else 3)


def test_gradients_of_ranks_are_checked_against_those_of_the_plain_model():
    truth = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0])}
    check = check_against(truth)
    assert check([{"b": truth["b"]}, {"a": truth["a"]}]) == "all 2 gradients are the plain model's"
    for wrong, words in (
        ([{"a": truth["a"]}, {"b": torch.tensor([3.001])}], "of b is not the plain model's."),
        ([{"a": truth["a"]}, {}], "of b is missing in the ranks' results."),
        ([truth, {"c": truth["a"]}], "of c is missing in the plain model."),
    ):
        with pytest.raises(AssertionError, match=words):
            check(wrong)


def test_bytes_by_rank_stand_in_columns():
    text = bytes_by_rank({"GPipe": [245_760, 4], "1F1B": (55_040, 0)})
    assert text == "GPipe  245,760        4\n1F1B    55,040        0"


def test_messages_are_counted_by_size(worlds):
    """Each of 4 microbatches crosses the one border forth and back: 1 · 8 · 16 floats."""
    step = worlds(2).record(one_step, make_model, rules.one_f_one_b(2, 4), BATCH)
    assert "8 × 512 bytes" in messages(step)


def test_measured_costs_are_medians_of_the_rows():
    run = play(rules.gpipe(2, 3), Costs([1, 2], [3, 4], [0.5, 1]))
    costs = measured_costs(run.ledger.where(lane="compute"))
    assert list(costs.forward) == [1, 2] and list(costs.backward) == [3.5, 5]


def test_work_and_idle_time_are_those_of_a_rank_on_average():
    run = play(rules.gpipe(2, 3), Costs([0.001, 0.002], [0.003, 0.004], [0.0, 0.0]))
    rows = run.ledger.where(lane="compute")
    work = 3 * (1 + 3 + 2 + 4) / 2
    idle = 1e3 * run.makespan - work
    columns = f"{1e3 * run.makespan:>7.0f}{work:>7.0f}{idle:>7.0f}"
    assert work_and_idle(rows) == columns


def test_the_median_run_is_a_whole_step(worlds):
    run = median_run(worlds(2), make_model, rules.one_f_one_b(2, 4), BATCH, repeats=3)
    assert len(run) == 2 * 2 * 4 and run.source == "measured"
    assert measured_costs(run).backward[0] > 0


@pytest.mark.quiet
def test_a_step_in_slow_motion_stands_beside_its_prediction():
    speeds = SlowMotion("H100", link="NVLink4", alpha=5e-8, factor=200_000)
    recorded, predicted = in_slow_motion(make_model, rules.one_f_one_b(2, 4), BATCH, speeds)
    assert len(recorded) == 2 * 2 * 4
    assert idle_share(recorded) == pytest.approx(predicted.bubble(), abs=0.1)
    words = idle_shares(recorded, predicted)
    assert words.endswith(f"recorded, {predicted.bubble():.1%} predicted.")


def costs_of_the_chapter(order, sequence=1024):
    """What the stages of chapter 6's slow motion take, with as many tokens in a sample."""
    shape = GPTShape(layers=6, width=24, heads=2, sequence=20)
    wide = GPTShape(layers=6, width=2304, heads=24, sequence=sequence, vocabulary=32_000)
    large = Larger(shape, wide, batch=(8, 8), microbatches=8)
    speeds = SlowMotion("H100", link="NVLink4", factor=100, stands_for=large)
    return stage_costs(GPT(shape), order, *Batches(8, sequence=20)[0], speeds)


def test_zb_h2_gains_over_zb_h1_in_consecutive_steps_alone():
    """Chapter 6: in one step both take 15.51 ms; in sixteen 14.51 ms a step instead of 14.72."""
    costs = costs_of_the_chapter(rules.one_f_one_b(4, 8))
    orders = rules.zb_h1(4, 8), rules.zb_h2(4, 8)
    alone = [f"{1e3 * play(order, costs).makespan:.2f}" for order in orders]
    cleared = replace(costs, cleared=8)  # each step clears the gradients
    runs = [play(rules.repeated(order, 16), cleared).makespan / 16 for order in orders]
    assert alone == ["15.51"] * 2 and [f"{1e3 * step:.2f}" for step in runs] == ["14.72", "14.51"]
    text = text_of(stored_chapter("06-pipeline-bubbles"))
    assert "in one step each takes 15.51 ms." in text
    assert "In sixteen consecutive steps ZB-H2 takes 14.51 ms a step instead of 14.72" in text


def without_additions(costs):
    """The same costs, if W's matrix product itself adds to earlier gradients."""
    short = [w - added for w, added in zip(costs.backward_weight, costs.accumulate)]
    return replace(costs, backward_weight=short, backward=None, accumulate=0)


def test_half_of_the_gain_comes_from_splitting_b_if_w_adds_within_its_product():
    """Chapter 6: without our W's own additions ZB-H1 brings half of what ZB-V does."""
    orders = rules.one_f_one_b(4, 8), rules.zb_h1(4, 8), rules.zb_v(8, 8)
    shares = [
        play(order, without_additions(costs_of_the_chapter(order))).bubble() for order in orders
    ]
    text = text_of(stored_chapter("06-pipeline-bubbles"))
    told = "1F1B would have {:.1%}, ZB-H1 {:.1%} and ZB-V {:.1%}: about half".format(*shares)
    assert told.replace("%", "\u00a0%") in text
    assert (shares[0] - shares[1]) / (shares[0] - shares[2]) == pytest.approx(0.5, abs=0.05)
    assert "and half from the V, most of that from its balance." in text
    h1, v = (play(order, without_additions(costs_of_the_chapter(order))) for order in orders[1:])
    assert 0.5 < (max(h1.work) - max(v.work)) / (h1.makespan - v.makespan) < 1


def test_zb_v_gains_on_zb_h1_by_its_balance_and_its_busiest_rank_waits_longer():
    """Chapter 6: it works for 13.2 of 14.7 ms, and in ZB-H1 for 14.4 of 15.5 ms."""
    orders = rules.zb_h1(4, 8), rules.zb_v(8, 8)
    h1, v = (play(order, costs_of_the_chapter(order)) for order in orders)
    text = " ".join(text_of(stored_chapter("06-pipeline-bubbles")).split())
    assert "In this simulation the balance is its whole advantage (first fold)." in text
    uneven = (f"{100 * (1 - run.work.mean() / run.work.max()):.1f} %" for run in (h1, v))
    assert "*uneven* falls from {} to {}.".format(*uneven) in text
    for name, run in (("ZB-H1 it", h1), ("ZB-V it", v)):
        work, step = 1e3 * max(run.work), 1e3 * run.makespan
        told = f"works for {work:.1f} of {step:.1f} ms, and waits for {step - work:.1f} ms."
        assert f"In {name} {told}" in text
    assert max(h1.work) - max(v.work) > h1.makespan - v.makespan > 0  # so its wait is longer


def test_a_message_of_0_3_takes_slightly_longer_than_one_in_bf16_over_50_gb_a_second():
    text = text_of(stored_chapter("06-pipeline-bubbles"))
    told = "takes slightly longer than a bf16 activation of *See it* over 50 GB/s ({:.2f} of the "
    forward = costs_of_the_chapter(rules.gpipe(4, 8)).forward
    share = (3.4e-6 + 2 * 1024 * 2304 / 50e9) / (sum(forward) / 4)
    assert told.format(share) in text and 0.25 < share < 0.3


def test_the_times_of_stage_3_of_zb_v_are_those_of_the_text():
    """Chapter 6: F, I and W of a stage that is one layer, and the addition that is part of W."""
    costs = costs_of_the_chapter(rules.zb_v(8, 8))
    parts = costs.forward, costs.backward_input, costs.backward_weight, costs.accumulate
    forward, of_input, of_weights, added = (f"{1e6 * each[3]:.0f}" for each in parts)
    text = text_of(stored_chapter("06-pipeline-bubbles"))
    assert f"on stage 3, they take {forward}, {of_input} and {of_weights} µs" in text
    assert f"764 MB at the H100's 3.35 TB/s take {added} µs" in text
    shorter = 1e6 * (costs.backward_weight[3] - costs.accumulate[3])
    assert f"W would take {of_weights} − {added} = {shorter:.0f} µs, 0.66 of I's time" in text
    assert f"{shorter / (1e6 * costs.backward_input[3]):.2f}" == "0.66"


def test_w_takes_a_smaller_part_of_i_where_sequences_are_long():
    """Attention's products have no weights, so their whole backward is in I."""
    text = text_of(stored_chapter("06-pipeline-bubbles"))
    assert "with long sequences W is shorter than I" in text
    assert "Attention's products and functions such as GELU have no weights" in text
    parts = []
    for sequence in (1024, 4096):
        costs = costs_of_the_chapter(rules.zb_v(8, 8), sequence)
        w = costs.backward_weight[3] - costs.accumulate[3]
        parts.append(w / costs.backward_input[3])
    assert 0.7 > parts[0] > 1.2 * parts[1]


def test_pytorchs_1f1b_refuses_fewer_microbatches_than_stages_as_the_chapter_quotes(worlds):
    def too_few():
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        rank, ranks = dist.get_rank(), dist.get_world_size()
        part = GPT(SHAPE)[rank : rank + 1]
        stage = PipelineStage(part, rank, ranks, next(part.parameters()).device)
        Schedule1F1B(stage, n_microbatches=2, loss_fn=next_token_loss)

    words = (
        r"Number of microbatches \(2\) must be greater than or equal to the number of stages \(4\)"
    )
    with pytest.raises(RankError, match=words):
        worlds(4).run(too_few)


def test_a_refusal_has_the_words_of_the_error_in_short_lines():
    rows = [[str(action) for action in row] for row in rules.one_f_one_b(4, 2)]
    with pytest.raises(ValueError, match="legal schedule"):
        refusal(rows)
    rows[1][1:3] = ["1B0", "1F1"]
    with pytest.raises(ValueError, match="Deadlock") as caught:
        Schedule(rows)
    told = refusal(rows)
    assert told.split() == str(caught.value).split()
    assert max(map(len, told.splitlines())) <= 50 < max(map(len, str(caught.value).splitlines()))
    assert told.splitlines()[-1] == str(caught.value).splitlines()[-1]  # the drawing stands
