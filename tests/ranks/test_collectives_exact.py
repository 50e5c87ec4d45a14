"""Collectives: strides, second derivatives, what is launched, what is refused."""

from functools import partial

import pytest
import torch
import torch.distributed as dist

from lib.ranks import RankError, collectives
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
from tests.ranks.test_collectives import (
    CASES,
    equal,
    every_case,
    expected,
    forth_and_back,
    gaps,
    given,
    whole_numbers,
)


@every_case
def test_any_strides_and_nothing_uninitialised(worlds, name):
    case, n = CASES[name], 4
    xs = given(name, n)
    ys = case.means(xs)
    (ys[0].sum() if case.gives_one else sum(y.sum() for y in ys)).backward()
    answers = worlds(n).run(gaps, name)
    for x, y, (output, gradient, untouched) in zip(xs, ys, answers, strict=True):
        assert torch.equal(output, y) and untouched
        assert torch.equal(gradient, torch.zeros_like(x) if x.grad is None else x.grad)


def twice(name):
    """The gradient of the squared gradient of sum(w · y³): backward of backward."""
    n, rank = dist.get_world_size(), dist.get_rank()
    case, x = CASES[name], given(name, n)[rank]
    y = case.run(x, None)
    weight = whole_numbers(y.shape, 100 + (0 if case.gives_one else rank))
    (first,) = torch.autograd.grad(y, x, weight * 3 * y**2, create_graph=True)
    return torch.autograd.grad(first, x, 2 * first.detach())[0]


@every_case
def test_backward_of_backward(worlds, name):
    case, n = CASES[name], 4
    _, _, grads, (_, leaves) = expected(name, n, power=3)
    ones = grads[:1] if case.takes_one else grads
    second = torch.autograd.grad(ones, leaves, [2 * g.detach() for g in ones], allow_unused=True,
                                 materialize_grads=True)  # fmt: skip
    answers = worlds(n).run(twice, name)
    assert equal(answers, list(second) * (n if case.takes_one else 1))


# The ledger equals the prediction


def launched(name, n):
    """What a case launches forward and backward; once round the ring nobody sends."""
    still = name.startswith("shift") and int(name.split()[1]) % n == 0
    return ((), ()) if still else (CASES[name].forward, CASES[name].backward)


def forward_only(name):
    x = given(name, dist.get_world_size())[dist.get_rank()]
    return CASES[name].run(x, None).shape


@every_case
@pytest.mark.parametrize("n", [2, 4])
def test_what_is_launched_forward_and_backward(worlds, name, n):
    forward, backward = launched(name, n)
    ahead, both = (worlds(n).record(f, name) for f in (forward_only, forth_and_back))
    for rank in range(n):
        assert tuple(ops(ahead, rank)) == forward
        assert ops(both, rank) == sorted(forward + backward)


def ops(ledger, rank):
    return sorted(row.op for row in ledger.where(lane="comm", rank=rank))


FULL = 8 * 4 * 6  # bytes of [4, 6] in float64


