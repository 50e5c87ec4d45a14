"""Our pipeline's step against torch.distributed.pipelining's: the same stages, the same batch."""

import time
from statistics import median

import torch
import torch.distributed as dist
from torch.distributed import pipelining

from lib import World
from lib.parallel.pipeline.pipes import cut
from lib.parallel.pipeline.runtime import Pipeline, stage_costs
from lib.predict.pipeline import schedules
from lib.predict.pipeline.play import play
from lib.predict.shape import GPTShape
from lib.ranks.memory import Memory
from lib.ranks.slow_motion import SlowMotion
from lib.single.batches import Batches
from lib.single.models import GPT
from lib.single.train import next_token_loss

SHAPE = GPTShape(layers=8, width=128, heads=4)  # 10 blocks with embedding and head
ROWS = {
    "GPipe": ("ScheduleGPipe", "gpipe", 1),
    "1F1B": ("Schedule1F1B", "one_f_one_b", 1),
    "interleaved 1F1B": ("ScheduleInterleaved1F1B", "interleaved", 2),
    "ZB-V": ("ScheduleZBVZeroBubble", "zb_v", 2),
}


class Copied(torch.nn.Module):
    """A stage that gives no view: PyTorch's zero-bubble schedules refuse one."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return self.part(x).clone()


def both(row: str, microbatches: int, repeats: int) -> float:
    """Median seconds of our step over PyTorch's, the two taking turns in the same processes."""
    native, ours, each = ROWS[row]
    rank, ranks = dist.get_rank(), dist.get_world_size()
    batch = Batches(2 * microbatches, 64)[0]
    count = ranks * each
    model, theirs = GPT(SHAPE), GPT(SHAPE)
    pipeline = Pipeline(model, getattr(schedules, ours)(count, microbatches))
    cuts = cut(theirs, count)
    mine = [s for s, home in enumerate(pipeline.schedule.placement) if home == rank]
    parts = {s: theirs[slice(*cuts[s])] for s in mine}
    parts = {s: Copied(part) if row == "ZB-V" else part for s, part in parts.items()}
    made = [pipelining.PipelineStage(p, s, count, torch.device("cpu")) for s, p in parts.items()]
    kind = getattr(pipelining, native, None) or getattr(pipelining.schedules, native)
    run = kind(made if each > 1 else made[0], microbatches, loss_fn=next_token_loss)
    first, last = 0 in mine, count - 1 in mine

    def their_step():
        run.step(*[batch[0]] * first, **({"target": batch[1], "losses": []} if last else {}))
        theirs.zero_grad()

    def our_step():
        pipeline.step(*batch)
        pipeline.zero_grad()

    steps, times = (our_step, their_step), ([], [])
    for turn in range(2 * repeats + 4):
        dist.barrier()
        began = time.perf_counter()
        steps[turn % 2]()
        dist.barrier()
        if turn >= 4:
            times[turn % 2].append(time.perf_counter() - began)
    return median(times[0]) / median(times[1])


def against_pytorch(repeats: int = 15, launches: int = 3):
    """Rows (what, ratio): the median of so many launches."""
    for ranks in (2, 4):
        for row in ROWS:
            found = []
            for _ in range(launches):
                with World(ranks, device="cpu") as world:
                    found.append(median(world.run(both, row, 8, repeats)))
            yield f"{row} step / PyTorch's, {ranks} ranks", median(found)


def slow_motion(repeats: int = 3):
    """Rows (what, recorded, predicted): makespan and bubble of a step on four and eight ranks."""
    shape = GPTShape(layers=14, width=32, heads=2, sequence=32)  # 16 blocks
    speeds = SlowMotion("H100", link="NVLink4", alpha=5e-8, factor=150_000)
    for ranks in (4, 8):
        for row, (_, name, each) in ROWS.items():
            schedule = getattr(schedules, name)(ranks * each, 2 * ranks)
            batch = Batches(2 * schedule.microbatches, 32)[0]
            predicted = play(schedule, stage_costs(GPT(shape), schedule, *batch, speeds))

            def step(schedule=schedule, batch=batch):
                pipeline = Pipeline(GPT(shape), schedule)
                pipeline.step(*batch)

            with World(ranks, slow_motion=speeds) as world:
                world.run(step)
                runs = [world.record(step).where(lane="compute", op=list("FBIW"))
                        for _ in range(repeats)]  # fmt: skip
            spans = [float(run.column("end").max() - run.column("start").min()) for run in runs]
            idle = [
                1 - sum(r.seconds for r in run) / span / ranks for run, span in zip(runs, spans)
            ]
            what = f"{row} in slow motion, {ranks} ranks"
            yield f"{what}: makespan, recorded / predicted", median(spans), predicted.makespan
            busy = 1 - median(idle), 1 - predicted.bubble("share")
            yield f"{what}: busy share, recorded / predicted", *busy


def peaks() -> tuple[float, float]:
    """Peak bytes of the first stage's activations, GPipe's over 1F1B's: counted and predicted."""

    def counted(schedule):
        model = GPT(SHAPE)
        pipeline = Pipeline(model, schedule)
        batch = Batches(8, 64)[0]
        pipeline.step(*batch)
        with Memory(model) as memory:
            pipeline.step(*batch)
        return max(row.bytes for row in memory.rows if row.op == "activations")

    rules = schedules.gpipe(4, 8), schedules.one_f_one_b(4, 8)
    with World(4, device="cpu") as world:
        found = [world.run(counted, rule)[0] for rule in rules]
    predicted = [play(rule).peak_microbatches[0] for rule in rules]
    return found[0] / found[1], predicted[0] / predicted[1]


if __name__ == "__main__":
    for what, ratio in against_pytorch():
        print(f"{what:<64} {ratio:.3f}", flush=True)
    for what, found, predicted in slow_motion():
        print(f"{what:<64} {found / predicted:.3f}", flush=True)
    print("peak of GPipe / 1F1B, counted and predicted", *peaks())
