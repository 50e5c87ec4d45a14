"""What each rank communicates where stages are cut by channel: messages and collectives.

Within a stage of n ranks, the output of a layer is gathered on all of them. Backward, the gradient
of a layer's whole input is summed over the ranks: by an all-reduce where the input was whole
before, by a reduce-scatter where it was gathered from shares. Between stages each rank of the next
stage receives the whole output from one rank of the stage before, and the whole gradient goes back
to each rank of that stage. lib/parallel/pipeline/channels.py and mixed.py do this.
"""

from collections import Counter
from collections.abc import Sequence

from lib.predict.pipeline.cuts import Partition, Stage
from lib.predict.shape import GPTShape

Counts = dict[str, tuple[int, int]]  # operation -> how often, bytes (sent; of collectives: buffer)


def gpt_traffic(
    partition: Partition, shape: GPTShape, *, m: int, batch: int, sequence: int, itemsize: int = 4
) -> list[Counts]:
    """Return the traffic of each rank for a step of a GPT with m microbatches of `batch` samples.

    In a transformer block attention and MLP are shared alike: the inner width is gathered and its
    gradient scattered, the output is gathered, and the gradient of the input is summed.
    """
    tokens = batch * sequence * itemsize
    width, hidden, vocabulary = (
        tokens * size for size in (shape.width, shape.hidden, shape.vocabulary)
    )
    embedding = [("all_gather", width)]
    if shape.positions == "learned":
        embedding.append(("all_gather", width // batch))
    block = [("all_gather", size) for size in (width, width, hidden, width)]
    block += [("reduce_scatter", width), ("reduce_scatter", hidden)] + [("all_reduce", width)] * 2
    head = [("all_gather", vocabulary), ("all_reduce", width)]
    blocks = [embedding, *([block] * shape.layers), head]
    outputs = [width] * (shape.layers + 1) + [vocabulary]
    inside = [
        [call for calls in blocks[stage.first : stage.last] for call in calls]
        for stage in partition.stages
    ]
    return _traffic(partition, inside, outputs, m)


def conv_traffic(partition: Partition, outputs: Sequence[int], m: int) -> list[Counts]:
    """Return the traffic of each rank for a chain of layers with nothing else between them.

    `outputs` are the bytes of each block's output for one microbatch. Within a stage the gradients
    of outputs are scattered; the gradient of the stage's input is summed, unless it is the batch.
    """
    inside = []
    for stage in partition.stages:
        own = outputs[stage.first : stage.last]
        calls = [("all_gather", size) for size in own]
        calls += [("reduce_scatter", size) for size in own[:-1]]
        if stage.first:
            calls.append(("all_reduce", outputs[stage.first - 1]))
        inside.append(calls)
    return _traffic(partition, inside, outputs, m)


def _traffic(partition: Partition, inside, outputs, m: int) -> list[Counts]:
    ranks = []
    for place, (stage, calls) in enumerate(zip(partition.stages, inside)):
        for own in range(stage.ranks):
            counts, sizes = Counter(), Counter()
            for op, size in _sends(partition.stages, place, own, outputs):
                counts[op] += m
                sizes[op] += m * size
            for op, size in calls if stage.ranks > 1 else ():
                counts[op] += m
                sizes[op] += m * size
            ranks.append({op: (counts[op], sizes[op]) for op in counts})
    return ranks


def _sends(stages: Sequence[Stage], place: int, own: int, outputs):
    """Yield the messages of rank `own` of a stage for a microbatch: to the next stage, and back."""
    stage = stages[place]
    if place + 1 < len(stages):
        for k in range(stages[place + 1].ranks):
            if k % stage.ranks == own:
                yield "send", outputs[stage.last - 1]
    if place:
        for k in range(stages[place - 1].ranks):
            if k % stage.ranks == own:
                yield "send", outputs[stage.first - 1]
