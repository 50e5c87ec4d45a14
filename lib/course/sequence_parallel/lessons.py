"""What the cells of chapter 12 call: one attention on one device and on ranks, a GPT, tables."""

import math
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
import torch.distributed as dist

from lib.course import plain_gpt
from lib.ledger import Ledger
from lib.parallel.sequence import context_parallel, ring_attention, shard_sequence
from lib.parallel.sequence.torch_on_cpu import use_torch_context_parallel_on_cpu
from lib.parallel.tensor import plain_gradients, sequence_parallel, vocab_parallel_cross_entropy
from lib.predict import hardware
from lib.predict.collectives.exchange import Exchange
from lib.predict.memory import activations
from lib.predict.sequence import memory, traffic
from lib.predict.sequence.hiding import tokens_to_hide
from lib.predict.shape import GPTShape
from lib.predict.tensor import memory as tensor_memory
from lib.predict.tensor import sequence as megatron
from lib.ranks.memory import Memory
from lib.ranks.mesh import mesh
from lib.single import GPT

SHAPE = GPTShape(vocabulary=64, sequence=16, width=32, heads=4, layers=2, hidden=64)
SAMPLES = 2
TOKENS = 32  # of the attention that is split before the GPT is
# One layer of Llama 3 8B, as the GPT of this course: width, heads and hidden layer are its own.
LLAMA = GPTShape(1, 2**20, 4096, 32, 1, kv_heads=8, hidden=14_336, positions="rotary")


def attention_inputs() -> list[torch.Tensor]:
    """Draw q, k and v, [1, 4, 32, 8] each, equal on every rank."""
    draw = torch.Generator("cpu").manual_seed(0)
    size = (1, 4, TOKENS, 8)
    make = lambda: torch.randn(size, generator=draw, dtype=torch.float64, device="cpu")
    return [make() for _ in range(3)]


def block(q, k, v) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention of all queries to these keys, and log Σ exp of each query's scores."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    log_sum = scores.logsumexp(-1)
    return (scores - log_sum.unsqueeze(-1)).exp() @ v, log_sum


def in_layout(layout: str) -> bool:
    """Run the library's ring on every rank; return whether its result, dq, dk and dv are right."""
    here = torch.empty(0).device
    q, k, v = (t.to(here).requires_grad_() for t in attention_inputs())
    shards = [shard_sequence(t, None, layout, 2) for t in (q, k, v)]
    dist.barrier()
    out = ring_attention(*shards, layout=layout)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    own = shard_sequence(expected, None, layout, 2)
    weights = torch.linspace(0, 1, out.shape[-1], device=here, dtype=out.dtype)
    gradients = torch.autograd.grad((out * weights).sum(), shards)
    whole = torch.autograd.grad((expected * weights).sum(), (q, k, v))
    right = [torch.allclose(part, shard_sequence(of_all, None, layout, 2))
             for part, of_all in zip(gradients, whole, strict=True)]  # fmt: skip
    return torch.allclose(out, own) and right == [True] * 3


def ours_and_theirs(theirs) -> bool:
    """Run our ring and then PyTorch's context_parallel, each after a barrier, forward and backward.

    `theirs(mesh, q, k, v, backward)` gets the whole q, k and v, attends to them under PyTorch's
    context_parallel, and returns `backward(out, [q, k, v])` of this rank's parts, which has to run
    inside that context. Returns whether this rank's result and its gradients of q, k and v are the
    same.
    """
    use_torch_context_parallel_on_cpu()
    whole = attention_inputs()
    shards = [shard_sequence(t, None, "zigzag", 2).requires_grad_() for t in whole]
    here = mesh(cp=dist.get_world_size()).torch()
    weights = torch.linspace(0, 1, shards[0].shape[-1], dtype=shards[0].dtype)

    def backward(out, leaves):
        return [out, *torch.autograd.grad((out * weights).sum(), leaves)]

    dist.barrier()
    ours = backward(ring_attention(*shards), shards)
    dist.barrier()
    pairs = zip(ours, theirs(here, *whole, backward), strict=True)
    near = [torch.allclose(one, other, rtol=1e-5, atol=1e-5) for one, other in pairs]
    return near == [True] * 4


