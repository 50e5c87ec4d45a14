"""What a chain of blocks keeps for backward and what it computes again, by policy and by hand."""

from collections.abc import Sequence
from math import isqrt

from lib.draw.parts import captions
from lib.draw.parts.picture import Picture
from lib.predict import roofline
from lib.predict.arguments import is_whole, real, whole
from lib.predict.recompute import (
    BlockCost,
    Plan,
    best,
    every,
    none,
    read_plan,
    smallest_peak,
    square_root,
    use_of,
)
from lib.predict.recompute.costs import backward_of, costs_of, frontier
from lib.predict.recompute.plan import checked
from lib.predict.recompute.played import backward_seconds
from lib.predict.shape import GPTShape, ModelShape

MOST_BLOCKS = 96  # drawn; use_of counts longer chains
POLICIES = ("none", "all", "sqrt", "budget")
_COUNTED = "Only what blocks hold for backward is counted: no weights, no gradients, no logits."
_MEANING = "A box is filled by what its block holds after forward; a bracket is a checkpoint."
_BY_HAND = "A forgotten block is a checkpoint of its own until it is joined with others."


def keep(
    blocks: Sequence[BlockCost] | ModelShape, policy: str | int | Plan = "sqrt", *,
    budget: int | None = None, batch: int = 1, speeds=None, sequence: int | None = None,
    itemsize: int = 4, backward: Sequence[float] | None = None, names: Sequence[str] = (),
    unit: str = "s", by_hand: bool = False, par: float | None = None, text: str = "",
    caption: str = "",
) -> Picture:  # fmt: skip
    """Draw a step of a chain that keeps a part of its activations and computes the rest again.

    `blocks` are the costs of each block, or the shape of a model, which computes `batch` samples
    with `itemsize` bytes a number on a device with these `speeds` (by default an H100). `backward`
    are the seconds of each block's backward, for costs by default twice those of forward. `policy`
    is "none", "all" (each block in a checkpoint of its own), "sqrt", a number of blocks in each
    checkpoint, "budget" (the best plan within `budget` bytes), or a plan; a reader may choose
    another one, and keep or forget each block by hand. `budget` is drawn as a line. `unit` is that
    of the seconds, or "" for plain numbers. `caption` says where the costs come from.

    With `by_hand` the picture is an exercise: it offers no policy and no plan that is best within a
    budget, and says whether the reader's plan is within `budget` bytes and `par` seconds computed
    again. `text` is the reader's own plan, as "Copy the plan" writes it, to begin with in place of
    `policy`; `read_plan` reads it in Python. Raises ValueError for a budget that no plan without
    checkpoints in checkpoints meets.
    """
    speeds = speeds or roofline.speeds()
    source = _given_source(backward)
    if isinstance(blocks, ModelShape):
        size = batch, speeds, sequence, itemsize
        backward = backward_of(blocks, *size) if backward is None else backward
        names, source = names or _names_of(blocks), _shape_source(speeds, batch)
        blocks = costs_of(blocks, *size)
    costs = _costs(blocks)
    seconds = backward_seconds(costs, backward)
    names = [str(name) for name in names] or [str(block) for block in range(len(costs))]
    if len(names) != len(costs):
        raise ValueError(
            f"There are {len(costs)} blocks and {len(names)} names. Give a name for each, or none."
        )
    limit, par = _goals(costs, budget, par)
    budgets = _budgets(costs, limit)
    begin = _start(policy, costs, budgets, limit, by_hand)
    own, unread = _attempt(text, len(costs))
    data = {
        "names": names, "input": [cost.input for cost in costs], "backward": seconds,
        "inside": [cost.inside for cost in costs], "forward": [cost.forward for cost in costs],
        "least": smallest_peak(costs), "limit": limit, "par": par, "unit": unit,
        "byHand": bool(by_hand), "unread": unread,
        "budgets": [] if by_hand else budgets,
    }  # fmt: skip
    plan = begin.pop("plan") if own is None else own
    data["begin"] = begin
    data["start"] = begin if own is None else begin | {"policy": "hand", "hand": own}
    data["caption"] = captions.joined(
        source, _COUNTED, _MEANING, _BY_HAND if by_hand else "", caption
    )
    return Picture(_story(plan, data["start"], costs, limit), ("keep", data))


def _shape_source(speeds, batch: int) -> str:
    """Say for which device and batch a shape's times and bytes are predicted."""
    gpu, dtype = getattr(speeds, "gpu", ""), getattr(speeds, "dtype", "")
    device = gpu if gpu.startswith("this") else f"the {gpu}"
    on = f" on {device}{f' ({dtype})' if dtype else ''}" if gpu else ""
    samples = f"{batch} sample{'s' * (batch != 1)}"
    return f"Predicted for {samples}{on}: no block was run, and each operation takes its roofline"


