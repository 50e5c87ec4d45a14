"""The exercises of chapter 0: predict, write, measure, repair, invent."""

from collections.abc import Callable

import torch

from lib.course.check import Exercise, Hints, Numbers, Par, Verdict
from lib.course.messages import rounds, sent
from lib.draw.style import amount
from lib.ledger import Ledger, Row
from lib.predict import hardware, traffic


def _counted(ranks: int, size: int) -> list[tuple[torch.Tensor]]:
    """Rank r holds 100·r, 100·r + 1, ...: every entry tells whose it is."""
    return [(100.0 * rank + torch.arange(size, dtype=torch.float32),) for rank in range(ranks)]


def _summed(given):
    return [sum(x for (x,) in given)] * len(given)


def _ring_par(ranks: int, size: int) -> Par:
    counted = traffic.all_reduce("ring", ranks, size)
    return Par(max(counted.sent), counted.rounds)


def _ring(x):
    from lib.ranks.algorithms import all_reduce

    return all_reduce(x, "ring")


predict = Numbers(
    name="predict",
    task="Put a number in place of each None.",
    answers={
        "all_gather": int(traffic.collective("all_gather", 8, 8_000_000).bytes),
        "all_reduce": int(traffic.collective("all_reduce", 8, 8_000_000).bytes),
        "ring_rounds": traffic.all_reduce("ring", 8, 2_000_000).rounds,
        "tree_rounds": traffic.all_reduce("tree", 8, 2_000_000).rounds,
    },
    hints=(
        "S is the full buffer, 8,000,000 bytes. In a ring each rank passes on all pieces but one.",
        "An all-reduce is a reduce-scatter and then an all-gather: twice the bytes of one.",
        "A ring of 8 needs 7 rounds for each half; a tree halves the ranks in each round, 3 times.",
    ),
)

write = Exercise(
    name="write",
    task="Fill in the body of `my_all_gather`: use send and receive, no collective.",
    inputs=_counted,
    reference=lambda given: [torch.cat([x for (x,) in given])] * len(given),
    sizes=(1, 5, 1000),
    par=lambda ranks, size: Par((ranks - 1) * size * 4, ranks - 1),
    hints=(
        "Each rank starts with one piece. Pass it on to the right, receive one from the left: "
        "after n-1 rounds everybody has seen all of them.",
        "In round k rank r passes on the piece that came to it in round k-1: that of rank r-k.",
        "Send and receive at once with dist.batch_isend_irecv, and wait for both before the next "
        "round: a send that waits for its receiver goes round the ring for ever.",
    ),
)

repair = Exercise(
    name="repair",
    task="Make `their_ring` move no more than it has to.",
    inputs=_counted,
    reference=_summed,
    sizes=(4, 10, 1000),
    par=_ring_par,
    model=_ring,
    at_par=True,
    hints=(
        "Count the bytes of one message. How much of it does the receiver still need?",
        "Cut the buffer into n pieces. In round k rank r sends piece r-k, summed so far, and adds "
        "what it receives to its own piece r-k-1: n-1 rounds of 1/n of the bytes.",
        "Now rank r owns the whole sum of piece r+1. A second lap of n-1 rounds passes the "
        "finished pieces on; what arrives replaces what is there.",
    ),
)


class _BusBandwidth(Hints):
    """A function from a Ledger to bytes per second, tried on a ledger with known times."""

    late, moving, ranks, size = 0.005, 0.002, 4, 8_000_000

    def check(self, attempt: Callable) -> Verdict:
        """Call `attempt` on one all-reduce in which rank 3 came 5 ms late."""
        said = attempt(self.example())
        if said is None or said is ...:
            return self._open(f"`{attempt.__name__}` returns nothing", self.task)
        wire = traffic.collective("all_reduce", self.ranks, self.size).bytes
        right = wire / self.moving
        if abs(said - right) <= 0.01 * right:
            return Verdict(True, f"Solved. {amount(right, 'B/s')} on the example.")
        slips = {
            wire / (self.moving + self.late): "you count waiting for rank 3 as moving",
            self.size / self.moving: "that is S over time; the bus carries 2(n-1)/n of S",
            self.size / (self.moving + self.late): "waiting is counted, and 2(n-1)/n is missing",
        }
        why = next((w for value, w in slips.items() if abs(said - value) <= 0.01 * value), "")
        got = f"{amount(said, 'B/s')}, and it is {amount(right, 'B/s')}"
        return self._not_yet(f"On the example you say {got}{': ' + why if why else ''}.")

    def example(self) -> Ledger:
        """One all-reduce of 8 MB on 4 ranks: rank 3 launches 5 ms late, moving takes 2 ms."""
        rows = [
            Row(rank, "comm", "all_reduce", self.late * (rank == 3), self.late + self.moving,
                arrived=self.late, group="world", members=(0, 1, 2, 3), number=0, bytes=self.size)
            for rank in range(self.ranks)
        ]  # fmt: skip
        return Ledger(rows, meta={"ranks": self.ranks})


measure = _BusBandwidth(
    name="measure",
    hints=(
        "A comm row has .bytes, .members, .waiting and .moving. Which of the times is the link's?",
        "The bus carries 2(n-1)/n of S in an all-reduce: collective(op, ranks, nbytes).bytes.",
    ),
)
measure.task = "Fill in the body of `bus_bandwidth`."


class _Invent(Exercise):
    """An all-reduce of the reader's own, timed on paper on three links beside the six."""

    links = ("NVLink4", "PCIe4", "Ethernet 10")

    def _scored(self, ledger, world, given) -> Verdict:
        numel = given[0][0].numel()
        six = {name: traffic.all_reduce(name, world.size, numel) for name in traffic.ALGORITHMS}
        lines = [f"{'':<12}{'yours':>9}  best of the six"]
        for name in self.links:
            link = hardware.link(name)
            mine = rounds(ledger) * link.alpha + max(sent(ledger)) * link.beta
            times = {n: traffic.seconds(t, link.alpha, link.beta) for n, t in six.items()}
            best = min(times, key=times.get)
            lines.append(f"{name:<12}{amount(mine, 's'):>9}  {best} {amount(times[best], 's')}")
        moved = f"{rounds(ledger)} rounds, {max(sent(ledger)):,} bytes from the busiest rank"
        return Verdict(True, f"The sums are right: {moved}.\n" + "\n".join(lines))


invent = _Invent(
    name="invent",
    task="Write any all-reduce of your own.",
    inputs=_counted,
    reference=_summed,
    sizes=(3, 1000, 250_000),
    hints=("What if every rank sends piece r straight to rank r, adds up, and sends it back?",),
)
