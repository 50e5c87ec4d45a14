"""What a rank keeps of the model under each stage of ZeRO: bytes of parameters, gradients, states.

    stage 0  everything n times                     (plain data parallelism)
    stage 1  the optimizer's states [ψ/n]           (ZeRO-1, Pos)
    stage 2  and the gradients [ψ/n]                (ZeRO-2, Pos+g)
    stage 3  and the parameters [ψ/n]               (ZeRO-3, Pos+g+p, FSDP)

ψ is the number of parameters, n that of ranks. A share is ψ/n elements, rounded up, because flat
shards are padded to be equal. What is gathered for a moment is in lib/predict/sharded/units.py.

[Note: bytes a parameter]
Publications count 12, 14, 16, 18 or 20 bytes for each parameter that Adam trains, and mean
different things by it. `convention` looks up who counts what; `keeping` makes a convention from an
optimizer and a precision. A number of bytes a parameter says little without its convention.

Source: Rajbhandari et al. 2019, "ZeRO" (arXiv 1910.02054), sections 3 and 5.
"""

from typing import NamedTuple

from lib.predict.arguments import real, whole
from lib.predict.memory import STATES, Held
from lib.predict.sharded.published import find, tables

STAGES = (0, 1, 2, 3)
PRECISIONS = ("fp32", "mixed", "bf16")


class Convention(NamedTuple):
    """Holds the bytes that are counted for each parameter, by kind, in words, and by whom."""

    name: str
    parameters: int
    gradients: int
    optimizer: int  # with the fp32 copy of the weights, where there is one
    counts: str
    source: str

    @property
    def total(self) -> int:
        """Return the bytes for each parameter where nothing is sharded."""
        return self.parameters + self.gradients + self.optimizer


def conventions() -> list[str]:
    """Return the names that `convention` knows."""
    return [entry["name"] for entry in tables()["conventions"]]


def convention(name: str = "ZeRO") -> Convention:
    """Look up a convention by name. Raises ValueError for a name that is not known."""
    return Convention(**find("conventions", name))


def keeping(optimizer: str = "adamw", precision: str = "mixed") -> Convention:
    """Return what an optimizer keeps in a precision, as a convention of its own.

    "fp32" keeps everything in 4 bytes. "mixed" keeps weights and gradients in 2, and with the
    optimizer a copy of the weights in 4 and its states in 4 each. "bf16" keeps everything in 2.
    """
    if optimizer not in STATES or precision not in PRECISIONS:
        raise ValueError(
            f"Nothing is known of {optimizer!r} in {precision!r}. Choose one of "
            f"{', '.join(STATES)}, and one of {', '.join(PRECISIONS)}."
        )
    states, size = STATES[optimizer], 4 if precision == "fp32" else 2
    kept = 4 * (1 + states) if precision == "mixed" else size * states
    copy = " and an fp32 copy of the weights" * (precision == "mixed")
    counts = f"weights and gradients in {size} bytes; {states} states of {optimizer}{copy}"
    return Convention(f"{optimizer}, {precision}", size, size, kept, counts, "counted")


def held(numel: int, ranks: int = 1, stage: int = 0, counted: str | Convention = "ZeRO") -> Held:
    """Return the bytes of parameters, gradients and optimizer that each of `ranks` keeps.

    `counted` is a Convention or the name of one. The activations are left at 0.
    """
    each, share = _of(counted), share_of(numel, ranks)
    _check(stage)
    whole_or_share = lambda since: share if stage >= since else int(numel)
    return Held(
        each.parameters * whole_or_share(3),
        each.gradients * whole_or_share(2),
        each.optimizer * whole_or_share(1),
        0,
    )


def share_of(numel: int, ranks: int) -> int:
    """Return the elements in the flat shard of each rank: numel ÷ ranks, rounded up."""
    return -(-whole(numel, "The number of parameters") // whole(ranks, "The number of ranks"))


def bytes_per_parameter(
    ranks: int = 1, stage: int = 0, counted: str | Convention = "ZeRO"
) -> float:
    """Return the bytes that a rank keeps for each parameter of the whole model.

    For ZeRO's convention, 16, 4 + 12/n, 2 + 14/n and 16/n.
    """
    each, n = _of(counted), whole(ranks, "The number of ranks")
    _check(stage)
    kinds = each.optimizer, each.gradients, each.parameters
    return sum(kinds[stage:]) + sum(kinds[:stage]) / n


def largest_model(
    memory_bytes: float, ranks: int = 1, stage: int = 0, counted: str | Convention = "ZeRO"
) -> float:
    """Return how many parameters fit into `memory_bytes` a rank, if these hold nothing else."""
    room = real(memory_bytes, "The memory of a device", zero=False)
    return room / bytes_per_parameter(ranks, stage, counted)


def fewest_ranks(
    numel: int, memory_bytes: float, stage: int = 3, counted: str | Convention = "ZeRO"
) -> int | None:
    """Return the smallest number of ranks on which the model's states fit; None if on no number."""
    room = real(memory_bytes, "The memory of a device", zero=False)
    fits = lambda ranks: held(numel, ranks, stage, counted).total <= room
    few, many = 1, whole(numel, "The number of parameters")
    if not fits(many):
        return None
    while few < many:  # more ranks never hold more each
        middle = (few + many) // 2
        few, many = (few, middle) if fits(middle) else (middle + 1, many)
    return few


def _of(counted: str | Convention) -> Convention:
    return counted if isinstance(counted, Convention) else convention(counted)


def _check(stage: int) -> None:
    if stage not in STAGES:
        raise ValueError(f"ZeRO has stages 0, 1, 2 and 3, not {stage!r}.")
