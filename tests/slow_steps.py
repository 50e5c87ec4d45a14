"""Steps that warm ranks take in slow motion."""

import contextlib


@contextlib.contextmanager
def slowly(world, speeds):
    """Let a warm world run in slow motion for a while."""
    world.slow_motion, before = speeds, world.slow_motion
    try:
        yield world
    finally:
        world.slow_motion = before


def late(ledger) -> float:
    """Give the part of a recording by which ranks were late: the machine was busy."""
    return max(ledger.meta["slipped"]) / ledger.makespan


def least_late(world, speeds, step, *args, warm=2):
    """Record a step after `warm` others; give the recording of up to five that was least late."""
    with slowly(world, speeds):
        for _ in range(warm):
            world.run(step, *args)
        ledgers = []
        while len(ledgers) < 5 and (not ledgers or late(ledgers[-1]) > 0.01):
            ledgers.append(world.record(step, *args))
    return min(ledgers, key=late)
