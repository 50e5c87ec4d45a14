"""What the cells of chapter 8 call: one layer of experts whole and on ranks, a GPT, two hops."""

import torch
import torch.distributed as dist
from torch.nn.functional import gelu

from lib.course import plain_gpt
from lib.course.data_parallel.lessons import folded
from lib.ledger import Ledger
from lib.parallel.expert import Flat, TwoHops, plain_gradients, to_plain
from lib.predict.collectives.exchange import Exchange
from lib.predict.expert import traffic
from lib.predict.shape import GPTShape
from lib.ranks import collectives
from lib.ranks.mesh import mesh
from lib.single import GPT, next_token_loss
from lib.single.experts import MoE, auxiliary_loss, with_experts

WIDTH, HIDDEN, EXPERTS, K, TOKENS = 16, 32, 8, 2, 64
SHAPE = GPTShape(vocabulary=64, sequence=16, width=16, heads=2, layers=1, hidden=32)
SAMPLES, RATE = 8, 0.5
NODE = 4  # ranks of a node, where eight ranks are on two


def layer() -> MoE:
    """Return a layer of 8 experts in 64-bit numbers, of which each token chooses 2."""
    moe = MoE(WIDTH, HIDDEN, EXPERTS, K).double()
    moe.draw(0, scale=0.3, added_to_x=0.3)
    return moe


def tokens() -> torch.Tensor:
    """Draw x [64, 16], equal on every rank."""
    draw = torch.Generator("cpu").manual_seed(2)
    return torch.randn(TOKENS, WIDTH, generator=draw, dtype=torch.float64, device="cpu")


def experts_of(moe: MoE) -> list:
    """Return the layer's experts as a list of functions, rows [n, D] -> [n, D] each."""
    pairs = zip(moe.experts.up, moe.experts.down)
    return [lambda rows, up=up, down=down: gelu(rows @ up) @ down for up, down in pairs]


def own(x: torch.Tensor) -> torch.Tensor:
    """Return this rank's share of what all have, along the first dim: [N, ..] -> [N/P, ..]."""
    return x.chunk(dist.get_world_size())[dist.get_rank()]


