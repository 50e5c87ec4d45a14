"""Chapter 8's lessons on ranks, and what its text says of its numbers."""

import re
from functools import partial
from statistics import mean

import pytest
import torch
import torch.distributed as dist

from lib.course.mixture_of_experts import cover, lessons, training, wall_clock
from lib.parallel.expert import expert_parallel
from lib.predict.hardware import gpu
from lib.ranks import RankError, collectives
from lib.ranks.calibrate import calibrate
from lib.ranks.mesh import mesh
from lib.single.experts.balance import LOSSES, squared_variation
from lib.single.experts.gates import Gate
from tests.course.stored_chapter import chapter_fixtures, main_path, minutes_of, shown
from tests.every import every

notebook, text = chapter_fixtures("08-mixture-of-experts")


# --- on ranks


def test_the_experts_of_the_layer_are_its_own():
    layer, x = lessons.layer(), lessons.tokens()
    kept = layer.gate(x).assignments
    expected = torch.zeros_like(x)
    experts = lessons.experts_of(layer)
    for token, expert, weight in zip(*kept[:3]):
        expected[token] += weight * experts[expert](x[token])
    assert torch.allclose(layer(x), expected)


def spread(copies=1):
    here = mesh(dp=copies, ep=dist.get_world_size() // copies)
    replicas = {"replicas": here["dp"].group} if copies > 1 else {}
    model = expert_parallel(lessons.gpt(), here["ep"].group, **replicas)
    return lessons.gathered(model, lessons.step(model, *lessons.own_batch()))


@pytest.mark.parametrize("copies", [1, 2])
def test_a_step_on_ranks_equals_one_device(worlds, copies):
    run = worlds(4).record(spread, copies)
    lines = lessons.compared(run).splitlines()
    assert [line.split()[-1] for line in lines[:3]] == ["True"] * 3
    if copies == 1:
        assert lines[3].split()[-1] == "True" and lines[4].endswith("5,664 of 11,808")


def test_what_differs_is_told(worlds):
    run = worlds(4).record(spread)
    loss, *rest = run.results[2]
    run.results[2] = (loss + 1e-6, *rest)
    assert lessons.compared(run).splitlines()[0].split()[-1] == "False"


def undivided(divide):
    model = expert_parallel(lessons.gpt(), average=False)
    lessons.step(model, *lessons.own_batch())
    for name, p in model.named_parameters():
        if ".experts." not in name:
            dist.all_reduce(p.grad)
        if divide or ".experts." not in name:
            p.grad /= dist.get_world_size()
    return lessons.times_too_large(model)


@pytest.mark.parametrize("divide", [False, True])
@pytest.mark.parametrize("ranks", [2, 4])
def test_experts_that_nobody_divides_are_too_large_by_the_ranks(worlds, ranks, divide):
    times = {"the gate's": 1.0, "an expert's": 1.0 if divide else float(ranks)}
    assert worlds(ranks).run(undivided, divide) == [times] * ranks


def test_two_hops_send_fewer_messages_and_the_same_bytes_between_nodes(worlds):
    flat, hops = (worlds(8).record(lessons.travel, nodes) for nodes in (1, 2))
    assert flat.results == hops.results == [True] * 8
    table = lessons.messages({"flat": flat, "hops": hops}).splitlines()
    assert table[1].split() == ["inside", "between"] * 2
    counts = [[int(n.replace(",", "")) for n in line.split()[1:]] for line in table[2:]]
    assert [row[:2] for row in counts] == [[6, 8], [6, 2]]
    assert counts[0][3] == counts[1][3] and 1.9 < counts[1][2] / counts[0][2] < 2


def test_pytorchs_all_to_all_moves_the_same_rows(notebook):
    assert shown(notebook, "all_to_all_single_autograd(").strip() == str([True] * 4)


def forgot(layer, x):
    rows = layer.gate(lessons.own(x)).assignments.by_expert()
    sent = rows.counts.view(4, -1).sum(-1).tolist()
    return collectives.all_to_all(x[rows.token], sent=sent, received=sent)


def test_different_splits_are_told_in_few_columns(worlds):
    with pytest.raises(RankError) as caught:
        worlds(4).run(forgot, lessons.layer(), lessons.tokens())
    lines = lessons.different_splits(caught.value).splitlines()
    assert lines[2] == "rank  sends to 0 1 2 3   expects from 0 1 2 3"
    assert [" ".join(line.split()) for line in lines[3:]] == [
        "0 9 6 11 6 9 6 11 6",
        "1 8 11 7 6 8 11 7 6",
        "2 9 8 8 7 9 8 8 7",
        "3 6 9 8 9 6 9 8 9",
    ]
    assert "144,96,176,96>144,96,176,96" in caught.value.table  # 9 rows of 16 numbers, and so on


@pytest.mark.quiet
def test_the_step_by_the_clock_is_beside_its_prediction(worlds):
    # A stored calibration may come from a moment when other programs ran; a rerun would read it.
    machine = calibrate(worlds(2), again=True, quiet=True)
    rows = wall_clock.compared(worlds(2), machine, repeats=4)
    assert [row[0] for row in rows] == ["computation", "messages", "whole step"]
    _, predicted, measured = rows[2]
    assert 0.4 < predicted / measured < 1.5


def test_the_cover_is_the_first_step_and_gives_no_guess_away(text, monkeypatch, tmp_path):
    """Nothing is trained in it: the guesses ask for what comes of 200 steps."""
    drawn = []
    routing = cover.routing
    monkeypatch.setattr(cover, "routing", lambda *a, **b: drawn.append(a) or routing(*a, **b))
    cover.write(tmp_path / "cover.png")
    ((table,),) = drawn
    assert table == training.trained(*training.WAYS["no loss"], 0).tables[0]
    load = [sum(column) for column in zip(*table)]
    assert max(load) == load[1] == 62 and f"{62 / 256:.1%}" == "24.2%"
    assert "the most, 62 of 256, go to expert 1" in text
    assert "the busiest has 24.2 % with seed 0" in text


# --- what the text says


def test_the_main_path_is_short(notebook):
    cells, words = main_path(notebook)
    assert cells <= 45 and words <= 2750 and len(notebook.cells) <= 60


def test_the_minutes_are_those_of_the_headings(text):
    main, later = minutes_of(text)
    told = re.search(
        r"main path with exercise 1 takes (\d+) minutes, one class\. Exercises 2 and 3 take (\d+)",
        text,
    )
    assert later == int(told[2]) and 0 <= int(told[1]) - main < 5  # rounded up to five
    assert 0 < main <= 50 and len(re.findall(r"^## .* min\)$", text, re.M)) == 11


def test_the_problem_adds_up(text):
    expert = 3 * 4096 * 14_336
    assert round(expert / 1e6) == 176 and "176 million" in text
    assert round(32 * 2 * expert / 1e9, 1) == 11.3 and "= 11.3 billion" in text
    assert round(46.7 - 32 * 8 * expert / 1e9, 1) == 1.6 and "has 1.6 billion" in text


def test_the_answers_to_the_controls_are_those_of_the_runs(text):
    of = lambda way, seed: training.trained(*training.WAYS[way], seed).tables
    share = lambda table: max(map(sum, zip(*table))) / 256
    for seed, after, before in ((0, "77.0", "24.2"), (1, "99.2", "36.7")):
        run = of("no loss", seed)
        assert [f"{share(run[step]):.1%}" for step in (1, 0)] == [f"{after}%", f"{before}%"]
        assert re.search(rf"{after} %[a-z ,]* {before} %", text)
    balanced = [share(table) for table in of("balance loss", 0)]
    assert max(balanced[:20]) > 0.75 and f"{balanced[120]:.0%}" == "38%" and 120 in training.SHOWN
    seen = [balanced[step] for step in training.SHOWN if step >= 40 and step != 120]
    ends = f"{100 * min(seen):.0f} to {100 * max(seen):.0f} % at the steps shown"
    assert f"From step 40 on it has {ends}, but 38 % at step 120" in text
    table = of("no loss", 0)[-1]
    load = [sum(column) for column in zip(*table)]
    over = [max(n - 40, 0) for n in load]
    assert [e for e, n in enumerate(over) if n] == [2, 4] and sum(n < 40 for n in load) == 6
    assert f"That is {sum(over)} of 256 tokens, {100 * sum(over) / 256:.1f} %" in text
    first, *others = (own[4] for own in table)
    assert f"keeps 40 tokens of rank 0, and drops {first - 40} of rank 0's and all of" in text
    assert every(own > 0 for own in others) and f"expert 2 drops {over[2]} of rank 3's" in text
    assert over[2] < table[3][2]  # so expert 2 drops tokens of the last rank alone


def test_the_two_busiest_experts_have_what_the_text_says(text):
    """Not nearly everything at every step: it is so at the end, and less in the middle."""
    pairs = {}
    for seed in training.SEEDS:
        tables = training.trained(*training.WAYS["no loss"], seed).tables
        loads = [sorted(map(sum, zip(*table))) for table in tables]
        pairs[seed] = [sum(load[-2:]) / 2.56 for load in loads]
    last = {seed: mean(shares[-training.LAST :]) for seed, shares in pairs.items()}
    assert f"have {last[0]:.0f} % of the tokens on average" in text
    ends = f"{last[1]:.1f} and {last[2]:.0f} %"
    assert f"With seeds 1 and 2 the two busiest have {ends}" in text
    assert f"at step 100 of seed 0 the two have {pairs[0][100]:.0f} %" in text
    assert mean(pairs[0][40:110]) < 75


def test_the_favourite_of_seed_0_changes(text):
    tables = training.trained(*training.WAYS["no loss"], 0).tables
    loads = {step: [sum(column) for column in zip(*tables[step])] for step in training.SHOWN}
    favourite = {step: load.index(max(load)) for step, load in loads.items()}
    assert {e for step, e in favourite.items() if 1 <= step <= 100} == {2, 7}
    assert {e for step, e in favourite.items() if step > 100} == {4}
    assert f"in which expert 4 has {100 * loads[199][4] / 256:.0f} %" in text
    assert "In the shown steps from 1 to 100 the favourite was expert 2 or 7" in text
    assert training.Run(tables, []).idle() == 3
    assert "but at the end three experts get almost nothing" in text


def test_the_gate_collapses_less_with_adamw(text):
    adam = partial(torch.optim.AdamW, lr=3e-3)
    runs = (training.trained({}, 0.0, seed, optimizer=adam) for seed in training.SEEDS)
    shares = [round(100 * run.busiest()) for run in runs]
    words = f"AdamW at rate 0.003 the busiest has {min(shares)} to {max(shares)} %"
    assert words in text


@pytest.mark.parametrize(("frozen", "share"), [("experts", 64), ("gate", 57)])
def test_a_part_of_the_collapse_needs_no_learning_of(monkeypatch, text, frozen, share):
    made = training.with_experts

    def partly_frozen(*args, **options):
        model = made(*args, **options)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(f".{frozen}." not in name)
        return model

    monkeypatch.setattr(training, "with_experts", partly_frozen)
    runs = [training.trained({}, 0.0, seed) for seed in training.SEEDS]
    assert round(100 * mean(run.busiest() for run in runs)) == share
    assert re.search(rf"[Ww]ith the {frozen} frozen[a-z ]* {share} %", text)


def test_the_guess_of_one_seed_alone_is_told(text):
    one = training.trained({}, 0.0, 0).busiest()
    assert f"The answer to the first guess is then {100 * one:.0f} %" in text
    assert f"20 steps and three seeds ({100 * one:.0f} % with seed 0 alone)" in text


def test_the_table_of_one_seed_is_that_of_its_runs(text):
    compared = [(way, training.WAYS[way]) for way in training.COMPARED]
    runs = {way: {0: training.trained(*options, 0)} for way, options in compared}
    assert f"```text\n{training.compared(runs)}\n```" in text


# --- what the text says of losses


def decided(idle: int | None = None):
    """A gate's decision for 256 tokens, or for those of them that do not choose one expert."""
    torch.manual_seed(0)
    gate = Gate(16, 8, 1).double()
    torch.nn.init.normal_(gate.weight, std=0.3)
    x = torch.randn(256, 16, dtype=torch.float64)
    if idle is not None:
        x = x[gate(x).scores.argmax(-1) != idle]
    return gate, gate(x)


def test_the_gate_learns_only_by_the_weights_of_the_chosen_two(text):
    """One of the two can only gain what the other loses, and the rest have no gradient."""
    torch.manual_seed(0)
    logits = torch.randn(64, 8, dtype=torch.float64, requires_grad=True)
    weight, chosen = logits.softmax(-1).topk(2)
    (weight / weight.sum(-1, keepdim=True) * torch.randn(64, 2)).sum().backward()
    own = logits.grad.gather(1, chosen)
    assert torch.allclose(own.sum(1), own.new_zeros(64)) and own.abs().min() > 0
    assert logits.grad.scatter(1, chosen, 0.0).abs().max() < 1e-12 and not chosen.requires_grad
    assert "the gate learns only through the weights: if more weight on one of a token's" in text


def test_an_idle_expert_is_pushed_only_through_the_others(text):
    gate, decision = decided(idle=3)
    assert decision.assignments.counts[3] == 0
    LOSSES["importance"](decision).backward()
    assert gate.weight.grad[3].norm() > 0.01  # so it does have a gradient
    sums = torch.tensor([36.0] * 7 + [0.0], dtype=torch.float64, requires_grad=True)
    squared_variation(sums).backward()
    assert sums.grad[:7].abs().max() < 1e-15 and sums.grad[7] < -1e-3
    assert "reaches it through the softmax vanishes once the others are even" in text


def test_the_balance_loss_of_a_collapsed_load_is_e_times_the_favourites_score(text):
    _, decision = decided()
    scores = decision.scores.detach()
    one = scores.new_zeros(len(scores), dtype=torch.long) + 3
    assert torch.allclose(balance(scores, one), 8 * scores[:, 3].mean())
    assert balance(scores, one) < 4  # and so not always E
    each = torch.arange(len(scores)) % 8
    assert torch.allclose(balance(scores, each), scores.new_ones(()))
    assert "it is E times the favourite's mean score, so E at most" in text


def balance(scores, chosen):
    f = torch.bincount(chosen, minlength=8) / len(chosen)
    return 8 * (f * scores.mean(0)).sum()


def test_what_the_text_says_of_its_numbers_is_what_the_cells_printed(notebook, text):
    assert "It is 12.9 billion." in shown(notebook, "active.reveal")
    assert "It is 89 %." in shown(notebook, "training.trainings(world)")
    table = {line[:20].strip(): line[20:].split() for line in
             shown(notebook, "useless.reveal").splitlines()[3:]}  # fmt: skip
    assert table["importance loss"][1] == "1.7" and "one or two experts idle" in text
    drops = shown(notebook, "tables.drops").splitlines()
    assert drops[2].split()[2] == "4.53%" and drops[3].split()[2] == "0.54%"
    assert (
        "drop 4.5 % if each counts its own 64 tokens, and 0.5 % if they count all 256 together"
        in text
    )
    spread = lambda n: round(100 * (7 / n) ** 0.5)
    assert f"{spread(256)} % for 256 tokens, and {spread(64)} % for 64" in text
    times = re.findall(r"^.{16} +([\d.]+)ms", shown(notebook, "tables.who_waits"), re.M)
    even, many, few, balanced, collapsed = map(float, times)
    assert even < many < few < balanced
    assert 2.8 < collapsed / even < 3 and "almost three times as long as an even load" in text
    assert balanced / collapsed < 1 / 2 and "takes less than half as long as without a loss" in text
    assert f"Do not read {balanced} ms as this loss's price" in text
    assert f"which take {few} ms even by chance ({many} ms with 16,384)" in text
    assert "[(32, 16), (34, 16), (34, 16), (28, 16)]" in shown(notebook, "shape_that_arrives")
    row = [line.split() for line in shown(notebook, "different_splits").splitlines()[3:]]
    assert row[0][0] == "0" and row[0][2] == "6" and row[1][0] == "1" and row[1][5] == "8"
    assert "Rank 0 sends 6 rows to rank 1, but rank 1 expects 8" in text
    assert '{"the gate\'s": 1.0, "an expert\'s": 4.0}' in shown(notebook, "left_out")
    ridge = float(gpu("H100").peak["bf16"].value) / float(gpu("H100").memory_bandwidth.value)
    assert f"about {ridge:.0f} FLOP" in text


def test_the_traffic_that_is_drawn_is_symmetric(notebook):
    lines = shown(notebook, "lessons.only_rows(run)").splitlines()
    (first,) = [n for n, line in enumerate(lines) if line.startswith("from")]
    matrix = [re.split(r"\s{2,}", line.strip())[1:5] for line in lines[first + 1 : first + 5]]
    assert [list(column) for column in zip(*matrix)] == matrix
    dispatch = shown(notebook, "shape_that_arrives")
    assert "It is 2,944 bytes." in dispatch and 2944 == (6 + 11 + 6) * 16 * 8
    assert "rows of rank 0 to each rank: [9, 6, 11, 6]" in dispatch
    both = int(lines[first + 1].split()[-1].replace(",", ""))
    assert both == 2 * 2944  # the combine of rank 0 has as many, which is chance
    assert int(lines[first + 2].split()[-1].replace(",", "")) != 2 * 2688


def test_what_the_chapter_prints_fits_a_phone(notebook):
    """49 characters stand beside one another on 360 px."""
    printed = [o.text for c in notebook.cells for o in c.get("outputs", []) if "text" in o]
    assert len(printed) > 12
    assert every(len(line) <= 49 for text in printed for line in text.splitlines())


def test_an_even_load_is_not_the_least_balance_loss(text):
    """Two tokens of four choose expert 0, two expert 3; the unused expert 2 has high scores."""
    scores = torch.tensor([[0.34, 0.33, 0.33, 0.0]] * 2 + [[0.0, 0.0, 0.49, 0.51]] * 2)
    shares = torch.bincount(scores.argmax(1), minlength=4) / 4
    assert (4 * (shares * scores.mean(0)).sum()).item() == pytest.approx(0.85)
    words = "The loss can be below 1 if the experts with the most rows have low mean scores"
    assert words in text


def test_another_count_makes_the_balance_loss_k_times_as_large(text):
    """Hugging Face takes the mean over tokens for each of the k places, and adds up all."""
    decision = lessons.layer().gate(lessons.tokens())
    chosen = decision.scores.topk(2).indices
    by_place = torch.nn.functional.one_hot(chosen, 8).double().mean(0)  # [k, E]
    theirs = 8 * (by_place * decision.scores.mean(0)).sum()
    assert torch.allclose(theirs, 2 * LOSSES["balance"](decision))
    assert "Their f adds up to k over the experts, and ours to 1" in text


def test_the_pieces_of_rank_0_are_those_of_the_printed_counts(notebook, text):
    rows = re.findall(r"\[([\d, ]+)\]", shown(notebook, "counts_of_all"))
    (own, *others) = ([int(n) for n in row.split(",")][:2] for row in rows)
    pieces = [f"{own[0]} and {own[1]} rows of its own"]
    pieces += [f"then {a} and {b} from rank {rank}" for rank, (a, b) in enumerate(others, 1)]
    line = [int(n) for n in rows[0].split(",")]
    between = " | ".join(f"{a} {b}" for a, b in zip(line[::2], line[1::2]))
    first, second, third, last = (a + b for a, b in zip(line[::2], line[1::2]))
    assert f"{between}, is `between[0]`, and the sums" in text
    assert f"sums {first}, {second}, {third} and {last} are `sent`. The first {first} rows" in text
    assert len(pieces) == 4 and f"these are {', '.join(pieces[:2])}, and so on." in text
