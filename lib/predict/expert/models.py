"""Published models with experts: all of their parameters, and those that work on one token.

    layer of experts    gate E·D, and (E + shared) · m·D·F     m = 2 matrices, 3 where the hidden layer is gated
    a token uses        gate E·D, and (k + shared) · m·D·F

Norms and biases are left out; they are under 0.01 % of each of these models. A matrix of M numbers
costs a token 2·M FLOP forward and 4·M backward, so that a token's FLOP follow the active parameters,
and memory and what an optimizer keeps follow all of them.

[Note: what does not recompute]
The size printed for Switch-XXL, 395 billion, does not follow from its printed shape: 24 layers of
encoder and decoder each, with 64 experts of 3 · 4,096 · 10,240 in every second one, have 193 billion in
experts. So it is not in the table. GShard prints its sizes rounded, 600 billion where the shape has
619, and for the experts of all layers 36,684 where 18 layers of 2,048 have 36,864.
"""  # noqa: E501

from dataclasses import dataclass
from typing import NamedTuple

from lib.predict.arguments import whole


class Counts(NamedTuple):
    """Holds the parameters of a layer, those that work on a token, and a token's forward FLOP."""

    parameters: int
    active: int
    flop: int


def layer_counts(
    width: int, hidden: int, experts: int, k: int, *, matrices: int = 2, shared: int = 0
) -> Counts:
    """Return what a layer of experts holds, and what a token uses of it.

    Backward costs twice the FLOP of forward. What is done for each number alone is left out.
    """
    gate = whole(experts, "experts") * whole(width, "width")
    expert = whole(matrices, "matrices") * width * whole(hidden, "hidden")
    always = gate + whole(shared, "shared", 0) * expert
    active = always + whole(k, "k") * expert
    return Counts(always + experts * expert, active, 2 * active)


@dataclass(frozen=True)
class ExpertModel:
    """Describes a transformer with experts; `attention` counts the parameters of all its attention.

    `expert_layers` of its `layers` blocks have experts, the others a feed-forward part of
    `dense_hidden`. `published` are its parameters and the active ones as printed (0 where none is).
    """

    name: str
    width: int
    layers: int
    expert_layers: int
    experts: int
    k: int
    hidden: int
    dense_hidden: int
    matrices: int
    attention: int
    embeddings: int
    shared: int = 0
    published: tuple[float, float] = (0.0, 0.0)
    source: str = ""

    @property
    def always(self) -> int:
        """Return the parameters that every token uses: all but the experts it does not choose."""
        dense = (self.layers - self.expert_layers) * self.dense_hidden
        always = dense + self.expert_layers * self.shared * self.hidden
        gates = self.expert_layers * self.experts * self.width
        return self.matrices * self.width * always + gates + self.attention + self.embeddings

    @property
    def expert(self) -> int:
        """Return the parameters of one expert."""
        return self.matrices * self.width * self.hidden

    @property
    def total(self) -> int:
        """Return all parameters."""
        return self.always + self.expert_layers * self.experts * self.expert

    @property
    def active(self) -> int:
        """Return the parameters that work on one token, the embeddings included."""
        return self.always + self.expert_layers * self.k * self.expert


def t5(
    name: str, width: int, layers: int, heads: int, hidden: int, experts: int, published: float,
    *, every: int, matrices: int, head_size: int = 64,
) -> ExpertModel:  # fmt: skip
    """Return a Switch Transformer: an encoder and a decoder of `layers` each, T5's vocabulary, k = 1.

    A decoder layer has two attentions, its own and one over the encoder's result.
    """  # noqa: E501
    blocks = 2 * whole(layers, "layers")
    attention = 3 * layers * 4 * width * heads * head_size
    tied = matrices == 2  # T5 shares its embedding with the last matrix; version 1.1 does not
    return ExpertModel(
        name, width, blocks, blocks // every, experts, 1, hidden, hidden, matrices, attention,
        (1 if tied else 2) * 32_128 * width, published=(published, 0.0),
        source="Fedus et al. 2021 (arXiv 2101.03961), table 9",
    )  # fmt: skip


def gshard(experts: int, layers: int, published: float) -> ExpertModel:
    """Return a model of GShard with so many layers in encoder and decoder together, and k = 2.

    Every second layer has experts; source and target have vocabularies of their own.
    """
    width, hidden, heads, head_size = 1024, 8192, 16, 128
    attention = (layers + layers // 2) * 4 * width * heads * head_size
    return ExpertModel(
        "GShard", width, layers, layers // 2, experts, 2, hidden, hidden, 2, attention,
        (64_000 + 2 * 32_000) * width, published=(published, 0.0),
        source="Lepikhin et al. 2020 (arXiv 2006.16668), table 1 and appendix A.2",
    )  # fmt: skip


def _latent_attention() -> int:
    """Return the parameters of one layer of DeepSeek-V3's attention (arXiv 2412.19437, section 4.2)."""  # noqa: E501
    width, heads, plain, rotary, value = 7168, 128, 128, 64, 128
    queries, keys = 1536, 512
    to_queries = width * queries + queries * heads * (plain + rotary)
    to_keys = width * (keys + rotary) + keys * heads * (plain + value)
    return to_queries + to_keys + heads * value * width


MODELS = (
    t5("Switch-Base", 768, 12, 12, 2048, 128, 7e9, every=2, matrices=3),
    t5("Switch-Large", 1024, 24, 16, 2816, 128, 26e9, every=2, matrices=3),
    t5("Switch-C", 2080, 15, 32, 6144, 2048, 1571e9, every=1, matrices=2),
    gshard(2048, 36, 600e9),
    ExpertModel(
        "Mixtral 8x7B", 4096, 32, 32, 8, 2, 14_336, 0, 3,
        32 * (2 * 4096 * 4096 + 2 * 4096 * 1024), 2 * 32_000 * 4096, published=(46.7e9, 12.9e9),
        source="Jiang et al. 2024 (arXiv 2401.04088), table 1; counts of the release, mistral.ai",
    ),
    ExpertModel(
        "DeepSeek-V3", 7168, 61, 58, 256, 8, 2048, 18_432, 3,
        61 * _latent_attention(), 2 * 129_280 * 7168, shared=1, published=(671e9, 37e9),
        source="DeepSeek-AI 2024 (arXiv 2412.19437), abstract and section 4.2",
    ),
)  # fmt: skip
