"""What a call sends to the ranks: each rank's function and arguments, packed."""

import time

from lib.ranks.kernel.lending import refusal
from lib.ranks.process.carried_call import CarriedCall
from lib.ranks.process.common_start import Start
from lib.ranks.transport import packing


def packed(calls, ranks, slow_motion=None, record=False, home=None) -> list[list]:
    """Pack the call (function, arguments, keywords) of each rank; equal calls are packed once.

    Raises TypeError for what is no function, RankError for what cannot travel.
    """
    packed_calls: dict[int, list] = {}
    together = slow_motion is not None or record
    start = Start(time.monotonic_ns(), tuple(ranks)) if together else None
    for call in calls:
        if id(call) in packed_calls:
            continue
        carried = CarriedCall(*call, record, slow_motion, start)
        if not callable(carried.step):
            raise TypeError(f"The first argument must be a function, not {carried.step!r}.")
        try:
            packed_calls[id(call)] = packing.pack(tuple(carried), home)
        except Exception as error:
            raise refusal(packing.culprit_of_call(*call) or error) from None
    return [packed_calls[id(call)] for call in calls]
