"""The split embedding and the split loss give what the whole ones give, padded or not."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from lib.parallel.tensor import (
    VocabParallelEmbedding,
    VocabParallelLinear,
    vocab_parallel_cross_entropy,
)

VOCABULARIES = [8, 9, 5]  # 5 tokens on 4 ranks: the last rank has padding only


def embedded(vocabulary, padding):
    torch.manual_seed(0)
    full = nn.Embedding(vocabulary, 6, padding_idx=padding).double()
    tokens, gradient = torch.randint(vocabulary, (4, 7)), torch.randn(4, 7, 6).double()
    split = VocabParallelEmbedding(full)
    for module in (full, split):
        y = module(tokens)
        y.backward(gradient)
    rows = split.placements["weight"]
    apart = [
        split(tokens) - full(tokens),
        split.weight.grad - rows.shard(full.weight.grad, split.rank),
    ]
    return max(t.abs().max().item() for t in apart), rows.padding


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_an_embedding_is_the_whole_one(world, vocabulary, padding):
    for apart, added in world.run(embedded, vocabulary, padding):
        assert apart < 1e-12 and (vocabulary + added) % len(world) == 0


OPTIONS = [{}, {"label_smoothing": 0.1}, {"reduction": "sum"}, {"reduction": "none"},
           {"ignore_index": 2, "label_smoothing": 0.3}]  # fmt: skip


def lost(vocabulary, options, gather=False):
    """The head and the loss on split logits against whole ones: loss, gradients of x and W."""
    torch.manual_seed(1)
    full = nn.Linear(6, vocabulary).double()
    x = 3 * torch.randn(4, 5, 6).double()
    targets = torch.randint(vocabulary, (4, 5))
    targets[1] = options.get("ignore_index", -100)
    head = VocabParallelLinear(full, gather_output=gather)
    a, b = (x.clone().requires_grad_() for _ in range(2))
    expected = cross_entropy(full(a).flatten(0, 1), targets.flatten(), **options)
    if gather:
        found = cross_entropy(head(b).flatten(0, 1), targets.flatten(), **options)
    else:
        found = vocab_parallel_cross_entropy(head(b), targets, vocabulary=vocabulary, **options)
    weights = torch.linspace(0.5, 2, expected.numel()).double()
    (expected.flatten() * weights).sum().backward()
    (found.flatten() * weights).sum().backward()
    share = head.placements["weight"].shard
    pairs = [(found.flatten(), expected.flatten()), (b.grad, a.grad),
             (head.weight.grad, share(full.weight.grad, head.rank)),
             (head.bias.grad, share(full.bias.grad, head.rank))]  # fmt: skip
    return max((one - other).abs().max().item() for one, other in pairs)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_loss_is_the_whole_one(world, vocabulary, options):
    assert max(world.run(lost, vocabulary, options)) < 1e-12


def lost_of_another_head(vocabulary, options, added):
    """Logits whose padding has a number in place of -inf: the loss and its gradient, unlike whole.

    Backward begins with 2, as behind a factor of the loss.
    """
    torch.manual_seed(2)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    logits = 3 * torch.randn(20, vocabulary).double()
    targets = torch.randint(vocabulary, (20,))
    targets[3] = options.get("ignore_index", -100)
    padding = torch.full((20, -vocabulary % ranks), added).double()
    own = torch.cat([logits, padding], 1).chunk(ranks, 1)[rank].clone().requires_grad_()
    logits.requires_grad_()
    expected = cross_entropy(logits, targets, **options)
    found = vocab_parallel_cross_entropy(own, targets, vocabulary=vocabulary, **options)
    for loss in (expected, found):
        (2 * loss.sum()).backward()
    gradient = torch.cat([logits.grad, torch.zeros_like(padding)], 1).chunk(ranks, 1)[rank]
    return max((a - b).abs().max().item() for a, b in ((found, expected), (own.grad, gradient)))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_padding_counts_nowhere_whatever_it_holds(world, options):
    """1e4 is so far above all other logits that exp gives 0 for each of them."""
    for vocabulary in VOCABULARIES:
        for added in (7.0, 1e4):
            assert max(world.run(lost_of_another_head, vocabulary, options, added)) < 1e-12


def of_padding(vocabulary):
    """The part of the logits that is padding, and the loss if nobody says that there is any."""
    torch.manual_seed(3)
    full, x = nn.Linear(6, vocabulary).double(), torch.randn(4, 6).double()
    targets = torch.randint(vocabulary, (4,))
    head = VocabParallelLinear(full)
    logits = head(x)
    real = vocabulary - head.rank * logits.shape[1]
    loss = vocab_parallel_cross_entropy(logits, targets)
    return logits[:, max(real, 0) :].flatten().tolist(), (loss - cross_entropy(full(x), targets))


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_padded_head_gives_no_probability_to_its_padding(world, vocabulary):
    answers = world.run(of_padding, vocabulary)
    added = [one for padding, _ in answers for one in padding]
    assert added == [-torch.inf] * (4 * (-vocabulary % len(world)))
    assert max(apart.abs().item() for _, apart in answers) < 1e-12


def gradient_of_padding(vocabulary):
    """The gradient of a head's added rows, for a loss that would give them one."""
    head = VocabParallelLinear(nn.Linear(6, vocabulary))
    head(torch.ones(4, 6)).sum().backward()
    real = max(vocabulary - head.rank * len(head.weight), 0)
    return head.weight.grad[real:].flatten().tolist(), head.weight.grad[:real].flatten().tolist()


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_padding_gets_no_gradient(world, vocabulary):
    answers = world.run(gradient_of_padding, vocabulary)
    added = [one for padding, _ in answers for one in padding]
    assert added == [0.0] * (6 * (-vocabulary % len(world)))
    assert [one for _, real in answers for one in real] == [4.0] * (6 * vocabulary)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_gathered_logits_are_the_whole_ones(world, vocabulary):
    assert max(world.run(lost, vocabulary, {}, True)) < 1e-12


