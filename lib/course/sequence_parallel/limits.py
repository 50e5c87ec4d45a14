"""Tables of chapter 12, all predicted: how long a ring takes, what runs out first, one layer."""

from dataclasses import replace

from lib.course.sequence_parallel.lessons import LLAMA
from lib.predict import hardware
from lib.predict.roofline import speeds
from lib.predict.sequence import published_times, traffic
from lib.predict.sequence.ring_step import Attention, ring_seconds
from lib.predict.sequence.what_runs_out import what_runs_out

LENGTHS, RANKS = (2**13, 2**15, 2**17, 2**20), (2, 8, 32, 64)
# Its MLP is gated, which a GPTShape does not know: `gated` below adds the second matrix.
LLAMA_8B = replace(LLAMA, layers=32, vocabulary=128_256)


def ring_times(link: str, ranks: int = 8) -> str:
    """Write how long LLAMA's ring attention takes, by tokens of a rank and layout, predicted."""
    device = speeds("H100", link)
    free = replace(device, alpha=0.0, bandwidth=1e30)
    lines = [f"{ranks} ranks, {link}", "tokens a rank  layout        ms  without messages"]
    for tokens in (1024, 4096, 16_384):
        it = Attention(1, LLAMA.heads, LLAMA.kv_heads, tokens * ranks, LLAMA.head_size, 2)
        for layout in ("contiguous", "zigzag"):
            took, alone = (1e3 * ring_seconds(it, ranks, which, layout=layout, masked=0.5)
                           for which in (device, free))  # fmt: skip
            lines.append(f"{tokens:>13,}  {layout:<10}{took:>6.1f}{alone:>18.1f}")
    return "\n".join(lines)


def runs_out(between: str = "InfiniBand NDR", node: int = 8, lengths=LENGTHS) -> str:
    """Write for each method what runs out first, or the share of a forward that is computation.

    The model is Llama 3 8B with recomputation, on hosts of `node` H100s. Four methods are shown,
    the last of which is Ulysses inside a host and a ring between hosts.
    """
    device = speeds("H100", "NVLink4", node=node, between=between)
    capacity = float(hardware.gpu("H100").memory_bytes.value)
    lines = []
    for method in (*traffic.METHODS, "both"):
        lines += [""] * bool(lines)
        lines.append(f"{method:<9}" + "".join(f"{n // 1024:>7} k" for n in lengths))
        for ranks in RANKS if method != "both" else RANKS[2:]:
            limits = [
                what_runs_out(LLAMA_8B, method, n, ranks, device, capacity, gated=True,
                              recompute=True) for n in lengths
            ]  # fmt: skip
            cells = (
                f"{it.computing:.0%}" + " low" * (it.missing == "bandwidth")
                if it.missing in ("", "bandwidth")
                else it.missing
                for it in limits
            )
            lines.append(f"{f'{ranks} ranks':<9}" + "".join(f"{cell:>9}" for cell in cells))
    return "\n".join(lines)


def published_layer() -> str:
    """Write what sequence parallelism and recomputation change in a layer, published, predicted."""
    there, a100 = published_times, speeds("A100", "NVLink3")
    before, split, again, scores = (
        there.TABLE_4[name]
        for name in ("tensor parallel", "sequence parallel", "all recomputed", "selective")
    )
    sizes = there.SHAPE_22B, there.RANKS, there.SAMPLES, a100
    saved = there.saved_by_splitting_tokens(*sizes)
    rows = {
        "saved, forward": (before[0] - split[0], 1e3 * saved.forward),
        "saved, backward, hidden": (before[1] - split[1], 1e3 * saved.backward),
        "saved, backward, exposed": (
            before[1] - split[1], 1e3 * (saved.backward - saved.gathered)
        ),
        "added, attention again": (scores[1] - before[1], 1e3 * there.recomputed_scores(*sizes)),
        "added, layer again": (again[1] - before[1], None),
    }  # fmt: skip
    lines = ["ms of one layer           published  predicted"]
    for name, (measured, ours) in rows.items():
        lines.append(f"{name:<26}{measured:>9.1f}" + ("" if ours is None else f"{ours:>11.2f}"))
    return "\n".join(lines)