def one_of_each():
    n, rank = dist.get_world_size(), dist.get_rank()
    full_x, x_shard = torch.ones(4, 6).double(), torch.ones(4 // n, 6).double()
    for run, x in ((all_reduce, full_x), (all_gather, x_shard), (reduce_scatter, full_x),
                   (split, full_x), (join, x_shard), (copy, full_x), (all_to_all, full_x),
                   (broadcast, full_x), (reduce, full_x), (scatter, full_x), (gather, x_shard),
                   (shift, full_x)):  # fmt: skip
        run(x)
    return rank


@pytest.mark.parametrize("n", [2, 4])
def test_bytes_are_the_full_buffer_and_no_more(worlds, n):
    ledger = worlds(n).record(one_of_each)
    assert ledger.results == list(range(n))
    for rank in range(n):
        rows = [(r.op, r.bytes) for r in ledger.where(lane="comm", rank=rank)]
        assert sorted(rows) == sorted(
            [("all_gather", FULL)] * 2
            + [(op, FULL) for op in ("all_reduce", "reduce_scatter", "all_to_all", "broadcast",
                                     "reduce", "scatter", "gather", "send", "recv")]
        )  # fmt: skip


# Bites: without the communication, or with another partner, the tests above fail


def silenced(name):
    """The case with every message taken out: what should have arrived is zeros."""
    kinds = "all_reduce broadcast reduce scatter gather all_gather_single reduce_scatter_single"
    kinds = [*kinds.split(), "all_to_all_single"]
    real = {kind: getattr(dist, kind) for kind in kinds}
    exchange = collectives.exchange
    for kind in kinds:  # in place, or already zeros: nothing happens; else the output stays empty
        quiet = kind in ("all_reduce", "broadcast", "reduce", "gather")
        setattr(dist, kind, lambda y, *_, quiet=quiet, **__: None if quiet else y.zero_())
    collectives.exchange = lambda sends, receives, *_: [y.zero_() for y in receives.values()]
    try:
        return forth_and_back(name)
    finally:
        collectives.exchange = exchange
        for kind, function in real.items():
            setattr(dist, kind, function)


@every_case
@pytest.mark.parametrize("n", [2, 4])
def test_without_its_messages_it_is_wrong(worlds, name, n):
    forward, backward = launched(name, n)
    ys, _, grads, _ = expected(name, n)
    answers = worlds(n).run(silenced, name)
    assert equal([y for y, _ in answers], ys) == (not forward)
    assert equal([g for _, g in answers], grads) == (not backward)


def transposed_by(forward, backward, n):
    """True if <A x, w> = <x, B w> where ranks use each x and each result in their own way."""
    rank = dist.get_rank()
    x = whole_numbers([2 * n, 2 * n], rank)
    y = forward(x)
    w = whole_numbers(y.shape, 100 + rank)
    both = torch.stack([(y * w).sum(), (x * backward(w)).sum()])
    dist.all_reduce(both)
    return bool(both[0] == both[1])


PARTNERS = {
    "all_gather, reduce_scatter": (all_gather, reduce_scatter, True),
    "all_gather, split": (all_gather, split, False),  # forgets the others' gradients
    "reduce_scatter, join": (reduce_scatter, join, True),
    "copy, copy": (copy, copy, True),
    "copy, all_reduce": (copy, all_reduce, False),  # conjugate only where x is one for all
    "all_reduce, copy": (all_reduce, copy, False),
    "all_reduce, all_reduce": (all_reduce, all_reduce, True),
    "broadcast, reduce": (broadcast, reduce, True),
    "broadcast, all_reduce": (broadcast, all_reduce, False),
    "scatter, gather": (scatter, gather, True),
    "scatter, all_gather": (scatter, all_gather, False),
    "shift, back": (shift, partial(shift, by=-1), True),
    "shift, shift": (shift, shift, False),
    "all_to_all, swapped": (partial(all_to_all, split_dim=0, concat_dim=1),
                            partial(all_to_all, split_dim=1, concat_dim=0), True),
}  # fmt: skip


def partners(pair):
    return transposed_by(*PARTNERS[pair][:2], dist.get_world_size())


@pytest.mark.parametrize("pair", PARTNERS)
def test_only_the_right_partner_is_the_transposed_map(worlds, pair):
    assert worlds(4).run(partners, pair) == [PARTNERS[pair][2]] * 4


# A layer: column, then row (as chapter 3 has it)


def layer(enter, leave, rank=0, n=1):
    """z = relu(x W) V with the columns of W and the rows of V spread; also its gradients."""
    x, W, V = (whole_numbers(shape, 7 + i).requires_grad_()
               for i, shape in enumerate(([3, 4], [4, 8], [8, 4])))  # fmt: skip
    W_shard, V_shard = W.chunk(n, 1)[rank], V.chunk(n, 0)[rank]
    z = leave(torch.relu(enter(x) @ W_shard) @ V_shard)
    (z * whole_numbers(z.shape, 99)).sum().backward()
    return z.detach(), x.grad, W.grad.chunk(n, 1)[rank], V.grad.chunk(n, 0)[rank]


ENDS = {
    "both": (copy, all_reduce),
    "no copy": (lambda x: x, all_reduce),
    "no sum": (copy, lambda x: x),
    "summed twice": (all_reduce, all_reduce),
}


def layer_on_ranks(ends):
    return layer(*ENDS[ends], dist.get_rank(), dist.get_world_size())


@pytest.mark.parametrize("n", [1, 2, 4])
def test_a_spread_layer_equals_the_whole_one(worlds, n):
    z, dx, dW, dV = layer(lambda x: x, lambda x: x)
    for rank, answer in enumerate(worlds(n).run(layer_on_ranks, "both")):
        assert equal(answer, [z, dx, dW.chunk(n, 1)[rank], dV.chunk(n, 0)[rank]])


@pytest.mark.parametrize(
    ("ends", "right"),
    [("no copy", [True, False]), ("no sum", [False, True]), ("summed twice", [False, False])],
)
def test_a_spread_layer_without_one_of_its_ends_is_wrong(worlds, ends, right):
    whole = layer(lambda x: x, lambda x: x)
    for answer in worlds(2).run(layer_on_ranks, ends):
        assert [torch.equal(a, b) for a, b in zip(answer[:2], whole)] == right


# What is refused, in words


SEVEN = torch.ones(7, 4)
REFUSED = {
    "split": (lambda: split(SEVEN), "dim 0 has 7 entries: 2 ranks cannot share them equally"),
    "reduce_scatter": (lambda: reduce_scatter(SEVEN), "dim 0 has 7 entries: 2 ranks cannot share"),
    "scatter": (lambda: scatter(SEVEN.T, dim=1), "dim 1 has 7 entries: 2 ranks cannot share"),
    "last dim": (lambda: split(SEVEN.T, -1), "dim 1 has 7 entries: 2 ranks cannot share"),
    "all_to_all": (lambda: all_to_all(SEVEN), "dim 0 has 7 entries: 2 ranks cannot share"),
    "no such dim": (lambda: all_gather(SEVEN, 2), "tensor of shape [7, 4] has no dim 2"),
    "nor this": (lambda: join(torch.tensor(1.0)), "tensor of shape [] has no dim 0"),
    "gather": (lambda: gather(SEVEN, dim=-3), "tensor of shape [7, 4] has no dim -3"),
    "uneven": (lambda: all_to_all(SEVEN, sent=[3, 3], received=[3, 3]),
               "Dim 0 has 7 entries, which the counts [3, 3] do not divide"),
    "negative": (lambda: all_to_all(SEVEN, sent=[8, -1], received=[3, 3]), "[8, -1] does not"),
    "too many": (lambda: all_to_all(SEVEN, sent=[3, 4, 0], received=[3, 3]), "[3, 4, 0] does not"),
    "one count": (lambda: all_to_all(SEVEN, sent=[3, 4], received=[7]),
                  "received=[7] does not name a count for each of 2 ranks"),
    "half told": (lambda: all_to_all(SEVEN, sent=[3, 4]), "it needs both, or none"),
}  # fmt: skip


def refused(name):
    REFUSED[name][0]()


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_shared_is_refused_in_words(worlds, name):
    with pytest.raises(RankError) as raised:
        worlds(2).run(refused, name)
    assert REFUSED[name][1] in str(raised.value)
    assert "ranks 0 and 1 raised ValueError" in str(raised.value)  # before anything was sent
