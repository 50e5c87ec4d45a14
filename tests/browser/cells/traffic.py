from lib.draw import traffic
from lib.ledger import Ledger, Row

rows = []
for rank in range(8):
    mates, twins = tuple(range(rank // 4 * 4, rank // 4 * 4 + 4)), (rank % 4, rank % 4 + 4)
    for op, group, members, size in (
        ("all_gather", "tp", mates, 4_000_000),
        ("reduce_scatter", "tp", mates, 4_000_000),
        ("all_reduce", "dp", twins, 1_000_000),
    ):
        rows.append(Row(rank, "comm", op, 0.0, 1.0, group=group, members=members, bytes=size))

traffic(Ledger(rows), node=4)
