"""A machine whose operations and collectives take round times."""


class Machine:
    """A machine whose operations take 1 s and whose collectives take 10 s."""

    def compute(self, flop, nbytes):
        return 1.0

    def moving(self, op, ranks, nbytes):
        return 10.0

    def overlapped(self, apart, together):
        return (apart + together) / 2
