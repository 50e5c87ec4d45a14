"""Chapter 12's checkers, from the start state over mistakes to the solution, and its text."""

import re
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from lib.course.sequence_parallel import exercises as chapter
from lib.course.sequence_parallel import lessons
from lib.parallel import sequence
from lib.parallel.sequence import merge as library_merge
from lib.predict import hardware
from lib.predict.sequence.hiding import tokens_to_hide
from lib.predict.sequence.layout import blocks_of
from lib.predict.sequence.traffic import of_layer
from lib.ranks import collectives
from tests.course.stored_chapter import main_path, shown, stored_chapter
from tests.every import every


@pytest.fixture
def world(worlds):
    return worlds(4)


@pytest.fixture(scope="module")
def notebook():
    return stored_chapter("12-sequence-parallel")


# --- predict


def test_the_predicted_bytes_are_those_of_a_closed_form():
    tokens, head = 131_072 // 16, 8192 // 64
    right = {"ring": 15 * 2 * 8 * head * tokens * 2 / 1e6,
             "ulysses": 15 / 16 * (64 + 2 * 16 + 64) * head * tokens * 2 / 1e6}  # fmt: skip
    assert chapter.predict.check(**right).solved
    assert chapter.predict.answers == pytest.approx(right, rel=1e-3)
    uncopied = 15 / 16 * (64 + 2 * 8 + 64) * head * tokens * 2 / 1e6
    assert not chapter.predict.check(**right | {"ulysses": uncopied}).solved
    assert chapter.predict.check().text.startswith("Not solved yet")


# --- write


def unbegun(out_a, log_sum_a, out_b, log_sum_b): ...


def merged(out_a, log_sum_a, out_b, log_sum_b):
    share = torch.sigmoid(log_sum_b - log_sum_a).unsqueeze(-1)
    return out_a + share * (out_b - out_a), torch.logaddexp(log_sum_a, log_sum_b)


def weighted(out_a, log_sum_a, out_b, log_sum_b):
    """Right too: exp of differences from the new log_sum."""
    whole = torch.maximum(log_sum_a, log_sum_b)
    whole = whole + ((log_sum_a - whole).exp() + (log_sum_b - whole).exp()).log()
    a, b = ((part - whole).exp().unsqueeze(-1) for part in (log_sum_a, log_sum_b))
    return a * out_a + b * out_b, whole


def overflowing(out_a, log_sum_a, out_b, log_sum_b):
    a, b = log_sum_a.exp().unsqueeze(-1), log_sum_b.exp().unsqueeze(-1)
    return (a * out_a + b * out_b) / (a + b), (log_sum_a.exp() + log_sum_b.exp()).log()


def halved(out_a, log_sum_a, out_b, log_sum_b):
    return (out_a + out_b) / 2, torch.logaddexp(log_sum_a, log_sum_b)


def larger(out_a, log_sum_a, out_b, log_sum_b):
    b = log_sum_b > log_sum_a
    return torch.where(b.unsqueeze(-1), out_b, out_a), torch.where(b, log_sum_b, log_sum_a)


def swapped(out_a, log_sum_a, out_b, log_sum_b):
    share = torch.sigmoid(log_sum_a - log_sum_b).unsqueeze(-1)
    return out_a + share * (out_b - out_a), torch.logaddexp(log_sum_a, log_sum_b)


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_merge(worlds, ranks):
    world = worlds(ranks)
    assert chapter.write.check(unbegun, world).text.startswith("Not solved yet")
    for right in (merged, weighted):
        assert chapter.write.check(right, world).solved
    for wrong in (overflowing, halved, larger, swapped):
        verdict = chapter.write.check(wrong, world)
        assert not verdict.solved and "With 2 blocks, rank 0 differs first" in verdict.text
        others = "Rank 1 differs too." if ranks == 2 else "Ranks 1, 2 and 3 differ too."
        assert others in verdict.text, "no rank may be right by chance"


