"""What exchanges cost in chapter 2: predicted bytes and times of GPT-2's, measured times here."""

import functools
from statistics import median

import torch
import torch.distributed as dist

from lib.course.stopwatch import seconds_of
from lib.parallel.data.buckets import Bucket
from lib.parallel.data.compressors.base import Gathered
from lib.predict.collectives.formulas import fit
from lib.predict.collectives.nodes import all_reduce, nodes_of
from lib.predict.data import compression, sparse
from lib.predict.data.compression import Call
from lib.predict.data.ddp_step import parts_of_step
from lib.predict.hardware import Sweep, link, sweep
from lib.predict.roofline import speeds
from lib.predict.shape import GPTShape
from lib.ranks.slow_motion import SlowMotion

GPT2 = GPTShape(50257, sequence=1024, width=768, heads=12, layers=12, tied=True)
SHAPES = [parameter.shape for parameter in GPT2.parameters]
LINKS = ("NVLink4", "InfiniBand NDR", "Ethernet 100")
SENDERS = ("plain", "top 1 %", "4 bits", "sign", "PowerSGD")
IN_PIECES = "4 bits, all-to-all"
CURVES = (*SENDERS, IN_PIECES, "16 bits")
PAID = ("plain", "16 bits", *SENDERS[1:])


# --- predicted


def calls_of(name: str, shapes, ranks: int) -> list[Call]:
    """Return the collectives of one exchange of gradients of these shapes, by the method's name."""
    shapes = list(shapes)
    calls = {
        "plain": lambda: compression.plain(shapes),
        "16 bits": lambda: compression.cast(shapes, ranks),
        "top 1 %": lambda: compression.top_k(shapes, ranks, 0.01),
        "no feedback": lambda: compression.top_k(shapes, ranks, 0.01),
        "4 bits": lambda: compression.quantized(shapes, ranks, 4),
        IN_PIECES: lambda: compression.quantized_in_pieces(shapes, ranks, 4),
        "sign": lambda: compression.sign(shapes, ranks),
        "PowerSGD": lambda: compression.power_sgd(shapes, ranks, 2),
    }
    return calls[name]()


def gpt2_bytes(name: str, ranks: int) -> float:
    """Return the bytes that a rank sends for GPT-2's gradient."""
    return compression.sent(calls_of(name, SHAPES, ranks), ranks)


def gpt2_computing(ranks: int, batch: int = 32) -> float:
    """Return the seconds that one of `ranks` H100s computes in a step, as chapter 1 predicts it."""
    computing, *_ = parts_of_step(GPT2, batch, ranks, speeds("H100"))
    return computing


def gpt2_moving(name: str, wire: str, ranks: int) -> float:
    """Return the seconds in which rings exchange GPT-2's gradient over a link of that name."""
    costs = {"alpha": link(wire).alpha, "beta": link(wire).beta}
    return compression.seconds(calls_of(name, SHAPES, ranks), ranks, **costs)


def gpt2_compressing(hook, many) -> list[float]:
    """Estimate the seconds in which an H100 computes what `hook` does to GPT-2's gradient.

    There is one number for each number of ranks in `many`: a rank that gathers messages decodes one
    of every rank.
    """
    if not hook:
        return [0.0 for _ in many]
    here, each = roofline_seconds(hook), roofline_decoding(hook)
    return [(here + (n - dist.get_world_size()) * each) * GPT2.nbytes() for n in many]


def roofline_seconds(hook, name: str = "H100", nbytes: int = 2**22) -> float:
    """Estimate the seconds that `hook` computes for each byte of gradients on a GPU.

    They are the FLOP and the memory traffic of the operations that the hook really launches on this
    rank, at the GPU's peak and memory bandwidth. Each operation's inputs and outputs count once: a
    cache makes them cheaper, and reading them several times dearer. Communication is not counted.
    The step is the hook's second, because its first one fills its memory with zeros.
    """
    bucket = bucket_of_matrices(nbytes, 1024)
    hook(bucket).wait()
    rates = SlowMotion(name, dtype="fp32")
    return rates.seconds(lambda: hook(bucket).wait()) / bucket.flat.nbytes


def roofline_decoding(hook, name: str = "H100", nbytes: int = 2**22) -> float:
    """Estimate the seconds, for each byte of gradients, in which `hook` decodes one message.

    Where messages are not gathered but added up on the way, it is 0.
    """
    if not isinstance(hook, Gathered):
        return 0.0
    bucket = bucket_of_matrices(nbytes, 1024)
    parts = hook.encode(bucket, None)
    rates = SlowMotion(name, dtype="fp32")
    return rates.seconds(lambda: hook.decode(parts, 1.0, bucket)) / bucket.flat.nbytes


def rows_sent(rows: int, used: int, many) -> dict:
    """Return the bytes that a rank sends for a table of 64 columns, sparse and dense."""
    by_rows = [compression.sent(sparse.gathered_rows([used] * n, 64), n) for n in many]
    dense = [compression.sent(compression.plain([(rows, 64)]), n) for n in many]
    return {f"{rows:,} rows, sparse": (many, by_rows), f"{rows:,} rows, dense": (many, dense)}


def published_seconds(published: Sweep, nbytes: int) -> float:
    """Return the published time of an all_reduce of that size."""
    return dict(zip(published.nbytes, published.seconds))[nbytes]


