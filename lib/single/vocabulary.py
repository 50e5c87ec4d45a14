"""Are tokens and targets inside the vocabulary? A method that splits it looks before it looks up.

A rank that holds some rows puts zeros for tokens of other rows. A token that no rank holds would be
zeros on all of them, and a target that no rank holds a logit of 0, and nobody would notice.
"""

from torch import Tensor


def check_tokens(tokens: Tensor, vocabulary: int) -> None:
    """Raise IndexError for a token outside the vocabulary, where looking costs nothing (on CPU)."""
    if tokens.is_cpu and tokens.numel() and not 0 <= tokens.min() <= tokens.max() < vocabulary:
        raise IndexError(
            f"Tokens from {tokens.min()} to {tokens.max()} were given, but the vocabulary has "
            f"tokens 0 to {vocabulary - 1}."
        )


def check_targets(targets: Tensor, ignored: Tensor, vocabulary: int) -> None:
    """Raise IndexError for a target that is neither in the vocabulary nor ignored (on the CPU)."""
    if targets.is_cpu and (~ignored & ((targets < 0) | (targets >= vocabulary))).any():
        raise IndexError(
            f"A target is outside the vocabulary of {vocabulary} tokens. Give targets from 0 to "
            f"{vocabulary - 1}, or the ignore_index."
        )