def by_the_library(out_a, log_sum_a, out_b, log_sum_b):
    out, log_sum = out_a.clone(), log_sum_a.clone()
    library_merge(out, log_sum, out_b, log_sum_b)
    return out, log_sum


def in_place(*all_of):
    sequence.merge(*all_of)
    return all_of[:2]


@pytest.mark.parametrize("attempt", [by_the_library, in_place])
def test_a_merge_that_calls_the_library_is_refused(world, attempt, notebook):
    assert "without the library's `merge`" in prose(notebook)
    verdict = chapter.write.check(attempt, world)
    assert not verdict.solved and not chapter.write.solved
    assert f"`{attempt.__name__}` calls the library's `merge`" in verdict.text
    assert chapter.write.check(merged, world).solved, "it may be tried again"


def test_the_shares_of_two_parts_are_those_of_the_worked_example(notebook):
    text = prose(notebook)
    assert "* out = 3/4 · out_a + 1/4 · out_b,\n* log_sum = log 4," in text
    a, b = (torch.tensor([[1.0]]), torch.tensor([3.0])), (torch.tensor([[5.0]]), torch.ones(1))
    out, log_sum = merged(a[0], a[1].log(), b[0], b[1].log())
    torch.testing.assert_close(out, 3 / 4 * a[0] + 1 / 4 * b[0])
    torch.testing.assert_close(log_sum, torch.tensor([4.0]).log())


def test_what_a_merge_leaves_out_is_named(world):
    verdicts = {
        "out": chapter.write.check(lambda *all_of: merged(*all_of)[0], world).text,
        "stale": chapter.write.check(lambda *all_of: (merged(*all_of)[0], all_of[1]), world).text,
    }
    assert "it returned is a tensor of shape [2, 4, 8], not a tuple of 2" in verdicts["out"]
    assert "log_sum is 80" in verdicts["stale"] and "With 2 blocks" in verdicts["stale"]


@pytest.mark.parametrize("number", [2, 3])
def test_no_block_has_almost_all_or_almost_none_of_a_denominator(number):
    """Else the larger of two results would pass for their mean."""
    for q, keys, values in chapter.write.inputs(8, number):
        blocks = chapter.blocks_of(q, keys, values)
        shares = torch.stack([log_sum for _, log_sum in blocks]).softmax(0)
        assert shares.min() > 0.1 and shares.max() < 0.9
        assert every(log_sum.exp().isinf().all() for _, log_sum in blocks)


# --- repair


def mean_of_means(logits, labels):
    loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
    dist.all_reduce(loss)
    return loss / dist.get_world_size()


def mean_of_all(logits, labels):
    total = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    number = (labels != -100).sum()
    total = collectives.all_reduce(total)
    dist.all_reduce(number)
    return total / number


def weighted_means(logits, labels):
    """Right unless a rank has no label: the mean of nothing is nan."""
    number = (labels != -100).sum()
    total = cross_entropy(logits.flatten(0, 1), labels.flatten()) * number
    dist.all_reduce(total)
    dist.all_reduce(number)
    return total / number


def test_a_loss_that_is_averaged_by_rank(world):
    start = chapter.repair.check(mean_of_means, world)
    assert not start.solved and "With 10 tokens on each rank, rank 0 differs first" in start.text
    solved = "for 10 tokens on each rank and 25 tokens on each rank."
    assert chapter.repair.check(mean_of_all, world).text.endswith(solved)
    empty = chapter.repair.check(weighted_means, world)
    assert not empty.solved and "With 25 tokens on each rank" in empty.text and "nan" in empty.text


def detached(logits, labels):
    """Right but for backward, which does nothing."""
    return mean_of_all(logits.detach(), labels)


def reduced_twice(logits, labels):
    """Right but for backward: that of `copy` sums the gradients of all ranks again."""
    total = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    number = (labels != -100).sum()
    dist.all_reduce(number)
    return collectives.all_reduce(collectives.copy(total)) / number


