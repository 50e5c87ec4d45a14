"""What the text of chapter 6 says, computed again."""

import re
from ast import literal_eval
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from lib.course.pipeline.exercises import repair
from lib.predict.pipeline import schedules as rules
from lib.predict.pipeline.play import Costs, play
from tests import on_gpus
from tests.course.stored_chapter import shown, stored_chapter, text_of

NOTEBOOK = stored_chapter("06-pipeline-bubbles")
TEXT = text_of(NOTEBOOK).replace("\u00a0", " ")  # a number and its % stay on one line


def said(pattern: str) -> tuple[str, ...]:
    """Return the groups of the one place in the text that fits a pattern."""
    (place,) = re.finditer(pattern, " ".join(TEXT.split()))
    return place.groups()


# --- the rules of the zero-bubble schedules


def split_row(rank: int, m: int, warm: int, lag: int) -> list[str]:
    """Write a row as the text says: `warm` forwards, F and I in turn, a W after `lag` more Is."""
    row = [f"{rank}F{j}" for j in range(min(warm, m))]
    for j in range(m):
        row += [f"{rank}F{j + warm}"] * (j + warm < m) + [f"{rank}I{j}"]
        row += [f"{rank}W{j - lag}"] * (j >= lag)
    return row + [f"{rank}W{j}" for j in range(max(0, m - lag), m)]


@pytest.mark.parametrize(("p", "m"), [(2, 3), (3, 8), (4, 8), (5, 12), (4, 3)])
def test_the_rules_of_zb_h1_and_zb_h2_are_those_of_the_text(p, m):
    assert "rank r first does 2(p − 1 − r) forwards (rank 0 six, in 1F1B three)" in TEXT
    assert "Rank r postpones each W by r Is" in TEXT
    assert "Then F and I alternate, and each W is postponed by 2r Is" in TEXT
    assert "rank 0 does W0 right after I0, rank 3 only after I3" in TEXT
    for rank, (h1, h2) in enumerate(zip(rules.zb_h1(p, m), rules.zb_h2(p, m))):
        after = p - 1 - rank
        assert play(rules.zb_h1(p, m)).peak_microbatches[rank] <= p
        assert list(map(str, h1)) == split_row(rank, m, after, rank)
        assert list(map(str, h2)) == split_row(rank, m, 2 * after, 2 * rank)


def test_one_step_of_zb_h2_shows_what_the_guess_asks_for():
    rows = play(rules.zb_h2(4, 8)).ledger.where(lane="compute")
    for rank in range(4):
        of_rank = list(rows.where(rank=rank))
        begins, ends = min(r.start for r in of_rank), max(r.end for r in of_rank)
        assert (begins, ends) == (rank, 24 + rank)  # so no pause: its work is 8 · 3
    assert play(rules.zb_h2(4, 8)).makespan == play(rules.zb_h1(4, 8)).makespan == 27


def test_where_interleaved_1f1b_stops_being_the_faster_one():
    words = (
        "slower than GPipe if a message takes more than 0.54 of a rank's forward, and slower than "
    )
    assert f"With p = 4 and m = 8, interleaved is {words}1F1B from 1.4 on (both" in TEXT
    assert "with m = 32 it is 2.6." in TEXT
    halves = Costs(0.5, 0.5, 0.5)
    limits = [(8, 0.54, 0), (8, 0.545, 1), (8, 1.35, 1), (8, 1.4, 2), (32, 2.6, 1), (32, 2.65, 2)]
    for m, send, faster in limits:
        thin = play(rules.interleaved(8, m, 2), replace(halves, send=send)).makespan
        whole = [
            play(rule(4, m), Costs(send=send)).makespan for rule in (rules.gpipe, rules.one_f_one_b)
        ]
        assert sum(step < thin for step in whole) == faster


def test_the_last_rank_of_zb_h1_does_its_last_ws_while_gradients_travel_back():
    rows = list(play(rules.zb_h1(4, 8)).ledger.where(lane="compute"))
    last_w = [r.start for r in rows if (r.rank, r.op) == (3, "W") and r.microbatch > 4]
    last_i = [r.start for r in rows if (r.op, r.microbatch) == ("I", 7) and r.rank < 3]
    assert sorted(last_w) == [24, 25, 26] and sorted(last_i) == [23, 24, 25]


