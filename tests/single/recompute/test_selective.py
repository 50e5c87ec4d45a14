"""Selective recomputation forgets the scores of attention alone; a budget has its plan."""

import math
from collections import Counter

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils import checkpoint as pytorchs
from torch.utils._python_dispatch import TorchDispatchMode

from lib.predict.recompute import smallest_peak, use_of
from lib.predict.shape import GPTShape, MLPShape
from lib.single import GPT, MLP, next_token_loss
from lib.single.recompute import best_plan, block_costs, kept_bytes, only, recompute
from tests.every import every

SHAPE = GPTShape(vocabulary=40, sequence=32, width=32, heads=4, layers=3, hidden=64)
BATCH = 2


def scores_kept(q, k, v, dropout=0.0):
    """Attention in single operations, which keeps its scores."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    above = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(above, -math.inf).softmax(-1) @ v


def gpt(core=scores_kept):
    model = GPT(SHAPE, seed=1).double()
    for module in model.modules():
        if hasattr(module, "core"):
            module.core = core
    return model


def tokens():
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randint(40, (BATCH, 33), generator=generator)
    return drawn[:, :-1], drawn[:, 1:]


def stepped(model):
    inputs, targets = tokens()
    loss = next_token_loss(model(inputs), targets)
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


def test_no_bit_of_a_gradient_changes():
    expected, found = stepped(gpt()), stepped(recompute(gpt(), "selective"))
    assert every(torch.equal(a, b) for a, b in zip(expected, found)) and len(found) > 30


def test_what_is_forgotten_is_what_has_a_number_for_each_pair_of_tokens():
    """The softmax keeps its result, and the mask its own; q, k and v are kept all the same."""
    inputs, _ = tokens()
    plain, selective = kept_bytes(gpt(), inputs), kept_bytes(recompute(gpt(), "selective"), inputs)
    pairs = BATCH * SHAPE.heads * 32 * 32
    assert plain - selective == SHAPE.layers * (8 * pairs + 32 * 32)  # softmax, mask of one head


def test_another_policy_takes_it_back():
    inputs, _ = tokens()
    model = recompute(recompute(gpt(), "selective"), "none")
    assert kept_bytes(model, inputs) == kept_bytes(gpt(), inputs)
    twice = recompute(recompute(gpt(), "selective"), "selective")
    assert kept_bytes(twice, inputs) == kept_bytes(recompute(gpt(), "selective"), inputs)


def test_one_kernel_has_forgotten_its_scores_already():
    kernel = lambda q, k, v, dropout: scaled_dot_product_attention(q, k, v, is_causal=True)
    inputs, _ = tokens()
    plain = kept_bytes(gpt(kernel), inputs)
    assert plain < kept_bytes(recompute(gpt(), "selective"), inputs) * 1.1
    assert kept_bytes(gpt(), inputs) > 1.3 * plain


def test_the_best_plan_of_a_budget_meets_it():
    model, (inputs, _) = gpt(), tokens()
    costs = block_costs(model, inputs, [1.0] * 5)
    budget = (smallest_peak(costs) + sum(cost.kept for cost in costs)) // 2
    plan = best_plan(model, inputs, budget, seconds=[1.0] * 5)
    use = use_of(plan, costs)
    assert use.peak <= budget and 0 < use.again < 5
    with pytest.raises(ValueError, match="The smallest budget that can be met is"):
        best_plan(model, inputs, 1)


def test_a_chain_without_attention_is_refused():
    with pytest.raises(ValueError, match="this MLP has no attention with a `core`"):
        recompute(MLP(MLPShape((4, 8, 2))), "selective")


# --- beside PyTorch's selective checkpoint

PRODUCTS = [torch.ops.aten.addmm.default, torch.ops.aten.mm.default]
AGAIN = [torch.ops.aten._softmax.default]


def in_pytorchs_checkpoints(model):
    """Put each block into PyTorch's checkpoint with its own policy."""
    contexts = lambda: pytorchs.create_selective_checkpoint_contexts(PRODUCTS)

    def forward(x):
        for block in model.blocks.values():
            x = pytorchs.checkpoint(block, x, use_reentrant=False, context_fn=contexts)
        return x

    model.forward = forward
    return model


class Counted(TorchDispatchMode):
    """Counts the operations that are computed, by name."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


def test_chosen_operations_run_as_often_as_in_pytorchs_and_gradients_are_its_own():
    found, counts = [], []
    for model in (recompute(gpt(), "all", only(*PRODUCTS)), in_pytorchs_checkpoints(gpt())):
        with Counted() as counted:
            found.append(stepped(model))
        counts.append([counted.counts[str(one)] for one in [*PRODUCTS, *AGAIN]])
    ours, theirs = found
    assert every(torch.equal(a, b) for a, b in zip(ours, theirs)) and len(ours) > 30
    assert counts[0] == counts[1], "products run once, the softmax twice"
    assert counts[0][-1] == 2 * SHAPE.layers
