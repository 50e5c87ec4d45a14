"""A parameter server, simulated: which weights each gradient is computed on, and who waits when.

[Note: from bulk-synchronous to asynchronous]
A worker fetches the weights, computes one gradient, delivers it, and begins again. With the
staleness bound s it may begin its gradient number c, counted from 0, once every worker has
delivered at least c - s gradients. The bound decides how the server trains:

    0       bulk-synchronous: the gradients of a round are averaged and make one update
    1, 2    stale-synchronous: each gradient ÷ workers is an update of its own, when it arrives
    None    asynchronous: as stale-synchronous, and no worker waits for another

The order in which gradients arrive is simulated. It depends on the settings alone, so the same list
of updates is predicted, carried out on ranks (lib/parallel/data/parameter_server.py) and compared.

Sources: bulk-synchronous, Valiant 1990 (CACM 33(8)); stale-synchronous, Ho et al. 2013 (NeurIPS);
asynchronous, Dean et al. 2012 (NeurIPS); the server, Li et al. 2014 (OSDI).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from lib.ledger import Ledger
from lib.predict.arguments import equal_share, is_whole, whole
from lib.predict.data.server_rows import Messages

HEAD = 16  # bytes of a message's header: two numbers before the weights or the gradient


@dataclass(frozen=True)
class ServerSettings:
    """Describes a run: the staleness bound, the number of gradients, the speed of each worker.

    `compute_times[w]` is the time that worker w takes for a gradient, in any unit. It may be a
    tuple of times, which is repeated, for a worker that is slow only sometimes. Raises ValueError
    where a bulk-synchronous run would end in the middle of a round.
    """

    bound: int | None
    gradients: int  # by all workers together
    compute_times: tuple

    def __post_init__(self):
        if self.bound is not None and not is_whole(self.bound, 0):
            raise ValueError(
                f"The staleness bound must be 0, 1, 2, ... or None, not {self.bound!r}."
            )
        if not self.compute_times:
            raise ValueError(
                "compute_times is empty, but a server needs at least one worker. Give a time for "
                "each worker."
            )
        whole(self.gradients, "The number of gradients")
        if self.bound == 0:
            equal_share(
                self.gradients, self.workers, "This run has {} gradients", "{} workers",
                advice="Bulk-synchronous updates need whole rounds: choose a multiple of "
                f"{self.workers}.",
            )  # fmt: skip

    @property
    def workers(self) -> int:
        """Return the number of workers; the server is one more rank."""
        return len(self.compute_times)

    def compute_time(self, worker: int, number: int) -> float:
        """Return the time that a worker takes for its gradient of that number."""
        times = self.compute_times[worker]
        return times[number % len(times)] if isinstance(times, Sequence) else times


class Update(NamedTuple):
    """Describes one gradient: the version that it was computed on, and the one it was applied to.

    A version of the weights is the number of updates before it.
    """

    worker: int
    number: int  # which of its worker's gradients
    computed_on: int
    applied_to: int

    @property
    def staleness(self) -> int:
        """Return the number of updates in between."""
        return self.applied_to - self.computed_on


def most_stale(workers: int, bound: int | None) -> int | None:
    """Return the largest staleness that a bound allows, (workers - 1)(2·bound + 1); None: no limit.

    While a worker computes its gradient c, each other worker can deliver those from c - s up to
    c + s. In a bulk-synchronous run a round is one update, so the staleness is 0.
    """
    if bound is None:
        return None
    return (workers - 1) * (2 * bound + 1) if bound else 0


class Gate:
    """Keeps the server's rules: which workers may begin, and when the weights change.

    `admit()` returns the workers that may begin, `take(worker)` records a gradient that arrived,
    and `version` counts updates. A gate uses no clock: its caller decides the order of arrival.
    """

    def __init__(self, settings: ServerSettings):
        self.settings, self.version = settings, 0
        self.delivered = [0] * settings.workers
        self.computing_on = [-1] * settings.workers  # each worker's version, -1 while it waits
        self.waiting = list(range(settings.workers))
        self.left = settings.gradients  # the number that no worker has begun
        self.round: list[int] = []  # bulk-synchronous: the workers that delivered in this round

    def admit(self) -> list[int]:
        """Let the workers begin that may, in the order in which they began to wait; return them."""
        bound, slowest = self.settings.bound, min(self.delivered)
        free = [w for w in self.waiting if bound is None or self.delivered[w] - slowest <= bound]
        free = free[: self.left]
        self.left -= len(free)
        for worker in free:
            self.waiting.remove(worker)
            self.computing_on[worker] = self.version
        return free

    @property
    def over(self) -> bool:
        """Return True once every gradient has arrived."""
        return not self.left and len(self.waiting) == self.settings.workers

    def take(self, worker: int) -> tuple[Update, bool]:
        """Record a gradient; return its versions, and whether the weights change now.

        Raises RuntimeError where it is staler than the bound allows.
        """
        update = Update(worker, self.delivered[worker], self.computing_on[worker], self.version)
        self._check(update)
        self.delivered[worker] += 1
        self.computing_on[worker] = -1
        self.waiting.append(worker)
        self.round.append(worker)
        now = self.settings.bound != 0 or len(self.round) == self.settings.workers
        if now:
            self.round, self.version = [], self.version + 1
        return update, now

    def _check(self, update: Update) -> None:
        bound, workers = self.settings.bound, self.settings.workers
        ahead = update.number - min(self.delivered)
        if update.computed_on < 0:
            raise RuntimeError(
                f"Worker {update.worker} delivered a gradient, but the server had not sent it "
                "weights for one."
            )
        if bound is not None and (ahead > bound or update.staleness > most_stale(workers, bound)):
            raise RuntimeError(
                f"Gradient {update.number} of worker {update.worker} was computed on version "
                f"{update.computed_on} and would be applied to version {update.applied_to}. That "
                f"breaks the staleness bound {bound}: the worker is {ahead} ahead of the slowest."
            )


@dataclass(frozen=True)
class MessageCosts:
    """Holds the times of messages and updates, in the unit of compute_times, and their bytes."""

    pull: float = 0.0  # weights to a worker
    push: float = 0.0  # a gradient to the server
    update: float = 0.0
    pull_bytes: int = 0
    push_bytes: int = 0


def message_costs(
    nbytes: int, tensors: int, *, alpha: float, beta: float, update: float = 0.0
) -> MessageCosts:
    """Return the costs for `tensors` parameters of `nbytes` in all: alpha s + beta s a byte.

    Both messages have a header. That with a gradient also has a byte for each tensor, which says
    whether the tensor has a gradient.
    """
    pull, push = HEAD + nbytes, HEAD + nbytes + tensors
    return MessageCosts(alpha + pull * beta, alpha + push * beta, update, pull, push)


def kept_bytes(settings: ServerSettings, costs: MessageCosts) -> tuple[int, int]:
    """Return the memory for messages on (the server, a worker), beside weights and gradients.

    Each keeps one message with weights. A worker keeps one with a gradient; the server keeps one
    too, or in bulk-synchronous runs those of a round.
    """
    gradients = settings.workers if settings.bound == 0 else 1
    return costs.pull_bytes + gradients * costs.push_bytes, costs.pull_bytes + costs.push_bytes


@dataclass(frozen=True)
class ServerRun:
    """Holds a simulated run: the updates in order, when each was done, and all rows.

    Rank 0 is the server, rank w + 1 is worker w.
    """

    updates: tuple[Update, ...]
    times: tuple[float, ...]  # when the weights had changed, or the gradient had been kept
    ledger: Ledger

    @property
    def order(self) -> tuple[int, ...]:
        """Return the workers in the order in which their gradients arrive."""
        return tuple(update.worker for update in self.updates)


def simulate(
    settings: ServerSettings, costs: MessageCosts = MessageCosts(),
    order: Sequence[int] | None = None,
) -> ServerRun:  # fmt: skip
    """Simulate a run in which the server handles one message after the other, first come first.

    Gradients that arrive at the same moment are taken in the order of worker numbers. With an
    `order`, a sequence of workers, the server waits for gradients in that order. At the end every
    worker gets the weights. Raises ValueError for an order of another length than the run, and
    RuntimeError for one that the bound does not allow.
    """
    if order is not None and len(order) != settings.gradients:
        raise ValueError(
            f"The order names {len(order)} gradients, but the settings ask for "
            f"{settings.gradients}. Give one worker for each gradient."
        )
    gate, rows, updates, times = Gate(settings), Messages(costs), [], []
    computing: list[tuple[float, int]] = []  # (when it is done, worker)
    in_order = iter(order or ())
    while True:
        for worker in gate.admit():
            start = rows.pull(worker)
            done = start + settings.compute_time(worker, gate.delivered[worker])
            rows.compute(worker + 1, "gradient", start, done)
            heappush(computing, (done, worker))
        if len(updates) == settings.gradients:
            break
        worker = next(in_order) if order else heappop(computing)[1]
        rows.push(worker)
        update, now = gate.take(worker)
        if now:
            rows.compute(0, "update", rows.clock[0], rows.clock[0] + costs.update)
        updates.append(update)
        times.append(rows.clock[0])
    for worker in range(settings.workers):
        rows.pull(worker)
    ledger = Ledger(sorted(rows.rows, key=lambda row: row.start), source="predicted")
    return ServerRun(tuple(updates), tuple(times), ledger)
