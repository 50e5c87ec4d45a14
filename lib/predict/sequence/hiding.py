"""From how many tokens on a ring hides its messages behind its computation.

    compute of a step   4·c²·h FLOP          c queries to c keys, in a layer of width h
    message of a step   2·c·h·(G/H) numbers  K and V of c tokens, with G of H heads

Both grow with h, so it cancels. In a causal ring with balanced ranks a step computes half of its
block on average. Source: Liu et al. 2023 (arXiv 2310.01889), section 3.2 and table 2.
"""

from math import ceil

from lib.predict.arguments import real


def tokens_to_hide(
    peak: float, bandwidth: float, *, itemsize: int = 2, key_share: float = 1.0,
    causal: bool = False,
) -> int:  # fmt: skip
    """Return the tokens of a rank from which a forward step computes longer than K and V travel.

    `peak` is in FLOP/s, `bandwidth` in bytes/s one way, and `key_share` is G/H. Latencies are left
    out.
    """
    peak = real(peak, "The peak", zero=False)
    bandwidth = real(bandwidth, "The bandwidth", zero=False)
    work = 2 if causal else 4  # FLOP for each pair of tokens and number of the width
    return ceil(2 * itemsize * key_share * peak / (work * bandwidth))
