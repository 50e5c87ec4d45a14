"""Real models by name: GPT-2 and Llama 3, with every parameter's shape, from data/sharded.yaml."""

from dataclasses import dataclass

from lib.predict.arguments import equal_share, whole
from lib.predict.shape import GPTShape, ModelShape, Parameter
from lib.predict.sharded.published import find, tables


@dataclass(frozen=True)
class LlamaShape(ModelShape):
    """Describes a Llama: V `vocabulary`, D `width`, F `hidden`, H `heads`, and heads of its keys.

    Block 0 is the embedding, blocks 1 to `layers` are transformer layers (grouped-query attention,
    and a gated MLP of three matrices), and the last block computes logits. There are no biases.
    """

    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    vocabulary: int

    def __post_init__(self):
        for name in ("layers", "width", "hidden", "heads", "kv_heads", "vocabulary"):
            whole(getattr(self, name), f"{name} of a Llama")
        equal_share(self.width, self.heads, "The width of a Llama has {} entries", "{} heads")
        equal_share(self.heads, self.kv_heads, "A Llama has {} heads", "{} heads of keys")

    @property
    def matrices(self) -> tuple[tuple[str, tuple[int, int]], ...]:
        """Return the name and the shape of each matrix of a layer."""
        d, f = self.width, self.hidden
        keys = d // self.heads * self.kv_heads
        return (
            ("attention.q.weight", (d, d)), ("attention.k.weight", (keys, d)),
            ("attention.v.weight", (keys, d)), ("attention.proj.weight", (d, d)),
            ("mlp.gate.weight", (f, d)), ("mlp.up.weight", (f, d)), ("mlp.down.weight", (d, f)),
        )  # fmt: skip

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Return every parameter, block by block."""
        d, v, last = self.width, self.vocabulary, self.layers + 1
        norms = ("norm1.weight", (d,)), ("norm2.weight", (d,))
        first_blocks = [Parameter("blocks.0.tokens.weight", (v, d), 0)]
        for block in range(1, last):
            parts = (*norms, *self.matrices)
            first_blocks += [
                Parameter(f"blocks.{block}.{name}", shape, block) for name, shape in parts
            ]
        head = ("norm.weight", (d,)), ("linear.weight", (v, d))
        return (
            *first_blocks,
            *(Parameter(f"blocks.{last}.{name}", size, last) for name, size in head),
        )


def models() -> list[str]:
    """Return the names that `model` knows."""
    return [entry["name"] for entry in tables()["models"]]


def model(name: str) -> ModelShape:
    """Look up the shape of a real model by name. Raises ValueError for one that is not known."""
    entry = find("models", name)
    return {"gpt": GPTShape, "llama": LlamaShape}[entry["kind"]](**entry["sizes"])