@pytest.mark.parametrize("attempt", [detached, reduced_twice])
def test_a_loss_with_a_wrong_gradient_is_not_solved(worlds, attempt):
    verdict = chapter.repair.check(attempt, worlds(2))
    assert not verdict.solved and not chapter.repair.solved
    assert verdict.text.startswith("Not yet. The loss is right, but its gradient is not.")
    assert "the gradient of its logits is" in verdict.text and "repair.hint()" in verdict.text


# --- a layout for packed documents


def test_the_layout_is_judged_against_par():
    assert chapter.pack.check().text.startswith("Not solved yet")
    zigzag = chapter.pack.check([0, 1, 2, 3, 3, 2, 1, 0])
    assert (
        not zigzag.solved and "1,278,464 scores; in the best layout it has 1,252,096" in zigzag.text
    )
    assert chapter.pack.check([0, 0, 1, 2, 3, 1, 3, 2]).solved
    assert not chapter.pack.check([0] * 8).solved
    assert sum(lessons.chunk_scores()) == sum(n * (n + 1) // 2 for n in (700, 800, 100, 2496))


# --- what the text says


def prose(notebook) -> str:
    return "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")


def test_the_minutes_are_those_of_the_headings(notebook):
    found = re.findall(r"^## (.*) \((\d+) min\)$", prose(notebook), re.M)
    minutes = [(title, int(n)) for title, n in found]
    later = sum(n for title, n in minutes if re.match("Exercise [23]", title))
    main = sum(n for _, n in minutes) - later
    told = re.search(r"main path takes (\d+) minutes .* exercises 2 and 3 take (\d+)",
                     prose(notebook))  # fmt: skip
    assert later == int(told[2]) and 0 <= int(told[1]) - main < 5  # rounded up to five


def test_the_main_path_is_short(notebook):
    cells, words = main_path(notebook)
    assert cells <= 45 and words <= 3000


def test_the_solutions_of_the_text_are_those_that_solve(notebook, world):
    for name, checker in (("my_merge", chapter.write), ("my_loss", chapter.repair)):
        code = next(
            block
            for block in re.findall(r"```python\n(.*?)```", prose(notebook), re.S)
            if f"def {name}" in block
        )
        names = {"torch": torch, "dist": dist, "collectives": collectives, "world": world}
        exec(code, names)
        assert checker.check(names[name], world).solved


def test_what_the_text_says_of_its_numbers_is_what_the_cells_printed(notebook):
    text = prose(notebook)
    kept = lessons.kept_by_a_layer()
    assert f"It is {round(kept / 1e9)} GB." in shown(notebook, "layer.reveal")
    assert round(kept / 2 / 2**20, -2) == 60_700 and "about 60,700 numbers" in text
    sent = shown(notebook, "hops.reveal")
    assert "It is 12,288 bytes." in sent and "6 messages of 2048 bytes" in sent
    assert "It is 57 %." in shown(notebook, "busy.reveal")
    rows = [line.split() for line in shown(notebook, "fewest.reveal").splitlines()[-4:]]
    number = lambda words, n: int(words[n].replace(",", ""))
    alone = number(rows[0], 2)
    assert all(row[1] == row[-1] == "True" for row in rows[1:])
    assert all(number(row, 2) < alone / 2 for row in rows[1:])
    megatron, ulysses, ring = (number(row, 3) for row in rows[1:])
    assert round(megatron / ring, 1) == 2.1 and round(megatron / ulysses, 1) == 6.2
    layer = shown(notebook, "a_layer(8)")
    of = {line.split()[0]: float(line.split()[-2]) for line in layer.splitlines()[1:]}
    assert round(of["megatron"] / of["ulysses"]) == 13 and "sends 13 times what Ulysses" in text
    right, other = map(float, re.findall(r"\d\.\d{6}", shown(notebook, "restarted():")))
    assert 0 < right - other < 0.02 and "The wrong loss is even a little lower" in text


