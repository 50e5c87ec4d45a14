"""Measure what the course promises, each as a ratio taken in one run: `make bench`.

    python tests/bench.py [--repeats 20] [--only warm,record] [--json _build/bench.json]

Every figure is the median of at least 20 and has its rival measured beside it, in turns where both
can run at once. Times are this machine's; the ratios travel.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import textwrap
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from lib import RankError, World
from lib.predict.data.ddp_step import data_parallel_step
from lib.ranks.kernel import launch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # a row of this table runs what a test runs

# What families measure in their own files: the file, and its functions that are rows here.
FAMILIES = {
    # DDP against PyTorch's: step, memory, overlap; what compressors send
    "data": ("bench_data", "steps memory overlap compression"),
    # FSDP and ZeRO-1 against PyTorch's: step, memory; what prefetch hides
    "sharded": ("bench_sharded", "steps memory overlap wall"),
    # tensor parallelism against DTensor's: step, memory, the loss; and the clock
    "tensor": ("bench_tensor", "steps memory loss clock"),
    # sequence parallelism against DTensor's, rings against PyTorch's; bytes, layouts and the clock
    "sequence": ("bench_sequence", "steps memory peaks rings layouts clock"),
    # layers of experts against the usual ones, and rows that travel in two hops
    "experts": ("bench_expert", "layers steps routes"),
    # our checkpoint against PyTorch's, plain and selective, and the budget plan against √n
    "recomputation": ("bench_recompute", "checkpoints selective budget"),
    # small formats against PyTorch's casts
    "precision": ("bench_precision", "formats bf16"),
    # our optimizers against PyTorch's: the time of a step, and the bytes of the states
    "optimizers": ("bench_optimizers", "adam adafactor sm3 adam_8bit muon kept"),
}


@dataclass
class Figure:
    """One line of the table: ours against theirs, in seconds, and what the ratio must reach."""

    name: str
    ours: float
    theirs: float
    ratio: float  # what `must` speaks of
    must: str
    reached: bool
    unit: str = "ms"  # of what is printed; seconds are shown as ms


def times(step, repeats):
    """Give the seconds of each of `repeats` calls."""
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        step()
        taken.append(time.perf_counter() - began)
    return taken


def nothing(*_):
    """What both sides are asked to do."""


def faster(name, ours, theirs, least):
    """Judge: ours must be `least` times faster than theirs."""
    a, b = statistics.median(ours), statistics.median(theirs)
    return Figure(name, a, b, b / a, f"{least:,} times faster", b / a >= least)


class Bench:
    """The measurements; each method that does not begin with _ gives its Figures."""

    def __init__(self, repeats):
        self.repeats, self._spawned = repeats, []

    def _spawn(self):
        if not self._spawned:
            self._spawned = times(lambda: mp.spawn(nothing, nprocs=4), self.repeats)
        return self._spawned

    def warm(self):
        """A warm call of an empty function."""
        with World(4) as world:
            times(lambda: world.run(nothing), 50)
            ours = times(lambda: world.run(nothing), max(500, self.repeats))
        name = "warm world.run of an empty function, 4 ranks / mp.spawn"
        yield faster(name, ours, self._spawn(), 5000)
        for rival, taken in self._peers():
            yield faster(f"the same / {rival}", ours, taken, 1)

    def _peers(self):
        """Empty calls through ipyparallel and nbdistributed, where they are installed."""
        scripts = {"a call through ipyparallel": IPYPARALLEL, "a %%distributed cell": NBDISTRIBUTED}
        for rival, script in scripts.items():
            path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
            command = [sys.executable, "-c", script, str(max(20, self.repeats))]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=180,
                                      env={**os.environ, "PATH": path})  # fmt: skip
                yield rival, json.loads(done.stdout.strip().splitlines()[-1])
            except (subprocess.TimeoutExpired, IndexError, json.JSONDecodeError):
                print(f"not measured: {rival} (pip install -r requirements-peers.txt)")

    def mend(self):
        """Ready again after a failure."""
        with World(4) as world:
            for name, step, least in (
                ("World(4) ready again after a rank raised / mp.spawn", one_raises, 50),
                ("World(4) ready again after a rank was killed / mp.spawn", one_dies, 10),
            ):
                yield faster(name, [fail(world, step) for _ in range(self.repeats)],
                             self._spawn(), least)  # fmt: skip

    def first(self):
        """The first World of a kernel, with and without a server that was warmed meanwhile."""
        for name, wait, least in (
            ("first World(4) of a kernel, ready / mp.spawn", 0, 1),
            ("the same, server warmed while the reader read / mp.spawn", 4, 2),
        ):
            ours = [float(in_a_new_process(FIRST, wait)) for _ in range(self.repeats)]
            yield faster(name, ours, self._spawn(), least)

    def record(self):
        """A step with recording switched on, against the step without."""
        with World(2) as world:
            world.run(make_gpt)
            world.run(gpt_step)
            off, on = [], []
            for _ in range(max(20, self.repeats)):
                off += times(lambda: world.run(gpt_step), 1)
                on += times(lambda: world.record(gpt_step), 1)
        a, b = statistics.median(on), statistics.median(off)
        name = "step of a 4-layer GPT under DDP, 2 ranks, recorded / not"
        yield Figure(name, a, b, a / b, "at most 1.05 times", a / b <= 1.05)

    def slow(self):
        """Overlapped DDP in slow motion against its prediction."""
        from tests.ranks import test_slow_motion as slow

        predicted = data_parallel_step(slow.WIDTHS, [slow.BATCH] * 8, slow.SPEEDS).makespan
        with World(8) as world:
            world.run(slow.build, "torch", [slow.BATCH] * 8)
            with slow.slowly(world, slow.SPEEDS):
                for _ in range(3):
                    world.run(slow.step, "torch")
                steps = [world.record(slow.step, "torch") for _ in range(max(20, self.repeats))]
        taken = statistics.median(ledger.makespan for ledger in steps)
        ratio = taken / predicted
        name = "slow motion, 8 ranks: overlapped DDP, recorded / predicted"
        yield Figure(name, taken, predicted, ratio, "within 5 %", abs(ratio - 1) <= 0.05)

    def _family(self, name):
        """Yield the figures of a family's own bench; what it gives in ms becomes seconds."""
        file, measures = FAMILIES[name]
        options = argparse.Namespace(repeats=max(20, self.repeats), launches=3)
        for measure in measures.split():
            for found in getattr(importlib.import_module(file), measure)(options):
                given = asdict(found)
                if found.unit == "ms":
                    given |= {"ours": found.ours / 1e3, "theirs": found.theirs / 1e3}
                yield Figure(**given)

    def pipelines(self):
        """Our pipelines against PyTorch's, in slow motion against predictions, and their memory."""
        import bench_pipeline as pipe

        for name, ratio in pipe.against_pytorch(max(15, self.repeats)):
            yield Figure(name, ratio, 1, ratio, "at most 1.0 times", ratio <= 1.0, "")
        for name, found, predicted in pipe.slow_motion():
            good = abs(found / predicted - 1) <= 0.05
            yield Figure(name, found, predicted, found / predicted, "within 5 %", good, "")
        found, predicted = pipe.peaks()
        name = "peak activations of the first stage, GPipe / 1F1B, m = 8, 4 stages"
        yield Figure(
            name, found, predicted, found / predicted, "as predicted", found == predicted, "times"
        )

    def calibrated(self):
        """What two ranks do, predicted from this machine's own calibration, against the clock."""
        import bench_calibrate

        for name, measured, predicted in bench_calibrate.against_the_clock(max(20, self.repeats)):
            ratio = predicted / measured
            title = f"{name}, 2 ranks: predicted / measured"
            yield Figure(title, predicted, measured, ratio, "within 15 %", abs(ratio - 1) <= 0.15)

    def predictions(self):
        """Predicted schedules: fast enough for a slider, large enough for a real machine."""
        import bench_predict

        for name, ms in bench_predict.slider().items():
            title = f"8 stages × 64 microbatches, {name}"
            yield Figure(title, ms / 1e3, 5e-3, ms / 5, "under 5 ms", ms < 5)
        clock, _, memory = bench_predict.large()
        name = "1,024 stages × 4,096 microbatches, 1F1B"
        yield Figure(name, clock, 10, clock / 10, "under 10 s", clock < 10)
        yield Figure(name, memory, 4, memory / 4, "under 4 GB", memory < 4, "GB")
        for name, (whole, _) in bench_predict.against_pytorch().items():
            title = f"PyTorch's simulator / ours, {name}"
            yield Figure(title, 1, whole, whole, "20 times faster", whole >= 20, "")

    def importing(self):
        """What `import lib` adds to `import torch`."""
        added = []
        for _ in range(self.repeats):
            added.append(float(in_a_new_process(IMPORTING)))
        a = statistics.median(added)
        yield Figure("from lib import World beyond import torch", a, 0.15, a / 0.15, "under 0.15 s",
                     a < 0.15)  # fmt: skip

    def tests(self):
        """Multi-rank tests on warm worlds."""
        files = [
            "tests/ranks/test_collectives.py",
            "tests/ranks/test_algorithms.py",
            "tests/ranks/test_mesh.py",
        ]
        began = time.perf_counter()
        command = [sys.executable, "-m", "pytest", "-q", *(f"{ROOT}/{file}" for file in files)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT)
        seconds = time.perf_counter() - began
        passed = int(done.stdout.split(" passed")[0].split()[-1])
        rate = 60 * passed / seconds
        name = f"multi-rank tests on warm worlds: {rate:.0f} a minute ({passed} tests)"
        each = seconds / passed
        yield Figure(name, each, 60 / 500, rate / 500, "500 a minute", rate >= 500)


