"""A pytest plugin: nbval's kernels start without PYTEST_CURRENT_TEST.

Under that variable ipykernel leaves the output of child processes uncaptured, so a cell whose ranks
print would show one thing to a reader and another to the test.
"""

import os


def pytest_configure(config) -> None:
    """Wraps nbval's start of a kernel, where nbval runs at all."""
    if not (config.getoption("nbval", False) or config.getoption("nbval_lax", False)):
        return
    import nbval.kernel

    start = nbval.kernel.start_new_kernel

    def start_as_a_reader_does(*args, **kwargs):
        current = os.environ.pop("PYTEST_CURRENT_TEST", None)
        try:
            return start(*args, **kwargs)
        finally:
            if current is not None:
                os.environ["PYTEST_CURRENT_TEST"] = current

    nbval.kernel.start_new_kernel = start_as_a_reader_does
