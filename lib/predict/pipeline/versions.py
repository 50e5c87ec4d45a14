"""Weight versions in a stream: which version each microbatch sees, and how many must be kept.

A version is a number of updates; version 0 are the initial weights. On each stage an update follows
every `every`-th backward; where a stage has n replicas, each does every ÷ n of these backwards, and
all replicas update together. The rules, for microbatch j counted from 0, are:

    "flush"           in steps of `every` microbatches, all of step t see version t
    "latest"          forward and backward see the latest version, so they differ (for comparison)
    "stashing"        forward sees the latest version of its stage, and backward the same one
    "vertical sync"   every stage uses the version that stage 0 had at the microbatch's forward
    "2BW"             all of batch t see version t-1, on every stage (batches 0 and 1 see version 0)

Narayanan et al. 2019, "PipeDream", SOSP, section 3.3; 2BW: arXiv 2006.09503, section 3.1, where
microbatch k from 1 sees max(floor((k-1)/m) - 1, 0).
"""

from typing import NamedTuple

from lib.predict.arguments import equal_share
from lib.predict.pipeline.actions import Schedule

RULES = ("flush", "latest", "stashing", "vertical sync", "2BW")


class Seen(NamedTuple):
    """Holds the versions that one microbatch sees on one stage."""

    forward: int
    backward: int


def weight_versions(schedule: Schedule, rule: str, every: int = 1) -> list[list[Seen]]:
    """Return, for each stage and each microbatch, the versions that forward and backward see.

    Raises ValueError where a rule needs a version that the stage does not have yet.
    """
    if rule not in RULES:
        raise ValueError(f"No rule is called {rule!r}. Choose one of {', '.join(RULES)}.")
    every_stage = [_latest(schedule, stage, every) for stage in range(schedule.stages)]
    return [
        [version_seen(rule, stage, j, every, every_stage) for j in range(schedule.microbatches)]
        for stage in range(schedule.stages)
    ]


def version_seen(rule: str, stage: int, j: int, every: int, latest) -> Seen:
    """Return the versions that microbatch j sees on a stage.

    `latest[stage][j]` are the newest versions when its forward and its backward start. Raises
    ValueError where the rule needs a version that the stage does not have yet.
    """
    newest = latest[stage][j]
    if rule == "latest":
        return newest
    version = {
        "flush": j // every,
        "stashing": newest.forward,
        "vertical sync": latest[0][j].forward,
        "2BW": max(j // every - 1, 0),
    }[rule]
    if version > newest.forward:
        raise ValueError(
            f"{rule}: {stage}F{j} needs version {version}, but stage {stage} has made only "
            f"{newest.forward} update{'s' * (newest.forward != 1)} by then."
        )
    return Seen(version, version)


def versions_kept(schedule: Schedule, rule: str, every: int = 1) -> list[int]:
    """Return, for each stage, the most versions of its weights that one of its ranks keeps at once.

    The latest version counts; an older one is kept until the last backward that uses it.
    """
    kept = []
    for stage, seen in enumerate(weight_versions(schedule, rule, every)):
        share = updates_share(schedule, stage, every)
        ranks = schedule.ranks_of(stage)
        most = max(_most_on_a_rank(schedule, rank, stage, seen, share) for rank in ranks)
        kept.append(1 if rule == "latest" else most)
    return kept


def updates_share(schedule: Schedule, stage: int, every: int) -> int:
    """Return how many of the `every` backwards before an update each rank of a stage does.

    Raises ValueError where their number is no multiple of the replicas of the stage.
    """
    sharers = f"the {{}} replicas of stage {stage}"
    what = "An update follows every {} backwards"
    return equal_share(every, len(schedule.ranks_of(stage)), what, sharers)


def _most_on_a_rank(schedule: Schedule, rank: int, stage: int, seen, share: int) -> int:
    row = list(_walk(schedule, rank, stage))
    left = {j: seen[j].backward for kind, j in row if kind == "F"}  # microbatch -> its version
    newest = backwards = most = 0
    for kind, j in row:
        if kind != "F":
            del left[j]
            backwards += 1
            newest = backwards // share
        most = max(most, len({newest} | {v for v in left.values() if v <= newest}))
    return most


def _latest(schedule: Schedule, stage: int, every: int) -> list[Seen]:
    """Return the updates that a stage has made when each forward and each backward starts."""
    share, forward, seen = updates_share(schedule, stage, every), {}, {}
    for rank in schedule.ranks_of(stage):
        backwards = 0
        for kind, j in _walk(schedule, rank, stage):
            if kind == "F":
                forward[j] = backwards // share
            else:
                seen[j] = Seen(forward[j], backwards // share)
                backwards += 1
    return [seen[j] for j in range(schedule.microbatches)]


def _walk(schedule: Schedule, rank: int, stage: int):
    """Yield a rank's forwards and backwards of a stage in order; a split one counts at its W."""
    for action in schedule.actions(rank):
        if action.stage == stage and action.kind != "I":
            yield action.kind, action.microbatch
