"""The exercises of chapter 1: predict, write buckets, find five bugs, slow down, invent a hook."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lib.course import bugs_data
from lib.course.check import Exercise, Hints, Numbers, Verdict
from lib.course.lessons_data import step_seconds, train_with
from lib.draw.style import amount
from lib.predict import devices, exchange
from lib.predict.buckets import assign, exchanges
from lib.predict.shape import GPTShape
from lib.predict.traffic import collective
from lib.ranks import RankError

SHAPE, BUCKET = GPTShape(), 2**18

predict = Numbers(
    name="predict",
    task="Put a number in place of each None.",
    answers={
        "first_step": len(exchanges(SHAPE, 0, BUCKET)),
        "third_step": len(exchanges(SHAPE, 2, BUCKET)),
        "sent": int(collective("all_reduce", 4, SHAPE.nbytes()).bytes),
        "devices": sum(size for _, size in devices.exchanges(SHAPE, 16 * 64 * 8, 16)),
        "top_k": exchange.top_k([(SHAPE.numel,)], 4, 0.01)[0].bytes,
    },
    hints=(
        "GPTShape().numel counts the numbers of the model, nbytes() its bytes. Before the first "
        "backward nobody knows the order of the gradients, so there is one bucket.",
        "lib.predict.buckets.exchanges(shape, step, bucket_bytes) gives a step's calls. A ring "
        "sends 2(n-1)/n of the bytes.",
        "Device traffic: batch 16 x 64 integers of 8 bytes, the model out and back, the logits "
        "16 x 64 x 256 and their gradients. Top-k: 8 bytes for each kept number, 4 messages.",
    ),
)


def _gradients(ranks: int, size: int):
    """Gradients of several shapes; rank r's hold 100 r, 100 r + 1, ...; a bucket's bytes."""
    shapes = [(size,), (3, size), (2,), (size, size), (5,), (1,)]
    return [
        ([torch.arange(float(torch.Size(s).numel())).view(s) + 100 * r for s in shapes], 16 * size)
        for r in range(ranks)
    ]


def _averages(given):
    return [[sum(parts) / len(given) for parts in zip(*(g for g, _ in given))]] * len(given)


class _Buckets(Exercise):
    """Averages of many gradients in few all-reduces: which went together is read in the ledger."""

    def _scored(self, ledger, world, given) -> Verdict:
        gradients, limit = given[0]
        sizes = [g.nbytes for g in gradients]
        par = [sum(sizes[n] for n in bucket) for bucket in assign(sizes, [limit])]
        rows = [row for row in ledger.where(lane="comm") if row.rank == 0]
        mine = [row.bytes for row in rows if row.op == "all_reduce"]
        score = f"  all-reduces, bytes: {_listed(mine)}; par {_listed(par)}"
        if mine == par:
            return Verdict(True, f"Solved. {len(mine)} all-reduces.\n{score}")
        return self._not_yet(f"The averages are right, the buckets are not.\n{score}")


def _listed(numbers) -> str:
    return ", ".join(f"{n:,}" for n in numbers) or "none"


write = _Buckets(
    name="write",
    task="Fill in the body of `my_average`: give the list of averages, in the order given.",
    inputs=_gradients,
    reference=_averages,
    sizes=(1, 4, 30),
    hints=(
        "Add gradients to a list. Once their bytes reach the limit, join them with torch.cat, "
        "all-reduce, cut the result apart, and begin a new list.",
        "`flat.split([g.numel() for g in bucket])` cuts it apart, `part.view_as(g)` gives each "
        "its shape back.",
        "When the gradients are over, the list may hold some that did not fill a bucket.",
    ),
)


class _Find(Hints):
    """Five programs, each with a bug; what can be measured of them, and what the reader says."""

    words = sorted(word for _, word in bugs_data.PROGRAMS.values())
    task = f"Put one of {', '.join(words)} in place of each None, as text."

    def evidence(self, world) -> str:
        """Run all five on `world`; tell what was measured, without times."""
        lines = [f"the norm of the whole batch's gradient on one device: {bugs_data.plain():.2f}"]
        head = f"{'':<3}{'loss':<16}{'own norms':<25}{'after the exchange':<25}"
        lines.append(f"{head}all_reduces, bytes")
        for letter in bugs_data.PROGRAMS:
            ledger = world.record(bugs_data.trained, letter)
            seen = ledger.results
            sums = [row for row in ledger.where(op="all_reduce", lane="comm") if row.rank == 0]
            losses = f"{seen[0].losses[0]:.3f} → {seen[0].losses[-1]:.3f}"
            own = " ".join(f"{one.own:.2f}" for one in seen)
            shared = " ".join(f"{one.shared:.2f}" for one in seen)
            moved = f"{len(sums)}, {sum(row.bytes for row in sums):,}"
            lines.append(f"{letter:<3}{losses:<16}{own:<25}{shared:<25}{moved}")
        many, size = bugs_data.STEPS, bugs_data.SHAPE.nbytes(8)
        lines.append(f"{many} steps of a model of {size:,} bytes: {many * size:,}")
        return "\n".join(lines)

    def check(self, world, **said) -> Verdict:
        """Compare the reader's words with what each program does; show what was measured."""
        right = {letter: word for letter, (_, word) in bugs_data.PROGRAMS.items()}
        if all(said.get(letter) in (None, ...) for letter in right):
            text = self._open("no word is there", self.task).text
            return Verdict(False, f"{text}\n\n{self.evidence(world)}")
        lines = []
        for letter, word in right.items():
            mine = said.get(letter)
            verdict = "right" if mine == word else "not yet" if mine is None else "not that one"
            lines.append(f"  {letter}: {verdict}")
        told = "\n".join(lines)
        if all(said.get(letter) == word for letter, word in right.items()):
            return Verdict(True, f"Solved.\n{told}")
        return self._not_yet(f"Your words:\n{told}\n\n{self.evidence(world)}")


