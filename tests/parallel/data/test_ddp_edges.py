"""Distributed data parallel where it is refused, bent, or kept small: errors, views, memory."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Theirs
from torch.utils.checkpoint import checkpoint

from lib import RankError, World
from lib.parallel.data.compressors import TopK
from lib.parallel.data.ddp import DistributedDataParallel
from lib.predict.shape import GPTShape, MLPShape
from lib.ranks.memory import Memory
from lib.ranks.mesh import mesh
from lib.single import GPT, MLP, next_token_loss
from tests.every import every

SHAPE = MLPShape((6, 20, 20, 4))


def inputs(rank=None):
    draw = torch.Generator().manual_seed(dist.get_rank() if rank is None else rank)
    return torch.randn(3, 6, generator=draw)


def mean_gradients(use, ranks):
    """What the plain model's gradients are on average, if `use(model, x)` gives the loss."""
    model = MLP(SHAPE)
    sum(use(model, inputs(rank)) for rank in ranks).backward()
    return [p.grad / len(ranks) for p in model.parameters()]


def near(found, wanted):
    return all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, wanted, strict=True))


# --- what is refused, in words


def left_out():
    model = MLP(SHAPE)
    model.blocks["0"].linear.extra = nn.Parameter(torch.ones(2))
    DistributedDataParallel(model)(inputs()).sum().backward()


def used_after_all():
    model = MLP(SHAPE)
    model.extra = nn.Parameter(torch.ones(2))
    ddp = DistributedDataParallel(model, static=True)
    for step in range(3):
        (ddp(inputs()).sum() + (model.extra.sum() if step == 2 else 0)).backward()


def another_shape():
    DistributedDataParallel(MLP(MLPShape((6, 20 + dist.get_rank(), 4))))


def one_layer_more():
    DistributedDataParallel(MLP(MLPShape((6, 20, 4, 4)[: 3 + dist.get_rank()])))


def nothing_to_train():
    DistributedDataParallel(MLP(SHAPE).requires_grad_(False))


class Rows(nn.Linear):
    """Looks up rows of its weight; nothing says beforehand that its gradient will be sparse."""

    def forward(self, rows):
        return nn.functional.embedding(rows, self.weight, sparse=True) + self.bias


def sparse():
    DistributedDataParallel(Rows(4, 4))(torch.arange(3)).sum().backward()


def dense_after_all():
    table, head = nn.Embedding(4, 4, sparse=True), nn.Linear(4, 4)
    head.weight = table.weight
    DistributedDataParallel(nn.Sequential(table, head))(torch.arange(3)).sum().backward()


def sparse_for_a_hook():
    DistributedDataParallel(nn.Embedding(9, 4, sparse=True), hook=TopK(0.5))


def unfrozen():
    model = MLP(SHAPE)
    model.blocks["0"].requires_grad_(False)
    ddp = DistributedDataParallel(model)
    ddp(inputs()).sum().backward()
    model.requires_grad_(True)
    ddp(inputs())


class Twice(nn.Module):
    """The same layer in two segments: old checkpoints give its gradient in two parts."""

    def __init__(self):
        super().__init__()
        self.first, self.again = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        for _ in range(2):
            x = checkpoint(self.again, self.first(x), use_reentrant=True)
        return x


def twice():
    DistributedDataParallel(Twice())(inputs()).sum().backward()


class Segments(MLP):
    """Its first two blocks are computed again in backward."""

    reentrant = True

    def forward(self, x):
        return self[2:](checkpoint(self[:2], x, use_reentrant=self.reentrant))