def extreme(dtype):
    """Logits that overflow where nobody subtracts the largest of all ranks."""
    logits = torch.tensor([[800.0, -900, 700, 801]], dtype=dtype)
    own = logits.chunk(dist.get_world_size(), 1)[dist.get_rank()].clone().requires_grad_()
    loss = vocab_parallel_cross_entropy(own, torch.tensor([0]))
    loss.backward()
    return loss.item(), own.grad.dtype, own.grad.isfinite().all().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_large_logits_do_not_overflow(worlds, dtype):
    logits = torch.tensor([[800.0, -900, 700, 801]]).to(dtype).float()
    expected = cross_entropy(logits, torch.tensor([0])).item()
    for loss, kind, finite in worlds(4).run(extreme, dtype):
        assert loss == pytest.approx(expected, rel=1e-6) and finite and kind == dtype


def refused(what):
    full = nn.Embedding(5, 4, **({"max_norm": 1.0} if what == "max_norm" else {}))
    try:
        if what == "target":
            vocab_parallel_cross_entropy(torch.zeros(2, 4), torch.tensor([1, 8]))
        elif what == "reduction":
            vocab_parallel_cross_entropy(torch.zeros(2, 4), torch.tensor([1, 7]), reduction="x")
        else:
            VocabParallelEmbedding(full)(torch.tensor([5 if what == "token" else -1]))
    except (ValueError, IndexError) as error:
        return str(error)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("token", "Tokens from 5 to 5 were given, but the vocabulary has tokens 0 to 4."),
        ("below", "Tokens from -1 to -1 were given, but the vocabulary has tokens 0 to 4."),
        ("max_norm", "An embedding with max_norm=1.0 cannot be split by vocabulary."),
        ("target", "A target is outside the vocabulary of 8 tokens."),
        ("reduction", "No reduction is called 'x'. Choose mean, sum or none."),
    ],
)
def test_what_cannot_be_is_refused(worlds, what, words):
    """A token of the padding would be a row of zeros, and nobody would notice."""
    for text in worlds(2).run(refused, what):
        assert text.startswith(words)