def side_by_side(run: Ledger) -> str:
    """Write what rank 0 launched after each of two barriers, up to a third one or to the end.

    A receive is left out.
    """
    rows = run.where(rank=0, lane="comm")
    begins = [*sorted(rows.where(op="barrier").column("end")), math.inf][:3]
    lines = [f"{'rank 0 launched':<24}buffer bytes"]
    for name, (begin, end) in zip(("ours", "PyTorch"), pairwise(begins), strict=True):
        ops = Counter((row.op, row.bytes) for row in rows if begin <= row.start < end and row.bytes)
        ops = {what: count for what, count in ops.items() if what[0] != "recv"}
        lines += [f"{name:<8}{n:>3} × {op:<14}{nbytes:>8,}" for (op, nbytes), n in ops.items()]
    return "\n".join(lines)


# --- a GPT, three ways


batch = partial(plain_gpt.batch, SHAPE, SAMPLES)
on_one_device = partial(plain_gpt.on_one_device, SHAPE, SAMPLES)


def on_ranks(method: str) -> tuple[float, dict, int]:
    """Run the same GPT on every rank, split by "megatron", "ulysses" or "ring".

    Returns the loss, the whole gradients, and the bytes that autograd keeps here after forward,
    without the loss.
    """
    torch.manual_seed(0)
    model, (tokens, targets) = GPT(SHAPE).double(), batch()
    if method == "megatron":
        sequence_parallel(model)
        loss_of, gradients_of = vocab_parallel_cross_entropy, plain_gradients
    else:
        context_parallel(model, method=method)
        loss_of = model.context.loss
        gradients_of = lambda model: {name: p.grad for name, p in model.named_parameters()}
    if method != "megatron":
        tokens, targets = model.context.shard(tokens, targets)
    dist.barrier()
    with Memory(model) as counted:
        logits = model(tokens)
        kept = counted.now["activations"]
        loss = loss_of(logits, targets)
        loss.backward()
    dist.barrier()
    return loss.item(), gradients_of(model), kept


def launched(ledger: Ledger) -> list[Exchange]:
    """Return what rank 0 launched between its last two barriers; a receive is another's send."""
    rows = ledger.where(rank=0, lane="comm")
    begin, end = sorted(rows.where(op="barrier").column("end"))[-2:]
    inside = [row for row in rows if begin <= row.start and row.end <= end and row.bytes]
    ranks = ledger.meta["ranks"]
    return [Exchange(row.op, ranks, row.bytes) for row in inside if row.op != "recv"]


def predicted(method: str, ranks: int) -> tuple[list[Exchange], int]:
    """Return the collectives and messages of a step, and the bytes that a rank keeps."""
    sizes = {"batch": SAMPLES, "itemsize": 8}
    if method == "megatron":
        moves = megatron.of_step(SHAPE, ranks, **sizes)
        return moves, megatron.activations(SHAPE, ranks, **sizes)
    moves = traffic.of_step(SHAPE, method, ranks, **sizes)
    kept = memory.activations(SHAPE, method, ranks, **sizes)
    return [*moves.forward, *moves.backward], kept


def sent(run: Ledger) -> float:
    """Return the bytes that rank 0 has sent for activations, if collectives are rings."""
    return sum(move.sent for move in launched(run) if move.op != "all_reduce")


def compared(runs: dict[str, Ledger]) -> str:
    """Write for each method what a rank keeps and sends, recorded, and whether it was predicted.

    What is sent is for activations: gradients of whole weights, which data parallelism would send
    too, and the sums of the loss are left out.
    The first line is tensor parallelism without sequence parallelism, predicted.
    """
    loss, gradients = on_one_device()
    ranks = next(iter(runs.values())).meta["ranks"]
    lines = [f"{'':<16}equal {'kept':>7} {'sent':>8}  predicted"]
    kept = tensor_memory.activations(SHAPE, ranks, SAMPLES, itemsize=8)
    lines.append(f"{'tensor parallel':<22}{kept:>7,}")
    for method, run in runs.items():
        value, whole, kept = run.results[0]
        close = lambda name: torch.allclose(whole[name].cpu(), gradients[name])  # noqa: B023
        equal = abs(value - loss) < 1e-12 and all(map(close, gradients))
        moves, keeps = predicted(method, ranks)
        as_predicted = kept == keeps and sorted(launched(run)) == sorted(moves)
        lines.append(f"{method:<16}{equal!s:<6}{kept:>7,}{sent(run):>9,.0f}  {as_predicted}")
    return "\n".join(lines)


