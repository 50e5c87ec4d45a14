"""What stands under Going further in chapter 9: offloading, and plans with nested checkpoints."""

from lib.course.recomputation import gist
from lib.course.recomputation.lessons import LARGE, large_costs
from lib.predict.recompute import BlockCost, binomial, every, none, use_of
from lib.predict.recompute.costs import backward_of
from lib.predict.recompute.offload import offload_use
from lib.predict.recompute.offload_choice import better_offloaded, hidden_keep
from lib.predict.roofline import speeds
from lib.predict.sharded.offload import host_speeds

LINKS = ("PCIe4", "PCIe5")
AHEAD = 8  # blocks whose forward a copy may take
ENCODINGS = ("plain", "binarise", "sparse", "lossless", "fp8", "all, fp8")


def offloads() -> str:
    """Write ms and GB of a step of `LARGE` on an H100, kept, computed again and offloaded."""
    costs, backward = large_costs(), backward_of(LARGE, 1, speeds("H100"), itemsize=2)
    lines = ["                  ms  GB held  GB on the host"]
    once = sum(backward) + sum(cost.forward for cost in costs)
    for name, plan in (("all kept", none(len(costs))), ("all again", every(len(costs), 1))):
        use = use_of(plan, costs)
        lines.append(f"{name:<15}{1e3 * (once + use.again):>5.0f}{use.peak / 1e9:>9.1f}{0:>16.1f}")
    for link in LINKS:
        host = host_speeds("H100", link)
        hidden = hidden_keep(costs, backward, host, AHEAD)
        for name, keep, ahead in (("all", 1, 1), ("hidden", hidden, AHEAD)):
            use = offload_use(costs, backward, host, keep, ahead)
            lines.append(
                f"{f'{link}, {name}':<15}{1e3 * use.seconds:>5.0f}{use.peak / 1e9:>9.1f}"
                f"{use.host / 1e9:>16.1f}"
            )
    return "\n".join(lines)


def layer_is_better_offloaded(link: str) -> bool:
    """Tell whether a layer of `LARGE` costs less time offloaded over this link than recomputed."""
    backward = backward_of(LARGE, 1, speeds("H100"), itemsize=2)[1]
    return better_offloaded(large_costs()[1], backward, host_speeds("H100", link))


def nested(blocks: int = 64) -> str:
    """Write the peak of equal blocks, in inputs of a block, and the runs of forward, by slots.

    Each block keeps 15 times its input, as a transformer layer does. Then at most one block at a
    time can hold everything, which Griewank's plan assumes.
    """
    costs = [BlockCost(1, 14, 1.0)] * blocks
    plans = {"k = 2": every(blocks, 2)}
    plans |= {f"{slots} slots": binomial(blocks, slots) for slots in (8, 5, 3, 2)}
    lines = ["         inputs at the peak  runs of a block"]
    for name, plan in plans.items():
        use = use_of(plan, costs)
        runs = sum(use.runs) / blocks
        lines.append(f"{name:<9}{use.peak:>18}{runs:>17.2f}")
    return "\n".join(lines)


def encodings() -> str:
    """Train the small VGG with some of Gist's encodings, from three seeds, and write the table."""
    return gist.table(gist.compared(ENCODINGS))
