"""How fast schedules are played: a slider's frame, a thousand stages, PyTorch's own simulator.

`python tests/bench_predict.py` prints the three; each function returns its numbers.
"""

import multiprocessing
import resource
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the course itself, where it is not installed

from lib.predict import schedule as rules
from lib.predict.actions import Schedule
from lib.predict.play import Costs, play

RULES = ("naive", "gpipe", "one_f_one_b", "interleaved", "zb_h1", "zb_h2", "breadth_first",
         "zb_v", "dualpipe_v", "pipedream")  # fmt: skip

SIMULATED = ("gpipe", "one_f_one_b", "interleaved", "breadth_first", "zb_h1", "zb_v")


def seconds(call, times: int) -> float:
    """The median of `times` calls."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def slider(stages: int = 8, microbatches: int = 64) -> dict[str, float]:
    """Milliseconds to make and play each schedule, its ledger included; must be below 5."""

    def frame(rule):
        run = play(rule(stages, microbatches), Costs(1.0, 1.1, 0.9, send=0.05))
        return run.makespan, run.bubble(), run.peak_microbatches, run.ledger

    return {name: seconds(lambda n=name: frame(getattr(rules, n)), 15) * 1e3 for name in RULES}


def large(stages: int = 1024, microbatches: int = 4096) -> tuple[float, float]:
    """Seconds to make and play 1F1B at this size, and GB used at most; must be below 10 and 4."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:  # memory of its own
        return pool.apply(_large, (stages, microbatches))


def _large(stages, microbatches):
    start = time.perf_counter()
    run = play(rules.one_f_one_b(stages, microbatches))
    share = (stages - 1) / (microbatches + stages - 1)
    assert abs(run.bubble() - share) < 1e-12 and max(run.peak_microbatches) == stages
    taken = time.perf_counter() - start
    return taken, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def against_pytorch(stages: int = 16, microbatches: int = 128) -> dict[str, tuple[float, float]]:
    """How many times faster than PyTorch's lock-step simulator on the same orders; at least 20.

    Both start from what each rank computes in which order and end with every action in its place.
    Theirs first makes every send and receive an action of its own (`_add_send_recv`), then counts
    steps of equal length (`_simulate_comms_compute`); the second ratio leaves the first part out.
    Ours has times, and messages that take time. Processor time, the least of several.
    """
    from torch.distributed.pipelining import schedules as theirs

    ratios = {}
    for name in SIMULATED:
        ours = getattr(rules, name)(stages, microbatches)
        home = dict(enumerate(ours.placement)).__getitem__
        adding, counting, playing = [], [], []
        for _ in range(5):  # in turns, so that all three meet the same neighbours
            rows = {
                rank: [theirs._Action.from_str(str(a)) for a in ours.actions(rank)]
                for rank in range(ours.ranks)
            }
            start = time.process_time()
            rows = theirs._add_send_recv(rows, home, ours.stages)
            adding.append(time.process_time() - start)
            start = time.process_time()
            theirs._simulate_comms_compute(rows, home, ours.stages)
            counting.append(time.process_time() - start)
            for _ in range(3):
                start = time.process_time()
                _played(ours)
                playing.append(time.process_time() - start)
        whole, alone = min(adding) + min(counting), min(counting)
        ratios[name] = whole / min(playing), alone / min(playing)
    return ratios


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
    taken, memory = large()
    print(f"1,024 x 4,096               1F1B          {taken:8.2f} s       below 10")
    print(f"                                          {memory:8.2f} GB      below 4")
    for name, (whole, alone) in against_pytorch().items():
        print(f"PyTorch's simulator ÷ ours  {name:<14}{whole:6.0f} times    at least 20", end="")
        print(f" (without adding its sends {alone:.0f})")


if __name__ == "__main__":
    main()
