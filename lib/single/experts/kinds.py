"""The gates by name."""

from lib.single.experts.gates import ExpertChoice, Gate, SigmoidGate
from lib.single.experts.noisy_gates import NoisyGate, TwoLevelGate

GATES = {
    "softmax": Gate,
    "noisy": NoisyGate,
    "two-level": TwoLevelGate,
    "sigmoid": SigmoidGate,
    "expert choice": ExpertChoice,
}


def gate_of(kind: str, width: int, experts: int, k: int, **options) -> Gate:
    """Return a new gate [N, D] -> Decision. Raises ValueError for a kind that is not in GATES."""
    if kind not in GATES:
        raise ValueError(f"No gate is called {kind!r}. Choose one of {', '.join(GATES)}.")
    return GATES[kind](width, experts, k, **options)
