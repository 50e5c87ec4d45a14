"""What each rank of a stream sends: activations, gradients, and the averages of replicas.

A rank sends one activation to the next stage and one gradient to the stage before for each of its
microbatches. Before the first activation for a peer it sends the activation's form as a text, and
before the first gradient for a peer a byte that says which gradients follow (lib/parallel/pipeline/
pipes.py). The replicas of a stage average their gradients before every update.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lib.predict.pipeline.actions import Schedule
from lib.predict.pipeline.versions import updates_share

FORM, FLAGS = 256, 1  # bytes of a short form, and of the flags of one tensor


class RankTraffic(NamedTuple):
    """Holds what one rank sends in a stream, in numbers and in bytes."""

    messages: int
    message_bytes: int  # sent
    averages: int  # all-reduces, one before each update of a stage with replicas
    average_bytes: int  # the buffers of all these all-reduces together


def stream_traffic(
    schedule: Schedule, every: int, activations: Sequence[int], weights: Sequence[int]
) -> list[RankTraffic]:
    """Return the traffic of each rank for a stream with an update after `every` microbatches.

    `activations[s]` are the bytes of the output of stage s for one microbatch, one tensor whose
    form fits into 256 bytes (the last stage's is not sent); `weights[s]` are the bytes of the
    stage's trained weights, of one dtype. The messages at the end that carry the losses, and the
    byte for each weight that says which have a gradient, are not counted.
    """
    return [_of_rank(schedule, rank, every, activations, weights) for rank in range(len(schedule))]


def _of_rank(schedule, rank: int, every: int, activations, weights) -> RankTraffic:
    forwards = [action for action in schedule.actions(rank) if action.kind == "F"]
    stage, count = forwards[0].stage, len(forwards)
    messages = nbytes = 0
    for neighbour, size, first in ((stage + 1, stage, FORM), (stage - 1, stage - 1, FLAGS)):
        if 0 <= neighbour < schedule.stages:
            peers = {schedule.rank_of(neighbour, action.microbatch) for action in forwards}
            messages += count + len(peers)
            nbytes += count * activations[size] + len(peers) * first
    shared = len(schedule.ranks_of(stage)) > 1
    averages = count // updates_share(schedule, stage, every) if shared else 0
    return RankTraffic(messages, nbytes, averages, averages * weights[stage])
