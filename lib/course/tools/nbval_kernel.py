"""A pytest plugin that lets nbval run cells as a reader does.

It starts kernels without PYTEST_CURRENT_TEST, because under that variable ipykernel does not
capture the output of child processes, and a cell whose ranks print would show something else. It
counts cells, because a message that names `cell In[19]` would say In[1] otherwise.
"""

import os


def pytest_configure(config) -> None:
    """Wrap how nbval starts a kernel and runs a cell, if nbval is active."""
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

    def run_as_a_reader_does(self, source, allow_stdin=None):
        return self.kc.execute(source, allow_stdin=allow_stdin, stop_on_error=False)

    nbval.kernel.start_new_kernel = start_as_a_reader_does
    nbval.kernel.RunningKernel.execute_cell_input = run_as_a_reader_does
