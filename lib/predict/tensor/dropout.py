"""The operations of attention with dropout on a rank of tensor parallelism, forward and backward.

    q [B, H/tp, S, K], k, v [B, G/tp, S, K] -> probabilities [B, H/tp, S, S] -> dropped · v

They are those of SplitCore in lib/parallel/tensor/dropout.py, which is not PyTorch's own kernel:
each rank needs its part of one mask. As in lib/predict/operations.py, bytes are counted in numbers.
"""

from lib.predict.operations import Operation, Passes
from lib.predict.shape import GPTShape


def attention(own: GPTShape, batch: int, s: int, byte: float, drawn: int) -> Passes:
    """Return the operations of the heads that a rank has, those of the shape `own`.

    The mask is drawn for `drawn` times as many heads (see `mask`). An entry of the causal mask
    takes `byte` times as many bytes as a number. Products take the heads of all samples as one dim,
    so q is copied, unless its heads lie one after the other; keys and values are always copied.
    """
    rows, scores = batch * s, batch * own.heads * s * s
    q, kv = rows * own.width, rows * own.kv_heads * own.head_size
    causal = byte * s * s
    together = own.heads > 1 and s > 1  # a head's rows do not follow each other
    apart, grouped = together and batch > 1, own.kv_heads < own.heads
    # Beside one key and one value, queries that are not turned are not evenly spaced.
    uneven = batch > 1 and grouped and own.kv_heads == 1 and own.positions == "learned"
    product, copy = Operation("bmm", 2 * q * s, 2 * q + scores), Operation("clone", 0, 2 * q)
    masked = Operation("masked_fill", 0, 2 * scores + causal)
    scaled, dropped = Operation("div", 0, 2 * scores), Operation("mul", 0, 3 * scores)
    forward = [
        *[Operation("clone", 0, kv + q)] * 2,
        Operation("ones", 0, causal), Operation("triu", 0, 2 * causal),
        *[copy] * (apart or uneven), product, scaled, masked, Operation("_softmax", 0, 2 * scores),
        *mask(scores, drawn), dropped, product, *[copy] * together,
    ]  # fmt: skip
    backward = [
        *[copy] * apart, product, product, dropped,
        Operation("_softmax_backward_data", 0, 3 * scores), masked, scaled, product, product,
        *[Operation("sum", 0, q + kv)] * 2 * grouped,
    ]  # fmt: skip
    return Passes(forward, backward)


def mask(numbers: int, drawn: int) -> list[Operation]:
    """Draw a rank's part of a mask: the mask of `drawn` ranks, of which it keeps its part.

    With 0 it draws its own part alone, as it does where dropout has a seed.
    """
    if not drawn:
        return [Operation("bernoulli", 0, numbers), Operation("div", 0, 2 * numbers)]
    names = {"new_ones": 1, "bernoulli": 1, "div": 2, "mul": 3}
    whole = [Operation(name, 0, n * drawn * numbers) for name, n in names.items()]
    return [*whole, Operation("clone", 0, 2 * numbers)]
