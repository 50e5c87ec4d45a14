"""A part of parameter_server.py: it collects the rows of a simulated run, message by message."""

from lib.ledger import Row


class Messages:
    """Collects the rows of a simulated run, with a clock for each rank."""

    def __init__(self, costs):
        self.costs, self.rows = costs, []
        self.clock: dict[int, float] = {0: 0.0}
        self.count: dict[tuple[int, int], int] = {}

    def compute(self, rank: int, op: str, start: float, end: float) -> None:
        """Note that a rank computes from `start` to `end`."""
        if end > start:
            self.rows.append(Row(rank, "compute", op, start, end))
        self.clock[rank] = end

    def pull(self, worker: int) -> float:
        """Send the weights to a worker; return when they arrive."""
        return self._message(0, worker + 1, self.costs.pull, self.costs.pull_bytes)

    def push(self, worker: int) -> float:
        """Send a worker's gradient to the server; return when it arrives."""
        return self._message(worker + 1, 0, self.costs.push, self.costs.push_bytes)

    def _message(self, source: int, destination: int, seconds: float, nbytes: int) -> float:
        pair = source, destination
        number = self.count[pair] = self.count.get(pair, -1) + 1
        starts = [self.clock.get(rank, 0.0) for rank in pair]
        arrived = max(starts)
        end = arrived + seconds
        common = {"group": "world", "members": pair, "number": number, "bytes": nbytes}
        for op, rank, peer, start in zip(("send", "recv"), pair, reversed(pair), starts):
            row = {"arrived": arrived, "peer": peer, **common}
            self.rows.append(Row(rank, "comm", op, start, end, **row))
            if end > start:
                self.rows.append(Row(rank, "wait", op, start, end, **row))
            self.clock[rank] = end
        return end
