"""What a rank holds of a layer of experts, by kind, at the end of forward.

    parameters    gate E·D, and E/P experts of 2·D·F
    activations   for each token D, the gate's input;
                  for each row that comes to its experts D, and F before and after the GELU;
                  for each row that it has sent D, the result before it is weighed

Gradients are as large as the parameters, and an optimizer keeps its numbers for each of them. So
P ranks divide everything of the experts by P but the activations: those follow the rows that come,
and a rank whose experts are popular keeps more. What is kept for each row alone, not for each
number of it (places, weights, scores), is left out.
"""

from lib.predict.arguments import equal_share, real, whole
from lib.predict.memory import STATES, Held


def layer_memory(
    width: int, hidden: int, experts: int, k: int, tokens: int, ranks: int = 1, *,
    optimizer: str = "adamw", itemsize: int = 4, arriving: float | None = None,
) -> Held:  # fmt: skip
    """Return the bytes that a rank with `tokens` tokens holds of one layer, by kind.

    `arriving` are the rows that come to its experts, by default as many as it sends. The optimizer
    is sgd, momentum, adam or adamw, whose counters are left out. Raises ValueError for experts that
    ranks cannot share equally.
    """
    if optimizer not in STATES:
        raise ValueError(
            f"No optimizer here is called {optimizer!r}. Choose one of {', '.join(STATES)}."
        )
    own = equal_share(experts, ranks, "There are {} experts")
    d, f = whole(width, "width"), whole(hidden, "hidden")
    sent = whole(k, "k") * whole(tokens, "tokens")
    came = sent if arriving is None else real(arriving, "arriving")
    weights = (experts * d + own * 2 * d * f) * itemsize
    kept = round((tokens * d + came * (d + 2 * f) + sent * d) * itemsize)
    return Held(weights, weights, STATES[optimizer] * weights, kept)
