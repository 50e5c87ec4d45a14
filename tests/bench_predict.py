"""How fast schedules are played: a slider's frame, a thousand stages, PyTorch's own simulator.

`python tests/bench_predict.py` prints the three; each function returns its numbers.
"""

import multiprocessing
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the course itself, where it is not installed

from lib.predict.pipeline import schedules as rules
from lib.predict.pipeline.actions import Schedule
from lib.predict.pipeline.play import Costs, play

RULES = ("naive", "gpipe", "one_f_one_b", "interleaved", "zb_h1", "zb_h2", "breadth_first",
         "zb_v", "dualpipe_v", "pipedream")  # fmt: skip

SIMULATED = ("gpipe", "one_f_one_b", "interleaved", "breadth_first", "zb_h1", "zb_v")


def seconds(call, times: int) -> float:
    """Processor time of a call, the least of `times`: as on a machine with nothing else to do."""
    taken = []
    for _ in range(times):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)


def slider(stages: int = 8, microbatches: int = 64) -> dict[str, float]:
    """Milliseconds to make and play each schedule, its ledger included; must be below 5."""

    def frame(rule):
        run = play(rule(stages, microbatches), Costs(1.0, 1.1, 0.9, send=0.05))
        return run.makespan, run.bubble(), run.peak_microbatches, run.ledger

    return {name: seconds(lambda n=name: frame(getattr(rules, n)), 15) * 1e3 for name in RULES}


def large(stages: int = 1024, microbatches: int = 4096) -> tuple[float, float, float]:
    """Seconds to make and play 1F1B at this size, by the clock and of the processor, and GB used.

    They must be below 10, 10 and 4; a process of its own has memory of its own.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_large, (stages, microbatches))


def _large(stages, microbatches):
    clock, processor = time.perf_counter(), time.process_time()
    run = play(rules.one_f_one_b(stages, microbatches))
    share = (stages - 1) / (microbatches + stages - 1)
    assert abs(run.bubble() - share) < 1e-12 and max(run.peak_microbatches) == stages
    taken = time.perf_counter() - clock, time.process_time() - processor
    return *taken, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def against_pytorch(stages: int = 16, microbatches: int = 128) -> dict[str, tuple[float, float]]:
    """How many times faster than PyTorch's lock-step simulator on the same orders; at least 20.

    Both start from what each rank computes in which order and end with every action in its place.
    Theirs first makes every send and receive an action of its own (`_add_send_recv`), then counts
    steps of equal length (`_simulate_comms_compute`); the second ratio leaves the first part out.
    Ours has times, and messages that take time. Processor time, the least of several.
    """
    ratios = {}
    for name in SIMULATED:
        ours = getattr(rules, name)(stages, microbatches)
        rounds = [(*_lock_step(ours), seconds(lambda s=ours: _played(s), 3)) for _ in range(5)]
        adding, counting, playing = map(min, zip(*rounds))  # in turns: the same neighbours
        ratios[name] = (adding + counting) / playing, counting / playing
    return ratios


def _lock_step(ours):
    """Processor time of PyTorch's two parts."""
    from torch.distributed.pipelining import schedules as theirs

    home = dict(enumerate(ours.placement)).__getitem__
    rows = {
        rank: [theirs._Action.from_str(str(action)) for action in ours.actions(rank)]
        for rank in range(ours.ranks)
    }
    start = time.process_time()
    rows = theirs._add_send_recv(rows, home, ours.stages)
    middle = time.process_time()
    theirs._simulate_comms_compute(rows, home, ours.stages)
    return middle - start, time.process_time() - middle


def _played(schedule):
    """Play an order of which nothing was worked out before."""
    grid = schedule.grid
    rows = [grid.codes[a:b] for a, b in zip(grid.first, grid.first[1:])]
    size = schedule.stages, schedule.microbatches
    fresh = Schedule.from_codes(rows, *size, schedule.name, grid.overlapped)
    return play(fresh, Costs(send=0.1)).makespan


def main() -> None:
    """Print every measurement beside what it must reach."""
    for name, milliseconds in slider().items():
        print(f"8 stages x 64 microbatches  {name:<14}{milliseconds:8.2f} ms      below 5")
    clock, processor, memory = large()
    print(f"1,024 x 4,096               1F1B          {clock:8.2f} s       below 10", end="")
    print(f" ({processor:.2f} s of the processor)")
    print(f"                                          {memory:8.2f} GB      below 4")
    for name, (whole, alone) in against_pytorch().items():
        print(f"PyTorch's simulator ÷ ours  {name:<14}{whole:6.0f} times    at least 20", end="")
        print(f" (without adding its sends {alone:.0f})")


if __name__ == "__main__":
    main()
