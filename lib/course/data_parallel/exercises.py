"""The exercises of chapter 1: predict, write, find and slower."""

from dataclasses import dataclass

import torch

from lib.course.checks.choices import Choices
from lib.course.checks.numbers import Numbers
from lib.course.checks.on_ranks import Exercise
from lib.course.checks.read_number import is_missing
from lib.course.checks.verdict import Hints, Verdict
from lib.course.data_parallel import bugs
from lib.course.data_parallel.lessons import step_seconds
from lib.course.source import Source, source
from lib.draw.parts.style import amount
from lib.predict import hardware
from lib.predict.arguments import equal_share, is_whole, whole
from lib.predict.collectives.formulas import collective
from lib.predict.data import dp_step
from lib.predict.data.buckets import assign, exchanges
from lib.predict.shape import GPTShape

SHAPE, BUCKET = GPTShape(), 2**18

predict = Numbers(
    name="predict",
    task="Put a number in place of each None.",
    answers={
        "first_step": len(exchanges(SHAPE, 0, BUCKET)),
        "third_step": len(exchanges(SHAPE, 2, BUCKET)),
        "sent": int(collective("all_reduce", 4, SHAPE.nbytes()).bytes),
        "devices": sum(size for _, size in dp_step.exchanges(SHAPE, 16 * 64 * 8, 16)),
    },
    kinds={"sent": "sent bytes", "devices": "bytes"},
    mistakes={
        "first_step": {
            len(exchanges(SHAPE, 2, BUCKET)): "That is the third step. How many buckets are there "
            "before the order of the gradients is known?"
        }
    },
    ranks=4,
    hints=(
        "Begin with `first_step`. Does any rank know, before its first backward pass, in which "
        "order the gradients will be ready? *Build it: buckets* ends with what DDP does then.",
        "For the third step, add up the sizes from the last parameter to the first. A bucket is "
        "full once it holds 262,144 bytes or more, and the next parameter opens another one. "
        "`exchanges(GPTShape(), 2, 2**18)` of lib.predict.data.buckets gives the list.",
        "A ring sends 2(n-1)/n of the buffer from each rank; the size of the buckets plays no "
        "part. DP's five exchanges are the batch, the model, the logits, their gradients and the "
        "model's gradients. The logits have 16 x 64 x 256 numbers of 4 bytes.",
    ),
)


def _gradients(ranks: int, size: int):
    """Return each rank's gradients (100 r, 100 r + 1, ...; several shapes) and a bucket's bytes."""
    shapes = [(size,), (3, size), (2,), (size, size), (5,), (1,)]
    counted = [torch.arange(float(torch.Size(s).numel()), device="cpu").view(s) for s in shapes]
    return [([x + 100 * r for x in counted], 16 * size) for r in range(ranks)]


def _averages(inputs):
    return [[sum(parts) / len(inputs) for parts in zip(*(g for g, _ in inputs))]] * len(inputs)


class _Buckets(Exercise):
    """Also compares the bytes of the recorded all-reduces with those of DDP's buckets."""

    def _scored(self, ledger, world, inputs) -> Verdict:
        gradients, limit = inputs[0]
        sizes = [g.nbytes for g in gradients]
        par = [sum(sizes[n] for n in bucket) for bucket in assign(sizes, [limit])]
        rows = [row for row in ledger.where(lane="comm") if row.rank == 0]
        own = [row.bytes for row in rows if row.op == "all_reduce"]
        score = f"  bytes of your all-reduces: {_listed(own)}\n  bytes expected: {_listed(par)}"
        if own == par:
            return Verdict(True, f"Solved with {len(own)} all-reduces.\n{score}")
        return self._not_yet(f"The averages are right, but the buckets are not.\n{score}")


def _listed(numbers) -> str:
    return ", ".join(f"{n:,}" for n in numbers) or "none"


write = _Buckets(
    name="write",
    task="Fill in the body of `my_average`: return the averages in the order of `gradients`.",
    inputs=_gradients,
    reference=_averages,
    sizes=(1, 4, 30),
    hints=(
        "Compare the task with `hook_buckets`. Which of its lines do you still need if all "
        "gradients are there from the start?",
        "Nothing has to wait here, so no hooks and no `async_op`. The lines that remain join a "
        "bucket's gradients with torch.cat, and cut the sum apart with `flat.split([g.numel() for "
        "g in bucket])` and `part.view_as(g)`.",
        "After the last gradient, the list may still hold some that did not fill a bucket.",
    ),
)


