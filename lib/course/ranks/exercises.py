"""The exercises of chapter 0: predict, write, repair, measure and invent."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from lib.course.checks.arguments import name_of
from lib.course.checks.numbers import Numbers
from lib.course.checks.on_ranks import Exercise, Par
from lib.course.checks.read_number import NoNumber, is_missing, read_number
from lib.course.checks.sent_bytes import critical, sent
from lib.course.checks.verdict import Hints, Verdict
from lib.draw.parts.style import amount
from lib.ledger import Ledger, Row
from lib.predict import hardware
from lib.predict.collectives import formulas


def _counted(ranks: int, size: int) -> list[tuple[torch.Tensor]]:
    """Return each rank's input: rank r has 100·r, 100·r + 1, ..., so each entry shows its rank."""
    counted = torch.arange(size, dtype=torch.float32, device="cpu")
    return [(100.0 * rank + counted,) for rank in range(ranks)]


def _summed(inputs):
    return [sum(x for (x,) in inputs)] * len(inputs)


def _ring_par(ranks: int, size: int) -> Par:
    traffic = formulas.all_reduce("ring", ranks, size)
    return Par(max(traffic.sent), traffic.rounds)


def _ring(x):
    from lib.ranks.algorithms import all_reduce

    return all_reduce(x, "ring")


predict = Numbers(
    name="predict",
    task="Put a number in place of each None.",
    answers={
        "all_gather": int(formulas.collective("all_gather", 8, 8_000_000).bytes),
        "all_reduce": int(formulas.collective("all_reduce", 8, 8_000_000).bytes),
        "ring_rounds": formulas.all_reduce("ring", 8, 2_000_000).rounds,
        "tree_rounds": formulas.all_reduce("tree", 8, 2_000_000).rounds,
    },
    kinds={"all_gather": "sent bytes", "all_reduce": "sent bytes"},
    ranks=8,
    hints=(
        "Follow one piece of the all-gather around a ring of 8 ranks. Which ranks must pass it on, "
        "and which rank need not?",
        "S is the full buffer of 8,000,000 bytes. In the all-gather of a ring, each rank passes on "
        "all pieces but one, and a piece has S/8 bytes.",
        "An all-reduce is a reduce-scatter followed by an all-gather. Both send as many bytes.",
        "Each lap of a ring of 8 ranks has 7 rounds, and there are two laps. A tree halves the "
        "number of ranks in each round until one is left, and then goes back in as many rounds.",
    ),
)

write = Exercise(
    name="write",
    task="Fill in the body of `my_all_gather`: use send and receive, no collective.",
    inputs=_counted,
    reference=lambda inputs: [torch.cat([x for (x,) in inputs])] * len(inputs),
    sizes=(1, 5, 1000),
    par=lambda ranks, size: Par((ranks - 1) * size * 4, ranks - 1),
    messages_only=True,
    hints=(
        "A rank can pass on only what it has. What has rank r before the first round, and what has "
        "it after that round? How many rounds does it take until every rank has had all tensors?",
        "In round k, counted from 1, rank r passes on the tensor that it received in the round "
        "before, which is that of rank r+1-k (modulo n). It receives that of rank r-k.",
        "Use `exchange`, which sends and receives at the same time and waits for both. If all "
        "ranks send first, every send waits for its receiver for ever.",
    ),
)

repair = Exercise(
    name="repair",
    task="Let each rank of `their_ring` send no more than in a ring.",
    inputs=_counted,
    reference=_summed,
    sizes=(4, 10, 1000),
    par=_ring_par,
    model=_ring,
    at_par=True,
    messages_only=True,
    hints=(
        "How many bytes has one message? How many of them would the receiver need if each rank "
        "added up one piece of the buffer only?",
        "Cut the buffer into n pieces with `tensor_split`. In round k, counted from 1, rank r "
        "sends piece r+1-k with all that was added so far, and adds what it receives to its own "
        "piece r-k. These are n-1 rounds with messages of S/n bytes.",
        "Then rank r has the complete sum of piece r+1. A second lap of n-1 rounds passes the "
        "complete pieces on, and what arrives replaces the piece that is there.",
    ),
)


