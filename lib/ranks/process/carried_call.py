"""A call on its way to a rank: which function, on what, and how it is to be carried out there."""

import contextlib
from typing import NamedTuple

from lib.ranks.process.common_start import Start, begin_together
from lib.ranks.process.recorder import Recording

_AS_IT_IS = contextlib.nullcontext()


class CarriedCall(NamedTuple):
    """What one rank is asked to do: to call `step(*args, **kwargs)`."""

    step: object
    args: tuple = ()
    kwargs: dict = {}
    record: bool = False
    slow_motion: object = None  # a SlowMotion to run in
    start: Start | None = None  # with the other ranks, at one moment


def carry_out(call: CarriedCall):
    """Call the function on this rank; give its result, with the recorded columns where asked for.

    The ranks begin together, then the recording begins, then slow motion: what each of them does by
    itself is seen by none of those inside.
    """
    began = begin_together(call.start) if call.start else None
    recording = Recording(began) if call.record else None
    stretched = call.slow_motion.stretched(began) if call.slow_motion else None
    with recording or _AS_IT_IS, stretched or _AS_IT_IS as clock:
        result = call.step(*call.args, **call.kwargs)
    return (result, recording.columns(clock)) if recording else result