def sent_rows(run: Ledger) -> list[list[int]]:
    """Return the rows [P, P] that each rank sent to each other in the first all_to_all of a run."""
    rows = [run.where(rank=r, lane="comm", op="all_to_all") for r in range(run.meta["ranks"])]
    row_bytes = WIDTH * 8
    first = [sorted(of, key=lambda row: row.start)[0] for of in rows]
    even = lambda row: row.parts or [row.bytes // len(row.members)] * len(row.members)
    return [[part // row_bytes for part in even(row)] for row in first]


# --- a GPT with experts, whole and spread


def gpt() -> GPT:
    """Return a GPT with one layer of 8 experts in 64-bit numbers; each token chooses 2."""
    plain = GPT(SHAPE, seed=1)
    return with_experts(plain, EXPERTS, K, losses={"balance": 0.01}).double()


def step(model, tokens, targets) -> torch.Tensor:
    """Take one step of plain SGD, auxiliary losses included; return the model's own loss."""
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    loss = next_token_loss(model(tokens), targets)
    (loss + auxiliary_loss(model)).backward()
    optimizer.step()
    return loss.detach()


def own_batch() -> tuple[torch.Tensor, ...]:
    """Return this rank's share of the batch: tokens and targets."""
    return tuple(map(own, plain_gpt.batch(SHAPE, SAMPLES)))


def whole() -> tuple[float, dict, dict]:
    """Return the loss, gradients and weights after one step on one device, by name."""
    model = gpt()
    loss = step(model, *plain_gpt.batch(SHAPE, SAMPLES)).item()
    return loss, {n: p.grad for n, p in model.named_parameters()}, model.state_dict()


def gathered(model, loss: torch.Tensor) -> tuple:
    """Return what a step on this rank made of a spread model, whole, for `compared`.

    These are the mean loss over the ranks, gradients and weights by name, the number of this
    rank's parameters, and the rows [P, E] that ranks sent to experts.
    """
    (layer,) = (part for part in model.modules() if isinstance(part, MoE))
    rows = collectives.all_gather(layer.kept[None]).tolist()
    loss = collectives.all_reduce(loss).item() / dist.get_world_size()
    numbers = sum(p.numel() for p in model.parameters())
    return loss, plain_gradients(model), to_plain(model), numbers, rows


def compared(run: Ledger) -> str:
    """Write what of the ranks' step equals one device, and whether all_to_alls are as predicted."""
    loss, gradients, weights = whole()
    found = {"loss": [], "gradients": [], "weights after the step": []}
    close = lambda a, b: torch.allclose(a.cpu(), b.cpu(), rtol=0, atol=1e-11)
    for own_loss, own_gradients, own_weights, *_ in run.results:
        found["loss"].append(abs(own_loss - loss) < 1e-11)
        found["gradients"].append(all(close(own_gradients[n], g) for n, g in gradients.items()))
        found["weights after the step"].append(
            all(close(own_weights[n], w) for n, w in weights.items())
        )
    found["bytes, as predicted"] = [
        launched(run, rank) == predicted(run, rank) for rank in range(run.meta["ranks"])
    ]
    lines = [f"{name:<24}{all(each)}" for name, each in found.items()]
    numbers = sum(w.numel() for n, w in weights.items() if not n.endswith("gate.bias"))
    lines.append(f"{'parameters of a rank':<24}{run.results[0][3]:,} of {numbers:,}")
    return "\n".join(lines)


def launched(run: Ledger, rank: int) -> list[Exchange]:
    """Return the all_to_alls that a rank launched, in order."""
    rows = sorted(run.where(rank=rank, lane="comm", op="all_to_all"), key=lambda row: row.start)
    return [Exchange(row.op, run.meta["ranks"], row.bytes) for row in rows]


def predicted(run: Ledger, rank: int) -> list[Exchange]:
    """Return the all_to_alls that are predicted for a rank: forward, then backward."""
    table = traffic.table_of(run.results[0][4])
    both = traffic.exchanges(table, rank, EXPERTS, SHAPE.width, 8)
    return [move for part in both for move in part if move.op == "all_to_all"]


def times_too_large(model) -> dict[str, float]:
    """Return how many times as large as one device's the gradients of a spread model are."""
    _, right, _ = whole()
    found, times = plain_gradients(model), {}
    for kind, ending in (("the gate's", "gate.weight"), ("an expert's", "experts.up")):
        (name,) = (name for name in right if name.endswith(ending))
        ratio = found[name].norm().cpu() / right[name].norm().cpu()
        times[kind] = round(ratio.item(), 6)
    return times


def different_splits(error: Exception) -> str:
    """Return a RankError's first line, folded, and the rows that each rank sends and expects.

    The error counts numbers, and a row has WIDTH of them.
    """
    lines = [folded(str(error).splitlines()[0]), "rank  sends to 0 1 2 3   expects from 0 1 2 3"]
    for line in error.table.splitlines():
        if "splits" in line:
            rank, *_, splits = line.split()
            both = ([int(n) // WIDTH for n in side.split(",")] for side in splits.split(">"))
            sent, expected = ("".join(f"{rows:>4}" for rows in side) for side in both)
            lines.append(f"{rank:>4}{sent:>18}{expected:>21}")
    return "\n".join(lines)


# --- two hops


def routes(nodes: int):
    """Return the way in two hops over so many nodes, or the flat way for one node."""
    if nodes == 1:
        return Flat()
    here = mesh(node=nodes, place=dist.get_world_size() // nodes)
    return TwoHops(None, here["place"].group, here["node"].group)


def sorted_by_rank(moe: MoE, x: torch.Tensor) -> tuple[torch.Tensor, list[list[int]]]:
    """Return this rank's rows in the order of their experts, and the rows [P, P] of all ranks."""
    kept = moe.gate(own(x)).assignments.by_expert()
    counts = [torch.empty_like(kept.counts) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, kept.counts)
    return own(x)[kept.token], traffic.table_of([each.tolist() for each in counts])


def travel(nodes: int) -> bool:
    """Send rows to the ranks of their experts and back; return whether they came back."""
    here = torch.empty(0).device
    rows, table = sorted_by_rank(layer().to(here), tokens().to(here))
    way = routes(nodes)
    dist.barrier()
    back = way.back(way.launch(rows, table)(), table)
    return torch.equal(back, rows)


def only_rows(run: Ledger) -> Ledger:
    """Return the all_to_alls of a run."""
    return run.where(lane="comm", op="all_to_all")


def messages(runs: dict[str, Ledger], node: int = NODE) -> str:
    """Write rank 0's messages in each run, and the bytes of all ranks: inside nodes and between."""
    lines = [f"{'':<9}{'messages:':>10}{'':>9}{'bytes:':>10}"]
    lines.append(f"{'':<9}{'inside':>10}{'between':>9}{'inside':>10}{'between':>9}")
    for name, run in runs.items():
        counts, sizes = [0, 0], [0, 0]
        for row in only_rows(run):
            parts = row.parts or [row.bytes // len(row.members)] * len(row.members)
            for member, part in zip(row.members, parts):
                far = member // node != row.rank // node
                sizes[far] += part * (member != row.rank)
                counts[far] += row.rank == 0 != member
        cells = f"{counts[0]:>10}{counts[1]:>9}{sizes[0]:>10,}{sizes[1]:>9,}"
        lines.append(f"{name:<9}{cells}")
    return "\n".join(lines)
