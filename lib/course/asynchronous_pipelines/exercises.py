"""The exercises of chapter 7: predict, write, repair and plan."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lib.course.checks.arguments import name_of
from lib.course.checks.numbers import Numbers
from lib.course.checks.on_ranks import Exercise
from lib.course.checks.verdict import Hints, Verdict
from lib.predict.pipeline.cuts import Layer, Partition, exact, with_replicas
from lib.predict.pipeline.schedules import pipedream
from lib.predict.pipeline.versions import versions_kept, weight_versions

_EIGHT = pipedream(8, 64)


def _behind_on_stage_7() -> int:
    """Return by how many updates microbatch 40 is behind with vertical sync, in a full pipe.

    On one device microbatch j sees version j, that is, all updates before it.
    """
    return 40 - weight_versions(_EIGHT, "vertical sync")[7][40].forward


predict = Numbers(
    name="predict",
    task="Put a number in place of each None.",
    answers={
        "kept_by_stage_2": lambda: versions_kept(_EIGHT, "stashing")[2],
        "behind_on_stage_7": _behind_on_stage_7,
        "version_of_23": lambda: weight_versions(_EIGHT, "2BW", 8)[0][23].forward,
        "updates_by_23": lambda: weight_versions(_EIGHT, "latest", 8)[0][23].forward,
    },
    close=0.0,
    hints=(
        "Begin with stage 2 and stashing. Which microbatches are between their forward and their "
        "backward there, and which version does each of them need?",
        "With stashing, stage s of p starts p - 1 - s forwards before its first backward. Each of "
        "these microbatches needs its version, and the newest version counts too. To see the "
        "versions, draw versions(weight_versions(schedules.pipedream(8, 20), 'stashing')).",
        "With vertical sync every stage uses the version that stage 0 had. With 2BW microbatch j "
        "belongs to batch j // m, and batch t uses version t - 1.",
        "In the full pipe, p microbatches are between their forward and their backward on stage 0 "
        "once a forward is done. So before forward j, stage 0 has done j + 1 - p backwards.",
    ),
)


class _Cuts(Hints):
    """Compares the slowest stage of a reader's cut with that of the best cut."""

    task = "Fill in the body of `my_cut`: a list with the number of layers of each stage."
    cases = (
        ([3, 1, 1, 1, 2, 4], 2),
        ([1, 1, 1, 3, 1], 3),
        ([0.5, 1, 3, 1, 1, 1, 2, 3], 4),
        ([5, 1, 1], 3),
        ([2, 2, 2], 1),
    )

    def check(self, attempt: Callable) -> Verdict:
        """Call `attempt` for five models, and compare its slowest stage with the best."""
        for times, stages in self.cases:
            call = f"my_cut({times}, {stages})"
            try:
                lengths = attempt(list(times), stages)
            except Exception as error:  # the reader's code may raise anything
                return self._not_yet(f"`{call}` fails: {type(error).__name__}: {error}")
            if lengths is None or lengths is ...:
                return self._open(f"`{name_of(attempt)}` returns nothing", self.task)
            if wrong := _no_cut(lengths, times, stages):
                return self._not_yet(f"`{call}` returns {lengths!r}: {wrong}")
            ends = [sum(lengths[:n]) for n in range(stages + 1)]
            slowest = max(sum(times[a:b]) for a, b in zip(ends, ends[1:]))
            best = exact(times, stages)
            if slowest > best.time * (1 + 1e-9):
                return self._not_yet(
                    f"`{call}` returns {lengths}, whose slowest stage takes {slowest:g}. A cut "
                    f"whose slowest stage takes {best.time:g} exists."
                )
        return Verdict(True, "Solved. For all five models no cut has a faster slowest stage.")


