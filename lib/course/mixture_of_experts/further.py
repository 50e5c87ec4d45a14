"""What chapter 8 shows under *Going further*: a gate in two levels, and a gate in bfloat16."""

import torch

from lib.course.mixture_of_experts.lessons import EXPERTS, HIDDEN, TOKENS, WIDTH, K, tokens
from lib.single.experts import MoE


def two_levels(groups: int = 2) -> str:
    """Write how many rows leave their node, with one gate and with one that chooses a node first.

    Both gates choose 2 of 8 experts, and each of the two nodes has 4 of them.
    """
    x, lines = tokens(), ["2: of 128 rows leave their node"]
    lines.append("gate     a row for each expert  one for each node")
    for name in ("softmax", "two-level"):
        options = {"groups": groups, "groups_chosen": 1} if name == "two-level" else {}
        moe = MoE(WIDTH, HIDDEN, EXPERTS, K, gate=name, **options).double().eval()
        moe.draw(0, scale=0.3)
        token, expert, *_ = moe.gate(x).assignments
        node, home = expert // (EXPERTS // groups), token // (TOKENS // groups)
        far = node != home
        once = len(set(zip(token[far].tolist(), node[far].tolist())))
        lines.append(f"{name:<9}{int(far.sum()):>21}{once:>19}")
    return "\n".join(lines)


def ties(experts: int = 256, k: int = 8, rows: int = 1024) -> str:
    """Write how often rounding a gate's scores to bfloat16 changes who is chosen, or ties.

    The logits are standard normal; a tie is between the last expert that is chosen and the next.
    """
    draw = torch.Generator("cpu").manual_seed(0)
    logits = torch.randn(rows, experts, generator=draw, dtype=torch.float64, device="cpu")
    right = set_of(logits.softmax(-1), k)
    lines = ["tokens with another choice, and with a tie"]
    lines.append("scores    other choice   tie")
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        scores = logits.softmax(-1).to(dtype)
        best = scores.topk(k + 1, -1).values
        tie = (best[:, -1] == best[:, -2]).double().mean()
        other = (set_of(scores, k) != right).any(-1).double().mean()
        lines.append(f"{name:<10}{other:>12.1%}{tie:>6.1%}")
    return "\n".join(lines)


def set_of(scores: torch.Tensor, k: int) -> torch.Tensor:
    """Return a mask [N, E] of the k experts with the largest scores; of equal ones, the first."""
    order = scores.argsort(dim=-1, descending=True, stable=True)[:, :k]
    return torch.zeros_like(scores, dtype=torch.bool).scatter(1, order, True)
