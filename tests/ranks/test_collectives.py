"""Each collective equals its reference, its backward is the transposed map and its conjugate's.

All values are small whole numbers, whose sums are exact in every dtype: all is compared to the bit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
import torch.distributed as dist

from lib.ranks import reference
from lib.ranks.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    copy,
    gather,
    join,
    reduce,
    reduce_scatter,
    scatter,
    shift,
    split,
)
from lib.ranks.mesh import mesh
from tests.every import every


def counts(n):
    """counts[s][r]: what rank s sends rank r, some of them nothing; uneven both ways."""
    return [[(3 * s + 2 * r + s * r) % 5 for r in range(n)] for s in range(n)]


def uneven_rows(x, group):
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    sent, received = counts(n)[rank], [row[rank] for row in counts(n)]
    return all_to_all(x, 0, 0, group, sent=sent, received=received)


def uneven_dims(x, group):
    """Dim 0 is cut into 1, 2, 3, ... entries; of dim 1 rank r brings r + 2."""
    n = dist.get_world_size(group)
    sent, received = [r + 1 for r in range(n)], [r + 2 for r in range(n)]
    return all_to_all(x, 0, 1, group, sent=sent, received=received)


@dataclass(frozen=True)
class Case:
    """A collective, what it means, and the shape that a rank brings."""

    run: Callable  # (x, group)
    means: Callable  # (xs)
    shape: Callable  # (n, rank)
    takes_one: bool = False  # one x, the same on all ranks (see [Note: one or many])
    gives_one: bool = False
    forward: tuple[str, ...] = ()  # what is launched, forward and backward
    backward: tuple[str, ...] = ()


def _shape(*sizes):
    """The same shape on every rank; "2n" is two entries for each of n ranks."""
    return lambda n, rank: [2 * n if size == "2n" else size for size in sizes]


GATHER, SCATTER, SWAP = ("all_gather",), ("reduce_scatter",), ("all_to_all",)
P2P = ("recv", "send")
CASES = {
    "copy": Case(lambda x, g: copy(x, g), reference.copy, _shape(3, 2), takes_one=True,
                 backward=("all_reduce",)),
    "all_reduce": Case(lambda x, g: all_reduce(x, g), reference.all_reduce, _shape(3, 2),
                       gives_one=True, forward=("all_reduce",)),
    "broadcast": Case(lambda x, g: broadcast(x, 0, g), reference.broadcast, _shape(3),
                      forward=("broadcast",), backward=("reduce",)),
    "reduce": Case(lambda x, g: reduce(x, 0, g), reference.reduce, _shape(3),
                   forward=("reduce",), backward=("broadcast",)),
    "broadcast, last root": Case(
        lambda x, g: broadcast(x, dist.get_world_size(g) - 1, g),
        lambda xs: reference.broadcast(xs, len(xs) - 1), _shape(3),
        forward=("broadcast",), backward=("reduce",)),
    "reduce, last root": Case(
        lambda x, g: reduce(x, dist.get_world_size(g) - 1, g),
        lambda xs: reference.reduce(xs, len(xs) - 1), _shape(3),
        forward=("reduce",), backward=("broadcast",)),
    "scatter, last root": Case(
        lambda x, g: scatter(x, dist.get_world_size(g) - 1, 0, g),
        lambda xs: reference.scatter(xs, len(xs) - 1),
        _shape("2n", 3),
        forward=("scatter",),
        backward=("gather",),
    ),
    "gather, last root": Case(
        lambda x, g: gather(x, dist.get_world_size(g) - 1, 0, g),
        lambda xs: reference.gather(xs, len(xs) - 1),
        _shape(4, 3),
        forward=("gather",),
        backward=("scatter",),
    ),
    "uneven rows": Case(uneven_rows, lambda xs: reference.all_to_all_uneven(xs, counts(len(xs))),
                        lambda n, rank: [sum(counts(n)[rank]), 2], forward=SWAP, backward=SWAP),
    "uneven dims": Case(
        uneven_dims,
        lambda xs: reference.all_to_all_uneven(xs, [[r + 1 for r in range(len(xs))]] * len(xs),
                                               0, 1),
        lambda n, rank: [n * (n + 1) // 2, rank + 2, 2], forward=SWAP, backward=SWAP),
}  # fmt: skip
for _by in (1, -1, 2, 5):
    CASES[f"shift {_by}"] = Case(
        lambda x, g, by=_by: shift(x, by, g), lambda xs, by=_by: reference.shift(xs, by),
        _shape(3, 2), forward=P2P, backward=P2P)  # fmt: skip
for _dim in (0, 1, -1):
    _whole = {0: _shape("2n", 3, 2), 1: _shape(3, "2n", 2), -1: _shape(3, 2, "2n")}[_dim]
    _shard = _shape(3, 4, 2)
    for _name, _run, _options in (
        ("all_gather", all_gather, {"shape": _shard, "forward": GATHER, "backward": SCATTER}),
        ("reduce_scatter", reduce_scatter,
         {"shape": _whole, "forward": SCATTER, "backward": GATHER}),
        ("join", join, {"shape": _shard, "forward": GATHER, "gives_one": True}),
        ("split", split, {"shape": _whole, "backward": GATHER, "takes_one": True}),
    ):  # fmt: skip
        CASES[f"{_name} dim {_dim}"] = Case(
            lambda x, g, run=_run, dim=_dim: run(x, dim, g),
            partial(getattr(reference, _name), dim=_dim), **_options)  # fmt: skip
    for _name, _run, _there, _back, _given in (
        ("scatter", scatter, ("scatter",), ("gather",), _whole),
        ("gather", gather, ("gather",), ("scatter",), _shard),
    ):
        CASES[f"{_name} dim {_dim}"] = Case(
            lambda x, g, run=_run, dim=_dim: run(x, 0, dim, g),
            partial(getattr(reference, _name), dim=_dim),
            _given,
            forward=_there,
            backward=_back,
        )
for _a, _b in ((0, 0), (0, 1), (1, 0), (2, 0), (-1, 1)):
    CASES[f"all_to_all {_a} {_b}"] = Case(
        lambda x, g, a=_a, b=_b: all_to_all(x, a, b, g),
        partial(reference.all_to_all, split_dim=_a, concat_dim=_b),
        _shape("2n", "2n", "2n"), forward=SWAP, backward=SWAP)  # fmt: skip

every_case = pytest.mark.parametrize("name", CASES)


def whole_numbers(shape, seed, dtype=torch.float64):
    noise = torch.Generator(device="cpu").manual_seed(seed)
    return torch.randint(-2, 6, tuple(shape), generator=noise).to(dtype)


def given(name, n, dtype=torch.float64):
    """What every rank brings: leaves for autograd; the same leaf where the case takes one x."""
    case = CASES[name]
    xs = [whole_numbers(case.shape(n, r), r, dtype).requires_grad_() for r in range(n)]
    return [xs[0]] * n if case.takes_one else xs


def weights(ys, one):
    """A weight for each entry of what ranks get: the gradient from above; one where it is one."""
    return [whole_numbers(y.shape, 100 + (0 if one else r), y.dtype) for r, y in enumerate(ys)]


def expected(name, n, dtype=torch.float64, power=1):
    """What the reference says: outputs, and the gradients of sum(weights · outputs ** power)."""
    case, xs = CASES[name], given(name, n, dtype)
    ys = case.means(xs)
    ws = weights(ys, case.gives_one)
    terms = [(w * y**power).sum() for w, y in zip(ws, ys)]
    loss = terms[0] if case.gives_one else sum(terms)  # one output counts once
    leaves = xs[:1] if case.takes_one else xs
    grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True,
                                create_graph=power > 1)  # fmt: skip
    grads = list(grads) * (n if case.takes_one else 1)
    return [y.detach() for y in ys], ws, grads, (xs, leaves)


def forth_and_back(name, want_group=None, dtype=torch.float64):
    """Run a case on this rank, forward and backward: (output, gradient)."""
    group = mesh(**want_group[0])[want_group[1]].group if want_group else None
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    x = given(name, n, dtype)[rank]
    y = CASES[name].run(x, group)
    weight = whole_numbers(y.shape, 100 + (0 if CASES[name].gives_one else rank), dtype)
    return y.detach(), torch.autograd.grad(y, x, weight)[0]


def equal(answers, wanted):
    return len(answers) == len(wanted) and all(map(torch.equal, answers, wanted))


# Spread equals whole


@every_case
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_output_and_gradient_equal_the_reference(worlds, name, n):
    ys, _, grads, _ = expected(name, n)
    answers = worlds(n).run(forth_and_back, name)
    assert equal([y for y, _ in answers], ys)
    assert equal([g for _, g in answers], grads)


@every_case
@pytest.mark.parametrize("n", [2, 3, 4])
def test_backward_is_the_transposed_map(worlds, name, n):
    """<A x, w> = <x, Aᵀ w>: no reference needed, and exact because all are whole numbers."""
    case, answers = CASES[name], worlds(n).run(forth_and_back, name)
    ws = weights([y for y, _ in answers], case.gives_one)
    above = [(y * w).sum() for (y, _), w in zip(answers, ws)]
    below = [(x * g).sum() for x, (_, g) in zip(given(name, n), answers)]
    above = above[0] if case.gives_one else sum(above)  # one tensor counts once
    below = below[0] if case.takes_one else sum(below)
    assert above == below and above != 0


@every_case
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_other_dtypes(worlds, name, dtype):
    ys, _, grads, _ = expected(name, 2, dtype)
    answers = worlds(2).run(forth_and_back, name, None, dtype)
    assert equal([y for y, _ in answers], ys) and equal([g for _, g in answers], grads)
    assert every(y.dtype == g.dtype == dtype for y, g in answers)


@every_case
@pytest.mark.parametrize("axis", ["dp", "tp"])
def test_in_a_group_of_some_ranks(worlds, name, axis):
    ys, _, grads, _ = expected(name, 2)
    answers = worlds(4).run(forth_and_back, name, ({"dp": 2, "tp": 2}, axis))
    for rank, (y, g) in enumerate(answers):
        place = rank // 2 if axis == "dp" else rank % 2
        assert torch.equal(y, ys[place]) and torch.equal(g, grads[place])


@every_case
def test_a_group_of_one_is_the_identity(worlds, name):
    (x,) = given(name, 1)
    ((y, g),) = worlds(4).run(forth_and_back, name, ({"dp": 4, "tp": 1}, "tp"))[:1]
    assert torch.equal(x, y) and torch.equal(g, *weights([x], True))


def gaps(name):
    """A transposed x with gaps in memory, and an expanded gradient from above (all ones)."""
    n, rank = dist.get_world_size(), dist.get_rank()
    plain = given(name, n)[rank].detach()
    roomy = torch.full([2 * size for size in plain.shape], torch.nan, dtype=plain.dtype)
    x = roomy.permute(*reversed(range(plain.dim())))
    x = x[tuple(slice(0, 2 * size, 2) for size in reversed(plain.shape))]
    x = x.permute(*reversed(range(plain.dim()))).copy_(plain).requires_grad_()
    y = CASES[name].run(x, None)
    before = x.detach().clone()
    y.sum().backward()
    return y.detach(), x.grad, torch.equal(before, plain) and not x.is_contiguous()
