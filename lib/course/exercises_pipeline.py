"""The exercises of chapter 4: write a schedule, beat one, split, repair, explain, invent."""

from collections.abc import Callable

import torch

from lib.course.check import Exercise, Hints, Verdict
from lib.course.check_schedule import Goal, Invent, Rows
from lib.course.compare import difference
from lib.predict import schedule as rules
from lib.predict.play import Costs, play

write = Rows(
    name="write",
    task="Fill in the body of `my_row`: a list of text such as '2F0'.",
    model=rules.one_f_one_b,
    hints=(
        "The last rank does F0 B0 F1 B1 ... at once. The one before it needs one forward more "
        "before its first backward can have come back.",
        "Rank r starts with stages - 1 - r forwards. Then one forward and one backward in turn.",
        "When no forward is left, the backwards that are left follow. With few microbatches there "
        "may be fewer forwards than the warm-up asks for.",
    ),
)


shrink = Goal(
    name="shrink",
    task="Copy the picture's text when both goals are met, and paste it between the quotes.",
    par=play(rules.zb_h1(4, 4), Costs(1, 1, 1)).makespan,
    limit=4,
    hints=(
        "Nobody waits for a W. Whatever stands behind a W in a row would start earlier if that W "
        "stood later.",
        "Look at the last rank: I0 can start at once after F0. Push its Ws to the end.",
        "Rank r can put off r Ws: then its last actions are Ws while the ranks before it finish.",
    ),
)


class _Halves(Hints):
    """The two halves of a linear layer's backward, tried against autograd."""

    task = "Fill in both functions: y = x W, and g is the gradient of y."

    def check(self, for_input: Callable, for_weights: Callable) -> Verdict:
        """Compare both with autograd on three shapes, a batch of sequences among them."""
        generator = torch.Generator().manual_seed(0)
        for shape in ((3, 4), (1, 4), (2, 5, 4)):
            x = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
            w = torch.randn(4, 6, generator=generator, dtype=torch.float64, requires_grad=True)
            y = x @ w
            g = torch.randn(y.shape, generator=generator, dtype=torch.float64)
            wanted = torch.autograd.grad(y, (x, w), g)
            for attempt, given, right in (
                (for_input, (g, w.detach()), wanted[0]),
                (for_weights, (g, x.detach()), wanted[1]),
            ):
                try:
                    said = attempt(*given)
                except Exception as error:  # the reader's own code: whatever it raises is told
                    told = f"fails for x {list(shape)}: {type(error).__name__}: {error}"
                    return self._not_yet(f"`{attempt.__name__}` {told}")
                if said is None or said is ...:
                    return self._open(f"`{attempt.__name__}` returns nothing", self.task)
                wrong = difference(said, right, f"`{attempt.__name__}` for x {list(shape)}:")
                if wrong:
                    return self._not_yet(f"{wrong}.")
        return Verdict(True, "Solved. I needs g and W, W needs g and x: neither needs the other.")


halves = _Halves(
    name="halves",
    hints=(
        "Look at the shapes: g [.., F], W [D, F], and the answer of I is [.., D].",
        "For W every row of x meets its row of g: flatten all dims but the last, then xᵀ g.",
    ),
)


def _ready(ranks: int, size: int):
    """Rank r has an activation of entries 100 r, 100 r + 1, ... for the rank after it."""
    return [(100.0 * rank + torch.arange(float(size)),) for rank in range(ranks)]


def _passed(given):
    """What came from the left, and the gradient (here: minus x) that came from the right."""
    zeros, ranks = torch.zeros_like(given[0][0]), len(given)
    came = [given[r - 1][0] if r else zeros for r in range(ranks)]
    back = [-given[r + 1][0] if r < ranks - 1 else zeros for r in range(ranks)]
    return [torch.stack(pair) for pair in zip(came, back)]


repair = Exercise(
    name="repair",
    task="Make `their_steady_state` end.",
    inputs=_ready,
    reference=_passed,
    sizes=(2, 1000),
    hints=(
        "Read the message: who stands in which send, and who should have received it?",
        "Rank r sends its activation to the right while rank r + 1 sends a gradient to the left. "
        "Both wait for the other to receive.",
        "Do all at once: batch_isend_irecv with both sends and both receives, which is what "
        "`exchange` of lib.ranks.algorithms does: exchange({to: x}, {source: empty}).",
    ),
)


class _Explain(Hints):
    """Which of the three definitions gives each published number, found by computing all three."""

    task = 'Put "share", "overhead" or "span" in place of each None.'
    right = {"huang": "share", "narayanan": "overhead", "qi": "span"}

    def check(self, **said) -> Verdict:
        """Compare the reader's words with the definitions that the papers write down."""
        if all(said.get(name) is None for name in self.right):
            return self._open("nothing is there", self.task)
        lines = []
        for name, right in self.right.items():
            word = said.get(name)
            verdict = "right" if word == right else "not yet" if word is None else "not that one"
            lines.append(f"  {name}: {verdict}")
        told = "\n".join(lines)
        if all(said.get(name) == right for name, right in self.right.items()):
            return Verdict(True, f"Solved.\n{told}")
        return self._not_yet(f"Your words:\n{told}")


explain = _Explain(
    name="explain",
    hints=(
        "Compute all three for each line's schedule, stages, microbatches and times.",
        "Two of the three agree for one of the lines. Then only the text tells: what does it "
        "divide by?",
    ),
)


invent = Invent(
    name="invent",
    task="Change the schedule in the picture, copy its text, and paste it between the quotes.",
    hints=(
        "ZB-H1 keeps 4 microbatches, ZB-H2 keeps 7. There is room between them.",
        "Rank 0 waits for its first I. Give it one forward more before that: it keeps 5.",
        "Then the other ranks have time to spare before their Ws: put off one W more on each.",
    ),
)
