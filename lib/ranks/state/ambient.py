"""What a call finds on a rank beside its arguments: the notebook's directory, path and modes."""

import contextlib
import os
import sys

import torch

from lib.ranks.state.default_device import make_default

# What can be read and set: the notebook's is set on the ranks, and again before every call.
_SETTINGS = {
    "directory": (lambda: _directory(), lambda path: _enter(path)),
    "path": (lambda: sys.path, lambda path: sys.path.__setitem__(slice(None), path)),
    "dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "deterministic": (
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda mode: torch.use_deterministic_algorithms(mode[0], warn_only=mode[1]),
    ),
}
# What each rank has of its own, as it was before the first call of the reader's.
_OWN = {
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "device": (lambda: _device(), make_default),
}
_ALL = _SETTINGS | _OWN
_GPU = getattr(torch.accelerator.current_accelerator(), "type", "cuda")  # begins no GPU's work


def of_notebook() -> tuple:
    """Read what a function called in the notebook would find: (settings, modes, variables)."""
    settings = {name: get() for name, (get, _) in _SETTINGS.items()}
    settings["path"] = list(sys.path)  # a copy: the next call compares with it
    return settings, _modes(), os.environ._data.copy()  # without decoding: 30 µs less


def _modes() -> tuple:
    """Read what is on only inside a `with`: inference mode, autocast on the CPU, on GPUs."""
    return (
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
        torch.is_autocast_enabled(_GPU) and torch.get_autocast_dtype(_GPU),
    )


class Ambient:
    """The settings of one rank: those of the notebook, of the rank, and those its cells chose."""

    def __init__(self):
        self.settings: dict = {}  # the notebook's and this rank's own
        self.chosen: dict = {}  # by `%%ranks` cells: they stay, as the names do
        self.wanted: dict = {}  # with which each call begins: both
        self._checks: list[tuple] = []  # how each of these is read, what it is to be, how it is set
        self.modes, self.apart = _modes(), False  # whether a `with` has to bring them about
        self.variables: dict | None = None

    def follow(self, settings: dict, modes: tuple, variables: dict) -> None:
        """Take over what has changed in the notebook."""
        if not self.settings:
            self.settings = {name: get() for name, (get, _) in _OWN.items()}
            make_default(self.settings["device"])
        self.settings |= settings
        self._want()
        self.modes = modes
        for name in (self.variables or {}).keys() - variables.keys():
            os.environ.pop(os.fsdecode(name), None)
        for name, value in variables.items():
            if self.variables is None or self.variables.get(name) != value:
                os.environ[os.fsdecode(name)] = os.fsdecode(value)
        self.variables = variables

    def restore(self) -> None:
        """Undo what the last call left behind."""
        for get, value, set_ in self._checks:
            if get() != value:
                set_(value)
        self.apart = _modes() != self.modes

    def keep(self) -> None:
        """Let what a `%%ranks` cell has set last."""
        for name, value in self.wanted.items():
            if (now := _ALL[name][0]()) != value:
                self.chosen[name] = list(now) if name == "path" else now
        self._want()

    def _want(self) -> None:
        self.wanted = self.settings | self.chosen
        self._checks = [(_ALL[n][0], value, _ALL[n][1]) for n, value in self.wanted.items()]

    def within(self):
        """Give a `with` that holds the notebook's inference mode and autocast during a call."""
        if not self.apart:
            return _AS_IT_IS
        stack, now = contextlib.ExitStack(), _modes()
        if now[0] != self.modes[0]:
            stack.enter_context(torch.inference_mode(self.modes[0]))
            torch.set_grad_enabled(self.wanted["gradients"])
        for kind, is_, wanted in zip(("cpu", _GPU), now[1:], self.modes[1:], strict=True):
            if is_ != wanted:
                how = {"dtype": wanted} if wanted else {"enabled": False}
                stack.enter_context(torch.autocast(kind, **how))
        return stack


_AS_IT_IS = contextlib.nullcontext()
ambient = Ambient()


def own_device() -> torch.device:
    """Give the device of this process: what was its default before the reader's first call."""
    return ambient.settings.get("device") or torch.get_default_device()


def _directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


def _enter(path: str | None) -> None:
    with contextlib.suppress(OSError):
        if path:
            os.chdir(path)


def _device():
    """Read the default device; without a mode at work there is none but the CPU."""
    return torch.get_default_device() if torch._C._len_torch_function_stack() else None
