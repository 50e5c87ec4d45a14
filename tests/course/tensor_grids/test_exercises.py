"""Chapter 5's checkers, from the start state over typical mistakes to the solution, on ranks."""

import re
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Partial, Placement, Shard, distribute_tensor

from lib.course.tensor_grids import exercises as chapter
from lib.course.tensor_grids import lessons, winners
from lib.parallel.grid import grid_parallel
from lib.predict.collectives.formulas import mean_sent
from lib.predict.roofline import speeds
from lib.predict.tensor import where_each_wins
from lib.predict.tensor.grid_costs import published, recounted
from lib.predict.tensor.grid_traffic import linear_moves
from lib.predict.tensor.grids import RankGrid
from lib.predict.tensor.summa_step import summa_step
from lib.ranks.mesh import mesh
from lib.single import GPT
from tests.course.stored_chapter import main_path, shown, stored_chapter
from tests.every import every


@pytest.fixture
def world(worlds):
    return worlds(4)


@pytest.fixture(scope="module")
def notebook():
    return stored_chapter("05-tensor-grids")


# --- predict


def test_the_predicted_bytes_are_those_of_a_closed_form():
    x, w, y = 8_192 * 12_288, 12_288 * 49_152, 8_192 * 49_152
    right = {"square": 3 * (x + w) / 16 * 2 / 1e6, "cube": 3 * (x + w + y) / 64 * 2 / 1e6}
    assert chapter.predict.check(**right).solved
    assert chapter.predict.answers == pytest.approx(right, rel=1e-3)
    assert not chapter.predict.check(**right | {"cube": 4 * right["cube"] / 3}).solved
    assert not chapter.predict.check(**right | {"cube": right["square"] / 2}).solved
    assert chapter.predict.check(square=50, cube=50).text.count("too little") == 2
    assert chapter.predict.check().text.startswith("Not solved yet")


# --- write


def unbegun(dy, w, row, column): ...


def backward(dy, w, row, column):
    for step in range(row.size):
        panel = w.clone() if row.rank == step else torch.empty_like(w)
        dist.broadcast(panel, group=row.group, group_src=step)
        part = dy @ panel.T
        dist.reduce(part, group=column.group, group_dst=step)
        if column.rank == step:
            dx = part
    return dx


def with_all_reduce(dy, w, row, column):
    """Sum every part on all ranks of the row, where one needs it."""
    for step in range(row.size):
        panel = w.clone() if row.rank == step else torch.empty_like(w)
        dist.broadcast(panel, group=row.group, group_src=step)
        part = dy @ panel.T
        dist.all_reduce(part, group=column.group)
        if column.rank == step:
            dx = part
    return dx


def unsummed(dy, w, row, column):
    """Keep this rank's part of the sum."""
    for step in range(row.size):
        panel = w.clone() if row.rank == step else torch.empty_like(w)
        dist.broadcast(panel, group=row.group, group_src=step)
        if column.rank == step:
            dx = dy @ panel.T
    return dx


def test_the_backward_loop(world):
    assert chapter.write.check(unbegun, world).text.startswith("Not solved yet")
    solved = chapter.write.check(backward, world)
    assert solved.text == "Solved with 2 broadcasts and 2 reduces."
    more = chapter.write.check(with_all_reduce, world)
    assert not more.solved and "The tiles are right, but rank 0 launched" in more.text
    wrong = chapter.write.check(unsummed, world)
    assert not wrong.solved and "With K = 1 on each rank, rank 0 differs first" in wrong.text


# --- repair


def broadcast(part, axis, step):
    """Return the tile of the rank whose place along the axis is `step`, as the chapter's does."""
    panel = part if axis.rank == step else torch.empty_like(part)
    dist.broadcast(panel, group=axis.group, group_src=step)
    return panel


def weight_gradient(x, dy, row, column, over=None):
    for step in range(row.size):
        panel = broadcast(x, column, step)
        part = panel.T @ dy
        dist.reduce(part, group=(over or row).group, group_dst=step)
        if row.rank == step:
            dw = part
    return dw


def along_the_wrong_axis(x, dy, row, column):
    return weight_gradient(x, dy, row, column, over=column)


def summa(a, b, row, column):
    y = a.new_zeros(a.shape[0], b.shape[1])
    for step in range(row.size):
        y += broadcast(a, column, step) @ broadcast(b, row, step)
    return y


def test_a_sum_along_the_wrong_axis(world):
    start = chapter.repair.check(along_the_wrong_axis, world)
    assert not start.solved and "rank 0 differs first" in start.text
    assert chapter.repair.check(weight_gradient, world).solved
    assert not chapter.repair.check(lambda x, dy, row, column: x.T @ dy, world).solved


