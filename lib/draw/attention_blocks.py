"""Attention's scores as query × key blocks: which rank computes which, in which step of a ring."""

from collections.abc import Sequence

from lib.draw.parts import captions
from lib.draw.parts.picture import Picture
from lib.predict.arguments import whole
from lib.predict.sequence import blocks
from lib.predict.sequence.layout import LAYOUTS

_RANKS = (2, 4, 8)
_HEADS = "heads"
_NAMES = {"contiguous": "ring, contiguous", "zigzag": "ring, zigzag", _HEADS: "split by heads"}


def attention_blocks(
    layout: str = "zigzag", sequence: int = 4096, *, ranks: int = 4,
    documents: Sequence[int] | None = None, step: int | None = None, caption: str = "",
) -> Picture:  # fmt: skip
    """Draw the scores of causal attention [S, S], coloured by the rank that computes them.

    `layout` is "contiguous" or "zigzag", of a ring, or "heads", where each rank has all tokens of a
    part of the heads (Ulysses, Megatron). The reader can choose another, and 2, 4 or 8 ranks.
    `documents` are cumulative lengths of packed documents, as in cu_seqlens; with them the reader
    can also choose one document. The still is drawn after `step` steps, by default after all.
    """
    length = whole(sequence, "sequence")
    if layout not in _NAMES:
        raise ValueError(f"No layout is called {layout!r}. Choose one of {', '.join(_NAMES)}.")
    if ranks not in _RANKS:
        raise ValueError(f"Blocks of {ranks} ranks cannot be drawn: choose 2, 4 or 8 ranks.")
    packings = {"one": None} | ({} if documents is None else {"packed": documents})
    plans = {f"{name} {n} {packed}": _plan(name, length, n, ends)
             for name in _NAMES for n in _RANKS for packed, ends in packings.items()}  # fmt: skip
    packed = "one" if documents is None else "packed"
    start = {"layout": layout, "ranks": ranks, "packed": packed}
    chosen = plans[f"{layout} {ranks} {packed}"]
    most = len(chosen["steps"])
    if step is not None and whole(step, "step", 0) > most:
        raise ValueError(f"This attention has {most} steps, so there is no step {step}.")
    data = {
        "length": length, "plans": plans, "start": start | {"at": most if step is None else step},
        "layouts": [*_NAMES.items()],
        "packings": [["one", "one document"], ["packed", f"{_count(documents)} documents"]]
        if documents is not None else [],
        "caption": captions.joined(
            f"Predicted: scores of one head, of {length:,} tokens under a causal mask (split by "
            "heads: a rank's share of them); each takes the same time and messages take none. "
            "Nothing was run.",
            caption,
        ),
    }  # fmt: skip
    return Picture(chosen["summary"], ("attention_blocks", data))


def _count(documents: Sequence[int] | None) -> int:
    return 1 if documents is None else len(documents) - 1


def _plan(layout: str, length: int, ranks: int, documents: Sequence[int] | None) -> dict:
    """Return what is drawn: blocks and work by step, the span, and words."""
    alone = blocks.ring_blocks(length, 1, "contiguous", documents)
    if layout == _HEADS:  # every rank computes all of a P-th of the heads
        steps, scores = alone, [[sum(b.scores for b in alone[0][0]) / ranks] * ranks]
    else:
        steps = blocks.ring_blocks(length, ranks, layout, documents)
        scores = blocks.work(steps)
    run = blocks.play_ring(scores)
    rings = [blocks.ring_blocks(length, ranks, name, documents) for name in LAYOUTS]
    slowest = max(blocks.play_ring(blocks.work(ring)).span for ring in rings)
    busy = f"{100 * run.busy():.0f} %"
    verdict = f"Ranks compute {busy} of the time until the last one ends"
    kind = f"{_NAMES[layout]}, {ranks} ranks, {length:,} tokens"
    packed = "" if documents is None else f" in {_count(documents)} documents"
    lines = [f"attention: {kind}{packed}", f"  {verdict}."]
    for rank in range(ranks):
        own = ", ".join(f"{step[rank]:,.0f}" for step in scores)
        lines.append(f"  rank {rank}: {own} scores")
    return {
        "steps": [[[_box(block) for block in own] for own in step] for step in steps],
        "ranks": ranks, "heads": layout == _HEADS, "scores": scores,
        "begins": run.begins, "ends": run.ends, "axis": max(slowest, run.span),
        "verdict": f"{verdict}: {_in_words(run)}.", "summary": "\n".join(lines),
    }  # fmt: skip


def _in_words(run: blocks.RingRun) -> str:
    worked = [sum(e[rank] - b[rank] for b, e in zip(run.begins, run.ends))
              for rank in range(len(run.ends[0]))]  # fmt: skip
    least, most = min(worked), max(worked)
    if least == most:
        return f"each has {most:,.0f} scores"
    return f"one has {least:,.0f} scores, another {most:,.0f}"


def _box(block: blocks.ScoreBlock) -> list[int]:
    """Return a block as numbers: first and end of queries and of keys, and whether it is masked."""
    ends = (block.queries.start, block.queries.stop, block.keys.start, block.keys.stop)
    return [*ends, int(block.masked)]