# --- limits


# Thousands of tokens in table 2 of Liu et al. 2023 (arXiv 2310.01889), and of each TPU
# FLOP/s in bf16 and bytes/s to its neighbour one way.
TABLE_2 = {"A100, NVLink3": "1.0", "A100, InfiniBand EDR": "24.5", "TPU v3": "1.1",
           "TPU v4": "1.0", "TPU v5e": "1.1"}  # fmt: skip
TPUS = {"TPU v3": (123e12, 112e9), "TPU v4": (275e12, 268e9), "TPU v5e": (196e12, 186e9)}


def to_hide() -> str:
    """Write from how many tokens a rank a ring hides its messages: published, and computed."""
    lines = ["tokens a rank, in thousands"]
    lines.append(f"{'':<22}published formula Llama 3")
    for name in (*TABLE_2, "H100, NVLink4", "H100, InfiniBand NDR"):
        peak, bandwidth = speeds_of(name)
        plain = tokens_to_hide(peak, bandwidth) / 1e3
        grouped = tokens_to_hide(peak, bandwidth, key_share=8 / 32, causal=True) / 1e3
        lines.append(f"{name:<22}{TABLE_2.get(name, ''):>9}{plain:>8.1f}{grouped:>8.1f}")
    return "\n".join(lines)


def speeds_of(name: str) -> tuple[float, float]:
    """Return FLOP/s and bytes/s one way of a row of the table: a TPU, or "GPU, link"."""
    if name in TPUS:
        return TPUS[name]
    gpu, link = name.split(", ")
    return hardware.gpu(gpu).peak["bf16"].value, hardware.link(link).bandwidth


def kept_by_a_layer(count=activations, **sizes) -> int:
    """Return the bytes that autograd keeps of one more layer of LLAMA, for one sample."""
    one, two = (count(shape, batch=1, itemsize=2, **sizes)
                for shape in (LLAMA, replace(LLAMA, layers=2)))  # fmt: skip
    return two - one


def a_layer(ranks: int) -> str:
    """Write what attention of one layer of LLAMA sends and keeps on each of `ranks`, by method."""
    lines = ["forward of one layer      sent, GB  kept, GB"]
    sizes = {"batch": 1, "itemsize": 2}
    rows = {"tensor parallel": (None, kept_by_a_layer(tensor_memory.activations, ranks=ranks)),
            "megatron": (None, kept_by_a_layer(megatron.activations, ranks=ranks))}  # fmt: skip
    for method in ("ulysses", "ring"):
        moves = traffic.of_layer(LLAMA, method, ranks, **sizes)
        sent = sum(move.sent for move in moves.forward)
        kept = kept_by_a_layer(memory.activations, method=method, ranks=ranks)
        rows[method] = sent, kept
    numel = LLAMA.sequence * LLAMA.width * 2
    whole = 4 * numel * (ranks - 1) / ranks  # two all_gathers and two reduce_scatters
    rows = {name: (whole if sent is None else sent, kept) for name, (sent, kept) in rows.items()}
    for name, (sent, kept) in rows.items():
        lines.append(f"{name:<24}{sent / 1e9:>10.1f}{kept / 1e9:>10.1f}")
    return "\n".join(lines)


# --- packed documents


DOCUMENTS = (0, 700, 1500, 1600, 4096)
CHUNKS, CHUNK = 8, 512  # two for each of four ranks


def chunk_scores() -> list[int]:
    """Return the scores of each chunk's queries to keys of their documents, up to their own."""
    totals = []
    for chunk in range(CHUNKS):
        first = [max(cut for cut in DOCUMENTS[:-1] if cut <= token)
                 for token in range(chunk * CHUNK, (chunk + 1) * CHUNK)]  # fmt: skip
        tokens = range(chunk * CHUNK, (chunk + 1) * CHUNK)
        totals.append(sum(token - begin + 1 for token, begin in zip(tokens, first)))
    return totals
