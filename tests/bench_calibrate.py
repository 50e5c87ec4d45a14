"""Predict what two ranks do from this machine's own calibration, and hold it against the clock.

    python tests/bench_calibrate.py [--repeats 20] [--launches 3]

No number here is fitted to what is compared: `calibrate` measures square matrix products, sums of
two tensors, tiny training steps and collectives of seven sizes; the rows below predict steps of
other shapes, and all-reduces of other sizes. A time is the median over the repeats, of the slowest
rank, from a barrier on.

What explains the rest, as far as it was measured on a virtual machine with two busy cores:

* Other programs. The same step took up to twice as long a minute later, and its calibration too:
  latencies of one collective differ by two and more from sweep to sweep (the bands that
  `print(machine)` shows). Run this where nothing else runs.
* Python around the operations. A pipeline posts, receives and waits in Python, and the prediction
  has the overhead of operations and the latency of messages alone. The row "overhead alone" is a
  step whose tensors are too small to take any time: the 16 actions of a rank took 29 to 66 ms in
  three launches, of which 6 to 22 ms were predicted.
* Cores that are one. Where two cores are two threads of one, a rank that waits lets the other
  compute up to twice as fast. Rates are measured while all ranks compute.
* A line through all sizes. gloo's time for small buffers does not grow with them; `Fit.worst` says
  how far the line lies from a median.
"""

import argparse
from statistics import median

import torch
import torch.distributed as dist

from lib import World
from lib.course.data_parallel.wall_clock import compared
from lib.course.stopwatch import seconds_of
from lib.parallel.pipeline.runtime import Pipeline, stage_costs
from lib.predict.pipeline.play import play
from lib.predict.pipeline.schedules import one_f_one_b
from lib.predict.shape import GPTShape, MLPShape
from lib.ranks.calibrate import calibrate
from lib.ranks.slow_motion import SlowMotion
from lib.single import GPT, MLP, Batches, mean_squares, next_token_loss

RANKS, MICROBATCHES = 2, 8
SHAPE, ROWS = MLPShape((512,) * 7, bias=False), 256  # of DDP; rows for each rank
STAGES = {
    "MLP of width 512": (MLPShape((512,) * 9, bias=False), 128),  # rows of a microbatch
    "MLP of width 8, overhead alone": (MLPShape((8,) * 9, bias=False), 8),
    "GPT": (GPTShape(layers=8, width=128, heads=4), 2),  # samples of a microbatch
}
SIZES = tuple(3 * 4**k for k in range(6, 12))  # bytes, between those that are calibrated


def slowest(by_rank: list[list[float]]) -> float:
    """Return the median over the repeats of the slowest rank's seconds."""
    return median(map(max, zip(*by_rank)))


def sums(nbytes: int, repeats: int) -> list[float]:
    """Time all-reduces of one size, five in a row."""
    x = torch.zeros(nbytes // 4)

    def step():
        for _ in range(5):
            dist.all_reduce(x)

    return [seconds / 5 for seconds in seconds_of(step, repeats, uncounted=3)]


def whole_batch(name: str):
    """Return the model of a pipeline, its loss, and the batch of one step."""
    shape, rows = STAGES[name]
    if name == "GPT":
        batch = Batches(rows * MICROBATCHES, shape.sequence)[0]
        return GPT(shape), next_token_loss, batch
    x = torch.randn(rows * MICROBATCHES, shape.widths[0])
    return MLP(shape), mean_squares, (x, torch.zeros(len(x), shape.widths[-1]))


def pipeline(name: str, repeats: int) -> list[float]:
    """Time steps of 1F1B."""
    model, loss, batch = whole_batch(name)
    pipe = Pipeline(model, one_f_one_b(RANKS, MICROBATCHES), loss=loss)

    def step():
        pipe.zero_grad()
        pipe.step(*batch)

    return seconds_of(step, repeats, uncounted=3)


def against_the_clock(repeats: int = 20, launches: int = 3):
    """Yield rows (what, measured, predicted), in seconds, each from the launch of the median ratio.

    In each launch new ranks are calibrated and then take the steps, because the machine may be
    faster or slower a minute later.
    """
    runs = [list(one_launch(repeats)) for _ in range(launches)]
    for rows in zip(*runs):
        yield sorted(rows, key=lambda row: row[2] / row[1])[launches // 2]


def one_launch(repeats: int):
    """Calibrate new ranks; yield rows (what, measured, predicted)."""
    with World(RANKS, device="cpu") as world:
        machine = calibrate(world, again=True, quiet=True)
        for size in SIZES:
            measured = slowest(world.run(sums, size, repeats))
            yield f"all-reduce of {size:,} bytes", measured, machine.moving("all_reduce", 2, size)
        for what, predicted, measured in compared(world, machine, SHAPE, ROWS, repeats):
            yield f"DDP of an MLP, {what}", measured, predicted
        speeds, schedule = SlowMotion(machine.name, dtype="fp32"), one_f_one_b(RANKS, MICROBATCHES)
        for name in STAGES:
            model, loss, batch = whole_batch(name)
            predicted = play(schedule, stage_costs(model, schedule, *batch, speeds, loss=loss))
            measured = slowest(world.run(pipeline, name, repeats))
            yield f"1F1B step, 8 microbatches, {name}", measured, predicted.makespan


def main():
    """Print a line for each row, with the error of the prediction."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--launches", type=int, default=3)
    options = parser.parse_args()
    for what, measured, predicted in against_the_clock(options.repeats, options.launches):
        print(f"{what:<48} measured {1e3 * measured:8.3f} ms, predicted {1e3 * predicted:8.3f} ms: "
              f"{predicted / measured - 1:+.0%}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
