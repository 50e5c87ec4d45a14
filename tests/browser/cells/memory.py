from lib.draw import memory
from lib.ledger import Ledger, Row

alive = [("parameters", 0, 4), ("gradients", 3, 4), ("optimizer", 5, 8), ("activations", 1, 6)]
rows = [Row(r, "memory", kind, at + r / 4, at + r / 4, bytes=size * 2**20)
        for r in range(4) for kind, at, size in alive]  # fmt: skip
rows += [Row(r, "memory", "activations", 4.0, 4.0, bytes=0) for r in range(4)]
rows += [Row(r, "compute", "step", 0.0, 7.0) for r in range(4)]
memory(Ledger(rows))
