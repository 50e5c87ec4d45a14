"""A parameter server on paper: who may go on, which weights each gradient was made on, and when.

[Note: one dial from bulk-synchronous to asynchronous]
A worker fetches the weights, computes one gradient, delivers it, and so on. With staleness bound s
it may begin its gradient number c once every worker has delivered c - s. What happens then:

    0       bulk-synchronous: the gradients of a round are one update, their mean
    1, 2    stale-synchronous: each gradient ÷ workers is an update of its own, when it comes
    None    asynchronous: the same, and nobody waits for anybody

The order in which gradients come is decided by a clock on paper: it depends on the dial alone, so
the same list of updates is predicted, carried out on ranks (lib/parallel/server.py) and compared.

Sources: bulk-synchronous, Valiant 1990 (CACM 33(8)); stale-synchronous, Ho et al. 2013 (NeurIPS);
asynchronous, Dean et al. 2012 (NeurIPS); the server, Li et al. 2014 (OSDI).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from lib.ledger import Ledger
from lib.predict._messages import Messages

HEAD = 16  # bytes before the weights or the gradient: two numbers that travel with each message


@dataclass(frozen=True)
class Dial:
    """How a run of the server is set: staleness bound, number of gradients, who is how slow.

    `paces[w]` is the time worker w takes for a gradient, in any unit; a tuple of times in its
    place is gone through again and again, for a worker that is slow now and then.
    Raises ValueError where a bulk-synchronous run would end in the middle of a round.
    """

    bound: int | None
    gradients: int  # by all workers together
    paces: tuple

    def __post_init__(self):
        whole = self.bound is None or (isinstance(self.bound, int) and self.bound >= 0)
        if not whole:
            raise ValueError(f"bound={self.bound!r}: the staleness bound is 0, 1, 2, ... or None")
        if not self.paces:
            raise ValueError("paces is empty: a server needs at least one worker")
        if self.gradients < 1 or (self.bound == 0 and self.gradients % self.workers):
            raise ValueError(
                f"{self.gradients} gradients: {self.workers} workers cannot share them in whole "
                f"rounds, and bulk-synchronous updates need them: take a multiple of {self.workers}"
            )

    @property
    def workers(self) -> int:
        """Number of workers; the server is a rank more."""
        return len(self.paces)

    def pace(self, worker: int, number: int) -> float:
        """The time that a worker takes for its gradient of that number."""
        paces = self.paces[worker]
        return paces[number % len(paces)] if isinstance(paces, Sequence) else paces


class Update(NamedTuple):
    """One gradient's story: made on one version of the weights, added to another."""

    worker: int
    number: int  # which of its worker's gradients
    made_on: int  # a version is the number of updates before it
    added_to: int

    @property
    def staleness(self) -> int:
        """Updates that came between."""
        return self.added_to - self.made_on


def most_stale(workers: int, bound: int | None) -> int | None:
    """The largest staleness that a bound allows: (workers - 1)(2·bound + 1); None for no limit.

    While a worker makes its gradient c, each other can deliver those from c - s up to c + s.
    In bulk-synchronous runs a round is one update, so nothing comes between.
    """
    if bound is None:
        return None
    return (workers - 1) * (2 * bound + 1) if bound else 0


