"""What the rules of chapter 7 do to learning: training on one device, and what it ends with.

The runs of many learning rates and seeds are trained side by side, each with weights of its own.
"""

from math import inf, isfinite
from statistics import mean, median

import torch

from lib.course.asynchronous_pipelines.lessons import SHAPE, regression
from lib.course.one_thread import one_thread
from lib.parallel.pipeline.pipes import cut
from lib.predict.pipeline import schedules
from lib.predict.pipeline.play import play
from lib.predict.pipeline.versions import weight_versions
from lib.single.models import MLP
from lib.single.train import mean_squares

# The schedules after which the pipe is empty at each update. Their rule for versions is "flush".
_SYNCHRONOUS = {
    "1F1B": schedules.one_f_one_b,
    "ZB-H1": schedules.zb_h1,
    "ZB-H2": schedules.zb_h2,
}

# How the picture of losses against time is drawn.
BY_TIME = {
    "x": ("time (units)", ""),
    "y": ("loss", ""),
    "caption": "Losses: measured, median over the seeds at the rate of the table. Time: predicted "
    "by play, in units of a forward (a backward takes 2, a message and an update 0).",
    "lines_are": "measured",
}


def on_one_device(schedule, rule: str, every: int, rate: float, seed: int = 0) -> list[float]:
    """Train on one device with the weights that a rule gives each microbatch; return the losses."""
    with one_thread():
        return _trained(schedule, rule, every, [(rate, seed)])[rate, seed]


def trained(rule: str, every: int, rates, seeds, stages: int = 4, microbatches: int = 96) -> dict:
    """Train on one device for each rate and seed; return {(rate, seed): losses of a stream}.

    `rule` is a rule for versions of a stream, or a synchronous schedule, "1F1B", "ZB-H1" or
    "ZB-H2". Synchronous schedules with equally many microbatches in a step give equal losses.
    """
    schedule = schedule_of(rule, every, stages, microbatches)
    rule = "flush" if rule in _SYNCHRONOUS else rule
    with one_thread():
        return _trained(schedule, rule, every, [(rate, seed) for rate in rates for seed in seeds])


def _trained(schedule, rule: str, every: int, runs: list[tuple]) -> dict:
    """Train all runs, (rate, seed) each, side by side; return the losses of each.

    A seed draws the data and the initial weights. Every version of every stage's weights is kept,
    [runs, ...] each. Microbatch after microbatch, a stage computes forward with the version that
    the rule names for it. Before the backward these weights become those that the rule names for
    the backward; only with "latest" are they others. The gradient is applied to the newest version,
    by plain SGD.
    """
    pairs = [regression(seed, schedule.microbatches) for _, seed in runs]
    inputs, targets = (torch.stack(column, 1) for column in zip(*pairs))  # [N, runs, b, ...]
    rates = torch.tensor([rate for rate, _ in runs], dtype=inputs.dtype, device=inputs.device)
    models = [MLP(SHAPE, seed).double() for _, seed in runs]
    stages = [models[0][slice(*ends)] for ends in cut(models[0], schedule.stages)]
    seen = weight_versions(schedule, rule, every)
    kept = [[_stacked(models, *ends)] for ends in cut(models[0], schedule.stages)]
    sums = [{name: torch.zeros_like(w) for name, w in versions[0].items()} for versions in kept]
    losses = []
    for j, (x, y) in enumerate(zip(inputs, targets)):
        used = []
        for stage, versions, row in zip(stages, kept, seen):
            weights = {k: w.clone().requires_grad_() for k, w in versions[row[j].forward].items()}
            x = _side_by_side(stage)(weights, x)
            used.append(weights)
        loss = torch.vmap(mean_squares)(x, y)
        losses.append(loss.detach())
        for weights, versions, row in zip(used, kept, seen):
            for name, weight in weights.items():
                weight.data.copy_(versions[row[j].backward][name])
        loss.sum().backward()
        for weights, versions, total in zip(used, kept, sums):
            for name, weight in weights.items():
                total[name] += weight.grad / every
            if (j + 1) % every == 0:
                versions.append({k: w - _times(rates, total[k]) for k, w in versions[-1].items()})
                for each in total.values():
                    each.zero_()
    return {run: row.tolist() for run, row in zip(runs, torch.stack(losses, 1))}


def _stacked(models: list, first: int, last: int) -> dict:
    """Return the initial weights of one stage of all models by name, [runs, ...] each."""
    every = [dict(model[first:last].named_parameters()) for model in models]
    return {name: torch.stack([weights[name].detach() for weights in every]) for name in every[0]}


def _side_by_side(stage):
    """Return a function that computes a stage with weights of its own for each run."""
    return torch.vmap(lambda weights, x: torch.func.functional_call(stage, weights, (x,)))