class _Find(Choices):
    """Asks which of five programs has which bug, and shows what was measured of them."""

    def evidence(self, world) -> str:
        """Run all five programs on `world`; return what was measured, without times."""
        lines = ["norm of the gradient of each of the four ranks"]
        lines.append(f"{'':<3}{'before the exchange':<21}after the exchange")
        table = ["", f"{'':<3}{'loss of rank 0':<16}all-reduces, bytes"]
        for letter in bugs.PROGRAMS:
            ledger = world.record(bugs.trained, letter)
            by_rank = ledger.results
            sums = [row for row in ledger.where(op="all_reduce", lane="comm") if row.rank == 0]
            losses = f"{by_rank[0].losses[0]:.2f} → {by_rank[0].losses[-1]:.2f}"
            own = " ".join(f"{evidence.own:.1f}" for evidence in by_rank)
            shared = " ".join(f"{evidence.shared:.1f}" for evidence in by_rank)
            sent = f"{len(sums)}, {sum(row.bytes for row in sums):,}"
            lines.append(f"{letter:<3}{own:<21}{shared}")
            table.append(f"{letter:<3}{losses:<16}{sent}")
        lines.append(f"the whole batch on one device: {bugs.plain():.1f}")
        lines += table
        many, size = bugs.STEPS, bugs.SHAPE.nbytes(8)
        lines.append(f"{many} steps of a model of {size:,} bytes: {many * size:,}")
        return "\n".join(lines)

    def program(self, letter: str) -> Source:
        """Return the text of a program, to read after the evidence."""
        return source(bugs.PROGRAMS[letter][0])

    def check(self, world, **chosen) -> Verdict:
        """Compare the reader's words with the bugs; unless solved, show what was measured."""
        verdict = super().check(**chosen)
        if verdict.solved:
            return verdict
        return Verdict(False, f"{verdict.text}\n\n{self.evidence(world)}")


_BUGS = {letter: bug for letter, (_, bug) in bugs.PROGRAMS.items()}
_WORDS = sorted({*_BUGS.values(), "wrong order"})  # one fits no program

find = _Find(
    name="find",
    task=f"Put one of {', '.join(map(repr, _WORDS))} in place of each None.",
    right=_BUGS,
    words=tuple(_WORDS),
    hints=(
        "Ask three questions of each program. Do all ranks have the same norm after the exchange? "
        "Is it the norm of the whole batch? How many bytes were sent?",
        "If the norms differ after the exchange, something was not sent. Was there no all-reduce "
        "at all, or were there too few bytes?",
        "Equal norms that are four times the whole batch's come from a sum. Equal norms before "
        "any exchange come from equal samples. The right norm for too many bytes means that "
        "gradients were sent too often.",
    ),
)


@dataclass
class _Slower(Hints):
    """Asks for a link and a batch for which twice the ranks take longer, and for the reason."""

    task: str = "Choose a link, a batch and ranks, and say why: 'latency' or 'bytes'."
    machine: int = 8  # GPUs that an NVLink or PCIe joins
    shape: GPTShape = GPTShape(width=256, layers=8, sequence=256)

    def check(self, link=None, batch=None, ranks=None, why=None) -> Verdict:
        """Predict the time of a step on `ranks` and on twice as many."""
        if any(map(is_missing, (link, batch, ranks))):
            return self._open("there is nothing to time", self.task)
        if is_whole(ranks) and ranks < 2:
            return self._not_yet("A single rank sends nothing. Choose `ranks` of at least 2.")
        try:
            link = hardware.link(link).name
            batch, ranks = whole(batch, "`batch`"), whole(ranks, "`ranks`", least=2)
            equal_share(batch, 2 * ranks, "The batch has {} samples")
        except ValueError as error:
            return self._not_yet(str(error))
        if link.startswith(("NVLink", "PCIe")) and 2 * ranks > self.machine:
            return self._not_yet(
                f"{link} joins the {self.machine} GPUs of one machine, and you need {2 * ranks}. "
                "Choose an InfiniBand or Ethernet link."
            )
        few, many = (step_seconds(self.shape, link, batch, n) for n in (ranks, 2 * ranks))
        lines = [f"{'ranks':>7}{'compute':>10}{'latency':>11}{'bytes':>10}{'step':>10}"]
        for n, parts in ((ranks, few), (2 * ranks, many)):
            times = [amount(part, "s") for part in (*parts, sum(parts))]
            lines.append(f"{n:>7}{times[0]:>10}{times[1]:>11}{times[2]:>10}{times[3]:>10}")
        table = "\n".join(lines)
        if sum(many) <= sum(few):
            return self._not_yet(f"With this choice {2 * ranks} ranks are faster.\n{table}")
        growth = {"latency": many[1] - few[1], "bytes": many[2] - few[2]}
        most = max(growth, key=growth.get)
        if why == most:
            return Verdict(True, f"Solved: the time of {most} grew most.\n{table}")
        return self._not_yet(
            f"{2 * ranks} ranks are slower, but the reason is not {why!r}.\n{table}"
        )


slower = _Slower(
    name="slower",
    hints=(
        "Twice the ranks halve the time of compute. Which part of the step does not become less?",
        "A small batch has little compute to halve. The slowest link is 'Ethernet 10'.",
        "From 2 to 4 ranks the bytes that a rank sends grow from 1 to 1.5 times the model. From 64 "
        "to 128 ranks they hardly grow, but the rounds of the ring double.",
    ),
)
