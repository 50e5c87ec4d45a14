"""Losses that keep the load of experts even, and a bias that does it without a loss.

With f_i the share of all assignments that expert i has, P_i the mean of its share of each token's
scores, and CV the deviation divided by the mean:

    balance      E · Σ f_i · P_i               1 where both are even, E where one expert has all
    gshard       1/E · Σ (c_i/N) · P_i         c_i counts the first choices alone
    importance   CV²(Σ_x G(x)_i)               how much the gate relies on each expert
    load         CV²(Σ_x P(x, i))              how many tokens it gets, as a noisy gate estimates it
    z            mean (log Σ_i exp(logit_i))²  keeps logits small; it does not balance

f and c are counts and have no gradient, so that the gradient of the first two goes through P alone:
it lowers the scores of the experts that have many tokens. Each loss takes sums over tokens, so that
`total`, which adds them over ranks, gives the loss of the whole batch.

Sources: Fedus et al. 2021 (arXiv 2101.03961), equations 4 to 6, for balance, with f over all k choices;
Lepikhin et al. 2020 (arXiv 2006.16668), section 2.2, for gshard; Shazeer et al. 2017 (arXiv
1701.06538), section 4 and appendix A, for importance and load; Zoph et al. 2022, "ST-MoE" (arXiv
2202.08906), equation 5, for z; Wang et al. 2024 (arXiv 2408.15664) for the bias.
"""  # noqa: E501

from collections.abc import Callable

import torch
from torch import Tensor

from lib.predict.arguments import real
from lib.single.experts.gates import Decision, Gate, alone


def balance(decision: Decision, total: Callable = alone) -> Tensor:
    """Return E · Σ f_i · P_i: []."""
    counts = total(decision.assignments.counts.to(decision.scores.dtype))
    return len(counts) * (counts / counts.sum() * _mean_scores(decision, total)).sum()


def gshard(decision: Decision, total: Callable = alone) -> Tensor:
    """Return 1/E · Σ (c_i/N) · P_i, with c_i the tokens whose best expert is i: []."""
    first = torch.bincount(decision.scores.argmax(-1), minlength=decision.scores.shape[1])
    share = total(first.to(decision.scores.dtype)) / _tokens(decision, total)
    return (share * _mean_scores(decision, total)).mean()


def importance(decision: Decision, total: Callable = alone) -> Tensor:
    """Return CV² of the sums of weights: []."""
    return squared_variation(total(decision.gates.sum(0)))


def load(decision: Decision, total: Callable = alone) -> Tensor:
    """Return CV² of the estimated loads: []. Raises ValueError where the gate has no noise."""
    if decision.load is None:
        raise ValueError(
            "Only a noisy gate that trains estimates its load with a gradient. Take gate='noisy', "
            "or another loss."
        )
    return squared_variation(decision.load.estimate(total))


def z(decision: Decision, total: Callable = alone) -> Tensor:
    """Return the mean over tokens of the squared log of the sum of exponents: []."""
    return total(decision.logits.logsumexp(-1).square().sum()) / _tokens(decision, total)


LOSSES = {"balance": balance, "gshard": gshard, "importance": importance, "load": load, "z": z}


def squared_variation(x: Tensor) -> Tensor:
    """Return CV², the variance divided by the squared mean, over all entries: [E] -> []."""
    return x.var(correction=0) / x.mean().square()


def _tokens(decision: Decision, total: Callable) -> Tensor:
    return total(decision.scores.new_tensor(float(len(decision.scores))))


def _mean_scores(decision: Decision, total: Callable) -> Tensor:
    """Return P [E]: each token's scores divided by their sum, which is 1 after a softmax."""
    shares = decision.scores / decision.scores.sum(-1, keepdim=True)
    return total(shares.sum(0)) / _tokens(decision, total)


@torch.no_grad()
def nudge(gate: Gate, counts: Tensor, rate: float = 1e-3) -> None:
    """Raise the bias of experts that had less than the mean load, and lower the others', by `rate`.

    Call it once after each step with the counts [E] of that step, over all ranks. It changes who is
    chosen and no weight, so it adds no gradient that disturbs the model.
    """
    counts = counts.to(gate.bias)
    gate.bias += real(rate, "The rate of a bias") * (counts.mean() - counts).sign()
