"""The cover of chapter 8: where tokens go when nothing keeps the load of the experts even."""

from lib.course.mixture_of_experts.training import SHOWN, WAYS, trained
from lib.course.narrow import narrow, save
from lib.draw import routing

IMAGE = "experts.png"
CAPACITY = 1.25


def write(path) -> None:
    """Write the picture."""
    table = trained(*WAYS["no loss"], seed=0).tables[SHOWN[-1]]
    save(narrow(routing(table, capacity=CAPACITY)), path)