def _given_source(backward) -> str:
    twice = "; backward takes twice as long as forward" if backward is None else ""
    return f"Predicted from the bytes and seconds given for each block{twice}"


def _names_of(shape: ModelShape) -> list[str]:
    if isinstance(shape, GPTShape):
        return ["embed", *(str(n + 1) for n in range(shape.layers)), "head"]
    return []


def _costs(blocks) -> list[BlockCost]:
    costs = [
        BlockCost(
            whole(cost[0], "The bytes of a block's input", 0),
            whole(cost[1], "The bytes that a block keeps besides its input", 0),
            real(cost[2], "A time of forward", zero=False),
        )
        for cost in blocks
    ]
    if not 1 <= len(costs) <= MOST_BLOCKS:
        raise ValueError(
            f"A chain of {len(costs)} blocks cannot be drawn: give 1 to {MOST_BLOCKS}. use_of "
            "counts longer ones."
        )
    if not max(cost.kept for cost in costs):
        raise ValueError("There is nothing to draw: no block holds a byte. Give one some bytes.")
    return costs


def _goals(costs, budget, par) -> tuple[int | None, float | None]:
    par = None if par is None else real(par, "par", zero=False)
    if budget is None:
        return None, par
    limit = whole(budget, "budget")
    best(costs, limit)  # says what is wrong with one that is too small
    return limit, par


def _start(policy, costs, budgets: list[dict], limit: int | None, by_hand: bool) -> dict:
    """Return what the controls are set to at first, and the plan that this leads to."""
    count = len(costs)
    at = next((n for n, one in enumerate(budgets) if one["bytes"] == limit), 0)
    state = {"policy": policy, "k": isqrt(count), "budget": at, "hand": none(count)}
    if isinstance(policy, tuple):
        plan, state["policy"] = checked(policy, count), "hand"
    elif is_whole(policy):
        plan, state["policy"], state["k"] = every(count, policy), "every", int(policy)
    elif policy == "budget" and limit is not None:
        plan = budgets[at]["plan"]
    elif policy in POLICIES[:-1]:
        rules = {"none": none, "all": lambda n: every(n, 1), "sqrt": square_root}
        plan = rules[policy](count)
    else:
        raise ValueError(
            f"No policy is called {policy!r}. Choose {', '.join(POLICIES)} (with a budget in "
            "bytes), a number of blocks in each checkpoint, or a plan."
        )
    if by_hand or state["policy"] == "hand":
        state |= {"policy": "hand", "hand": plan}
    state["k"] = min(state["k"], count)
    return state | {"plan": plan}


def _budgets(costs: list[BlockCost], limit: int | None) -> list[dict]:
    """Return what the slider of budgets can be set to: bytes, and the best plan within them."""
    plans = {choice.use.peak: choice.plan for choice in frontier(costs)}
    if limit is not None:
        within = [best(costs, limit), *(plans[peak] for peak in plans if peak <= limit)]
        plans[limit] = min(within, key=lambda plan: use_of(plan, costs).again)
    return [{"bytes": nbytes, "plan": plans[nbytes]} for nbytes in sorted(plans)]


def _attempt(text: str, blocks: int) -> tuple[Plan | None, str]:
    """Return the plan of a reader's text, or a sentence that says why it is not drawn."""
    if not text.strip():
        return None, ""
    try:
        return read_plan(text, blocks), ""
    except ValueError as wrong:
        return None, f"Your plan is not drawn. {wrong}"


def _story(plan: Plan, start: dict, costs: list[BlockCost], limit: int | None) -> str:
    """The same in words, without times."""
    use, count = use_of(plan, costs), len(costs)
    share = round(100 * use.again / sum(cost.forward for cost in costs))
    around = lambda k: f"a checkpoint around every {k:,} block{'s' * (k != 1)}"
    words = {
        "none": lambda: "everything kept",
        "all": lambda: "each block forgotten, in a checkpoint of its own",
        "sqrt": lambda: f"{around(isqrt(count))} (√{count})",
        "every": lambda: around(start["k"]),
        "budget": lambda: f"the best plan within {limit:,} bytes",
        "hand": lambda: "a plan made by hand",
    }
    return "\n".join([
        f"keep: {count} block{'s' * (count != 1)}, {words[start['policy']]()}",
        f"  plan: {plan}",
        f"  held: {use.after_forward:,} bytes after forward, at most {use.peak:,} bytes",
        f"  computed again: {share} % of forward",
    ])  # fmt: skip
