"""Measure sequence parallelism against PyTorch's, in turns in the same processes.

    python tests/bench_sequence.py [--repeats 20] [--launches 3] [--only steps,peaks]

Each figure is the median of `launches` new worlds; a world's figure is the ratio of two medians.
"""

import contextlib
import itertools
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1]))
from lib import World
from lib.course.stopwatch import seconds_of
from lib.parallel.sequence import context_parallel as split_over_ranks
from lib.parallel.sequence import ring_attention
from lib.parallel.sequence.torch_on_cpu import use_torch_context_parallel_on_cpu
from lib.parallel.tensor import sequence_parallel, vocab_parallel_cross_entropy
from lib.predict.sequence import memory as split
from lib.predict.sequence import traffic
from lib.predict.sequence.ring_step import Attention, ring_step
from lib.predict.tensor import memory as tensor_memory
from lib.predict.tensor import sequence as predicted
from lib.ranks.calibrate import calibrate
from lib.ranks.memory import Memory
from lib.ranks.mesh import mesh
from lib.ranks.slow_motion import SlowMotion
from lib.single import GPT
from tests.bench_data import Figure, compared, measure_all
from tests.bench_tensor import SHAPE, their_loss
from tests.parallel.sequence.test_ring_time import build, step
from tests.parallel.tensor.test_oracle import dtensor
from tests.slow_steps import least_late

ROTARY = replace(SHAPE, positions="rotary")  # PyTorch's plan splits no embedding of positions
LENGTHS = (512, 1024, 2048, 4096, 8192)
TOKENS, HEADS, HEAD_SIZE = 4096, 8, 64  # of the attention that a ring computes
SPEEDS = SlowMotion("H100", link="NVLink4", dtype="fp32", factor=1e5, alpha=1e-8, bandwidth=1e12)


def gpt(kind):
    """Make the GPT of 4 layers, ours or theirs: model, optimizer, batch, loss."""
    torch.manual_seed(1)
    model, tokens = GPT(ROTARY), torch.randint(256, (2, ROTARY.sequence + 1))
    if kind == "ours":
        model, loss = sequence_parallel(model), vocab_parallel_cross_entropy
    else:
        device_mesh = mesh(tp=dist.get_world_size()).torch()
        model, loss = dtensor(model, device_mesh, sequence=True), their_loss
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    return model, optimizer, (tokens[:, :-1], tokens[:, 1:]), loss


def steps(options):
    """Tensor parallelism with split sequences against DTensor's, on 2 and 4 ranks."""
    for ranks in (2, 4):
        rivals = "sequence parallel, ours / DTensor"
        yield from compared("GPT of 4 layers", gpt, ranks, options, rivals, 0.80)


@dataclass
class Attended:
    """An attention that runs, forward and backward, when its backward is asked for."""

    attention: object
    leaves: list
    slope: torch.Tensor
    around: object  # makes the context that PyTorch's needs

    def backward(self):
        with self.around():
            self.attention(*self.leaves).backward(self.slope)


def attention(kind):
    """Make one causal attention over tokens that are split in zigzag, as `compared` takes it."""
    own = TOKENS // dist.get_world_size()
    *leaves, slope = (torch.randn(1, HEADS, own, HEAD_SIZE) for _ in range(4))
    for leaf in leaves:
        leaf.requires_grad_()
    if kind == "ours":
        run = Attended(ring_attention, leaves, slope, contextlib.nullcontext)
    else:
        use_torch_context_parallel_on_cpu()
        here = mesh(cp=dist.get_world_size()).torch()
        causal = lambda *qkv: functional.scaled_dot_product_attention(*qkv, is_causal=True)
        around = lambda: context_parallel(  # it asks for something to split
            here, buffers=[torch.zeros(2 * dist.get_world_size())], buffer_seq_dims=[0]
        )
        run = Attended(causal, leaves, slope, around)
    return (lambda it: it), torch.optim.SGD(leaves, 0.0), (run, None), lambda it, _: it


def rings(options):
    """Ring attention, forward and backward, against PyTorch's context_parallel."""
    for ranks in (2, 4):
        rivals = "causal, 4,096 tokens, ours / context_parallel"
        yield from compared("ring attention", attention, ranks, options, rivals, 0.95)