def _times(rates, gradients):
    return rates.view(-1, *[1] * (gradients.dim() - 1)) * gradients


def schedule_of(rule: str, every: int, stages: int, microbatches: int):
    """Return the schedule that a rule needs: a stream, which is never flushed, or steps.

    "1F1B", "ZB-H1" and "ZB-H2" stand for steps of `every` microbatches with this schedule. A rank
    begins its next step as soon as it has ended the last one.
    """
    if rule in _SYNCHRONOUS:
        step = _SYNCHRONOUS[rule](stages, every)
        return schedules.repeated(step, microbatches // every)
    return schedules.pipedream(stages, microbatches)


def ends(losses: dict, rate: float, last: int = 8) -> list[float]:
    """Return the mean loss of the last microbatches at a rate, for each seed.

    A run whose mean is 10 or more, or not a number, has diverged and counts as infinite.
    """
    means = [mean(values[-last:]) for (of, _), values in losses.items() if of == rate]
    return [value if value < 10 else inf for value in means]


def shown(values: list[float]) -> str:
    """Return the median of some losses, and in brackets how many are infinite, if any are."""
    diverged, middle = sum(value == inf for value in values), median(values)
    return (f"{middle:.2f}" if middle < inf else "-") + f" ({diverged})" * (diverged > 0)


def table(losses: dict) -> str:
    """Write for each rule and rate the median final loss, and how many runs diverged, if any did.

    `losses[rule, m]` holds the losses of every run, as `trained` returns them.
    """
    rates = list(dict.fromkeys(rate for of in losses.values() for rate, _ in of))
    rows = [["rule, m", *map(str, rates)]]
    for (rule, every), of in losses.items():
        rows.append([f"{rule:<14}{every}", *(shown(ends(of, rate)) for rate in rates)])
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = (" ".join(f"{text:<{n}}" for text, n in zip(row, widths)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def medians(losses: dict, rate: float, width: int = 8) -> dict[int, float]:
    """Return, for numbers of microbatches, the median over seeds of the last `width` losses' mean.

    Only finite medians are listed.
    """
    runs = [values for (of, _), values in losses.items() if of == rate]
    places = range(width, len(runs[0]) + 1, width)
    each = {end: [mean(run[end - width : end]) for run in runs] for end in places}
    middles = {end: median(v if isfinite(v) else inf for v in row) for end, row in each.items()}
    return {end: middle for end, middle in middles.items() if middle < inf}


def units(rule: str, every: int, microbatches: int, stages: int = 4) -> float:
    """Return the simulated time of so many microbatches: F takes 1, B takes 2, a message 0."""
    return play(schedule_of(rule, every, stages, microbatches)).makespan


def by_time(losses: dict, rule: str, every: int, rate: float) -> tuple[list, list]:
    """Return simulated times and the median losses at these times, for one rate."""
    points = medians(losses, rate)
    return [units(rule, every, microbatches) for microbatches in points], list(points.values())


def until(losses: dict, rule: str, every: int, goal: float) -> tuple[float, float]:
    """Return the simulated time until the median loss is below `goal`, and the best rate for it.

    The time is infinite where no rate reaches the goal.
    """
    times = []
    for rate in dict.fromkeys(of for of, _ in losses):
        below = [end for end, loss in medians(losses, rate).items() if loss < goal]
        times.append((units(rule, every, below[0]) if below else inf, rate))
    return min(times)


def times_until(losses: dict, goal: float) -> str:
    """Write for each rule the time until its loss is below `goal`, and the best rate for it.

    `losses[rule, m]` holds the losses of every run, as `trained` returns them. Where no rate
    reaches the goal, the table has ">" and the time of all microbatches.
    """
    lines = [f"{'rule, m':<16} time  rate"]
    for (rule, every), of in losses.items():
        time, rate = until(of, rule, every, goal)
        whole = units(rule, every, len(next(iter(of.values()))))
        words = f"{time:g}" if time < inf else f">{whole:g}"
        lines.append(f"{rule:<14}{every:<2}{words:>5}  {rate if time < inf else '-'}")
    return "\n".join(lines)


def by_time_and_rule(losses: dict, goal: float, methods: list[tuple], end: float) -> dict:
    """Return `by_time` up to the time `end`, under the names of a picture's lines.

    `methods` are the keys of `losses`, (rule, m) each, that the picture shows. Each has the rate at
    which its loss is below `goal` first, as in the table of `times_until`.
    """
    lines = {}
    for rule, every in methods:
        _, rate = until(losses[rule, every], rule, every, goal)
        times, middles = by_time(losses[rule, every], rule, every, rate)
        count = sum(time <= end for time in times)
        lines[f"{rule}, {every}"] = times[:count], middles[:count]
    return lines