def hidden():
    """The last gradients come in an old checkpoint's segment: nobody says that it is over."""
    model = Segments(SHAPE)
    model.extra = nn.Parameter(torch.ones(2))
    ddp = DistributedDataParallel(model)
    for _ in range(2):
        ddp(inputs().requires_grad_()).sum().backward()


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (left_out, r"without a gradient for blocks\.0\.linear\.extra, .*find_unused=True"),
        (used_after_all, "extra was unused in the first step .*static=True"),
        (another_shape, r"rank 0 of the group has blocks.0.linear.weight \[20, 6\] .*trained; rank"
         r" 1 has blocks.0.linear.weight \[21, 6\]"),
        (one_layer_more, r"has no such parameter; rank 1 has blocks.2.linear.weight"),
        (nothing_to_train, "No parameter of this model is trained"),
        (sparse, "weight has a sparse gradient, but it is not the weight of an nn.Embed"),
        (dense_after_all, "0.weight has a dense gradient, although its Embedding has sparse=True"),
        (sparse_for_a_hook, "weight has sparse gradients, but a hook accepts only dense ones"),
        (unfrozen, r"blocks\.0\.linear\.weight was frozen when the model was wrapped"),
        (hidden, "(?s)without a gradient for extra,.*use_reentrant=False"),
        (twice, r"second gradient in one backward.*use_reentrant=False"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(worlds, step, words):
    with pytest.raises(RankError, match=words):
        worlds(2).run(step)


def only_rank_1():
    model = MLP(SHAPE)
    ddp = DistributedDataParallel(model)
    x = ddp(inputs()) if dist.get_rank() else model.blocks["0"](inputs())
    x.sum().backward()


def test_who_has_no_gradient_is_named_and_who_waits_too(worlds):
    with pytest.raises(
        RankError, match="(?s)rank 0 raised.*ended on rank 0.*blocks.1.*rank 1 .*wait"
    ):
        worlds(2).run(only_rank_1)


# --- what is bent


def again(ranks):
    """Backward twice through one graph: each time what is new is averaged."""
    model = MLP(SHAPE)
    ddp = DistributedDataParallel(model, bucket_bytes=100)
    for _ in range(2):
        ddp.zero_grad()
        loss = ddp(inputs()).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
    return len(ddp.buckets) == 3 and near(
        [p.grad for p in model.parameters()],
        mean_gradients(lambda m, x: 2 * m(x).square().mean(), ranks),
    )


def two_forwards(ranks):
    model = MLP(SHAPE)
    ddp = DistributedDataParallel(model)
    for _ in range(2):
        ddp.zero_grad()
        (ddp(inputs()).square().mean() * ddp(inputs() + 1).mean()).backward()
    use = lambda m, x: m(x).square().mean() * m(x + 1).mean()
    return near([p.grad for p in model.parameters()], mean_gradients(use, ranks))


def segments(ranks):
    """Both kinds of checkpoint inside the model."""
    found = []
    for reentrant in (True, False):
        model = Segments(SHAPE)
        model.reentrant = reentrant
        ddp = DistributedDataParallel(model, bucket_bytes=100)
        for _ in range(2):
            ddp.zero_grad()
            ddp(inputs().requires_grad_()).square().mean().backward()
        wanted = mean_gradients(lambda m, x: m(x).square().mean(), ranks)
        found.append(near([p.grad for p in model.parameters()], wanted))
    return found == [True, True]


def kept(ranks):
    """Gradients that are zeroed in place, or replaced, stay parts of their buckets."""
    model = MLP(SHAPE)
    ddp = DistributedDataParallel(model, bucket_bytes=100)
    for step in range(4):
        ddp.zero_grad(set_to_none=step % 2 == 0)
        ddp(inputs()).square().mean().backward()
        views = {view.data_ptr() for bucket in ddp.buckets for view in bucket.views}
        assert views == {p.grad.data_ptr() for p in model.parameters()}
        wanted = mean_gradients(lambda m, x: m(x).square().mean(), ranks)
        assert near([p.grad for p in model.parameters()], wanted), step
        if step == 2:
            for p in model.parameters():
                p.grad = p.grad.clone()
    return len(ddp.buckets) == 3


def evaluated(ranks):
    """A look at the loss without gradients between forward and backward changes nothing."""
    model = MLP(SHAPE)
    ddp = DistributedDataParallel(model)
    loss = ddp(inputs()).square().mean()
    with torch.no_grad():
        ddp(inputs())
    loss.backward()
    use = lambda m, x: m(x).square().mean()
    return near([p.grad for p in model.parameters()], mean_gradients(use, ranks))


@pytest.mark.parametrize("step", [again, two_forwards, segments, kept, evaluated])
def test_it_bends(worlds, step):
    assert worlds(2).run(step, range(2)) == [True, True]


def along_an_axis():
    axis = mesh(dp=2, tp=2)["dp"]
    model = MLP(SHAPE, seed=dist.get_rank())
    ddp = DistributedDataParallel(model, axis.group)
    ddp(inputs()).square().mean().backward()
    return axis.ranks, [p.grad for p in model.parameters()]


def test_a_group_averages_among_its_members_from_its_first_ranks_weights(worlds):
    for ranks, gradients in worlds(4).run(along_an_axis):
        model = MLP(SHAPE, seed=ranks[0])
        sum(model(inputs(rank)).square().mean() for rank in ranks).backward()
        assert near(gradients, [p.grad / 2 for p in model.parameters()])


def states():
    model = MLP(SHAPE, seed=dist.get_rank())
    ddp = DistributedDataParallel(model)
    state = ddp.state_dict()
    other = DistributedDataParallel(MLP(SHAPE, seed=7))
    other.load_state_dict(state)
    plain = MLP(SHAPE, seed=8)
    plain.load_state_dict(other.state_dict())
    return list(state), state | plain.state_dict()


def test_the_state_dict_is_the_plain_models(worlds):
    model = MLP(SHAPE)
    for names, state in worlds(2).run(states):
        assert names == list(model.state_dict())
        assert every(torch.equal(state[name], model.state_dict()[name]) for name in names)


# --- what is kept small


def gradient_memory(kind, accumulate):
    """Bytes of gradients and of everything at the peak of a step, as `Memory` counts them."""
    torch.manual_seed(0)
    model = GPT(GPTShape(width=64, layers=2))
    cap = 100_000
    if kind == "ours":
        ddp = DistributedDataParallel(model, bucket_bytes=cap)
    elif kind == "theirs":
        ddp = Theirs(model, bucket_cap_mb=cap / 2**20, gradient_as_bucket_view=True)
    else:
        ddp = model
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tokens = torch.randint(256, (2, 64))

    def backward():
        next_token_loss(ddp(tokens), tokens).backward()

    for _ in range(3):
        with Memory(model, optimizer) as memory:
            optimizer.zero_grad()
            if accumulate and kind != "plain":
                with ddp.no_sync():
                    backward()
            backward()
            optimizer.step()
    parameters = sum(p.nbytes for p in model.parameters())
    alive = memory.now
    return parameters, alive["gradients"], alive["gradients"] + alive["other"], memory.peak


@pytest.mark.parametrize("accumulate", [False, True])
def test_gradients_need_no_second_copy(accumulate):
    with World(2, device="cpu") as fresh:  # on which no other test has left anything
        found = {
            kind: fresh.run(gradient_memory, kind, accumulate)[0]
            for kind in ("plain", "ours", "theirs")
        }
    parameters, gradients, alive, peak = found["ours"]
    assert gradients == parameters
    assert alive <= found["plain"][2] + 4096  # nothing lies beside them
    assert (alive, peak) <= (found["theirs"][2], found["theirs"][3]), found