def fail(world, step):
    """Give the seconds from the call that fails until the world answers again."""
    began = time.perf_counter()
    try:
        world.run(step)
    except RankError:
        pass
    world.run(nothing)
    return time.perf_counter() - began


def one_raises():
    if dist.get_rank() == 2:
        raise ValueError
    dist.all_reduce(torch.ones(4))


def one_dies():
    if dist.get_rank() == 2:
        os.kill(os.getpid(), 9)
    dist.all_reduce(torch.ones(4))


def make_gpt(width=256, layers=4, words=256):
    """A GPT of 4 layers under PyTorch's DDP, kept on the rank."""
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
    body = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(words, width), body, nn.Linear(width, words))
    main = sys.modules["__main__"]
    main.model = DistributedDataParallel(model)
    main.optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    main.batch = torch.randint(words, (2, 129), generator=torch.Generator().manual_seed(1))


def gpt_step():
    """One training step of what `make_gpt` made."""
    main = sys.modules["__main__"]
    main.optimizer.zero_grad()
    logits = main.model(main.batch[:, :-1])
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), main.batch[:, 1:].flatten()).backward()
    main.optimizer.step()


def in_a_new_process(script, *arguments):
    """Run a script in a new interpreter and give the last line that it printed."""
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip().splitlines()[-1]