def beside_published(published: Sweep, nbytes: int) -> str:
    """Write the published µs of an all_reduce over nodes beside the formula's, with its error."""
    predicted = all_reduce("hierarchical", nodes_of(published), nbytes, overlap=True)
    measured = published_seconds(published, nbytes)
    return (
        f"{nbytes / 2**20:9g}{measured * 1e6:11,.0f}{predicted * 1e6:11,.0f}"
        f"{predicted / measured - 1:+7.0%}"
    )


def sends_more_from(name: str) -> int:
    """Return the number of ranks from which a rank sends more for GPT-2's gradient than plainly."""
    return next(n for n in range(2, 10_000) if gpt2_bytes(name, n) > gpt2_bytes("plain", n))


def bytes_by_ranks(many) -> dict:
    """Return for each method the bytes that a rank sends for GPT-2's gradient, by ranks."""
    return {name: (many, [gpt2_bytes(name, n) for n in many]) for name in CURVES}


# --- tables


def problem() -> str:
    """Write what a step of GPT-2 on H100s computes and exchanges, and what was published."""
    lines = ["computing, predicted:"]
    for ranks in (8, 16):
        lines.append(f"  on {ranks:>2} GPUs{gpt2_computing(ranks) * 1e3:23.1f} ms")
    lines.append("all-reduce in a ring of 8, predicted:")
    for wire in LINKS:
        lines.append(f"  {wire:<26}{gpt2_moving('plain', wire, 8) * 1e3:6.1f} ms")
    lines.append("512 MiB over 2 machines of 8 H100s, published:")
    for rate, name in (("400", ""), ("200", " over 200 Gb/s")):
        seconds = published_seconds(sweep("H100 2-node all-reduce" + name), 2**29)
        lines.append(f"  {rate} Gb/s for each GPU{seconds * 1e3:11.1f} ms")
    return "\n".join(lines)


def pays_off(world, hooks: dict, many=(4, 16, 64)) -> str:
    """Write the ms that each method computes, and with the exchange over each link, by ranks."""
    lines, computing = [], {}
    for name in PAID:
        by_rank = world.run(gpt2_compressing, hooks[name], many)
        computing[name] = [max(times) for times in zip(*by_rank)]
    for wire in ("computing", *LINKS):
        lines.append(f"{wire:<15}" + "".join(f"{f'n = {n}':>8}" for n in many))
        for name, times in computing.items():
            moving = [0 if wire == "computing" else gpt2_moving(name, wire, n) for n in many]
            both = [f"{(a + b) * 1e3:8.1f}" for a, b in zip(times, moving)]
            lines.append(f"  {name:<13}" + "".join(both))
    return "\n".join(lines)


# --- measured


def measured_table(pair, hooks: dict) -> str:
    """Measure an exchange of 4 MB on two ranks by each method, and write it beside a prediction."""
    sizes = [2**16, 2**18, 2**20, 2**22]
    line = fit(sizes, [max(pair.run(exchange_seconds, None, size)) for size in sizes])
    title = "ms        computing  predicted  measured  error"
    rows = [measured_row(pair, line, name, hooks[name]) for name in SENDERS]
    return "\n".join(["all-reduce on two ranks:", str(line), title, *rows])


def measured_row(pair, line, name: str, hook) -> str:
    """Measure an exchange of 4 MB on two ranks, and write it beside computing + `line`."""
    calls = calls_of(name, [(128, 128)] * 64, 2)
    alone = max(pair.run(exchange_alone, hook, 2**22))
    predicted = alone + sum(line.seconds(compression.sent([call], 2)) for call in calls)
    measured = max(pair.run(exchange_seconds, hook, 2**22))
    times = f"{alone * 1e3:9.1f}  {predicted * 1e3:9.1f}  {measured * 1e3:8.1f}"
    return f"{name:<9} {times}  {predicted / measured - 1:+5.0%}"


def bucket_of_matrices(nbytes: int, width: int) -> Bucket:
    """Return a bucket of random matrices [width, width] of float32, about `nbytes` in all."""
    count = max(1, round(nbytes / (4 * width * width)))
    bucket = Bucket(0, [torch.empty(width, width) for _ in range(count)])
    bucket.flat.copy_(torch.randn(bucket.flat.shape))
    return bucket


def exchange_seconds(hook, nbytes: int, group=None, repeats: int = 9) -> float:
    """Measure the median seconds in which `hook` exchanges a bucket; None means all_reduce."""
    bucket = bucket_of_matrices(nbytes, 128)

    def exchange():
        if hook:
            hook(bucket, group).wait()
        else:
            dist.all_reduce(bucket.flat, group=group)

    return median(seconds_of(exchange, repeats, uncounted=0, group=group))


def exchange_alone(hook, nbytes: int) -> float:
    """Measure what `hook` computes for an exchange on two ranks, without a link.

    That is the exchange in a group of one rank, and where messages are gathered, the time to decode
    one more of them.
    """
    if not hook:
        return 0.0
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    own = groups[dist.get_rank()]
    try:
        decoding = decode_seconds(hook, nbytes, own) if isinstance(hook, Gathered) else 0.0
        return exchange_seconds(hook, nbytes, own) + decoding
    finally:
        dist.destroy_process_group(own)


def decode_seconds(hook, nbytes: int, group) -> float:
    """Measure the median seconds in which `hook` decodes one message."""
    bucket = bucket_of_matrices(nbytes, 128)
    parts = hook.encode(bucket, group)
    decode = functools.partial(hook.decode, parts, 1.0, bucket)
    return median(seconds_of(decode, 9, uncounted=0, group=group))
