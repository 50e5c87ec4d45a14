"""What is alive on each rank over time, by kind."""

from collections.abc import Mapping

from lib.draw.parts import captions
from lib.draw.parts.packing import tick_of
from lib.draw.parts.picture import Picture
from lib.draw.parts.words import in_words as ranks_in_words
from lib.draw.timelines.stacks import MOST, in_words, kinds_of, ordered, packed, stacks
from lib.ledger import Ledger

RANKS = 64  # that fit on a page


def memory(ledgers: Ledger | Mapping[str, Ledger], *, caption: str = "") -> Picture:
    """Draw the bytes alive on each rank by kind, stacked; time as in the ledger's timeline.

    All ranks have one scale. Each one's peak is marked; what made it is told in words. The rows
    are those of lane "memory": a recording in which lib.ranks.memory.Memory counts has them, and
    so has a played schedule with `activation` bytes. Several ledgers, {"stage 0": one, "stage 1":
    other}, are drawn under one another on one scale of bytes and one of time, each from its own
    start. `caption` is a sentence more for the caption.
    """
    runs = dict(ledgers) if isinstance(ledgers, Mapping) else {"": ledgers}
    for ledger in runs.values():
        has_memory(ledger)
    many = sum(len(ledger.where(lane="memory").ranks) for ledger in runs.values())
    _fits(many)
    kinds = ordered({kind for ledger in runs.values() for kind in kinds_of(ledger)})
    shown = {name: stacks(ledger, ledger.ranks, float(ledger.column("start").min()),
                          MOST // len(runs), kinds) for name, ledger in runs.items()}  # fmt: skip
    every = [stack for held in shown.values() for stack in held]
    states = sum(len(stack.time) for stack in every)
    spans = [ledger.makespan or 1e-9 for ledger in runs.values()]
    tick = tick_of(max(spans), states)
    thin = states < sum(len(ledger.where(lane="memory")) for ledger in runs.values())
    ends = [max(1, round(span / tick)) for span in spans]
    data = packed(every, kinds, tick) | {
        "tick": tick, "span": max(ends), "thin": thin,
        "source": ", ".join(dict.fromkeys(ledger.source for ledger in runs.values())),
        "runs": [[name, len(held), end] for (name, held), end in zip(shown.items(), ends)],
        "caption": captions.joined(*_captions(runs), caption),
    }  # fmt: skip
    return Picture(_story(runs, shown, thin), ("memory", data))


def _captions(runs: Mapping[str, Ledger]) -> list[str]:
    """What the numbers of each run are, and how bytes are known."""
    sentences_of_runs = captions.of_each(runs)
    if any(ledger.source != "predicted" for ledger in runs.values()):
        sentences_of_runs.append("Bytes are counted as tensors come and go.")
    return sentences_of_runs


def has_memory(ledger) -> None:
    """Refuse, in a sentence, what is no ledger, has no rows of memory, or too many ranks."""
    if not isinstance(ledger, Ledger):
        kind = type(ledger).__name__
        raise TypeError(f"Memory is drawn from a Ledger, not from {kind}: use world.record(...).")
    if not len(ledger.where(lane="memory")):
        raise ValueError(
            "There is nothing to draw: this ledger has no rows of memory. Count in the step, "
            "`with Memory(model, optimizer):`, or play a schedule with Costs(activation=...)."
        )
    _fits(len(ledger.where(lane="memory").ranks))


def _fits(many: int) -> None:
    if many > RANKS:
        raise ValueError(
            f"The memory of {many} ranks fits no page: choose up to {RANKS} of them, "
            f"as in memory(ledger.where(rank=range({RANKS})))."
        )


def _story(runs: Mapping[str, Ledger], shown: Mapping[str, list], thin: bool) -> str:
    lines = []
    for name, ledger in runs.items():
        of = f" of {name}" if name else ""
        lines.append(
            f"memory{of}, {ledger.source}: bytes alive on each rank by kind, time to the right"
        )
        lines += [f"  {ranks_in_words(ranks)}: {text}" for ranks, text in in_words(shown[name])]
        without = sorted(set(ledger.ranks) - {stack.rank for stack in shown[name]})
        if without:
            lines.append(f"  {ranks_in_words(without)}: no rows of memory")
    if thin:
        lines.append(f"  thinned: at most {MOST:,} moments; every peak is kept")
    return "\n".join(lines)
