"""Pipelines without a flush: which version of the weights each microbatch sees, and its cost."""

import pytest
import torch
from torch import nn

from lib import RankError
from lib.parallel.pipeline.pipedream import PipeDream
from lib.predict.pipeline import schedules
from lib.predict.pipeline.versions import versions_kept, weight_versions
from lib.predict.shape import GPTShape, MLPShape
from lib.single.models import GPT, MLP
from lib.single.train import mean_squares
from tests.every import every

N, LR = 12, 0.05
SHAPE = MLPShape((6, 8, 8, 8, 3))  # four layers
torch.manual_seed(0)
INPUTS, TARGETS = torch.randn(N, 4, 6).double(), torch.randn(N, 4, 3).double()


def sgd(weights):
    return torch.optim.SGD(weights, LR, momentum=0.9)


def streamed(ranks, rule, every=1, n=N):
    """On each rank: losses, final weights by name, versions seen, versions kept."""
    pipe = PipeDream(MLP(SHAPE).double(), schedules.pipedream(ranks, n), sgd, rule=rule,
                     every=every, loss=mean_squares)  # fmt: skip
    losses = pipe.run(INPUTS[:n], TARGETS[:n])
    weights = {name: w.detach() for name, w in zip(pipe.names, pipe.weights)}
    return losses, weights, pipe.seen, pipe.kept