@pytest.mark.parametrize(("p", "m"), [(2, 3), (3, 8), (4, 8), (5, 12)])
@pytest.mark.parametrize("times", [(1, 1, 1), (2, 3, 1), (1, 1, 0.5)])
def test_the_time_of_zb_h1_has_the_parts_that_the_text_adds(p, m, times):
    forward, of_input, weights = times
    run = play(rules.zb_h1(p, m), Costs(*times))
    rows = list(run.ledger.where(lane="compute", rank=p - 1))
    (end,) = [row.end for row in rows if (row.op, row.microbatch) == ("I", m - 1)]
    assert sum(row.op == "W" and row.start < end for row in rows) == m - p
    assert min(row.start for row in rows) == (p - 1) * forward
    assert end == (p - 1) * forward + m * (forward + of_input) + (m - p) * weights
    assert run.makespan == end + (p - 1) * of_input + weights
    assert run.makespan == m * sum(times) + (p - 1) * (forward + of_input - weights)
    assert "has done m − p Ws before it ends its last I." in TEXT


def test_a_short_w_leaves_less_to_gain_for_zb_h1():
    shorter = said(r"A step is (\d+) % shorter than 1F1B's, but with T_W = 0.6 only (\d+) %\.")
    for told, weights in zip(shorter, (1, 0.6)):
        costs = Costs(1, 1, weights)
        before, after = (
            play(rule(4, 8), costs).makespan for rule in (rules.one_f_one_b, rules.zb_h1)
        )
        assert told == f"{100 * (1 - after / before):.0f}"


def test_when_rank_0_waits_is_what_the_text_says():
    def waits(schedule):
        rows = sorted(play(schedule).ledger.where(rank=0, lane="compute"), key=lambda r: r.start)
        pairs = zip(rows, rows[1:], strict=False)
        return [(a.end, b.start) for a, b in pairs if b.start > a.end], rows[-1].end

    four, reached, rank_0, end = said(
        r"the four forwards end at (\d), .* reaches rank 0 at (\d), so rank 0 idles for (\d)\. .* "
        r"it ends at 3 \+ 24 = (\d+)\."
    )
    assert waits(rules.zb_h1(4, 8)) == ([(int(four), int(reached))], int(end))
    assert int(reached) - int(four) == int(rank_0) == 3
    idle, _ = waits(rules.one_f_one_b(4, 8))
    assert [b - a for a, b in idle] == [6, 1, 1, 1]
    in_words = said(r"three ranks in 3 · 2 = (\d)\. .* waits (\d) before .* (\d) in all")
    assert in_words == ("6", "1", "9")
    rows = str(rules.zb_h1(4, 8)).replace(",", " ").splitlines()
    for rank in (1, 2, 3):
        assert rows[rank].split()[-rank:] == [f"{rank}W{j}" for j in range(8 - rank, 8)]


# --- memory


def test_a_waiting_w_of_the_paper_keeps_the_share_that_the_text_says():
    """Qi et al. 2023, table 1: 32 sbh for W, sb(34h + 5as) for a microbatch of a layer."""
    scores, with_them, without = map(
        float, said(r"32/\(34 \+ ([\d.]+)\) = ([\d.]+) of a microbatch. .* 32/34 = ([\d.]+) if")
    )
    s, h, a = map(int, said(r"\(s = (\d+), h = (\d+), a = (\d+)\)"))
    assert scores == round(5 * a * s / h, 1)
    assert with_them == round(32 / (34 + 5 * a * s / h), 2) == 0.37
    assert without == round(32 / 34, 2) == 0.94


def test_each_rank_of_zb_v_keeps_about_as_much_as_the_others_in_the_picture():
    assert 'schedule("zb-v", 8, 8,' in "".join(cell.source for cell in NOTEBOOK.cells)
    assert "so all ranks keep about equally much" in TEXT
    kept = play(rules.zb_v(8, 8), Costs(0.5, 0.5, 0.5, activation=1)).peak_bytes
    assert kept == (8, 8, 8, 8)  # thin stages, as 4 microbatches of a whole rank


def test_bytes_with_gradients_are_those_of_the_cell():
    lines = shown(NOTEBOOK, "to_w = [").split("W included\n")[1].splitlines()
    kept = {}
    for line in lines[:4]:
        name, *numbers = line.split()
        kept[name] = [int(number.replace(",", "")) for number in numbers]
    assert kept["GPipe"][1] // 8 == 61_440
    assert kept["ZB-H1"][2] == 61_440 + 3 * (61_440 + 42_240)
    assert f"{kept['ZB-H1'][2] / 61_440:.1f}" == "6.1" and kept["1F1B"][2] == 2 * 61_440
    fullest = max(kept["ZB-H1"]) / max(kept["1F1B"])
    assert (
        said(r"rank of our ZB-H1 keeps ([\d.]+) times the bytes of 1F1B's")[0] == f"{fullest:.1f}"
    )
    beyond = [h2 > plain for h2, plain in zip(kept["ZB-H2"], kept["GPipe"])]
    assert beyond == [False, True, True, True] and "than GPipe on ranks 1 to 3" in TEXT


