"""Which weights each microbatch sees when they change under way, and how many versions that keeps.

A version is a number of updates: 0 are the weights at the start. On each stage an update follows
every `every`-th backward. The rules, for microbatch j from 0:

    "flush"           steps of `every` microbatches: all of step t see version t
    "latest"          forward sees what is there, backward too: they differ (naive, for comparison)
    "stashing"        forward sees the latest of its stage; backward sees the same again, stashed
    "vertical sync"   every stage uses the version that stage 0 had at the microbatch's forward
    "2BW"             all of batch t see version t-1, on every stage (batch 0 and 1 see version 0)

Narayanan et al. 2019, "PipeDream", SOSP, section 3.3; 2BW: arXiv 2006.09503, section 3.1, where
microbatch k from 1 sees max(floor((k-1)/m) - 1, 0).
"""

from typing import NamedTuple

from lib.predict.actions import Schedule

RULES = ("flush", "latest", "stashing", "vertical sync", "2BW")


class Seen(NamedTuple):
    """The versions that one microbatch sees on one stage."""

    forward: int
    backward: int


def weight_versions(schedule: Schedule, rule: str, every: int = 1) -> list[list[Seen]]:
    """For each stage, for each microbatch, the versions that its forward and backward see.

    Raises ValueError where a rule needs weights that the stage's own updates have not made yet.
    """
    if rule not in RULES:
        raise ValueError(f"A rule is one of {', '.join(RULES)}, not {rule!r}.")
    every_stage = [_latest(schedule, stage, every) for stage in range(schedule.stages)]
    return [
        [_seen(rule, stage, j, every, every_stage) for j in range(schedule.microbatches)]
        for stage in range(schedule.stages)
    ]


def _seen(rule: str, stage: int, j: int, every: int, latest) -> Seen:
    there = latest[stage][j]
    if rule == "latest":
        return there
    wanted = {
        "flush": j // every,
        "stashing": there.forward,
        "vertical sync": latest[0][j].forward,
        "2BW": max(j // every - 1, 0),
    }[rule]
    if wanted > there.forward:
        raise ValueError(
            f"{rule}: {stage}F{j} would need version {wanted}, and stage {stage} has made "
            f"{there.forward} update{'s' * (there.forward != 1)} by then."
        )
    return Seen(wanted, wanted)


def versions_kept(schedule: Schedule, rule: str, every: int = 1) -> list[int]:
    """For each stage, the most versions of its weights that it has to keep at once.

    The latest counts; an older one is kept until the last backward that will use it.
    """
    kept = []
    for stage, seen in enumerate(weight_versions(schedule, rule, every)):
        left = dict(enumerate(versions.backward for versions in seen))  # still to be used, by whom
        made = backwards = most = 0
        for kind, j in _walk(schedule, stage):
            if kind == "F":
                most = max(most, len({made} | {v for v in left.values() if v <= made}))
                continue
            del left[j]
            backwards += 1
            made = backwards // every
            most = max(most, len({made} | {v for v in left.values() if v <= made}))
        kept.append(1 if rule == "latest" else most)
    return kept


def _latest(schedule: Schedule, stage: int, every: int) -> list[Seen]:
    """How many updates a stage has made when each forward and each backward starts."""
    backwards, forward, seen = 0, {}, {}
    for kind, j in _walk(schedule, stage):
        if kind == "F":
            forward[j] = backwards // every
        else:
            seen[j] = Seen(forward[j], backwards // every)
            backwards += 1
    return [seen[j] for j in range(schedule.microbatches)]


def _walk(schedule: Schedule, stage: int):
    """The forwards and backwards of a stage in order; a split backward counts when W is done."""
    for action in schedule.actions(schedule.placement[stage]):
        if action.stage == stage and action.kind != "I":
            yield action.kind, action.microbatch
