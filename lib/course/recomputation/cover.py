"""The cover of chapter 9: memory over a step with all kept, and with each block forgotten."""

from lib.course.narrow import narrow, save
from lib.course.recomputation.lessons import LARGE, large_costs
from lib.draw import memory
from lib.predict.recompute import every, none
from lib.predict.recompute.costs import backward_of
from lib.predict.recompute.played import play_plan
from lib.predict.roofline import speeds

IMAGE = "recomputation.png"


def both() -> dict:
    """Predict a step of `LARGE` on an H100 in bfloat16 with nothing and with all computed again."""
    costs, backward = large_costs(), backward_of(LARGE, 1, speeds("H100"), itemsize=2)
    plans = {"everything kept": none(len(costs)), "each block recomputed": every(len(costs), 1)}
    return {name: play_plan(plan, costs, backward).ledger for name, plan in plans.items()}


def write(path) -> None:
    """Write the picture."""
    save(narrow(memory(both())), path)
