"""Under every method a step with checkpoints gives the gradients of one without, to the bit."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from lib.parallel.data.ddp import DistributedDataParallel
from lib.parallel.expert import expert_parallel
from lib.parallel.pipeline import Pipeline
from lib.parallel.sharded import FSDP
from lib.parallel.tensor import tensor_parallel, vocab_parallel_cross_entropy
from lib.parallel.tensor.sequence import sequence_parallel
from lib.predict.pipeline import schedules
from lib.predict.shape import GPTShape
from lib.single import GPT, next_token_loss
from lib.single.experts import with_experts
from lib.single.recompute import only, recompute
from tests.every import every

SHAPE = GPTShape(vocabulary=40, sequence=8, width=16, heads=4, layers=4, hidden=32)
KEEP = {"nothing": None, "products": only(torch.ops.aten.addmm)}


def gpt(dropout=0.0):
    return GPT(replace(SHAPE, dropout=dropout), seed=1).double()


def batch():
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(40, (8, 9), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def share(tensor):
    return tensor.chunk(dist.get_world_size())[dist.get_rank()]


def of(model):
    """The gradients of this rank's parameters."""
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def trained(wrapped, model, policy, keep, loss=next_token_loss, cut=share):
    if policy is not None:
        recompute(model, policy, KEEP[keep])
    inputs, targets = (cut(part) for part in batch())
    for _ in range(2):  # the second step, as hooks of the first may have changed something
        wrapped.zero_grad()
        total = loss(wrapped(inputs), targets)
        total.backward()
    return [total.detach(), *of(wrapped)]


def ddp(policy, keep):
    model = gpt()
    return trained(DistributedDataParallel(model, bucket_bytes=2**12), model, policy, keep)


def fsdp(policy, keep):
    model = gpt()
    return trained(FSDP(model), model, policy, keep)


def tensor(policy, keep):
    model = tensor_parallel(gpt())
    return trained(model, model, policy, keep, vocab_parallel_cross_entropy, lambda part: part)


def own_masks(policy, keep):
    """Each rank draws its part of a mask from a generator of its own, made in the first forward."""
    torch.manual_seed(5)
    model = tensor_parallel(gpt(dropout=0.2), seed=7)
    return trained(model, model, policy, keep, vocab_parallel_cross_entropy, lambda part: part)


def sequence(policy, keep):
    model = sequence_parallel(gpt())
    return trained(model, model, policy, keep, vocab_parallel_cross_entropy, lambda part: part)


def experts(policy, keep):
    model = expert_parallel(with_experts(gpt(), experts=4, k=2).double())
    return trained(model, model, policy, keep)


def pipeline(policy, keep):
    ranks = dist.get_world_size()
    whole = Pipeline(gpt(), schedules.gpipe(ranks, 4))
    for stage in whole.stages.values():
        if policy is not None:
            recompute(stage, policy, KEEP[keep])
    total = whole.step(*batch())
    return [torch.as_tensor(0.0 if total is None else total), *of_stages(whole)]


def of_stages(whole):
    return [p.grad.clone() for stage in whole.stages.values() for p in stage.parameters()]


METHODS = {
    "DDP": ddp, "FSDP": fsdp, "tensor": tensor, "own masks": own_masks, "sequence": sequence,
    "experts": experts, "pipeline": pipeline,
}  # fmt: skip


@pytest.mark.parametrize("policy", ["all", "sqrt"])
@pytest.mark.parametrize("keep", KEEP)
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_gradients_are_those_without(worlds, method, keep, policy):
    for ranks in (2, 4):
        expected = worlds(ranks).run(method, None, None)
        found = worlds(ranks).run(method, policy, keep)
        assert len(found[0]) == len(expected[0]) > 5
        for rank in range(ranks):
            assert every(torch.equal(a, b) for a, b in zip(found[rank], expected[rank]))


def collectives_of(run):
    return [row.op for row in sorted(run.where(rank=0, lane="comm"), key=lambda row: row.start)]


def test_tensor_parallel_sends_again_what_it_computes_again(worlds):
    """The all-reduce after attention, and that of the embedding; after a block's last one
    nothing is saved.

    So a checkpoint that stops early repeats one of a block's two all-reduces of forward.
    """
    count = lambda policy: collectives_of(worlds(2).record(tensor, policy, "nothing")).count(
        "all_reduce"
    )
    plain, again = count(None), count("all")
    steps, blocks, embedding = 2, 4, 1
    assert again - plain == steps * (blocks + embedding)