# --- the card

RULES = rules.gpipe, rules.zb_h2, rules.one_f_one_b, rules.zb_h1
THIN = rules.interleaved, rules.zb_v


def eager(stages, microbatches):
    """1F1B in which rank r begins with 2(p - 1 - r) forwards, and then alternates."""
    rows = []
    for rank in range(stages):
        ahead = min(microbatches, 2 * (stages - 1 - rank))
        row = [f"{rank}F{j}" for j in range(ahead)]
        for j in range(microbatches):
            row += [f"{rank}F{ahead + j}"] * (ahead + j < microbatches) + [f"{rank}B{j}"]
        rows.append(",".join(row))
    return rules.Schedule.read("\n".join(rows), "eager 1F1B")


@pytest.mark.parametrize("m", [1, 4, 7, 8, 16, 64])
@pytest.mark.parametrize("send", [0, 0.1, 0.5, 1])
def test_eager_1f1b_is_as_fast_as_gpipe_and_keeps_seven_microbatches(m, send):
    costs = Costs(send=send, activation=1)
    ours, gpipe = play(eager(4, m), costs), play(rules.gpipe(4, m), costs)
    assert ours.makespan == pytest.approx(gpipe.makespan) and max(ours.peak_bytes) == min(m, 7)
    assert "*Eager 1F1B* begins with 2(p − 1 − r) forwards on rank r." in TEXT
    assert "no more than 7 for this: if no message takes longer than a forward, it is" in TEXT


def test_eager_1f1b_is_slower_than_gpipe_over_links_that_take_two_forwards():
    costs = Costs(send=2)
    assert play(eager(4, 8), costs).makespan > play(rules.gpipe(4, 8), costs).makespan