def test_no_function_of_the_chapter_solves_the_repair(world):
    """Under another name the chapter's two loops fail, and the repaired one does not write dx."""
    assert not chapter.repair.check(summa, world).solved
    assert not chapter.repair.check(backward, world).solved
    assert not chapter.write.check(weight_gradient, world).solved


def test_the_chapter_starts_from_the_fault_and_folds_its_mend(notebook, world):
    """The start state and the solution are run as they stand there."""
    cells = {cell.id: cell.source for cell in notebook.cells}
    (solution,) = re.findall(
        r"```python.*?(def weight_gradient.*?)\n\n\nrepair", cells["exer0004"], re.S
    )
    (start,) = re.findall(r"(def weight_gradient.*?)\n\n\nrepair", cells["exer0005"], re.S)
    for source, solved in ((start, False), (solution, True)):
        names = {"torch": torch, "dist": dist, "broadcast": broadcast}
        exec(source, names)
        assert chapter.repair.check(names["weight_gradient"], world).solved is solved


# --- what the text says


def prose(notebook) -> str:
    return "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")


def test_the_minutes_are_those_of_the_headings(notebook):
    found = re.findall(r"^## (.*) \((\d+) min\)$", prose(notebook), re.M)
    minutes = [(title, int(n)) for title, n in found]
    later = sum(n for title, n in minutes if re.match("Exercise [23]", title))
    main = sum(n for _, n in minutes) - later
    words = r"main path takes (\d+) minutes .* exercises 2 and 3 take (\d+)"
    told = re.search(words, prose(notebook))
    assert later == int(told[2]) and 0 <= int(told[1]) - main < 5  # rounded up to five


def test_the_main_path_is_short(notebook):
    cells, words = main_path(notebook)
    assert cells <= 45 and words <= 2700


def test_what_the_text_says_of_its_numbers_is_what_the_cells_printed(notebook):
    line, text = shown(notebook, "line.reveal"), prose(notebook)
    assert "It is 1.13 times." in line and "sends 13 % more" in text
    kept = [float(n) for n in re.findall(r"keeps ([\d.]+) GB", line)]
    assert kept == [26.7, 21.2, 20.0] and kept[2] / kept[0] == pytest.approx(0.75, abs=0.01)
    assert pytest.approx(19.3e9, rel=2e-3) == 96 * 4 * 2048 * 12_288 * 2
    gathers, broadcasts = shown(notebook, "gather_both"), shown(notebook, "def summa")
    assert re.search(r"column +all_gather +1 +192\nrow +all_gather +1 +384", gathers)
    assert re.search(r"column +broadcast +2 +192\nrow +broadcast +2 +384", broadcasts)
    grids = shown(notebook, "lessons.compared").splitlines()[-5:]
    assert every(line.split()[-1] == "True" and "True" in line.split()[2:4] for line in grids[2:])
    number = lambda line, n: int(re.findall(r"[\d,]{5,}", line)[n].replace(",", ""))
    line, _, square, stack, cube = grids
    assert number(square, 1) < number(line, 1) / 2 and number(square, 2) / number(
        line, 2
    ) == pytest.approx(1.06, abs=0.005)
    assert number(cube, 0) / number(stack, 0) == pytest.approx(0.5, abs=0.05)
    assert number(cube, 2) / number(stack, 2) == pytest.approx(0.9, abs=0.005)
    ours = shown(notebook, "def with_dtensor")
    assert "[True, True, True, True]" in ours and ours.split("\n", 1)[1] in gathers


def multiplied(m: int, k: int, n: int) -> tuple[Placement, ...]:
    square, cuts = mesh(row=2, column=2).torch(), [Shard(0), Shard(1)]
    a, b = (distribute_tensor(torch.zeros(size), square, cuts) for size in ((m, k), (k, n)))
    dist.barrier()
    product = a @ b
    dist.barrier()
    return product.placements


def test_a_dtensor_moves_only_the_smaller_factor_where_that_is_cheaper(notebook, world):
    """The sizes of the text, in which W is eight times as large as x."""
    sizes = re.search(r"at (\d+) × (\d+) × (\d+)\.", prose(notebook).replace(",", ""))
    m, k, n = map(int, sizes.groups())
    assert k * n == 8 * m * k
    run = world.record(multiplied, m, k, n)
    assert run.results[0] == (Partial("sum"), Shard(1))
    moved = [move.bytes for move in lessons.collectives_of_rank_0(run)]
    assert moved and max(moved) <= m * k * 4, "no more than x, and no part of W"


def test_the_costs_in_the_text():
    square = RankGrid("2d", 8)
    assert published(square).bandwidth == 5.25 and published(square).latency == 42
    assert recounted(square, pieces=True).latency == 336
    assert round(lessons.counted(square), 2) == 0.66
    assert (
        lessons.counted(RankGrid("3d", 4)) == 0.375
        and published(RankGrid("3d", 4)).bandwidth < 0.29
    )


