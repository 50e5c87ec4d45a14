"""The cover of chapter 8: where the tokens of four ranks go before a gate has learned anything."""

from lib.course.mixture_of_experts.training import WAYS, trained
from lib.course.narrow import narrow, save
from lib.draw import routing

IMAGE = "experts.png"


def write(path) -> None:
    """Write the picture."""
    table = trained(*WAYS["no loss"], seed=0).tables[0]
    save(narrow(routing(table)), path)
