"""`every(conditions)`: all of them hold, and there is at least one."""


def every(conditions) -> bool:
    """True if all conditions hold; AssertionError where there is none."""
    conditions = list(conditions)
    assert conditions, "there is nothing of which this could hold"
    return all(conditions)
