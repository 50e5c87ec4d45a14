"""Every collective and every byte of FSDP, ZeRO-1 and ZeRO-2, against a prediction."""

import pytest
import torch
import torch.distributed as dist

from lib.parallel.data import DistributedDataParallel
from lib.parallel.sharded import FSDP, ShardedDataParallel, ZeroRedundancyOptimizer
from lib.predict.shape import GPTShape
from lib.predict.sharded.traffic import of_fsdp
from lib.predict.sharded.units import Unit, alive, optimizer_states, units_of
from lib.predict.sharded.zero_step import exchanges, gradient_buckets
from lib.ranks.memory import Memory
from lib.single import GPT, next_token_loss

SHAPE = GPTShape(width=16, heads=2, layers=3, sequence=16)
ITEM = 4


def padded(numel, ranks):
    return -(-numel // ranks) * ranks


def unit_bytes(ranks):
    """Bytes of the root's flat buffer (embeddings, head, last norm), and of one block's."""
    d, v, s = SHAPE.width, SHAPE.vocabulary, SHAPE.sequence
    root = 2 * v * d + s * d + 2 * d
    block = 12 * d * d + 13 * d
    return ITEM * padded(root, ranks), ITEM * padded(block, ranks)


def build(**options):
    model = GPT(SHAPE)
    blocks = list(model.blocks.values())[1:-1]
    fsdp = FSDP(model, units=blocks, **options)
    return fsdp, torch.optim.AdamW(fsdp.parameters())


def tokens():
    draw = torch.Generator().manual_seed(dist.get_rank())
    text = torch.randint(256, (2, 17), generator=draw)
    return text[:, :-1], text[:, 1:]


def one_step(options):
    fsdp, optimizer = build(**options)
    x, y = tokens()
    optimizer.zero_grad()
    next_token_loss(fsdp(x), y).backward()
    optimizer.step()


UNITS = units_of(SHAPE, ends=False)


def launched(ledger):
    rows = sorted(ledger.where(rank=0, lane="comm"), key=lambda row: row.number)
    return [(row.op, row.bytes) for row in rows]


def predicted(ranks, **options):
    return [(op, nbytes) for op, _, nbytes in of_fsdp(UNITS, ranks, **options)]


def construction(ranks):
    root, block = unit_bytes(ranks)
    return [("all_gather", 16 * ranks), ("scatter", root), *[("scatter", block)] * 3]


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_a_step_sends_what_is_predicted(world, prefetch):
    ledger = world.record(one_step, {"prefetch": prefetch})
    calls = predicted(world.size, prefetch=prefetch)
    assert launched(ledger) == construction(world.size) + calls
    root, block = unit_bytes(world.size)  # 3ψ of the blocks, and 2ψ of the root, which is kept
    assert sum(nbytes for _, nbytes in calls) == 3 * 3 * block + 2 * root


def test_without_resharding_backward_gathers_nothing(world):
    ledger = world.record(one_step, {"reshard_after_forward": False})
    assert launched(ledger) == construction(world.size) + predicted(world.size, resharded=False)


# --- memory by kind


def held(prefetch):
    """Most bytes of parameters and of gradients at a time, and what is held before the step."""
    fsdp, optimizer = build(prefetch=prefetch)
    x, y = tokens()
    for _ in range(2):  # the second has optimizer states
        optimizer.zero_grad()
        with Memory(fsdp, optimizer) as memory:
            next_token_loss(fsdp(x), y).backward()
        largest = {
            kind: max(row.bytes for row in memory.rows if row.op == kind)
            for kind in ("parameters", "gradients")
        }
        optimizer.step()
    return largest, memory.now, together(memory)


def together(memory):
    """Return the most bytes of parameters, gradients and optimizer that were there at once."""
    now, most = dict.fromkeys(("parameters", "gradients", "optimizer"), 0), 0
    for row in memory.rows:
        if row.op in now:
            now[row.op] = row.bytes
            most = max(most, sum(now.values()))
    return most


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_whole_weights_are_held_for_the_root_and_for_those_prefetched(world, prefetch):
    root, block = unit_bytes(world.size)
    shards = (root + 3 * block) // world.size
    for rank, (largest, now, most) in enumerate(world.run(held, prefetch)):
        assert largest["parameters"] == shards + root + (1 + prefetch) * block
        steps = list(alive(UNITS, world.size, prefetch=prefetch))
        assert largest["parameters"] == shards + max(held.whole for held in steps)
        # Whole gradients of the head, of the block in backward and, in their buffer, of the
        # last; at the end those of the root, twice while they are copied; then all shards.
        head = ITEM * (SHAPE.vocabulary + 2) * SHAPE.width
        assert largest["gradients"] == max(head + 2 * block, 2 * root, shards)
        assert largest["gradients"] == max(shards, *(held.gradients for held in steps))
        assert (now["parameters"], now["gradients"]) == (shards, shards)
        states = optimizer_states(UNITS, world.size, rank)
        assert now["optimizer"] == states
        # Shards of gradients count as gradients from the end of backward on, as `now` has them.
        assert most == states + shards + max(shards, *(held.total for held in steps))


def zero(stage):
    """One step of ZeRO-1 or ZeRO-2; what is held after backward, and after the step."""
    torch.manual_seed(0)
    model = GPT(SHAPE)
    if stage == 1:
        spread, params = DistributedDataParallel(model, bucket_bytes=10**9), model.parameters()
    else:
        params = spread = ShardedDataParallel(model, bucket_bytes=BUCKET)
    optimizer = ZeroRedundancyOptimizer(params, torch.optim.AdamW)
    x, y = tokens()
    for _ in range(2):
        optimizer.zero_grad()
        with Memory(spread, optimizer) as memory:
            next_token_loss(spread(x), y).backward()
            after = memory.now
        optimizer.step()
    return after, together(memory)


BUCKET = 8_000


def test_zero1_shares_the_optimizer_states_to_the_byte(world):
    ledger = world.record(zero, 1)
    numel = sum(p.numel for p in SHAPE.parameters)
    whole = padded(numel, world.size) * ITEM
    flat = [Unit("flat", tuple(SHAPE.parameters))]
    for rank, (after, most) in enumerate(ledger.results):
        assert after["parameters"] == whole and after["gradients"] == numel * ITEM
        assert after["optimizer"] == optimizer_states(flat, world.size, rank)
        assert most == sum(after[kind] for kind in ("parameters", "gradients", "optimizer"))
    gathered = [row for row in launched(ledger) if row == ("all_gather", whole)]
    assert len(gathered) == 2  # one for each step


def test_zero2_shares_gradients_and_states_to_the_byte(world):
    ledger = world.record(zero, 2)
    calls = [(op, nbytes) for op, _, nbytes in exchanges(SHAPE, world.size, 2, BUCKET)]
    buckets = [nbytes for op, nbytes in calls if op == "reduce_scatter"]
    parameters = {p.name: p for p in SHAPE.parameters}
    flats = [Unit("bucket", tuple(parameters[name] for name in names))
             for names in gradient_buckets(SHAPE, 2, BUCKET)]  # fmt: skip
    for rank, (after, most) in enumerate(ledger.results):
        assert after["parameters"] == sum(buckets)
        assert after["gradients"] == sum(buckets) // world.size
        assert after["optimizer"] == optimizer_states(flats, world.size, rank)
        lasting = sum(after[kind] for kind in ("parameters", "gradients", "optimizer"))
        assert most == lasting
    assert len(buckets) > 3 and launched(ledger)[-2 * len(calls) :] == calls * 2