find = _Find(
    name="find",
    hints=(
        "Three questions: were all bytes sent, and how often? Do all ranks have the same norm "
        "after the exchange? Is it the norm of the whole batch?",
        "Different norms after the exchange: something was not sent. No all-reduce at all, or too "
        "few bytes?",
        "Equal norms that are four times the whole batch's: a sum. Equal norms *before* any "
        "exchange: four times the same samples. The right norm for more bytes: sent too often.",
    ),
)


@dataclass
class _Slower(Hints):
    """A link and a batch for which twice the ranks take longer, and why."""

    task: str = "Choose a link, a batch and ranks, and say why: 'start-ups' or 'bytes'."
    shape: GPTShape = GPTShape(width=256, layers=8, sequence=256)

    def check(self, link=None, batch=None, ranks=None, why=None) -> Verdict:
        """Time a step on `ranks` and on twice as many, on paper."""
        if None in (link, batch, ranks):
            return self._open("there is nothing to time", self.task)
        if ranks < 1 or batch % (2 * ranks):
            return self._not_yet(f"{2 * ranks} ranks cannot share {batch} samples equally.")
        few, many = (step_seconds(self.shape, link, batch, n) for n in (ranks, 2 * ranks))
        lines = [f"{'ranks':>7}{'compute':>10}{'start-ups':>11}{'bytes':>10}{'step':>10}"]
        for n, parts in ((ranks, few), (2 * ranks, many)):
            told = [amount(part, "s") for part in (*parts, sum(parts))]
            lines.append(f"{n:>7}{told[0]:>10}{told[1]:>11}{told[2]:>10}{told[3]:>10}")
        table = "\n".join(lines)
        if sum(many) <= sum(few):
            return self._not_yet(f"{2 * ranks} ranks are faster here.\n{table}")
        grew = {"start-ups": many[1] - few[1], "bytes": many[2] - few[2]}
        most = max(grew, key=grew.get)
        if why == most:
            return Verdict(True, f"Solved: what grew most is the time of {most}.\n{table}")
        return self._not_yet(f"Slower, yes. But why? You say {why!r}.\n{table}")


slower = _Slower(
    name="slower",
    hints=(
        "Twice the ranks halve the compute. What does not become less?",
        "A small batch has little to halve. hardware.yaml's slowest link is 'Ethernet 10'.",
        "From 2 to 4 ranks the bytes on the wire grow from 1 to 1.5 times the model. From 64 to "
        "128 they hardly grow, and the rounds double.",
    ),
)


class _Invent(Hints):
    """A hook of the reader's own, trained on ranks: its bytes and its loss beside the plain one."""

    task = "Write any hook that sends at most half of the bytes."

    def check(self, hook: Callable, world) -> Verdict:
        """Train with and without `hook`; count what both send."""
        try:
            mine = world.record(train_with, hook)
        except RankError as error:
            if "'NoneType' object has no attribute 'wait'" in str(error):
                return self._open(f"`{hook.__name__}` returns nothing", self.task)
            return self._not_yet(f"It failed:\n\n{error}\n")
        plain = world.record(train_with, None)
        bytes_, losses = zip(*((_sent(one), one.results[0]) for one in (plain, mine)))
        lines = f"  bytes sent by rank 0: {bytes_[1]:,}, plain {bytes_[0]:,}\n"
        lines += f"  loss: {losses[1]:.2f}, plain {losses[0]:.2f}"
        if bytes_[1] > 0.55 * bytes_[0] or losses[1] > 1.1 * losses[0]:
            return self._not_yet(f"At most half of the bytes, and a loss near the plain.\n{lines}")
        return Verdict(True, f"Solved: {bytes_[0] / bytes_[1]:.1f} times fewer bytes.\n{lines}")


def _sent(ledger) -> int:
    rows = [row for row in ledger.where(lane="comm") if row.rank == 0]
    return round(sum(collective(r.op, len(r.members), r.bytes).bytes for r in rows))


invent = _Invent(
    name="invent",
    hints=(
        "A hook gets a bucket and a group. `bucket.flat` holds this rank's gradients; give back "
        "something with wait(), after which it holds the mean of all ranks'.",
        "A bfloat16 has 2 bytes, a float32 has 4.",
    ),
)