class Gate:
    """The server's rules: whom it lets go on, and what each gradient that comes in means.

    `admit()` names the workers to be sent weights, `take(worker)` says what came of a gradient,
    `version` counts updates. It looks at no clock: the order of arrival is given to it.
    """

    def __init__(self, dial: Dial):
        self.dial, self.version = dial, 0
        self.delivered = [0] * dial.workers
        self.holds = [-1] * dial.workers  # the version a worker computes on, -1 while it waits
        self.waiting = list(range(dial.workers))
        self.left = dial.gradients  # that nobody has begun
        self.round: list[int] = []  # bulk-synchronous: who has delivered in this round

    def admit(self) -> list[int]:
        """Let go on who may, in the order in which they came; give their numbers."""
        bound, behind = self.dial.bound, min(self.delivered)
        free = [w for w in self.waiting if bound is None or self.delivered[w] - behind <= bound]
        free = free[: self.left]
        self.left -= len(free)
        for worker in free:
            self.waiting.remove(worker)
            self.holds[worker] = self.version
        return free

    @property
    def over(self) -> bool:
        """True once every gradient has come in."""
        return not self.left and len(self.waiting) == self.dial.workers

    def take(self, worker: int) -> tuple[Update, bool]:
        """Note a gradient; give its story, and whether the weights change now.

        Raises RuntimeError where it is staler than the bound allows.
        """
        update = Update(worker, self.delivered[worker], self.holds[worker], self.version)
        self._check(update)
        self.delivered[worker] += 1
        self.holds[worker] = -1
        self.waiting.append(worker)
        self.round.append(worker)
        now = self.dial.bound != 0 or len(self.round) == self.dial.workers
        if now:
            self.round, self.version = [], self.version + 1
        return update, now

    def _check(self, update: Update) -> None:
        bound, workers = self.dial.bound, self.dial.workers
        ahead = update.number - min(self.delivered)
        if update.made_on < 0:
            raise RuntimeError(f"worker {update.worker} delivered a gradient it was not asked for")
        if bound is not None and (ahead > bound or update.staleness > most_stale(workers, bound)):
            raise RuntimeError(
                f"gradient {update.number} of worker {update.worker}, made on version "
                f"{update.made_on} and added to {update.added_to}, breaks the staleness bound "
                f"{bound}: it is {ahead} ahead of the slowest worker"
            )


@dataclass(frozen=True)
class Costs:
    """What a message and an update take, in the unit of the paces, and the bytes of a message."""

    pull: float = 0.0  # weights to a worker
    push: float = 0.0  # a gradient to the server
    update: float = 0.0
    pull_bytes: int = 0
    push_bytes: int = 0


def costs(nbytes: int, tensors: int, *, alpha: float, beta: float, update: float = 0.0) -> Costs:
    """Give the costs for `tensors` parameters of `nbytes` together: alpha s + beta s a byte.

    Both messages have a head; a gradient's also tells, in a byte for each tensor, which there are.
    """
    pull, push = HEAD + nbytes, HEAD + nbytes + tensors
    return Costs(alpha + pull * beta, alpha + push * beta, update, pull, push)


def kept_bytes(dial: Dial, costs: Costs) -> tuple[int, int]:
    """Memory for messages on (the server, a worker), beside weights, gradients and optimizer.

    Each has one with the weights; a worker one gradient, the server a round of them, or one.
    """
    rounds = dial.workers if dial.bound == 0 else 1
    return costs.pull_bytes + rounds * costs.push_bytes, costs.pull_bytes + costs.push_bytes


@dataclass(frozen=True)
class Run:
    """What happens under a dial: the updates in order, when each was done, and all rows.

    Rank 0 is the server, rank w + 1 is worker w.
    """

    updates: tuple[Update, ...]
    times: tuple[float, ...]  # when the weights had changed (or the gradient was put by)
    ledger: Ledger

    @property
    def order(self) -> tuple[int, ...]:
        """The workers, in the order in which their gradients come in."""
        return tuple(update.worker for update in self.updates)


def play(dial: Dial, costs: Costs = Costs(), order: Sequence[int] | None = None) -> Run:
    """Play a run on paper: the server handles one message after the other, first come first served.

    Who comes at the same moment is taken in the order of numbers. With an `order`, a sequence of
    workers, gradients are taken in that order, whoever is there. At the end all get the weights.
    Raises ValueError for an order of another length, RuntimeError for one the bound does not allow.
    """
    if order is not None and len(order) != dial.gradients:
        raise ValueError(f"an order of {len(order)} gradients, and the dial has {dial.gradients}")
    gate, rows, updates, times = Gate(dial), Messages(costs), [], []
    computing: list[tuple[float, int]] = []  # (when it is done, worker)
    wanted = iter(order or ())
    while True:
        for worker in gate.admit():
            start = rows.pull(worker)
            done = start + dial.pace(worker, gate.delivered[worker])
            rows.compute(worker + 1, "gradient", start, done)
            heappush(computing, (done, worker))
        if len(updates) == dial.gradients:
            break
        worker = next(wanted) if order else heappop(computing)[1]
        rows.push(worker)
        update, now = gate.take(worker)
        if now:
            rows.compute(0, "update", rows.clock[0], rows.clock[0] + costs.update)
        updates.append(update)
        times.append(rows.clock[0])
    for worker in range(dial.workers):
        rows.pull(worker)
    ledger = Ledger(sorted(rows.rows, key=lambda row: row.start), source="predicted")
    return Run(tuple(updates), tuple(times), ledger)