def layouts(options):
    """Contiguous, zigzag, and zigzag with documents, in slow motion, beside the prediction."""
    for ranks in (4, 8):
        it = Attention(1, 4, 2, 256 * ranks, 32)
        packed = tuple(it.length * part // 8 for part in (0, 1, 3, 8))
        with World(ranks, device="cpu") as world:
            world.run(build, it, ranks)
            for layout, ends in (("contiguous", None), ("zigzag", None), ("zigzag", packed)):
                runs = [
                    least_late(world, SPEEDS, step, layout, ends) for _ in range(options.launches)
                ]
                recorded = statistics.median(run.makespan for run in runs)
                formula = ring_step(it, ranks, SPEEDS, layout=layout, documents=ends).makespan
                what = f"{layout}, 3 documents" if ends else layout
                title = f"ring, {what}, {ranks} ranks, slow motion, recorded / predicted"
                ratio = recorded / formula
                yield Figure(title, 1e6 * recorded, 1e6 * formula, ratio, "within 5 %",
                             abs(ratio - 1) <= 0.05, "µs")  # fmt: skip


def ring_alone(it, ranks, repeats):
    """Time a ring's forward and backward on this rank, from a barrier on."""
    build(it, ranks)
    return seconds_of(lambda: step("zigzag"), repeats, uncounted=3)


def clock(options):
    """A ring on two ranks, predicted from this machine's own calibration, against the clock."""
    it, runs = Attention(1, HEADS, HEADS, TOKENS, HEAD_SIZE), []
    for _ in range(options.launches):
        with World(2, device="cpu") as world:
            machine = calibrate(world, again=True, quiet=True)
            by_rank = world.run(ring_alone, it, 2, options.repeats)
            formula = ring_step(it, 2, SlowMotion(machine.name, dtype="fp32")).makespan
        runs.append((statistics.median(map(max, zip(*by_rank))), formula))
    measured, formula = sorted(runs, key=lambda run: run[1] / run[0])[len(runs) // 2]
    title = "ring attention, 2 ranks: predicted from the calibration / measured"
    limit = "printed only; aim: within 15 %"
    yield Figure(title, 1e3 * formula, 1e3 * measured, formula / measured, limit, True)


def one_sample(shape, method):
    """Make a GPT whose sequences are split by a method: the model, one sample, and the loss."""
    tokens = torch.zeros(1, shape.sequence, dtype=torch.long)
    if method == "megatron":
        batch = tokens, tokens.clone()
        return sequence_parallel(GPT(shape)), batch, vocab_parallel_cross_entropy
    model = split_over_ranks(GPT(shape), method=method)
    return model, model.context.shard(tokens, tokens.clone()), model.context.loss


def kept(shape, method):
    """Bytes that autograd keeps on this rank after forward, for one sample."""
    model, (tokens, _), _ = one_sample(shape, method)
    with Memory(model) as counted:
        logits = model(tokens)
        activations = counted.now["activations"]
    assert logits.shape[0] == 1
    return activations


def memory(options):
    """What a rank keeps after forward, for sequences of 512 to 8,192 tokens, as predicted."""
    with World(4, device="cpu") as world:
        for length, method in itertools.product(LENGTHS, traffic.METHODS):
            shape = replace(SHAPE, width=64, layers=1, sequence=length)
            if method == "megatron":
                formula = predicted.activations(shape, 4, 1)
            else:
                formula = split.activations(shape, method, 4, 1)
            ours = max(world.run(kept, shape, method))
            title = f"activations of a layer, {length:,} tokens, {method}, counted / predicted"
            yield Figure(title, ours / 1e6, formula / 1e6, ours / formula, "the formula",
                         ours == formula, "MB")  # fmt: skip


def peak(shape, method):
    """Most bytes of this rank in two steps of AdamW; the first makes its states.

    It is the least of three, because a thread of gloo may hold what it has sent a moment longer.
    """
    peaks = []
    for _ in range(3):
        model, batch, loss = one_sample(shape, method)
        optimizer = torch.optim.AdamW(model.parameters())
        with Memory(model, optimizer) as counted:
            for _ in range(2):
                optimizer.zero_grad()
                loss(model(batch[0]), batch[1]).backward()
                optimizer.step()
        peaks.append(counted.peak)
    return min(peaks)


def predicted_peak(shape, method, ranks):
    """Bytes that are alive while backward computes the gradients of the last MLP's second matrix.

    Beside weights, states and the gradients of head, last norm and this matrix there is all that
    forward kept except what the head and its norm have used, and of the tokens on this rank the
    gradients of the hidden layer and of the MLP's result, the tokens and labels, and the number of
    labels. It is the peak where the hidden layer is wider than all else.
    """
    d, f, v = shape.width, shape.hidden, shape.vocabulary
    own, among = shape.sequence // ranks, ranks if method == "megatron" else 1  # share a matrix
    head = own * (2 * d + 2)  # inputs of the norm and of the head, mean and deviation
    alive = v * d // among + 3 * d - head  # gradients of head and norm, and of the row's bias
    if method == "megatron":  # the result's gradient is gathered, the matrix's not yet kept
        held, forward = tensor_memory.held(shape, ranks, 1), predicted.activations(shape, ranks, 1)
        alive += shape.sequence * (f // ranks + d) + own * d + d * f // ranks
        ids = 2 * 8 * shape.sequence
    else:
        held, forward = (
            split.held(shape, method, ranks, 1),
            split.activations(shape, method, ranks, 1),
        )
        alive += d * f + own * (f + d)
        ids = 2 * 8 * own
    if method == "ring":  # the last K and V: the group holds what it sent until it sends again
        alive += 2 * own * shape.kv_heads * shape.head_size
    return held.parameters + held.optimizer + forward + 4 * alive + ids + 8


def peaks(options):
    """Peak bytes of a rank in a step of a layer, for 512 to 8,192 tokens, as predicted."""
    with World(4, device="cpu") as world:
        for length, method in itertools.product(LENGTHS, traffic.METHODS):
            shape = replace(SHAPE, width=64, layers=1, sequence=length)
            ours, formula = max(world.run(peak, shape, method)), predicted_peak(shape, method, 4)
            title = f"peak of a step of a layer, {length:,} tokens, {method}, counted / predicted"
            yield Figure(title, ours / 1e6, formula / 1e6, ours / formula, "the formula",
                         ours == formula, "MB")  # fmt: skip


def main():
    """Measure what the options ask for."""
    measure_all((steps, memory, peaks, rings, layouts, clock), __doc__, repeats=20)


if __name__ == "__main__":
    main()
