"""Stages on several ranks that take microbatches in turn: the training, and what the ranks send."""

from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lib import RankError
from lib.parallel.pipeline.pipedream import PipeDream
from lib.parallel.pipeline.pipes import cut
from lib.predict.pipeline import schedules
from lib.predict.pipeline.shared_stages.replicas import stream_traffic
from lib.predict.pipeline.versions import versions_kept, weight_versions
from lib.predict.shape import GPTShape, MLPShape
from lib.single.models import GPT, MLP
from lib.single.train import mean_squares
from tests.every import every

N = 12
SHAPE = MLPShape((6, 8, 8, 8, 3))  # four layers
torch.manual_seed(0)
INPUTS, TARGETS = torch.randn(N, 4, 6).double(), torch.randn(N, 4, 3).double()


def sgd(weights):
    return torch.optim.SGD(weights, 0.05, momentum=0.9)


def mlp():
    return MLP(SHAPE).double()


class Odd(nn.Module):
    """A layer with a frozen weight and an unused one."""

    def __init__(self):
        super().__init__()
        self.used, self.frozen, self.unused = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return torch.tanh(self.frozen(self.used(x))) + x


def hard():
    torch.manual_seed(3)
    return nn.Sequential(Odd(), nn.Tanh(), Odd(), nn.Linear(6, 3)).double()