class _Timed(NamedTuple):
    """Holds an all-reduce with known times: `late_rank` comes `late` seconds after the others."""

    ranks: int = 4
    size: int = 8_000_000  # bytes of the buffer
    late_rank: int = 3
    late: float = 0.005
    moving: float = 0.002

    def ledger(self) -> Ledger:
        """Return the rows of the all-reduce."""
        rows = [
            Row(rank, "comm", "all_reduce", self.late * (rank == self.late_rank),
                self.late + self.moving, arrived=self.late, group="world",
                members=tuple(range(self.ranks)), number=0, bytes=self.size)
            for rank in range(self.ranks)
        ]  # fmt: skip
        return Ledger(rows, meta={"ranks": self.ranks})

    def rate(self) -> float:
        """Return the bus bandwidth in bytes/s."""
        return formulas.collective("all_reduce", self.ranks, self.size).bytes / self.moving

    def slips(self) -> dict[float, str]:
        """Return what three mistakes give in place of the bus bandwidth, each with its name."""
        waiting = "your time includes the waiting for the late rank"
        whole = "your bytes are S{}2(n-1)/n times S"
        share = self.moving / (self.moving + self.late)
        return {
            self.rate() * share: waiting,
            self.size / self.moving: whole.format(", and one rank sends "),
            self.size / self.moving * share: f"{waiting}, and {whole.format(' in place of ')}",
        }

    def __str__(self) -> str:
        words = f"n = {self.ranks}, S = {self.size:,} bytes, moved in {self.moving * 1e3:g} ms"
        return f"{words}, rank {self.late_rank} is {self.late * 1e3:g} ms late"


class _BusBandwidth(Hints):
    """Tries a function from a Ledger to bytes per second on ledgers with known times."""

    cases = (
        _Timed(),
        _Timed(late=0.015),
        _Timed(ranks=6, size=3_000_000, late_rank=0, late=0.0005, moving=0.005),
    )

    def check(self, attempt: Callable) -> Verdict:
        """Call `attempt` on the example and on other all-reduces."""
        for case in self.cases:
            try:
                rate = attempt(case.ledger())
                if is_missing(rate):
                    return self._open(f"`{name_of(attempt)}` returns nothing", self.task)
                rate = read_number(rate)
            except NoNumber as refusal:
                return self._not_yet(f"What `{name_of(attempt)}` returns is no rate. {refusal}")
            except Exception as error:  # the reader's code may raise anything
                failure = f"fails: {type(error).__name__}: {error}"
                return self._not_yet(f"`{name_of(attempt)}` {failure}")
            if not abs(rate - case.rate()) <= 0.01 * case.rate():
                return self._not_yet(_wrong_rate(case, rate, is_example=case is self.cases[0]))
        example = amount(self.cases[0].rate(), "B/s")
        return Verdict(True, f"Solved. The example gives {example}.")

    def example(self) -> Ledger:
        """Return one all-reduce of 8 MB on 4 ranks: rank 3 is 5 ms late, and moving takes 2 ms."""
        return self.cases[0].ledger()


def _wrong_rate(case: _Timed, rate: float, is_example: bool) -> str:
    """Write what was returned for a case, what is right, and which slip explains it."""
    slips = (why for value, why in case.slips().items() if abs(rate - value) <= 0.01 * value)
    why = next(slips, "")
    where = "the example" if is_example else f"another ledger ({case})"
    text = f"For {where} your function returns {amount(rate, 'B/s')}"
    text += f", but the bus bandwidth is {amount(case.rate(), 'B/s')}"
    return f"{text}{': ' + why if why else ''}."


measure = _BusBandwidth(
    name="measure",
    hints=(
        "`list(ledger.where(op='all_reduce'))` gives the rows. Each has .bytes, .members, .waiting "
        "and .moving: which of the two times does the link need?",
        "n is len(row.members) and S is row.bytes. Divide 2(n-1)/n times S by the longest .moving.",
    ),
)
measure.task = "Fill in the body of `bus_bandwidth`: it returns bytes per second."


class _Invent(Exercise):
    """Predicts the time of the reader's own all-reduce on three links, beside the best of six."""

    links = ("NVLink4", "PCIe4", "Ethernet 10")

    def _scored(self, ledger, world, inputs) -> Verdict:
        numel, own = inputs[0][0].numel(), critical(ledger)
        six = {name: formulas.all_reduce(name, world.size, numel) for name in formulas.ALGORITHMS}
        lines = [f"{'':<12}{'yours':>9}  best of the six"]
        for name in self.links:
            link = hardware.link(name)
            yours = own.rounds * link.alpha + own.bytes * link.beta
            times = {n: formulas.seconds(t, link.alpha, link.beta) for n, t in six.items()}
            best = min(times, key=times.get)
            lines.append(f"{name:<12}{amount(yours, 's'):>9}  {best} {amount(times[best], 's')}")
        traffic = f"{own.rounds} rounds, {max(sent(ledger)):,} bytes from the busiest rank"
        longest = f"The longest messages of all rounds add up to {own.bytes:,.0f} bytes"
        text = f"The sums are right: {traffic}.\n{longest}.\nPredicted times:"
        return Verdict(True, "\n".join([text, *lines]))


invent = _Invent(
    name="invent",
    task="Write an all-reduce of your own.",
    inputs=_counted,
    reference=_summed,
    sizes=(3, 1000, 250_000),
    messages_only=True,
    hints=(
        "What if every rank sent piece r of its tensor directly to rank r? Rank r adds up these "
        "pieces, and sends the sum back to all.",
    ),
)