@pytest.mark.parametrize(("side", "tokens"), [(2, 12.0), (4, 1.89), (8, 0.71)])
def test_from_how_many_tokens_on_a_square_sends_less_than_one_dimension(side, tokens):
    """Both send as much: 4 all_reduces [M, D], and the collectives of four products on a square."""
    width, grid = 1024, RankGrid("2d", side)

    def square(rows):
        sizes = (width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)
        layers = [linear_moves(grid, rows, *io, bias=False, itemsize=1).all for io in sizes]
        return sum(map(lessons.sent_by_a_rank, layers))

    line = lambda rows: 4 * mean_sent("all_reduce", grid.ranks, rows * width)
    rows = round(tokens * width)
    assert square(rows - rows % side) == pytest.approx(line(rows), rel=0.01)


def test_overlap_hides_half_of_the_waiting_and_on_a_larger_square_more(notebook):
    h100 = speeds("H100", "NVLink4")

    def waited(side, overlap, own_links):
        """Milliseconds of a step, and those of it in which nothing is computed."""
        more = {"overlap": overlap, "itemsize": 2, "own_links": own_links}
        step = summa_step(16_384, 12_288, 12_288, side, h100, **more)
        busy = sum(row.seconds for row in step.where(rank=0, lane="compute"))
        return 1e3 * step.makespan, 1e3 * (step.makespan - busy)

    rounded = lambda *args: tuple(round(number, 2) for number in waited(*args, own_links=False))
    assert rounded(2, False) == (6.24, 2.40) and rounded(2, True) == (5.04, 1.20)
    assert rounded(4, False) == (2.40, 1.44) and rounded(4, True) == (1.62, 0.66)
    written = lessons.exposed(16_384, 12_288, 12_288, h100)
    assert written in shown(notebook, "lessons.exposed")
    table = [line.split()[-2:] for line in written.splitlines()[1:]]
    cases = [(side, overlap) for side in (2, 4) for overlap in (False, True)]
    assert table == [[f"{number:.2f}" for number in rounded(*case)] for case in cases]
    share = waited(4, True, False)[1] / waited(4, False, False)[1]
    assert round(100 * share) == 46
    assert "On 2 × 2 ranks half stays, as expected. On 4 × 4 ranks" in prose(notebook)
    assert "a quarter should stay, but it is 46 %" in prose(notebook)
    hidden = waited(4, True, True)[1] / waited(4, False, True)[1]
    assert hidden == pytest.approx(0.25, abs=0.01)  # with a link for each axis
    x, w = 16_384 * 12_288 // 16 * 2, 12_288**2 // 16 * 2  # bytes of the tiles on 4 × 4
    broadcasts = h100.moving("broadcast", 4, x) + h100.moving("broadcast", 4, w)
    product = h100.compute(2 * 16_384 * 12_288**2 / 64, 0)
    assert (round(1e6 * broadcasts), round(1e6 * product)) == (118, 78)


@pytest.mark.parametrize("side", [2, 4, 8])
def test_as_many_bytes_take_longer_in_broadcasts_than_in_a_gather(side):
    """A rank sends q - 1 tiles either way; q broadcasts take the time of q tiles."""
    h100, tile = speeds("H100", "NVLink4"), 10**10  # bytes, so many that latency is nothing
    sent = side * mean_sent("broadcast", side, tile), mean_sent("all_gather", side, side * tile)
    assert sent[0] == sent[1] == (side - 1) * tile
    times = (
        side * h100.moving("broadcast", side, tile),
        h100.moving("all_gather", side, side * tile),
    )
    assert times[0] / times[1] == pytest.approx(side / (side - 1), rel=1e-2)


def test_one_broadcast_needs_as_many_transfers_in_a_ring_as_in_a_tree(notebook):
    """The published cost counts all of them, ours those of one rank on average."""
    for ranks in (2, 4, 8):
        assert ranks * mean_sent("broadcast", ranks, 1) == pytest.approx(ranks - 1)
    published_square, published_stack = (
        published(grid).bandwidth for grid in (RankGrid("2d", 8), RankGrid("2.5d", 4, 4))
    )
    depth = mean_sent("all_reduce", 4, 1 / 16)  # dW's tile is 1/16 of W
    assert round(published_square / 8, 2) == 0.66
    assert (round(published_stack / 4, 2), round(depth, 2)) == (0.7, 0.09)
    ours = lessons.counted(RankGrid("2.5d", 4, 4))
    assert ours == pytest.approx(published_stack / 4 + depth)
    assert "2.81 ÷ 4 = 0.70, and dW's all_reduce over depth adds 0.09." in prose(notebook)


