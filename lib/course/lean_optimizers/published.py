"""Bytes of optimizers' states as others publish them, beside what we predict from shapes.

Hugging Face's documentation of Transformers, "Methods and tools for efficient training on a single
GPU", counts 8, 4 and 2 bytes for each of 3 billion parameters of google-t5/t5-3b. ZeRO (Rajbhandari
and others 2019, arXiv 1910.02054) says that GPT-2 of 1.5 billion needs at least 24 GB, with
weights, gradients and a copy in 32 bits.
"""

from lib.predict.optimizers import state_bytes
from lib.predict.sharded.models import model

T5_3B_NUMEL = 2_851_598_336  # as DeepSpeed prints it, see data/sharded.yaml


def t5_3b() -> list[tuple[int, ...]]:
    """Return the shapes of the parameters of T5-3B: 24 layers of an encoder, 24 of a decoder."""
    width, inner, hidden, buckets, heads = 1024, 32 * 128, 16_384, 32, 32
    attention = [(inner, width)] * 3 + [(width, inner)]
    mlp = [(hidden, width), (width, hidden)]
    encoder = [*attention, *mlp, *[(width,)] * 2]
    decoder = [*attention, *attention, *mlp, *[(width,)] * 3]
    rest = [(32_128, width), *[(buckets, heads)] * 2, *[(width,)] * 2]
    return [*rest, *encoder * 24, *decoder * 24]


def table() -> str:
    """Write the GB that optimizers keep: published, and predicted from shapes."""
    shapes, gpt_2 = t5_3b(), model("GPT-2")
    rows = [
        ("T5-3B, AdamW", "24", state_bytes("adamw", shapes)),
        ("T5-3B, Adafactor", "over 12", state_bytes("adafactor", shapes)),
        ("  with momentum", "", state_bytes("adafactor", shapes, momentum=True)),
        ("T5-3B, 8-bit Adam", "6", state_bytes("adam8bit", shapes)),
        ("GPT-2, AdamW, all", "over 24", 8 * gpt_2.numel + state_bytes("adamw", gpt_2)),
    ]
    lines = [f"{'GB':<20}{'published':>10}{'predicted':>11}"]
    lines += [f"{name:<20}{said:>10}{kept / 1e9:>11.3f}" for name, said, kept in rows]
    return "\n".join(lines)