def _no_cut(lengths, times, stages: int) -> str:
    """Say why these lengths are no cut; "" if they are one."""
    if not isinstance(lengths, list | tuple) or not all(isinstance(n, int) for n in lengths):
        return "a list of whole numbers was wanted."
    if len(lengths) != stages or min(lengths, default=0) < 1:
        return f"{stages} numbers of at least 1 were wanted."
    if sum(lengths) != len(times):
        return f"they add up to {sum(lengths)} layers, and the model has {len(times)}."
    return ""


write = _Cuts(
    name="write",
    hints=(
        "Say how many layers the first stage gets. What is left is the same task, with fewer "
        "layers and one stage less.",
        "Try every size of the first stage that leaves at least one layer for each other stage, "
        "and let `my_cut` cut the rest.",
        "Of all these cuts, return the one whose slowest stage is fastest: min(cuts, key=...).",
    ),
)


def _gradients(ranks: int, size: int):
    """Return each rank's gradients: ranks 0 to 2 did two of six microbatches, rank 3 all six."""
    draw = {"generator": torch.Generator("cpu").manual_seed(size), "device": "cpu"}
    stage_0, stage_1 = (torch.randint(0, 50, (6, size), **draw).float() for _ in range(2))
    return [(stage_0[rank::3],) for rank in range(3)] + [(stage_1,)]


def _means(inputs):
    """Return the mean gradient of each rank's stage over all six microbatches."""
    stage_0 = torch.cat([gradients for (gradients,) in inputs[:3]]).mean(0)
    return [stage_0] * 3 + [inputs[3][0].mean(0)]


repair = Exercise(
    name="repair",
    task="Make `their_update` average over the replicas of one stage alone.",
    inputs=_gradients,
    reference=_means,
    sizes=(2, 1000),
    hints=(
        "Which ranks take part in this all-reduce? Which ranks hold the same stage?",
        "`replica_group((3, 1))` gives the process group of the ranks that hold this rank's stage. "
        "Pass it to the all-reduce.",
        "The result is a mean over six microbatches: sum over this rank's own, sum over the "
        "group, then divide by six.",
    ),
)


@dataclass
class Plan(Hints):
    """Compares a partition that the reader writes with PipeDream's."""

    task: str = ""
    layers: tuple[Layer, ...] = ()
    ranks: int = 4
    bandwidth: float = 10e9

    def check(self, text: str) -> Verdict:
        """Read the partition, and compare its slowest part with that of the best one."""
        if not text.strip():
            return self._open("there is no text yet", self.task)
        try:
            own = Partition.read(text)
        except ValueError as error:
            return self._not_yet(str(error))
        used, count = sum(stage.ranks for stage in own.stages), own.stages[-1].last
        if count != len(self.layers):
            return self._not_yet(f"It has {count} layers, and the model {len(self.layers)}.")
        if used > self.ranks:
            return self._not_yet(f"It needs {used} ranks, and there are {self.ranks}.")
        if any(stage.share == "/" for stage in own.stages):
            return self._not_yet("These ranks take turns: write x for replicas, not /.")
        time = own.bottleneck(self.layers, self.bandwidth)
        best = with_replicas(self.layers, [(self.ranks, self.bandwidth)]).time
        score = f"its slowest part takes {1e3 * time:.2f} ms, that of the best {1e3 * best:.2f} ms"
        if time <= best * (1 + 1e-9):
            return Verdict(True, f"Solved: {score}.")
        return self._not_yet(f"Legal, and {score}.")


plan = Plan(
    name="plan",
    task='Write a partition between the quotes, for example "0:3 x2 | 3:6 x2".',
    layers=tuple(
        Layer(ms / 1e3, 8e6, weights)
        for ms, weights in zip((2, 2, 2, 2, 1, 1), (1e6, 1e6, 1e6, 1e6, 4e8, 4e8))
    ),
    hints=(
        "Two layers have nearly all the weights. What does averaging them cost at 10 GB/s?",
        "To average 800 MB, each of two ranks sends 2 · (2 - 1) / 2 · 800 MB: at 10 GB/s that "
        "takes 80 ms for every two microbatches.",
        "Give the two heavy layers a rank of their own, and let the other three take turns.",
    ),
)
