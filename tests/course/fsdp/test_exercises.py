"""Chapter 3's checkers, from the start state over typical mistakes to the solution, on ranks."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import pad

from lib.course.fsdp import bugs
from lib.course.fsdp import exercises as chapter
from lib.course.fsdp.repair import BUGS


@pytest.fixture
def world(worlds):
    return worlds(4)


# --- predict


def test_the_predicted_numbers_are_those_of_a_closed_form():
    size = 405.8533888
    right = {
        "zero_2": (2 + 14 / 64) * size,
        "zero_3": 16 / 64 * size,
        "fewest": 47,
        "sent": 3 * 63 / 64 * 2 * size,
    }
    assert chapter.predict.check(**right).solved
    assert chapter.predict.answers == pytest.approx(right, rel=3e-3)
    four = chapter.predict.check(**right | {"sent": 3 * 63 / 64 * 4 * size})
    assert not four.solved and "sent: 4,794" in four.text and "is too much" in four.text
    assert not chapter.predict.check(**right | {"sent": 3 * 2 * size}).solved, "without 63/64"
    for fewest in (16 * size / 141, 46.6, 47.4):
        assert not chapter.predict.check(**right | {"fewest": fewest}).solved
    assert chapter.predict.check().text.startswith("Not solved yet")


# --- write


class Unbegun(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard): ...

    @staticmethod
    def backward(ctx, dy): ...


def gather(shard):
    whole = shard.new_empty(dist.get_world_size() * shard.shape[0], shard.shape[1])
    dist.all_gather_single(whole, shard.contiguous())
    return whole


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        return x @ gather(shard).T

    @staticmethod
    def backward(ctx, dy):
        x, shard = ctx.saved_tensors
        part = torch.empty_like(shard)
        dist.reduce_scatter_single(part, dy.T @ x / dist.get_world_size())
        return dy @ gather(shard), part


class KeepsForNothing(Linear):
    """Keeps the whole weights, and gathers them again."""

    @staticmethod
    def forward(ctx, x, shard):
        ctx.save_for_backward(x, shard)
        ctx.kept = gather(shard)
        return x @ ctx.kept.T


class Keeps(KeepsForNothing):
    @staticmethod
    def backward(ctx, dy):
        x, shard = ctx.saved_tensors
        part = torch.empty_like(shard)
        dist.reduce_scatter_single(part, dy.T @ x / dist.get_world_size())
        return dy @ ctx.kept, part


class KeepsAndGathers(Linear):
    """Gathers twice in forward, and keeps the second whole."""

    @staticmethod
    def forward(ctx, x, shard):
        y = Linear.forward(ctx, x, shard)
        ctx.kept = gather(shard)
        return y

    backward = Keeps.backward


class GathersLate(Linear):
    """Gathers once more than is needed."""

    @staticmethod
    def backward(ctx, dy):
        gather(ctx.saved_tensors[1])
        return Linear.backward(ctx, dy)


class Sums(Linear):
    @staticmethod
    def backward(ctx, dy):
        x, shard = ctx.saved_tensors
        part = torch.empty_like(shard)
        dist.reduce_scatter_single(part, dy.T @ x)
        return dy @ gather(shard), part


def test_a_linear_layer_is_gathered_twice_and_reduced_once(world):
    assert chapter.write.check(Unbegun, world).text.startswith("Not solved yet")
    solved = chapter.write.check(Linear, world)
    assert solved.solved and solved.text == "Solved with two gathers and one reduce-scatter."


def test_weights_that_are_kept_and_a_forgotten_division_are_found(world):
    kept = chapter.write.check(Keeps, world)
    assert not kept.solved and "the whole weights were kept" in kept.text
    twice = chapter.write.check(KeepsAndGathers, world)
    assert not twice.solved and "the whole weights were kept" in twice.text
    unused = chapter.write.check(KeepsForNothing, world)
    assert not unused.solved and "the whole weights were kept" in unused.text
    late = chapter.write.check(GathersLate, world)
    assert not late.solved and "are enough" in late.text
    wrong = chapter.write.check(Sums, world)
    assert not wrong.solved and "entry 2 of what it returned" in wrong.text


# --- repair


def local(shards, limit):
    norm = torch.stack([g.square().sum() for g in shards]).sum().sqrt()
    scale = (limit / norm).clamp(max=1.0)
    return [g * scale for g in shards]


def repaired(shards, limit):
    total = torch.stack([g.square().sum() for g in shards]).sum()
    dist.all_reduce(total)
    scale = (limit / total.sqrt()).clamp(max=1.0)
    return [g * scale for g in shards]


def norms_added(shards, limit):
    """Add up norms in place of squares."""
    total = torch.stack([g.square().sum() for g in shards]).sum().sqrt()
    dist.all_reduce(total)
    scale = (limit / total).clamp(max=1.0)
    return [g * scale for g in shards]


def test_clipping_takes_the_norm_of_all_ranks(world):
    start = chapter.repair.check(local, world)
    assert not start.solved and "launched no collective" in start.text
    assert not chapter.repair.check(norms_added, world).solved
    assert chapter.repair.check(repaired, world).solved
    shards = [[torch.tensor([x])] for x in (3.0, 0.0, 4.0, 0.0)]
    clipped = world.map(_clip_one, shards)
    assert [round(x, 6) for x in clipped] == [0.6, 0, 0.8, 0]


def _clip_one(shards):
    return repaired(shards, 1.0)[0].item()


def with_autograd(x, shard, gather):
    y = x @ gather(shard).T
    y.backward(torch.ones_like(y))
    return shard.grad


def own_part_only(x, shard, gather):
    """Nothing is gathered: only this rank's samples count."""
    y = x @ shard.T
    y.backward(torch.ones_like(y))
    return shard.grad


