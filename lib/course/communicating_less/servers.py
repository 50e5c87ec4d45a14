"""Chapter 2's servers: who waits when, and what is learned from gradients that are out of date."""

from itertools import groupby
from math import isclose

import torch
from torch.func import functional_call, stack_module_state, vmap

from lib.course.communicating_less.cover import stragglers
from lib.course.communicating_less.lessons import SEEDS, loss, network, samples, spread, test_loss
from lib.parallel.data import ParameterServer
from lib.predict.data.parameter_server import ServerRun, ServerSettings, Update, simulate
from lib.single import mean_squares

STEPS = 60  # of each straggler
RATES = {0.01: SEEDS, 0.05: range(10)}  # at the large rate three seeds do not order the bounds


# --- trainings


def served(bound: int | None, rate: float, seed: int) -> float:
    """Train through a parameter server on rank 0 with three stragglers; return the test loss."""
    model = network(seed)
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    server = ParameterServer(model, optimizer, stragglers(bound))
    server.train(lambda model, worker, number: loss(model, worker, number, seed))
    return test_loss(model, seed)


def replayed(updates, rate: float, seeds, momentum: float = 0.9) -> list[float]:
    """Train on one device with the gradients of `updates`, in their order; return the test losses.

    Each gradient is computed on the weights that its update names. Those that are applied to the
    same weights, as in a bulk-synchronous round, make one step. All seeds train at once: each
    parameter has one more dimension, [seeds, ...], in which SGD does not mix anything.
    """
    weights, _ = stack_module_state([network(seed) for seed in seeds])
    model = network(0)  # its own weights are not used
    outputs = vmap(lambda weights, x: functional_call(model, weights, (x,)))
    optimizer = torch.optim.SGD(weights.values(), rate, momentum=momentum)
    versions = [_kept(weights)]
    for _, one_step in groupby(updates, key=lambda update: update.applied_to):
        optimizer.zero_grad()
        for update in one_step:
            drawn = [samples(update.number, update.worker, seed) for seed in seeds]
            x, y = (torch.stack(part) for part in zip(*drawn))
            version = versions[update.computed_on]
            mean = mean_squares(outputs(version, x), y)  # over the seeds, too
            loss_of_each = mean * len(seeds) / 3
            for p, g in zip(weights.values(), torch.autograd.grad(loss_of_each, version.values())):
                p.grad = g if p.grad is None else p.grad + g
        optimizer.step()
        versions.append(_kept(weights))
    losses = []
    for number, seed in enumerate(seeds):
        model.load_state_dict({name: weight[number] for name, weight in versions[-1].items()})
        losses.append(test_loss(model, seed))
    return losses


def _kept(weights: dict) -> dict:
    return {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}


def equally_stale(staleness: int) -> list[Update]:
    """Return the updates of 180 gradients of three workers in turn, all of this staleness.

    The first ones, before which there are fewer updates, are computed on the first weights.
    """
    return [Update(n % 3, n // 3, max(0, n - staleness), n) for n in range(3 * STEPS)]


def server_losses(world, bounds, stalenesses=(0, 1, 2)) -> str:
    """Train with equally stale gradients, and with each bound, and write the test losses.

    The server trains from the first seed. The other seeds, and the equally stale gradients, are
    replayed. Raises AssertionError where the server and its replay differ.
    """
    heads = [f"rate {rate}, {len(seeds)} seeds" for rate, seeds in RATES.items()]
    lines = [f"       {heads[0]:<21}{heads[1]}", "every gradient stale by"]
    for staleness in stalenesses:
        by_rate = [replayed(equally_stale(staleness), *pair) for pair in RATES.items()]
        lines.append(row_of_losses(staleness, by_rate))
    lines.append("bound")
    for bound in bounds:
        by_rate = [replayed(stragglers_run(bound).updates, *pair) for pair in RATES.items()]
        for (rate, seeds), replays in zip(RATES.items(), by_rate):
            loss_of_server = world.run(served, bound, rate, seeds[0])[0]
            assert isclose(loss_of_server, replays[0], rel_tol=1e-4)
        lines.append(row_of_losses(bound, by_rate))
    return "\n".join(lines)


def row_of_losses(name, by_rate) -> str:
    """Write a row of the table: a bound or a staleness, and a spread for each rate."""
    return f"{name!s:<7}" + "".join(f"{spread(one):<21}" for one in by_rate).rstrip()


# --- simulated runs


def stragglers_run(bound: int | None, workers: int = 3) -> ServerRun:
    """Simulate the run of so many stragglers (at most six), 60 gradients each, with this bound."""
    return simulate(stragglers(bound, STEPS * workers, workers))


def staleness_of(bounds) -> str:
    """Write for each bound when its run ends, and how stale its gradients are.

    The last column counts the gradients that are stale by two updates or more.
    """
    lines = ["bound  ends (ms)  mean stale  most  2 or more"]
    for bound in bounds:
        run = stragglers_run(bound)
        stale = [update.staleness for update in run.updates]
        mean, old = sum(stale) / len(stale), sum(one >= 2 for one in stale)
        lines.append(f"{bound!s:<7}{run.times[-1]:9g}{mean:12.1f}{max(stale):6}{old:11}")
    return "\n".join(lines)


def local_sgd_ends(every: int) -> float:
    """Return when three stragglers end 60 steps each, if they wait after each `every` steps."""
    settings, end = stragglers(None), 0
    for first in range(0, STEPS, every):
        steps = range(first, min(first + every, STEPS))
        end += max(sum(settings.compute_time(w, n) for n in steps) for w in range(3))
    return end


def always_slow(*compute_times) -> tuple[dict, dict]:
    """Return, for four bounds, the gradients delivered against time, and how the run ends."""
    lines, ends, slowest = {}, {}, compute_times.index(max(compute_times))
    for bound in (0, 1, 3, None):
        run = simulate(ServerSettings(bound, 180, compute_times))
        lines[f"bound {bound}"] = (0, *run.times), range(181)  # from nothing: a linear axis
        part = run.order.count(slowest) / 180
        ends[f"bound {bound}"] = f"ends {run.times[-1]:g}, {part:.0%} from worker {slowest}"
    return lines, ends
