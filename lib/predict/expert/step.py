"""A step of one layer of experts on ranks, predicted: forward and backward, with any load.

    gate, sort    counts all_gather    rows all_to_all    E/P experts    all_to_all    weigh, add
    backward: the same the other way round, then the all_reduce of the gate's gradient

A rank has N tokens and A = k·N rows, and with an even load as many arrive. An exchange takes as
long as its fullest rank needs, in sending or receiving. Nothing runs beside the messages, because
what comes next needs them. Sorting and what is done for each token alone, not for each number of
it, are left out.
"""

from collections.abc import Sequence

from lib.ledger import Ledger
from lib.predict.arguments import equal_share, whole
from lib.predict.expert.traffic import COUNT
from lib.predict.operations import Operation
from lib.predict.sharded.lockstep import Lockstep


def expert_step(
    width: int, hidden: int, experts: int, k: int, tokens: int, ranks: int, speeds, *,
    itemsize: int = 4, arriving: Sequence[int] | None = None,
) -> Ledger:  # fmt: skip
    """Predict forward and backward of one layer on `ranks` ranks, as ledger rows.

    Each rank has `tokens` tokens; `arriving` are the rows that come to each rank's experts, by
    default as many as it sends. Raises ValueError for experts that ranks cannot share equally, and
    for arriving rows that are not all that are sent.
    """
    own = equal_share(experts, ranks, "There are {} experts")
    n, d, f = whole(tokens, "tokens"), whole(width, "width"), whole(hidden, "hidden")
    a = whole(k, "k") * n
    came = [a] * ranks if arriving is None else list(arriving)
    if len(came) != ranks or sum(came) != ranks * a:
        raise ValueError(
            f"{ranks} ranks send {ranks * a:,} rows, but arriving={came} has {len(came)} entries "
            f"and {sum(came):,} rows. Say for each rank how many of them arrive."
        )
    step = _Step(Lockstep(ranks, speeds), n, d, f, experts, own, a, came, itemsize)
    step.forward()
    step.backward()
    return step.time.ledger()


class _Step:
    """Runs the operations of a layer on a clock: tokens n, width d, hidden f, a rows to send."""

    def __init__(self, time: Lockstep, n, d, f, experts, own, a, came, itemsize):
        self.time, self.n, self.d, self.f, self.experts = time, n, d, f, experts
        self.own, self.a, self.came, self.itemsize = own, a, came, itemsize

    def forward(self) -> None:
        a, d = self.a, self.d
        self._gate()
        self._compute("index_select", 2 * a * d)
        self._send("all_gather", len(self.came) * self.experts * COUNT)
        self._rows_travel()
        self._arrived("index_select", 2 * d)  # rows come by sender, and are needed by expert
        self._product(d, self.f)
        self._arrived("gelu", 2 * self.f)
        self._product(self.f, d)
        self._arrived("index_select", 2 * d)
        self._rows_travel()
        self._compute("mul", 2 * a * d)
        self._compute("index_add_", 3 * a * d)

    def backward(self) -> None:
        a, d, f = self.a, self.d, self.f
        self._compute("index_select", 2 * a * d)
        self._compute("mul", 3 * a * d)  # of the weights
        self._compute("sum", a * d)
        self._compute("mul_", 2 * a * d)  # of the rows
        self._rows_travel()
        self._arrived("index_add", 4 * d)
        for _ in range(2):  # of the rows, and of the matrices
            self._product(f, d)
        self._arrived("gelu_backward", 3 * f)
        for _ in range(2):
            self._product(d, f)
        self._arrived("index_add", 4 * d)
        self._rows_travel()
        self._compute("index_add", 3 * a * d + self.n * d)
        for _ in range(2):
            self._gate()
        self._send("all_reduce", d * self.experts * self.itemsize)

    def _compute(self, name: str, numbers: float, flop: float = 0) -> None:
        """Run an operation that is as large on every rank."""
        operation = Operation(name, flop, round(numbers * self.itemsize))
        self.time.compute([operation] * len(self.came))

    def _arrived(self, name: str, numbers: int) -> None:
        """Run an operation that moves so many numbers for each row that has come."""
        self.time.compute([Operation(name, 0, r * numbers * self.itemsize) for r in self.came])

    def _product(self, i: int, o: int) -> None:
        """Multiply the rows that have come by the matrices [I, O] of the rank's experts."""
        self.time.compute([
            Operation("mm", 2 * r * i * o, (r * (i + o) + self.own * i * o) * self.itemsize)
            for r in self.came
        ])  # fmt: skip

    def _gate(self) -> None:
        n, d, e = self.n, self.d, self.experts
        self._compute("mm", n * d + d * e + n * e, 2 * n * d * e)

    def _send(self, op: str, nbytes: int) -> None:
        self.time.wait(self.time.launch(op, nbytes, [tuple(range(len(self.came)))]))

    def _rows_travel(self) -> None:
        self._send("all_to_all", max(self.a, *self.came) * self.d * self.itemsize)