def test_how_many_different_tiles_gathering_holds(notebook):
    """Row i of x's tiles and column j of W's, on rank (i, j) of a square of 8 × 8."""
    assert len({("x", 3, k) for k in range(8)} | {("w", k, 5) for k in range(8)}) == 16
    sources = {cell.id: cell.source for cell in notebook.cells}
    assert sources["tile0006"].startswith("q = 8\n")
    assert sources["tile0007"] == "tiles.reveal(2 * q)"
    assert "how many *different* tiles of x and W, its own included," in sources["tile0005"]
    assert "It is 16 tiles." in shown(notebook, "tiles.reveal")


def test_a_norm_of_pieces_of_rows_is_wrong_on_every_rank(notebook):
    printed = shown(notebook, "def norm_on_square").split("\n")
    assert printed[:2] == [str([True] * 4), str([False] * 4)]


def test_a_norm_of_a_part_alone_looks_normalised(notebook):
    """Without the exchange the cell's norm is torch's layer norm of the part."""
    source = next(cell.source for cell in notebook.cells if cell.id == "brea0001")
    names = {"torch": torch, "dist": dist}
    exec(source.split("\n\n\n")[0], names)
    part = torch.randn(8, 6, generator=torch.Generator("cpu").manual_seed(0), device="cpu").double()
    alone = names["norm"](part, None, False)
    assert torch.allclose(alone, torch.nn.functional.layer_norm(part, [6]))
    assert torch.allclose(alone.mean(1), torch.zeros(8).double())
    assert torch.allclose(alone.var(1, correction=0), torch.ones(8).double(), atol=1e-3)
    assert "each part by itself has mean 0 and variance 1" in prose(notebook)


def from_the_first_rank_of_all():
    """Broadcast along the rows from rank 0, and return what this rank is told."""
    try:
        dist.broadcast(torch.zeros(2), group=mesh(row=2, column=2)["column"].group, src=0)
    except ValueError as error:
        return str(error)


def test_a_source_that_counts_among_all_ranks_fails_in_the_second_row(notebook, world):
    told = world.run(from_the_first_rank_of_all)
    assert told[:2] == [None, None] and every("Global rank 0 is not part of" in s for s in told[2:])
    assert "`Global rank 0 is not part of group …`" in prose(notebook)


def three_heads():
    """Ask for a square of four ranks for a GPT with three heads; return what this rank says."""
    three = replace(lessons.SHAPE, heads=3, kv_heads=3, width=36)
    try:
        grid_parallel(GPT(three), mesh(row=2, column=2), "2d")
    except ValueError as error:
        return str(error)


def test_all_ranks_refuse_three_heads_with_one_message(notebook, world):
    run = world.record(three_heads)
    (message,) = set(run.results)
    assert f"`{message}`" in prose(notebook)
    comm = run.where(lane="comm")
    assert sum(row.bytes for row in comm) == 0, "nothing is sent"


def test_the_published_gains_of_a_cube_are_as_far_from_ours_as_the_text_says():
    gains = winners.gains_of_a_cube(speeds("V100", "InfiniBand EDR", "fp16"))
    assert len(gains) == 6 and every(line > square > 1 for line, square in gains.values())
    for one, published_one, below, above in ((0, 2.32, 13, 67), (1, 1.57, -27, 15)):
        errors = [100 * (pair[one] / published_one - 1) for pair in gains.values()]
        assert (round(min(errors)), round(max(errors))) == (below, above)


def test_a_cube_that_keeps_what_it_gathered_is_further_from_the_published_gains(
    notebook, monkeypatch
):
    """As Colossal-AI's does: backward gathers dy alone."""

    def keeping(grid, tokens, inputs, outputs, at, itemsize, own_links):
        moves = linear_moves(grid, tokens, inputs, outputs, bias=False, itemsize=itemsize)
        x, w, y, dy, _, _, dw, dx = [at.moving(m.op, m.ranks, m.bytes) for m in moves.all]
        m, k, n = (size // grid.side for size in (tokens, inputs, outputs))
        product = at.compute(2 * m * k * n, (m * k + k * n + m * n) * itemsize)
        return x + w + product + y + dy + product + max(product, dw) + dx

    monkeypatch.setattr(where_each_wins, "_on_cube", keeping)
    gains = winners.gains_of_a_cube(speeds("V100", "InfiniBand EDR", "fp16")).values()
    lines, squares = zip(*gains)
    assert (round(min(lines), 1), round(max(lines), 1)) == (3.2, 4.6)
    assert (round(min(squares), 1), round(max(squares), 1)) == (1.3, 2.2)
    assert "between 3.2 and 4.6, and 2D ÷ 3D between 1.3 and 2.2" in prose(notebook)