def schedule_of(replicas, rule, batch):
    if rule == "flush":
        return schedules.repeated(schedules.round_robin(replicas, batch), N // batch)
    return schedules.round_robin(replicas, N)


def streamed(replicas, rule, batch, make=mlp, lengths=None):
    """On each rank: losses, final weights by name, versions seen, versions kept, the stage."""
    pipe = PipeDream(make(), schedule_of(replicas, rule, batch), sgd, rule=rule, every=batch,
                     lengths=lengths, loss=mean_squares)  # fmt: skip
    losses = pipe.run(INPUTS, TARGETS)
    weights = {name: w.detach() for name, w in zip(pipe.names, pipe.weights)}
    return losses, weights, pipe.seen, pipe.kept, pipe.stage


def on_one_device(replicas, rule, batch, make=mlp, lengths=None):
    """The same training without ranks, which keeps every version of every stage's weights."""
    model = make()
    parts = [model[slice(*ends)] for ends in cut(model, len(replicas), lengths)]
    versions = [[{k: v.detach().clone() for k, v in part.named_parameters()}] for part in parts]
    optimizers = [sgd(list(part.parameters())) for part in parts]
    rules, losses = weight_versions(schedule_of(replicas, rule, batch), rule, batch), []
    for j in range(N):
        x, used = INPUTS[j], []
        for s, part in enumerate(parts):
            trained = {k for k, v in part.named_parameters() if v.requires_grad}
            weights = versions[s][rules[s][j].forward]
            used.append({k: v.detach().requires_grad_(k in trained) for k, v in weights.items()})
            x = torch.func.functional_call(part, used[s], (x,))
        loss = mean_squares(x, TARGETS[j])
        losses.append(loss.item())
        loss.backward()
        for part, weights, made, optimizer in zip(parts, used, versions, optimizers):
            for name, parameter in part.named_parameters():
                if (gradient := weights[name].grad) is not None:
                    before = 0 if parameter.grad is None else parameter.grad
                    parameter.grad = before + gradient / batch
            if (j + 1) % batch == 0:
                optimizer.step()
                optimizer.zero_grad()
                made.append({k: v.detach().clone() for k, v in part.named_parameters()})
    return losses, {k: v.detach() for k, v in model.named_parameters()}


def same(answers, losses, weights):
    for found, own, *_ in answers:
        assert found == pytest.approx(losses, rel=1e-12)
        assert own
        for name, value in own.items():
            assert torch.allclose(value, weights[name], rtol=1e-12, atol=1e-15), name


CASES = [
    ((1,), "stashing", 1), ((2,), "stashing", 2), ((1, 1), "stashing", 1),
    ((2, 2), "stashing", 2), ((3, 1), "stashing", 3), ((1, 3), "stashing", 3),
    ((1, 2, 1), "stashing", 2), ((3, 1), "vertical sync", 3), ((2, 2), "2BW", 4),
    ((3, 1), "flush", 3), ((2, 2), "flush", 6), ((2,), "flush", 4),
]  # fmt: skip


@pytest.mark.parametrize(("replicas", "rule", "batch"), CASES)
def test_a_stream_over_replicas_equals_one_device(worlds, replicas, rule, batch):
    answers = worlds(sum(replicas)).run(streamed, replicas, rule, batch)
    same(answers, *on_one_device(replicas, rule, batch))
    rules = weight_versions(schedule_of(replicas, rule, batch), rule, batch)
    kept = versions_kept(schedule_of(replicas, rule, batch), rule, batch)
    for stage in range(len(replicas)):
        ranks = [answer for answer in answers if answer[4] == stage]
        assert len(ranks) == replicas[stage]
        seen = [rules[stage][first :: len(ranks)] for first in range(len(ranks))]
        assert [answer[2] for answer in ranks] == seen
        assert max(answer[3] for answer in ranks) == kept[stage]


def test_one_replica_of_each_stage_is_the_stream_of_pipedream():
    assert schedules.round_robin((1, 1, 1, 1), 9) == schedules.pipedream(4, 9)


@pytest.mark.parametrize("replicas", [(3, 1), (1, 3)])
def test_frozen_and_unused_weights_stay_as_they_are(worlds, replicas):
    lengths = [1, 3] if replicas[0] == 1 else [3, 1]
    answers = worlds(4).run(streamed, replicas, "stashing", 3, hard, lengths)
    same(answers, *on_one_device(replicas, "stashing", 3, hard, lengths))
    start = dict(hard().named_parameters())
    kept = [(name, value) for _, own, *_ in answers for name, value in own.items()
            if "frozen" in name or "unused" in name]  # fmt: skip
    assert every(torch.equal(value, start[name]) for name, value in kept)


def unaveraged(*args):
    with mock.patch("lib.parallel.pipeline.pipedream.average", lambda *_: lambda: None):
        return streamed(*args)


def test_without_the_average_the_replicas_drift_apart(worlds):
    answers = worlds(4).run(unaveraged, (3, 1), "stashing", 3)
    first, second = answers[0][1], answers[1][1]
    assert every(not torch.allclose(first[name], second[name]) for name in first)
    with pytest.raises(AssertionError):
        same(answers, *on_one_device((3, 1), "stashing", 3))


@pytest.mark.parametrize(("replicas", "batch"), [((3, 1), 3), ((2, 2), 4), ((1, 2, 1), 2)])
def test_the_ledger_is_the_predicted_traffic(worlds, replicas, batch):
    ledger = worlds(4).record(streamed, replicas, "stashing", batch)
    model = mlp()
    parts = [model[slice(*ends)] for ends in cut(model, len(replicas))]
    weights = [sum(p.nbytes for p in part.parameters()) for part in parts]
    activations = [4 * 8 * 8] * (len(parts) - 1)  # [4, 8] in float64
    schedule = schedule_of(replicas, "stashing", batch)
    predicted = stream_traffic(schedule, batch, activations, weights)
    for rank, traffic in enumerate(predicted):
        sends = [row.bytes for row in ledger.where(lane="comm", op="send", rank=rank)]
        averages = [row.bytes for row in ledger.where(lane="comm", op="all_reduce", rank=rank)
                    if row.group == "stage"]  # fmt: skip
        counted = len(sends), sum(sends), len(averages), sum(averages)
        assert counted == tuple(traffic)
    assert sum(traffic.averages for traffic in predicted) > 0


def test_a_flushed_stage_on_two_ranks_is_pytorchs_data_parallelism(worlds):
    def pytorchs():
        rank, model = dist.get_rank(), mlp()
        parallel = DistributedDataParallel(model)
        optimizer, losses = sgd(list(model.parameters())), []
        for step in range(0, N, 4):
            optimizer.zero_grad()
            for j in range(step + rank, step + 4, 2):
                loss = mean_squares(parallel(INPUTS[j]), TARGETS[j])
                losses.append(loss.item())
                (loss / 2).backward()
            optimizer.step()
        return losses, {name: w.detach() for name, w in model.named_parameters()}

    ours = worlds(2).run(streamed, (2,), "flush", 4)
    theirs = worlds(2).run(pytorchs)
    for rank in range(2):
        assert ours[rank][0][rank::2] == pytest.approx(theirs[rank][0], rel=1e-12)
        for name, value in ours[rank][1].items():
            assert torch.allclose(value, theirs[rank][1][name], rtol=1e-12, atol=1e-15), name


def test_what_cannot_be_shared_is_refused(worlds):
    world = worlds(4)
    with pytest.raises(RankError, match="every 4 backwards; the 3 replicas of stage 0 cannot"):
        world.run(streamed, (3, 1), "stashing", 4)
    with pytest.raises(RankError, match="a weight of both stage 0 and stage 1"):
        world.run(streamed, (3, 1), "stashing", 3, lambda: GPT(GPTShape(tied=True)))
    with pytest.raises(RankError, match="one stage on each of the group's 4 ranks"):
        world.run(streamed, (2, 1), "stashing", 2)
    with pytest.raises(ValueError, match="has 7 microbatches; the 2 replicas of stage 1 cannot"):
        schedules.round_robin((1, 2), 7)
