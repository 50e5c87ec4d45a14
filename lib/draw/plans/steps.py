"""A plan step by step: which piece is where, who sends what to whom, and how many bytes so far."""

from lib.draw.parts import style
from lib.draw.parts.picture import Picture
from lib.draw.plans.plan_replay import Acted, act
from lib.predict.collectives.plans import Plan


def steps(plan: Plan, numel: int, itemsize: int, view: str | None) -> Picture:
    """Draw `plan` before its first round, and every round in small."""
    acted = act(plan, numel, itemsize)
    ring = view == "ring" or (view is None and (plan.name == "ring" or plan.personal))
    size = numel * itemsize
    title = _title(plan, style.amount(size, "B"))
    fresh = [sorted(map(list, arrived)) for arrived in acted.fresh]
    moves = [[[m.source, m.destination, m.piece, m.count, int(m.add)] for m in r]
             for r in plan.rounds]  # fmt: skip
    data = {
        "title": title, "ranks": plan.ranks, "pieces": plan.pieces, "whole": plan.whole,
        "personal": plan.personal, "moves": moves, "held": acted.held, "sent": acted.sent,
        "fresh": fresh, "bytes": acted.bytes, "phases": _phases(plan),
        "view": "ring" if ring else "rows", "caption": _caption(numel, itemsize),
    }  # fmt: skip
    return Picture(_story(plan, acted, size), ("plan_steps", data))


def _caption(numel: int, itemsize: int) -> str:
    elements = f"{numel:,} element{'s' * (numel != 1)} of {itemsize} byte{'s' * (itemsize != 1)}"
    return f"Predicted: bytes counted from the plan, for {elements} on each rank; nothing was run."


def _title(plan: Plan, size: str) -> str:
    kind = "" if plan.personal else " all-reduce"
    return f"{plan.name.replace('_', '-')}{kind} of {size} on {plan.ranks} ranks"


def _phases(plan: Plan) -> tuple[str, ...]:
    """The two collectives that the halves of a plan are, where they are."""
    if plan.name in ("tree", "central"):
        return "reduce", "broadcast"
    cut = plan.name in ("ring", "halving_doubling") and plan.pieces == plan.ranks
    return ("reduce-scatter", "all-gather") if cut else ()


def _story(plan: Plan, acted: Acted, size: int) -> str:
    """The same in words: every round, and the bytes."""
    sent = acted.sent[-1]
    most, total = max(sent), sum(sent)
    each = "each rank sends" if min(sent) == most else "the busiest rank sends"
    title, many = _title(plan, f"{size:,} bytes"), len(plan.rounds)
    rounds = f"{many} round{'s' * (many > 1)}"
    lines = [f"{title}: {rounds}; {each} {most:,} bytes, all {total:,}"]
    lines += [f"  {line}" for line in str(plan).splitlines()[1:]]
    return "\n".join(lines)
