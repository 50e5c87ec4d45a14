"""From what each rank recorded to one Ledger on one clock."""

from lib.ledger import Ledger
from lib.predict.provenance import speeds_of


def ledger_of(answers: list[tuple], *, slow_motion=None, offsets=None, meta=None) -> Ledger:
    """Merge each rank's (result, recorded columns) into one Ledger, with the ranks' results.

    Times become seconds from the first event; under slow motion they are divided by its factor, so
    that they read as the chosen GPU's own. `offsets` (s) are added to each rank's clock.
    """
    scale = 1e9 * (slow_motion.factor if slow_motion else 1)
    meta = {"ranks": len(answers), **(meta or {})}
    source = "slow motion" if slow_motion else "measured"
    if slow_motion:
        meta["slow_motion"] = str(slow_motion)
        meta |= {name: getattr(slow_motion, name) for name in ("gpu", "link", "factor")}
        meta["speeds"] = speeds_of(slow_motion)
        meta["slipped"] = [columns.pop("slipped", 0) / scale for _, columns in answers]
    began = min((min(c["start"]) for _, c in answers if c["start"]), default=0)
    parts = []
    for rank, (_, columns) in enumerate(answers):
        # Whole nanoseconds until here: a float of seconds since boot would lose them.
        times = {n: [(moment - began) / scale for moment in columns[n]] for n in ("start", "end")}
        parts.append(Ledger.from_columns(rank=rank, source=source, **{**columns, **times}))
    merged = Ledger.merge(parts, offsets)
    merged.results, merged.meta = [result for result, _ in answers], meta
    return merged
