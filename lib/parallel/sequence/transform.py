"""A plain GPT becomes one that runs on split sequences, in place: context parallelism.

    model = context_parallel(GPT(shape), group)                     tokens [B, S/P] -> logits [B, S/P, V]
    tokens, labels = model.context.shard(tokens, labels)            [B, S] -> [B, S/P]
    model.context.loss(model(tokens), labels).backward()            loss [], gradients of weights summed

Everything but attention treats each token alone, so two things change: the core of attention is a
ring or Ulysses, and positions are those of the rank's tokens in the whole sequence. All ranks have
all weights. Each rank's gradient of a weight comes from its own tokens, +cp, and backward sums it.
"""  # noqa: E501

from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor, nn

from lib.parallel.sequence.dropout import SequenceDropout
from lib.parallel.sequence.loss import sequence_cross_entropy
from lib.parallel.sequence.ring import ring_attention
from lib.parallel.sequence.shards import ALONE, positions_of, shard_sequence, size_of
from lib.parallel.sequence.ulysses import ulysses_attention
from lib.predict.sequence.layout import chunks_of, key_heads_sent
from lib.ranks.agreement import from_first, same_everywhere
from lib.ranks.gradients import sum_gradient
from lib.single.models import Attention, Embedding, FeedForward, causal

METHODS = ("ring", "ulysses")
_DROPPING = Attention | FeedForward | Embedding  # parts of a GPT with a dropout on [B, S, D]


@dataclass
class Context:
    """Says how the sequences of a model lie on its ranks; it is the core of the model's attention.

    `documents` are those of the batch, as cu_seqlens, and may be set before each forward.
    `replicas` is the group over which gradients are averaged, for the loss (loss.py).
    """

    group: object
    method: str
    layout: str
    inner: object = ALONE
    documents: Sequence[int] | None = None
    replicas: object = ALONE

    def shard(self, tokens: Tensor, labels: Tensor, documents: Sequence[int] | None = None):
        """Return this rank's tokens and labels: [B, S] -> [B, S/P] each, and note the documents.

        Where S does not divide, tokens are padded, which attend to nothing, and labels with -100,
        which do not count. All ranks give the whole batch.
        """
        length = tokens.shape[1]
        ranks = dist.get_world_size(self.group) * size_of(self.inner)
        own = [
            shard_sequence(t, self.group, self.layout, fill=fill, inner=self.inner)
            for t, fill in ((tokens, 0), (labels, -100))
        ]
        padded = own[0].shape[1] * ranks != length
        if isinstance(documents, Tensor):
            documents = documents.tolist()  # once, and not in each layer
        self.documents = (0, length) if documents is None and padded else documents
        return own

    def positions(self, length: int, device=None) -> Tensor:
        """Return the positions of this rank's `length` tokens: [S/P]; they restart at documents."""
        whole = length * dist.get_world_size(self.group) * size_of(self.inner)
        return positions_of(
            whole, self.group, self.layout, documents=self.documents, device=device,
            inner=self.inner,
        )  # fmt: skip

    def places(self, length: int, device=None) -> Tensor:
        """Return where this rank's `length` tokens are in the whole sequence: [S/P]."""
        whole = length * dist.get_world_size(self.group) * size_of(self.inner)
        return positions_of(whole, self.group, self.layout, device=device, inner=self.inner)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy over all labels of all ranks, equal on all of them: [].

        With replicas it is this replica's part, whose average over them is that mean.
        """
        return sequence_cross_entropy(
            logits, labels, self.group, inner=self.inner, replicas=self.replicas
        )

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0) -> Tensor:
        """Return causal attention: q [B, H, S/P, K], k, v [B, G, S/P, K] -> [B, H, S/P, K]."""
        more = {"documents": self.documents, "dropout": dropout}
        if self.inner is not ALONE:
            return ulysses_attention(
                q, k, v, self.inner, True, self.layout, ring=self.group, **more
            )
        attention = ring_attention if self.method == "ring" else ulysses_attention
        return attention(q, k, v, self.group, True, self.layout, **more)


def context_parallel(
    model: nn.Module, group=None, method: str = "ring", layout: str = "zigzag", *, inner=ALONE,
    replicas=ALONE, sum_gradients: bool = True,
) -> nn.Module:  # fmt: skip
    """Let a plain GPT run on sequences that are split over a group, in place, and return it.

    `method` is "ring" or "ulysses". With `inner`, a second group, attention is Ulysses over `inner`
    inside a ring over `group`. All ranks begin with the weights of the first, and `model.context`
    shards batches and computes the loss; `replicas` is the group of data parallelism beside it, if
    any, whose labels the loss counts too (loss.py). Backward sums each weight's gradient over the
    ranks; without `sum_gradients` something else has to, such as DDP over the same ranks. Raises
    ValueError for a model without attention, for heads that Ulysses cannot split, and for a dropout
    outside the parts of a GPT. That of the parts follows from each number's place (dropout.py).
    """
    if method not in METHODS:
        raise ValueError(f"No method is called {method!r}. Choose one of {', '.join(METHODS)}.")
    if inner is not ALONE and method != "ring":
        raise ValueError(
            "With an inner group, Ulysses works over that group, and the outer method is a ring. "
            'Give method="ring", or no inner group.'
        )
    chunks_of(0, dist.get_world_size(group), layout)
    layers = [part for part in model.modules() if isinstance(part, Attention)]
    _refuse(model, layers)
    if method == "ulysses" or inner is not ALONE:
        ranks = dist.get_world_size(group if inner is ALONE else inner)
        for part in layers:
            key_heads = len(part.qkv.weight) // part.head_size // (part.group_size + 2)
            key_heads_sent(key_heads * part.group_size, key_heads, ranks)
    groups = [group] if inner is ALONE else [group, inner]
    for each in groups:
        same_everywhere(model, each)
    for each in groups:
        for tensor in (*model.parameters(), *model.buffers()):
            from_first(tensor, each)
    model.context = Context(group, method, layout, inner, replicas=replicas)
    for part in model.modules():
        if isinstance(part, Attention):
            part.core = model.context
        if isinstance(part, Attention | Embedding):
            part.position_ids = model.context.positions
        if isinstance(part, _DROPPING) and part.dropout.p:
            part.dropout = SequenceDropout(part.dropout, model.context.places)
    for parameter in model.parameters() if sum_gradients else ():
        sum_gradient(parameter, groups)
    return model


def _refuse(model, layers) -> None:
    if not layers:
        raise ValueError(
            f"A {type(model).__name__} has no attention of lib.single.models, so its tokens need "
            "nothing of each other. Give a GPT, or replace the attention of your model by "
            "ring_attention or ulysses_attention."
        )
    known = {id(part.dropout) for part in model.modules() if isinstance(part, _DROPPING)}
    for name, part in model.named_modules():
        if isinstance(part, nn.Dropout) and part.p and id(part) not in known:
            raise ValueError(
                f"{name} is a dropout with the probability {part.p} outside the parts of a GPT. "
                "Ranks that draw the same random numbers would drop the same places of different "
                "tokens. Replace it by lib.parallel.sequence.dropout.SequenceDropout, or set it "
                "to 0."
            )
        if isinstance(part, Attention) and part.core is not causal:
            raise ValueError(
                f"The core of {name} is not lib.single.models.causal any more. Apply "
                "context_parallel once, to a model whose attention is the plain one."
            )