def test_the_card_compares_the_schedules_as_they_run():
    """Time of a step in a run with free and with long messages, microbatches kept, messages."""
    runs = {
        "1F1B": rules.one_f_one_b(4, 8),
        "GPipe": rules.gpipe(4, 8),
        "eager 1F1B": eager(4, 8),
        "interleaved": rules.interleaved(stages=8, microbatches=8, chunks=2),
        "ZB-H1": rules.zb_h1(4, 8),
        "ZB-V": rules.zb_v(8, 8),
        "ZB-H2": rules.zb_h2(4, 8),
    }
    card = TEXT.split("## One card")[1].split("<details>")[0]
    number = r"([\d.]+)"
    kept = rf"{number}( \+ W)?"
    row = rf"^\| ([\w -]+) \| {number} \({number}\)(?:; tiled {number})? \| {kept} \| (\d+) \|"
    rows = re.findall(row, card, re.M)
    assert [name for name, *_ in rows] == list(runs)
    for name, alone, slow, tiled, told_kept, waiting, messages in rows:
        order, tiles = runs[name], name in ("ZB-V", "ZB-H2")
        assert bool(waiting) == name.startswith("ZB"), "what W needs is kept as well"
        each = order.stages // order.ranks
        many, times = rules.repeated(order, 16), [1 / each] * 3
        free = play(many, Costs(*times)).makespan / 16
        step, long = (f"{play(order, Costs(*times, send=s)).makespan:.3g}" for s in (0, 0.3))
        assert alone == (step if tiles else f"{free:.3g}")
        assert tiled == (f"{free:.3g}" if tiles else "")
        kept = max(play(order, Costs(activation=2 // each)).peak_bytes) / 2
        borders = {1: 3, 2: 6 if name == "ZB-V" else 7}[each]
        told = [slow, told_kept, messages]
        assert told == [long, f"{kept:g}", str(2 * 8 * borders)], name
    assert "each message takes 0.3 of a rank's forward, and its sender computes meanwhile" in TEXT


def test_messages_as_long_as_a_forward_cost_gpipe_and_zb_h2_least():
    told = "cost GPipe and ZB-H2 least: 39 − 33 = 6, and 30 − 27 = 3."
    assert f"Messages as long as a forward {told}" in TEXT
    thin = Costs(0.5, 0.5, 0.5)
    free, long = (
        [
            *(play(rule(4, 8), Costs(send=send)).makespan for rule in RULES),
            *(play(rule(8, 8), replace(thin, send=send)).makespan for rule in THIN),
        ]
        for send in (0, 1)
    )
    lost = [b - a for a, b in zip(free, long)]
    assert free[:2] == [33, 27] and long[:2] == [39, 30]
    assert lost[:2] == [6, 3] and min(lost[2:]) > 6


# --- messages


def test_messages_as_long_as_a_forward_are_slower_in_1f1b_than_in_gpipe():
    gpipe, one_f_one_b = map(int, said(r"the rank computes on, GPipe takes (\d+) and 1F1B (\d+)"))
    assert play(rules.gpipe(4, 8), Costs(send=1)).makespan == gpipe == 39
    assert play(rules.one_f_one_b(4, 8), Costs(send=1)).makespan == one_f_one_b == 49
    free = [play(rule(4, 8)).makespan for rule in (rules.gpipe, rules.one_f_one_b)]
    assert free == [33, 33]


def test_a_sender_that_waits_changes_which_schedule_is_the_fastest():
    def makespan(rule, send, v=1):
        times = (1 / v,) * 3
        return play(rule(4 * v, 8), Costs(*times, send=send, sends_block=True)).makespan

    schedules = {
        "GPipe": (rules.gpipe, 1),
        "1F1B": (rules.one_f_one_b, 1),
        "interleaved": (rules.interleaved, 2),
        "ZB-H1": (rules.zb_h1, 1),
        "ZB-V": (rules.zb_v, 2),
        "ZB-H2": (rules.zb_h2, 1),
    }
    told = {name: makespan(rule, 1.0, v) for name, (rule, v) in schedules.items()}
    words = [f"{name} {time:g}" for name, time in told.items()]
    words[0] = words[0].replace(" ", " takes ")
    assert f"{', '.join(words[:-1])} and {words[-1]}." in TEXT
    assert "both from about 0.4 if a sender waits until its message has arrived" in TEXT
    for name, even in (("GPipe", 0.39), ("1F1B", 0.37)):
        rule = schedules[name][0]
        before, after = (
            makespan(rule, send) - makespan(rules.interleaved, send, 2)
            for send in (even - 0.01, even + 0.01)
        )
        assert before > 0 > after, name


def test_a_message_over_infiniband_takes_190_microseconds():
    size = 1024 * 2304 * 4
    assert f"{size / 1e6:.1f} MB" == "9.4 MB" and f"{size / 50e9 * 1e6:.0f}" == "189"
    assert "(9.4 MB) would take 190 µs instead of 24" in TEXT
    assert round(1e6 * (3.4e-6 + size / 450e9)) == 24


def test_the_example_of_exercise_2_cannot_be_met_without_messages():
    values = said(
        r"x = (\[.*?\]) on rank 0 and x = (\[.*?\]) on rank 1 of two ranks, rank 0 returns "
        r"(\[\[.*?\]\]) and rank 1 returns (\[\[.*?\]\])"
    )
    *inputs, first, second = (torch.tensor(literal_eval(v.replace("−", "-"))) for v in values)
    returned = repair.reference([(x,) for x in inputs])
    for expected, given in zip(returned, (first, second)):
        assert torch.equal(expected, given) and given.any()


# --- two kinds of deadlock


def ends_if_no_send_blocks(rows) -> bool:
    """Carry out whole-backward rows with one stage a rank, where every send returns at once."""
    done, places, last = set(), [0] * len(rows), len(rows) - 1

    def may(stage, kind, j):
        needs = (stage - 1, "F", j) if kind == "F" else (stage + 1, "B", j)
        edge = stage == 0 if kind == "F" else stage == last
        return edge or needs in done

    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            if places[rank] < len(row):
                stage, kind, j = re.fullmatch(r"(\d+)([FB])(\d+)", row[places[rank]]).groups()
                if may(int(stage), kind, int(j)):
                    done.add((int(stage), kind, int(j)))
                    places[rank], moved = places[rank] + 1, True
    return all(place == len(row) for place, row in zip(places, rows))


def test_the_swapped_actions_wait_for_each_other_even_if_no_send_blocks():
    rows = [[str(action) for action in row] for row in rules.one_f_one_b(4, 2)]
    assert ends_if_no_send_blocks(rows)
    rows[1][1:3] = ["1B0", "1F1"]
    assert not ends_if_no_send_blocks(rows)
    assert "not even sends that never block" in TEXT
    assert "Exercise 2 showed such a deadlock" not in TEXT


def in_the_order_of_exercise_2(x):
    """The same order of messages as in exercise 2, with sends that return at once."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    came, back, sends = torch.zeros_like(x), torch.zeros_like(x), []
    if rank < last:
        sends.append(dist.isend(x, rank + 1))
    if rank:
        sends.append(dist.isend(-x, rank - 1))
        dist.recv(came, rank - 1)
    if rank < last:
        dist.recv(back, rank + 1)
    for send in sends:
        send.wait()
    return torch.stack([came, back])


@pytest.mark.skipif(on_gpus.WANTED, reason="NCCL's sends wait for their place in the stream.")
def test_the_deadlock_of_exercise_2_goes_away_if_no_send_blocks(worlds):
    assert repair.check(in_the_order_of_exercise_2, worlds(4)).solved
