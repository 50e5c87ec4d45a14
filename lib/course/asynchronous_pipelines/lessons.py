"""Functions that the cells of chapter 7 call: data, recordings, comparisons and measurements."""

from math import lcm
from unittest import mock

import torch
import torch.distributed as dist

from lib.course.stopwatch import seconds_of
from lib.ledger import Ledger
from lib.parallel.pipeline import PipeDream
from lib.predict.larger import Larger
from lib.predict.pipeline import schedules
from lib.predict.pipeline.actions import Schedule
from lib.predict.pipeline.cuts import Layer
from lib.predict.pipeline.shared_stages.replicas import RankTraffic
from lib.predict.shape import GPTShape, MLPShape
from lib.ranks.slow_motion import SlowMotion
from lib.single.batches import Batches
from lib.single.models import GPT
from lib.single.profile import profile
from lib.single.train import next_token_loss

SHAPE = MLPShape((6, 16, 16, 16, 3))  # four layers
# Eight layers: milliseconds, and the bytes of their weights. The last is as heavy as a vocabulary.
EIGHT = [
    Layer(ms / 1e3, activation=4e6, weights=weights, channels=8)
    for ms, weights in zip((0.5, 1, 3, 1, 1, 1, 2, 3), [2e6] * 7 + [2e8])
]
SMALL = GPTShape(layers=6, width=32, heads=2, sequence=16)
FOUR_HEADS = GPTShape(layers=6, width=32, heads=4, sequence=16)  # shared by up to four ranks
OF_BOTH = "Messages and updates have 8 bytes a number, as in float64. Updates are not drawn."
LARGE = GPTShape(layers=6, width=128, heads=4, sequence=64)