FIRST = """
    import sys, time, torch
    from lib import World
    from lib.ranks.kernel import launch
    if float(sys.argv[1]):
        launch.warm()
        time.sleep(float(sys.argv[1]))
    began = time.perf_counter()
    world = World(4)
    print(time.perf_counter() - began)
"""
IMPORTING = """
    import time, torch
    began = time.perf_counter()
    from lib import World
    print(time.perf_counter() - began)
"""
IPYPARALLEL = textwrap.dedent("""
    import sys, time, json, ipyparallel
    with ipyparallel.Cluster(n=4, log_level=40) as clients:
        view = clients[:]
        def nothing(): pass
        for _ in range(5): view.apply_sync(nothing)
        taken = []
        for _ in range(int(sys.argv[1])):
            began = time.perf_counter(); view.apply_sync(nothing)
            taken.append(time.perf_counter() - began)
    print(json.dumps(taken))
""")
NBDISTRIBUTED = textwrap.dedent("""
    import io, sys, time, json, contextlib
    from IPython.core.interactiveshell import InteractiveShell
    shell = InteractiveShell.instance()
    with contextlib.redirect_stdout(io.StringIO()):
        shell.run_line_magic("load_ext", "nbdistributed")
        shell.run_line_magic("dist_init", "-n 4")
        for _ in range(3): shell.run_cell_magic("distributed", "", "pass")
        taken = []
        for _ in range(int(sys.argv[1])):
            began = time.perf_counter(); shell.run_cell_magic("distributed", "", "pass")
            taken.append(time.perf_counter() - began)
    print(json.dumps(taken), flush=True)
    import psutil
    for child in psutil.Process().children(recursive=True): child.kill()
""")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--only", default="", help="names of measurements, with commas between")
    parser.add_argument("--json", default=str(ROOT / "_build" / "bench.json"))
    options = parser.parse_args()
    launch.warm()
    bench = Bench(options.repeats)
    names = [n for n in (*vars(Bench), *FAMILIES) if not n.startswith("_")]
    names = [n for n in names if not options.only or n in options.only.split(",")]
    figures = []
    for name in names:
        for figure in bench._family(name) if name in FAMILIES else getattr(bench, name)():
            figures.append(figure)
            mark = "reached" if figure.reached else "NOT REACHED"
            scale = 1e3 if figure.unit == "ms" else 1
            pair = (f"{scale * value:>10.3f} {figure.unit:<5}" for value in
                    (figure.ours, figure.theirs))  # fmt: skip
            print(f"{figure.name:<68} {' '.join(pair)} ratio {figure.ratio:>10,.3f}  "
                  f"{figure.must}: {mark}", flush=True)  # fmt: skip
    Path(options.json).parent.mkdir(exist_ok=True)
    Path(options.json).write_text(json.dumps([asdict(figure) for figure in figures], indent=1))
    sys.exit(not all(figure.reached for figure in figures))


if __name__ == "__main__":
    main()
