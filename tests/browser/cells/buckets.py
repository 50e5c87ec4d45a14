from lib.draw import buckets
from lib.ledger import Ledger
from lib.predict.data.bucket_overlap import fly

MIB = 2**20
sizes, names = [], []
for layer in range(4):
    for part, mib in (("qkv", 3), ("proj", 1), ("fc", 4), ("out", 4)):
        sizes.append(mib * MIB)
        names.append(f"{layer}.{part}")


def run(bucket_bytes) -> Ledger:
    """What two ranks would have recorded, 10 % slower than predicted."""
    seconds = [size / sum(sizes) * 0.0033 for size in reversed(sizes)]
    limits = (bucket_bytes,) if bucket_bytes else (MIB, 25 * MIB)
    return Ledger(fly(sizes[::-1], seconds, limits, ranks=2, alpha=1e-5, bandwidth=2e10).ledger)


buckets(sizes, 0.003, names=names, ranks=2, alpha=1e-5, bandwidth=2e10, ask=run)
