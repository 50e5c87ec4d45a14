"""What a function's result depends on besides its inputs: random numbers, autocast, modes.

A second run of a function gives what the first gave only if these are as they were.
"""

from collections.abc import Iterable
from contextlib import ExitStack, contextmanager
from weakref import WeakSet

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import DeviceContext

_GENERATORS: WeakSet[torch.Generator] = WeakSet()


def repeated(generator: torch.Generator) -> torch.Generator:
    """Return the generator; every recomputation from now on repeats its random numbers too."""
    _GENERATORS.add(generator)
    return generator


class Surroundings:
    """Holds the random-number states, autocast and modes of the moment in which it is made.

    The modes are those that change what functions compute, as `lib.single.precision.mixed` does;
    the default device is none of them. `tensors` say which devices take part besides the CPU.
    """

    def __init__(self, tensors: Iterable[Tensor], random: bool = True):
        devices = {t.device for t in tensors if t.device.type not in ("cpu", "meta")}
        self.devices = sorted(devices, key=str) if random else []
        self.random = random
        self.states = self._states() if random else []
        self.generators = _states_of_generators() if random else {}
        self.modes = _modes()
        kinds = {"cpu", *(device.type for device in devices)}
        self.autocast = [
            {
                "device_type": kind,
                "enabled": torch.is_autocast_enabled(kind),
                "dtype": torch.get_autocast_dtype(kind),
                "cache_enabled": torch.is_autocast_cache_enabled(),
            }
            for kind in sorted(kinds)
        ]

    @contextmanager
    def again(self):
        """Run what is inside as if it were then; the random numbers of now stay as they are."""
        with ExitStack() as stack:
            for settings in self.autocast:
                stack.enter_context(torch.autocast(**settings))
            for mode in self.modes[len(_modes()) :]:
                stack.enter_context(mode)
            if self.random:
                stack.callback(self._set, self._states(), _states_of_generators())
                self._set(self.states, self.generators)
            yield

    def _states(self) -> list[Tensor]:
        others = [torch.get_device_module(device).get_rng_state(device) for device in self.devices]
        return [torch.get_rng_state(), *others]

    def _set(self, states: list[Tensor], generators: dict[torch.Generator, Tensor]) -> None:
        own, *others = states
        torch.set_rng_state(own)
        for device, state in zip(self.devices, others):
            torch.get_device_module(device).set_rng_state(state, device)
        for generator in _GENERATORS:
            if generator in generators:
                generator.set_state(generators[generator])
            else:  # made since, so what was run first had it as it began
                generator.manual_seed(generator.initial_seed())


def _states_of_generators() -> dict[torch.Generator, Tensor]:
    """Return the states of all generators whose numbers are repeated."""
    return {generator: generator.get_state() for generator in _GENERATORS}


def _modes() -> list[TorchFunctionMode]:
    """Return the modes that functions run in now, the outermost first."""
    return [m for m in _get_current_function_mode_stack() if not isinstance(m, DeviceContext)]