def test_the_folded_products_are_the_bytes_that_the_methods_send(notebook):
    text = prose(notebook)
    shape, itemsize = lessons.SHAPE, 8
    whole = lessons.SAMPLES * shape.sequence * shape.width * itemsize
    assert (whole, whole // 4, whole * 3 // 4) == (8192, 2048, 6144)
    products = {
        "megatron": ("25 · 6,144 = 153,600", 25 * 6144),
        "ulysses": ("2 · 2 · 6,144 = 24,576", 2 * 2 * 6144),
        "ring": ("2 · 3 · 3 · 2 · 2,048 = 73,728", 2 * 3 * 3 * 2 * 2048),
    }
    for method, (words, product) in products.items():
        moves = [move for move in lessons.predicted(method, 4)[0] if move.op != "all_reduce"]
        assert words in text and sum(move.sent for move in moves) == product
    assert len([m for m in lessons.predicted("megatron", 4)[0] if m.op != "all_reduce"]) == 25
    d, heads, keys, size, hidden = 4096, 32, 8, 128, 14_336
    token = (2 * (d + 2) + 2 * d + (heads + 2 * keys) * size + (heads + keys) * size + d
             + 2 * heads + 2 * hidden + 2 * size)  # fmt: skip
    assert lessons.kept_by_a_layer() == 2 * token * 2**20 and f"| sum | {token:,} |" in text


def test_the_numbers_of_the_problem_follow_from_one_layer(notebook):
    text, layer = prose(notebook), lessons.kept_by_a_layer()
    inputs = 4096 * 2 * 2**20
    assert (
        f"2²⁰ = {inputs / 1e9:.1f} GB. But 31 such inputs take {31 * inputs / 1e9:.0f} GB" in text
    )
    assert f"own input: {(31 * inputs + layer) / 1e9:.0f} GB in all" in text
    assert f"32 layers need {32 * layer / 1e12:.1f} TB" in text and 32 * layer > 50 * 80e9
    unrotated, result_again = 4096 + 1024, 4096
    kept = {method: lessons.kept_by_a_layer(lessons.memory.activations, method=method, ranks=8)
            for method in ("ring", "ulysses")}  # fmt: skip
    less = kept["ring"] - kept["ulysses"]
    assert less == (unrotated - result_again) * 2 * 2**20 // 8
    assert "keeps alive: 5,120 numbers a token" in text and "twice, which is 4,096 numbers" in text


def test_the_heads_that_ulysses_sends_are_those_of_the_text(notebook):
    """80 = 32 + 2 · 8 heads of q, k and v, and 32 of the result; with 32 key heads, 128."""
    assert "also sends queries and results, only from 128 heads to 80." in prose(notebook)
    moves = of_layer(lessons.LLAMA, "ulysses", 8, 1, itemsize=2).forward
    own = lessons.LLAMA.sequence // 8
    assert sum(move.sent for move in moves) == pytest.approx(7 / 8 * 80 * 128 * own * 2)
    moves = of_layer(replace(lessons.LLAMA, kv_heads=32), "ulysses", 8, 1, itemsize=2).forward
    assert sum(move.sent for move in moves) == pytest.approx(7 / 8 * 128 * 128 * own * 2)


def test_from_how_many_tokens_on_backward_hides_its_messages(notebook):
    """Five products instead of two, and K, V, dK and dV instead of K and V."""
    peak = float(hardware.gpu("H100").peak["bf16"].value)
    bandwidth = float(hardware.link("InfiniBand NDR").bandwidth)
    forward = tokens_to_hide(peak, bandwidth, key_share=1 / 4, causal=True)
    words = f"so {round(forward * 2 / 2.5, -2):,.0f} tokens suffice."
    assert words in prose(notebook) and round(forward, -3) == 10_000


@pytest.mark.parametrize(
    ("name", "published"),
    [("A100, NVLink3", 6.2), ("A100, InfiniBand EDR", 149.5), ("TPU v3", 6.6), ("TPU v4", 6.2),
     ("TPU v5e", 6.3)],
)  # fmt: skip
def test_the_tokens_that_hide_a_ring_are_the_published_ones(name, published, notebook):
    """Liu et al. 2023 (arXiv 2310.01889), table 2: c is F/B, and the shortest sequence 6·c.

    24,960 is printed as 24.5 thousand.
    """
    peak, bandwidth = lessons.speeds_of(name)
    tokens = tokens_to_hide(peak, bandwidth)
    assert tokens == -(-peak // bandwidth)
    printed = lessons.TABLE_2[name]
    assert tokens / 1e3 == pytest.approx(float(printed), rel=0.03 if "EDR" in name else 0.05)
    assert 6 * tokens / 1e3 == pytest.approx(published, abs=0.05 if "EDR" not in name else 0.5)
    assert tokens_to_hide(peak, bandwidth, causal=True) == -(-2 * peak // bandwidth)
    (row,) = (line for line in shown(notebook, "to_hide").splitlines() if line.startswith(name))
    mine = row.removeprefix(name).split()
    assert mine[0] == printed
    assert (mine[0] == mine[1]) is ("EDR" not in name), "the chapter says where they differ"


def test_ring_and_ulysses_send_more_with_the_gradients_of_whole_weights():
    sums = {method: sum(move.sent for move in lessons.predicted(method, 4)[0])
            for method in ("megatron", "ulysses", "ring")}  # fmt: skip
    assert sums["megatron"] < sums["ulysses"] < sums["ring"]


@pytest.mark.parametrize(("ranks", "key_heads", "less"), [(2, 8, False), (4, 8, False),
                                                         (8, 8, True), (32, 1, False)])  # fmt: skip
def test_when_ulysses_sends_less_than_a_ring(ranks, key_heads, less):
    """(H + max(G, P))/P below G, and on two ranks with 8 heads of keys 2.5 times as much."""
    shape = replace(lessons.LLAMA, kv_heads=key_heads)
    sent = {method: sum(move.sent for move in of_layer(shape, method, ranks, 1).forward)
            for method in ("ring", "ulysses")}  # fmt: skip
    assert (sent["ulysses"] < sent["ring"]) == less
    assert ((32 + max(key_heads, ranks)) / ranks < key_heads) == less
    if ranks == 2:
        assert sent["ulysses"] == pytest.approx(2.5 * sent["ring"])
    card = 2 * shape.sequence * shape.width * (1 + max(key_heads, ranks) / 32) / ranks * 4
    assert sent["ulysses"] == pytest.approx(card * (ranks - 1) / ranks)


def test_the_gain_of_the_best_layout_is_the_one_that_the_text_says(notebook):
    scores = lessons.chunk_scores()
    zigzag, best = [0, 1, 2, 3, 3, 2, 1, 0], chapter.best_layout()
    slowest = [
        max(sum(s for s, r in zip(scores, layout) if r == rank) for rank in range(4))
        for layout in (zigzag, best)
    ]
    shares = [100 * sum(scores) / (4 * most) for most in slowest]
    words = f"from zigzag's {shares[0]:.1f} % to {shares[1]:.1f} %: {sum(scores):,} scores"
    assert words in prose(notebook)


def test_the_card_says_how_ranks_share_a_causal_mask(notebook):
    """Half of the work of the busiest rank is what ranks compute on average, of many ranks."""
    busy = {}
    for layout in ("zigzag", "contiguous"):
        for ranks in (2, 8, 64):
            scores = [
                sum(
                    part.scores for parts in blocks_of(2**13, rank, ranks, layout) for part in parts
                )
                for rank in range(ranks)
            ]
            busy[layout, ranks] = sum(scores) / ranks / max(scores)
    assert {busy["zigzag", ranks] for ranks in (2, 8, 64)} == {1.0}
    assert busy["contiguous", 2] > busy["contiguous", 8] > busy["contiguous", 64] > 0.5
    assert busy["contiguous", 64] < 0.51
    row = "| causal balance | even | even | even in zigzag; contiguous: nearly half idle |"
    assert row in "".join(cell.source for cell in notebook.cells)