def regression(seed: int, microbatches: int, examples: int = 8):
    """Return a stream of inputs [N, b, 6] and targets [N, b, 3], a linear map of the inputs.

    Inputs and targets have variance 1, so a model that always answers 0 has a loss of about 1. The
    numbers depend on the seed alone, on a GPU as well.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    draw = {"generator": generator, "dtype": torch.float64, "device": "cpu"}
    truth, x = torch.randn(6, 3, **draw), torch.randn(microbatches, examples, 6, **draw)
    device, truth = torch.get_default_device(), truth / truth.norm(dim=0)
    return x.to(device), (x @ truth).to(device)


def deep_stream(stages: int, microbatches: int) -> Schedule:
    """Return a stream with as many microbatches in the pipe as ZB-H2 has on stage 0: 2p - 1.

    Stage s does 2 (p - 1 - s) forwards before its first pair of a forward and a backward, which is
    twice as many as in `schedules.pipedream`.
    """
    rows = []
    for stage in range(stages):
        ahead = min(2 * (stages - 1 - stage), microbatches)
        row = [f"{stage}F{j}" for j in range(ahead)]
        for j in range(microbatches):
            row += [f"{stage}F{j + ahead}"] * (j + ahead < microbatches) + [f"{stage}B{j}"]
        rows.append(row)
    return Schedule(rows, "stream, deeper")


def above_one_another(first: Ledger, second: Ledger) -> dict[str, Ledger]:
    """Return the forwards and backwards of two recordings by name: with flushes, and without."""
    recorded = {"1F1B": first, "stream": second}
    return {name: one.where(lane="compute", op=["F", "B"]) for name, one in recorded.items()}


def for_large_layers(width: int = 8192, examples: int = 4096, microbatches: int = 12):
    """Return the SlowMotion in which the small MLP stands for one of H100s and NVLink 4.

    The layers of the large one are all `width` wide and take `examples` in a microbatch. The sizes
    of the data that the small run draws stand for themselves.
    """
    own = {size: size for size in (microbatches, 8 * microbatches)}
    large = MLPShape((width,) * len(SHAPE.widths))
    stands_for = Larger(SHAPE, large, batch=(8, examples), sizes=own)
    return SlowMotion("H100", link="NVLink4", factor=40, stands_for=stands_for)


def updates_before_forwards(order: Schedule) -> list[list[int]]:
    """Count, for each stage, the updates that are made before each forward of a schedule.

    The rows of the schedule are read as text, "0F2,0B0,...", and every backward is followed by an
    update. Result: [stages][microbatches]. It holds for one stage a rank.
    """
    counts = []
    for row in str(order).splitlines():
        kinds = [action[1] for action in row.split(",")]  # "0F2" -> "F"
        counts.append([kinds[:i].count("B") for i, kind in enumerate(kinds) if kind == "F"])
    return counts


def recorded_traffic(ledger: Ledger, rank: int) -> RankTraffic:
    """Count the messages that a rank sent and its averages, and their bytes, in a ledger.

    Messages are counted as sent; averages are the all-reduces of a stage, counted as buffers.
    """
    rows = ledger.where(lane="comm", rank=rank)
    messages = [row.bytes for row in rows.where(op="send")]
    averages = [row.bytes for row in rows.where(op="all_reduce", group="stage")]
    return RankTraffic(len(messages), sum(messages), len(averages), sum(averages))


def seen_by_stage(seen_by_rank, replicas) -> list[list]:
    """Return the versions that each microbatch saw on each stage, from what each rank recorded.

    The n ranks of a stage take microbatches in turn: microbatch j is number j // n of rank j % n.
    """
    stages, first = [], 0
    for n in replicas:
        ranks = seen_by_rank[first : first + n]
        stages.append([ranks[j % n][j // n] for j in range(sum(map(len, ranks)))])
        first += n
    return stages


def without_average(run, *arguments):
    """Call `run(*arguments)` on this rank with the average over replicas left out."""
    with mock.patch("lib.parallel.pipeline.pipedream.average", lambda *_: lambda: None):
        return run(*arguments)


def replica_group(replicas):
    """Return the process group of the ranks that hold this rank's stage.

    `replicas` are the numbers of ranks of the stages: with (3, 1), ranks 0 to 2 hold stage 0.
    """
    first = 0
    for count in replicas:
        ranks = range(first, first + count)
        if dist.get_rank() in ranks:
            return dist.new_group(list(ranks), use_local_synchronization=True)
        first += count
    raise ValueError(f"Rank {dist.get_rank()} has no stage: {replicas} are {first} ranks.")


def small_batch():
    """Return tokens and targets, [8, 16] each, for the small GPT."""
    return Batches(8, sequence=16)[0]


def gpt_gradients(shape: GPTShape = SMALL) -> dict:
    """Return the gradients of a small GPT on one device for the small batch, by name."""
    tokens, targets = small_batch()
    model = GPT(shape).double()
    next_token_loss(model(tokens), targets).backward()
    return {name: weight.grad for name, weight in model.named_parameters()}


def same(gradients: dict, expected: dict) -> None:
    """Raise AssertionError, with the name, where a gradient differs from the expected one."""
    assert gradients, "There are no gradients to compare."
    for name, gradient in gradients.items():
        close = torch.allclose(gradient, expected[name], rtol=1e-9, atol=1e-12)
        assert close, f"The gradient of {name} differs from that of one device."


def same_shares(by_rank: list[tuple], expected: dict) -> None:
    """Raise AssertionError where the ranks' shares of the gradients are not the expected ones.

    `by_rank` holds (stage, gradients by name) of each rank. The shares of a stage's ranks are put
    side by side along the dim in which they are smaller than the whole.
    """
    for stage in sorted({stage for stage, _ in by_rank}):
        shares = [gradients for own, gradients in by_rank if own == stage]
        for name, first in shares[0].items():
            whole = expected[name]
            smaller = [d for d in range(whole.dim()) if first.shape[d] < whole.shape[d]]
            pieces = [gradients[name] for gradients in shares]
            same({name: torch.cat(pieces, smaller[0]) if smaller else first}, expected)


def bandwidth(nbytes: int, repeats: int = 5) -> float:
    """Measure, on this rank, the bytes a second at which an all-reduce of `nbytes` sends.

    A ring sends 2 (n - 1) / n of the buffer from each of n ranks.
    """
    ranks, buffer = dist.get_world_size(), torch.zeros(nbytes // 4, dtype=torch.float32)
    seconds = min(seconds_of(lambda: dist.all_reduce(buffer), repeats))
    return 2 * (ranks - 1) / ranks * nbytes / seconds


def expected_seconds(partition, layers, speed: float) -> float:
    """Return the predicted seconds for each microbatch of a partition, as `PipeDream` runs it.

    The partitioner assumes that replicas average while they compute. `PipeDream` averages after
    the backward, so here the two times of a stage with replicas are added. `speed` is in bytes a
    second.
    """
    slowest = partition.bottleneck(layers, speed)
    for stage, work in zip(partition.stages, partition.loads(layers)):
        if stage.ranks > 1:
            weights = sum(layer.weights for layer in layers[stage.first : stage.last])
            average = 2 * (stage.ranks - 1) / stage.ranks * weights / speed
            slowest = max(slowest, (work + average) / stage.ranks)
    return slowest


def text_stream(microbatches: int) -> list[torch.Tensor]:
    """Return a stream of text for the large GPT: tokens and targets, [N, 4, S] each."""
    batches = Batches(4, LARGE.sequence)
    return [torch.stack(column) for column in zip(*(batches[n] for n in range(microbatches)))]


def profile_of_gpt(tokens) -> list[Layer]:
    """Measure, on this rank, the blocks of the large GPT for one microbatch of tokens [b, S]."""
    return profile(GPT(LARGE), tokens)


def seconds_each(partition, inputs, targets, rounds: int = 2) -> float:
    """Measure, on this rank, the seconds for each microbatch of a stream of the large GPT.

    `partition` says how it is cut and replicated. The first round, which is not counted, allocates
    memory and sends the forms of the messages; of the others the fastest counts.
    """
    schedule = schedules.round_robin(partition.replicas, len(inputs))
    pipe = PipeDream(GPT(LARGE), schedule, lambda weights: torch.optim.SGD(weights, 1e-3),
                     every=lcm(*partition.replicas), lengths=partition.lengths)  # fmt: skip

    def until_all_have_ended():
        pipe.run(inputs, targets)
        dist.barrier()

    return min(seconds_of(until_all_have_ended, rounds)) / len(inputs)