def on_one_device(stages, rule, every=1, n=N):
    """The same training without ranks: keep every version of every stage, use what the rule says.

    Microbatch after microbatch: whatever a microbatch sees is older than itself.
    """
    model = MLP(SHAPE).double()
    parts = [model[s * 4 // stages : (s + 1) * 4 // stages] for s in range(stages)]
    versions = [[{k: v.detach().clone() for k, v in part.named_parameters()}] for part in parts]
    optimizers = [sgd(part.parameters()) for part in parts]
    rules, losses = weight_versions(schedules.pipedream(stages, n), rule, every), []
    for j in range(n):
        used = [
            {k: v.requires_grad_() for k, v in versions[s][rules[s][j].forward].items()}
            for s in range(stages)
        ]
        x = INPUTS[j]
        for part, weights in zip(parts, used):
            x = torch.func.functional_call(part, weights, (x,))
        loss = mean_squares(x, TARGETS[j])
        losses.append(loss.item())
        grads = torch.autograd.grad(loss, [v for weights in used for v in weights.values()])
        grads = iter(grads)
        for s, part in enumerate(parts):
            for parameter in part.parameters():
                grad = next(grads) / every
                parameter.grad = grad if parameter.grad is None else parameter.grad + grad
            if (j + 1) % every == 0:
                optimizers[s].step()
                optimizers[s].zero_grad()
                made = {k: v.detach().clone() for k, v in part.named_parameters()}
                versions[s].append(made)
    return losses, {k: v.detach() for k, v in model.named_parameters()}


RULES = [("stashing", 1), ("vertical sync", 1), ("2BW", 4), ("stashing", 2)]


@pytest.mark.parametrize(("rule", "every"), RULES)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_stream_equals_one_device_that_uses_the_versions_of_the_rule(worlds, ranks, rule, every):
    losses, weights = on_one_device(ranks, rule, every)
    for found, mine, _, _ in worlds(ranks).run(streamed, ranks, rule, every):
        assert found == pytest.approx(losses, rel=1e-12)
        for name, value in mine.items():
            assert torch.allclose(value, weights[name], rtol=1e-12, atol=1e-15), name


def test_the_versions_are_the_papers(worlds):
    """Narayanan et al. 2019: stage s of p is p-1-s updates behind; with vertical sync all p-1."""
    p = 4
    stashing = worlds(p).run(streamed, p, "stashing")
    together = worlds(p).run(streamed, p, "vertical sync")
    for s in range(p):
        behind = [max(j - (p - 1 - s), 0) for j in range(N)]
        assert [v.forward for v in stashing[s][2]] == [v.backward for v in stashing[s][2]] == behind
        assert [v.forward for v in together[s][2]] == [max(j - (p - 1), 0) for j in range(N)]
    # 2BW, arXiv 2006.09503: microbatch k from 1 sees max(floor((k-1)/m) - 1, 0)
    for answer in worlds(p).run(streamed, p, "2BW", 4):
        assert [v.forward for v in answer[2]] == [max(j // 4 - 1, 0) for j in range(N)]


def test_without_a_stash_backward_sees_other_weights_than_forward(worlds):
    answers = worlds(4).run(streamed, 4, "latest")
    seen = answers[0][2]
    assert [v.backward - v.forward for v in seen[3:-3]] == [3] * 6
    assert every(v.backward == v.forward for v in answers[3][2])  # the last stage has no wait
    # ... and what is learned is not what the stash gives: the reason for it.
    stashed = worlds(4).run(streamed, 4, "stashing")
    assert answers[0][0] != pytest.approx(stashed[0][0], rel=1e-6)


@pytest.mark.parametrize(("rule", "every"), [*RULES, ("latest", 1)])
def test_versions_kept_are_the_rules(worlds, rule, every):
    predicted = versions_kept(schedules.pipedream(4, N), rule, every)
    assert [answer[3] for answer in worlds(4).run(streamed, 4, rule, every)] == predicted
    if (rule, every) == ("stashing", 1):
        assert predicted == [4, 3, 2, 1]
    if rule == "2BW":
        assert max(predicted) == 2


def test_kept_versions_are_kept_in_memory_and_no_more(worlds):
    """Storages of the first stage's weights alive at the fullest moment, counted."""

    def count():
        pipe = PipeDream(MLP(SHAPE).double(), schedules.pipedream(4, N), sgd, loss=mean_squares)
        import lib.parallel.pipeline.pipedream as module

        most, forward = 0, module._Stream.forward

        def counting(self, microbatch):
            nonlocal most
            forward(self, microbatch)
            sets = [*self.versions.values(), dict(zip(self.p.names, self.p.weights))]
            sets += [weights for _, _, weights in self.alive.values()]
            name = self.p.names[0]
            most = max(most, len({known[name].data_ptr() for known in sets}))

        module._Stream.forward = counting
        try:
            pipe.run(INPUTS, TARGETS)
        finally:
            module._Stream.forward = forward
        return most, pipe.kept

    assert every(most == kept for most, kept in worlds(4).run(count))


def test_with_a_flush_it_is_synchronous_training(worlds):
    def flushed():
        schedule = schedules.repeated(schedules.one_f_one_b(2, 4), 3)
        pipe = PipeDream(MLP(SHAPE).double(), schedule, sgd, rule="flush", every=4,
                         loss=mean_squares)  # fmt: skip
        return pipe.run(INPUTS, TARGETS), pipe.kept

    model = MLP(SHAPE).double()
    optimizer, wanted = sgd(model.parameters()), []
    for step in range(3):
        optimizer.zero_grad()
        for j in range(4 * step, 4 * step + 4):
            loss = mean_squares(model(INPUTS[j]), TARGETS[j])
            wanted.append(loss.item())
            (loss / 4).backward()
        optimizer.step()
    for losses, kept in worlds(2).run(flushed):
        assert losses == pytest.approx(wanted, rel=1e-12) and kept == 1


def test_the_ledger_shows_each_version_and_each_message(worlds):
    ledger = worlds(2).record(lambda: streamed(2, "stashing")[2])
    for rank, seen in enumerate(ledger.results):
        rows = ledger.where(lane="compute", op="F", rank=rank)
        assert [row.note for row in rows] == [f"version {v.forward}" for v in seen]
        sends = [row.note for row in ledger.where(lane="comm", op="send", rank=rank)]
        assert sends == [("form", "flags")[rank], *[""] * N]  # the first is told what comes


def test_what_does_not_fit_is_refused_and_the_world_lives_on(worlds):
    def make(model, schedule, n=4):
        PipeDream(model(), schedule, sgd, loss=mean_squares).run(INPUTS[:n], TARGETS[:n])

    def mlp():
        return MLP(SHAPE).double()

    world = worlds(2)
    with pytest.raises(RankError, match="weight is a weight of both stage 0 and stage 1"):
        world.run(make, lambda: GPT(GPTShape(tied=True)), schedules.pipedream(2, 4))
    with pytest.raises(RankError, match="A stream needs whole backwards"):
        world.run(make, mlp, schedules.zb_h1(2, 4))
    with pytest.raises(RankError, match="one stage on each"):
        world.run(make, mlp, schedules.interleaved(4, 4))
    with pytest.raises(RankError, match="has 4 microbatches, but there are 3 inputs"):
        world.run(make, mlp, schedules.pipedream(2, 4), 3)
    with pytest.raises(RankError, match="Stage 0 returned a set"):
        world.run(make, lambda: nn.Sequential(Bag(), nn.Linear(6, 3)), schedules.pipedream(2, 4))
    with pytest.raises(RankError, match="Stage 1 has no weight to train"):
        world.run(
            make, lambda: nn.Sequential(nn.Linear(6, 3), nn.ReLU()), schedules.pipedream(2, 4)
        )
    assert len(world.run(streamed, 2, "stashing")) == 2


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6).double())

    def forward(self, x):
        return {x * self.weight}