def halves_the_shard(unit):
    unit.shard.data.mul_(0.5)


def halves_and_frees_later(unit):
    """A whole weight that is not freed is filled anew by the next gather all the same."""
    unit.gather()
    for weight in unit.weights:
        weight.data.mul_(0.5)


def sharded_first(model, x, y):
    for block in model.blocks.values():
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (model(x) - y).square().mean().backward()
    optimizer.step()


def never_sharded(model, x, y):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (model(x) - y).square().mean().backward()
    optimizer.step()


def each_block(model):
    return list(model.blocks.values())


def two_units(model):
    blocks = list(model.blocks.values())
    return [blocks[0], blocks[4]]


def all_layers(layers, x, skipped):
    for n, layer in enumerate(layers):
        x = x + layer(x) * (n != skipped)
    return x


def no_zero(layers, x, skipped):
    for layer in layers:
        x = x + layer(x)
    return x


REPAIRS = {
    "clip": (repaired, norms_added, "rank 0 differs first"),
    "gather": (with_autograd, own_part_only, "the gradient of the shard is"),
    "change": (halves_the_shard, halves_and_frees_later, "the weight is"),
    "early": (sharded_first, never_sharded, "The model is not sharded."),
    "units": (each_block, two_units, "the share of the weights that is whole at once is"),
    "skip": (all_layers, no_zero, "entry 1 of what it returned is"),
}
SYMPTOMS = {
    "clip": "launched no collective",
    "gather": "the gradient of the shard is nothing (None)",
    "change": "the weight is",
    "early": "entry 0 of what it returned is",
    "units": "the share of the weights that is whole at once is 1, not 0.25",
    "skip": "With 2 samples on each rank, it failed",
}


@pytest.mark.parametrize("bug", BUGS)
def test_each_bug_shows_and_its_repair_is_accepted(world, bug, capsys):
    start = chapter.repair.check(BUGS[bug].program, world, bug=bug)
    assert not start.solved and SYMPTOMS[bug] in start.text, start.text
    right, wrong, why = REPAIRS[bug]
    attempt = chapter.repair.check(wrong, world, bug=bug)
    assert not attempt.solved and why in attempt.text, attempt.text
    assert chapter.repair.check(right, world, bug=bug).solved
    chapter.repair.show(bug)
    chapter.repair.hint()
    shown = capsys.readouterr().out
    assert f"\ndef {BUGS[bug].program.__name__}(" in shown and "Hint 1 of" in shown
    assert BUGS[bug].hints[0].split()[-1] in shown


@pytest.mark.parametrize("bug", BUGS)
def test_what_is_shown_of_a_bug_is_a_whole_cell(world, bug, capsys):
    """Pasted over the cell of the exercise it keeps the import, which the buttons look for."""
    chapter.repair.show(bug)
    names = {name: value for name, value in vars(bugs).items() if not name.startswith("__")}
    names |= {"__name__": "__main__", "world": world}
    checked = capsys.readouterr().out.replace("\nrepair.check", "\nverdict = repair.check")
    exec(checked, names)
    assert names["repair"] is chapter.repair and SYMPTOMS[bug] in names["verdict"].text


def test_a_bug_that_is_not_there_is_refused(world, capsys):
    names = '"clip", "gather", "change", "early", "units", "skip"'
    text = f"No bug here is called 'none'. Choose one of {names}."
    assert text in chapter.repair.check(repaired, world, bug="none").text
    chapter.repair.show("none")
    assert capsys.readouterr().out == text + "\n"


# --- reshard and choose


def unbegun(shards, numel, ranks): ...


def resharded(shards, numel, ranks):
    flat = torch.cat(shards)[:numel]
    return list(pad(flat, (0, -numel % ranks)).chunk(ranks))


def with_old_padding(shards, numel, ranks):
    flat = torch.cat(shards)
    return list(pad(flat, (0, -len(flat) % ranks)).chunk(ranks))


def test_shards_are_cut_anew_without_the_old_padding():
    assert chapter.reshard.check(unbegun).text.startswith("Not solved yet")
    assert chapter.reshard.check(resharded).solved
    wrong = chapter.reshard.check(with_old_padding)
    assert not wrong.solved and "elements" in wrong.text
    example = resharded([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.0])], 3, 3)
    assert [part.tolist() for part in example] == [[1.0], [2.0], [3.0]]


def test_units_must_be_fast_enough_and_fit():
    check = chapter.choose.check
    assert check().text.startswith("Not solved yet")
    assert "fit, but the step is too slow" in check([1] * 16, 1).text
    assert "do not fit" in check([4] * 4, 1).text and "do not fit" in check([2] * 8, 2).text
    assert check([2] * 8, 1).solved
    assert "do not hold 16 blocks" in check([4, 4], 1).text
