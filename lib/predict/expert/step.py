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
    time = Lockstep(ranks, speeds)
    world = [tuple(range(ranks))]

    def compute(name: str, numbers: float, flop: float = 0) -> None:
        time.compute([Operation(name, flop, round(numbers * itemsize))] * ranks)

    def each(name: str, numbers: int) -> None:
        time.compute([Operation(name, 0, r * numbers * itemsize) for r in came])

    def product(i: int, o: int) -> None:
        time.compute([
            Operation("mm", 2 * r * i * o, (r * i + own * i * o + r * o) * itemsize) for r in came
        ])  # fmt: skip

    def gate() -> None:
        compute("mm", n * d + d * experts + n * experts, 2 * n * d * experts)

    def send(op: str, nbytes: int) -> None:
        time.wait(time.launch(op, nbytes, world))

    def rows_travel() -> None:
        send("all_to_all", max(a, *came) * d * itemsize)

    gate()
    compute("index_select", 2 * a * d)
    send("all_gather", ranks * experts * COUNT)
    rows_travel()
    each("index_select", 2 * d)  # rows come by sender, and are needed by expert
    product(d, f)
    each("gelu", 2 * f)
    product(f, d)
    each("index_select", 2 * d)
    rows_travel()
    compute("mul", 2 * a * d)
    compute("index_add", 3 * a * d + n * d)

    compute("index_select", 2 * a * d)
    for _ in range(2):  # of the rows, and of their weights
        compute("mul", 3 * a * d)
    rows_travel()
    each("index_add", 4 * d)
    for i, o in ((d, f), (f, d)):
        if i == f:
            each("gelu_backward", 3 * f)
        for _ in range(2):  # of the rows, and of the matrices
            product(i, o)
    each("index_add", 4 * d)
    rows_travel()
    compute("index_add", 3 * a * d + n * d)
    for _ in range(2):
        gate()
    send("all_reduce", d * experts * itemsize)
    return time.ledger()
