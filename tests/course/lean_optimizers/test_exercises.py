"""Chapter 11's checkers, from the start state over mistakes to the solution."""

import pytest
import torch
from torch.optim import Optimizer

from lib.course.lean_optimizers import exercises as chapter
from lib.course.lean_optimizers import smallest as task
from lib.course.lean_optimizers.smallest import kept_bytes


def text_of(verdict):
    return " ".join(repr(verdict).split())


# --- predict

KERNEL_MATRICES = 64 * 32 * (3 + 3)
RIGHT = {
    "adam": 8 * (4096 * 1024 + 4096 + 64 * 32 * 9),
    "adafactor": 4 * (4096 + 1024 + 4096 + KERNEL_MATRICES),
    "sm3": 4 * (4096 + 1024 + 4096 + 64 + 32 + 3 + 3),
    "sm3_with_momentum": 4 * (4096 * 1024 + 4096 + 64 * 32 * 9) + 37_272,
}


def test_the_predicted_bytes_are_those_that_pytorch_keeps():
    assert RIGHT["sm3"] == 37_272 and chapter.predict.check(**RIGHT).solved
    assert chapter.predict.check(adam=None, sm3=None).text.startswith("Not solved yet")
    for name, kind in (("adam", torch.optim.Adam), ("adafactor", torch.optim.Adafactor)):
        parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in chapter.SHAPES]
        optimizer = kind(parameters)
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert kept_bytes(optimizer, parameters) == chapter.predict.answers[name]


@pytest.mark.parametrize(
    ("name", "number", "words"),
    [
        ("adam", RIGHT["adam"] // 2, "two numbers for each weight"),
        ("adam", RIGHT["adam"] // 4, "Each takes 4 bytes"),
        ("adam", RIGHT["adam"] * 3 // 2, "The weights themselves are not the optimizer's"),
        ("adafactor", RIGHT["adafactor"] - 4 * 4096, "A vector has no rows and columns"),
        ("adafactor", RIGHT["sm3"], "takes the last two as rows and columns"),
        ("adafactor", 4 * (9216 + 64 + 288), "The kernel is not flattened"),
        ("adafactor", RIGHT["adafactor"] // 4, "Each takes 4 bytes"),
        ("sm3", RIGHT["adafactor"], "64 + 32 + 3 + 3 for the kernel"),
        ("sm3", RIGHT["sm3"] - 4 * 4096, "A vector's slices along its one dim"),
        ("sm3", RIGHT["sm3"] // 4, "Each takes 4 bytes"),
        ("sm3_with_momentum", RIGHT["adam"] // 2, "The sums of SM3 come on top"),
    ],
)
def test_a_well_known_mistake_is_told_its_reason(name, number, words):
    verdict = chapter.predict.check(**RIGHT | {name: number})
    assert not verdict.solved and words in text_of(verdict)
    assert words not in text_of(chapter.predict.check(**RIGHT | {name: 10**9}))


# --- write


def unbegun(rows, columns, gradient): ...


def my_sm3(rows, columns, gradient):
    nu = torch.minimum(rows[:, None], columns[None]) + gradient**2
    return nu, nu.amax(1), nu.amax(0)


def sm3_i(rows, columns, gradient):
    rows, columns = rows + (gradient**2).amax(1), columns + (gradient**2).amax(0)
    return torch.minimum(rows[:, None], columns[None]), rows, columns


def summed(rows, columns, gradient):
    nu = torch.minimum(rows[:, None], columns[None]) + gradient**2
    return nu, nu.sum(1), nu.sum(0)


def forgetful(rows, columns, gradient):
    return gradient**2, (gradient**2).amax(1), (gradient**2).amax(0)


def not_squared(rows, columns, gradient):
    nu = torch.minimum(rows[:, None], columns[None]) + gradient.abs()
    return nu, nu.amax(1), nu.amax(0)


def larger(rows, columns, gradient):
    nu = torch.maximum(rows[:, None], columns[None]) + gradient**2
    return nu, nu.amax(1), nu.amax(0)


def swapped(rows, columns, gradient):
    nu, rows, columns = my_sm3(rows, columns, gradient)
    return nu, columns, rows


def factored(rows, columns, gradient):
    nu = rows[:, None] * columns[None] / rows.sum().clamp(min=1e-30) + gradient**2
    return nu, nu.amax(1), nu.amax(0)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (unbegun, "Not solved yet: `unbegun` returns nothing"),
        (sm3_i, "This is SM3-I"),
        (summed, "is the largest of them, not their sum"),
        (forgetful, "held before is forgotten"),
        (not_squared, "The gradient has to be squared"),
        (larger, "take the minimum"),
        (swapped, "have changed places"),
        (factored, "With a gradient of [2, 3], in step 2, nu is"),
        (lambda *given: my_sm3(*given)[0], "is a tensor of shape [2, 3], not a tuple of 3"),
        (lambda *given: given[3], "fails: IndexError"),
    ],
)
def test_a_wrong_accumulator_is_told_why(attempt, words):
    verdict = chapter.write.check(attempt)
    assert not verdict.solved and words in text_of(verdict)


def test_the_accumulator_of_sm3():
    assert chapter.write.check(my_sm3).solved


# --- repair


class MyAdam(Optimizer):
    """The chapter's, with what its repairs change as options."""

    first = second = per_parameter = True
    moves = True

    def __init__(self, parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps})
        self.calls = 0

    @torch.no_grad()
    def step(self):
        self.calls += 1
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                zeros = {"t": 0, "m": torch.zeros_like(p), "v": torch.zeros_like(p)}
                state = self.state.setdefault(p, zeros)
                state["t"] += 1
                t = state["t"] if self.per_parameter else self.calls
                state["m"] = b1 * state["m"] + (1 - b1) * p.grad
                state["v"] = b2 * state["v"] + (1 - b2) * p.grad**2
                m = state["m"] / (1 - b1**t if self.first else 1)
                v = state["v"] / (1 - b2**t if self.second else 1)
                if self.moves:
                    p -= group["lr"] * m / (v.sqrt() + group["eps"])


def variant(**options):
    return type("MyAdam", (MyAdam,), options)


class MovesWithoutGradient(MyAdam):
    def step(self):
        for p in self.param_groups[0]["params"]:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        super().step()
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p -= 1e-3


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (None, "Not solved yet: there is no optimizer"),
        (variant(moves=False), "Not solved yet: `MyAdam` changes no weight"),
        (
            variant(first=False, second=False),
            "The first step is 3.16 times as long as it should be",
        ),
        (variant(first=False), "second moment is corrected and the first is not"),
        (variant(second=False), "first moment is corrected and the second is not"),
        (variant(per_parameter=False), "After step 3, `late` is"),
        (variant(per_parameter=False), "t has to count the gradients of each parameter"),
        (MovesWithoutGradient, "After step 1, `weight` is"),
        (variant(step=lambda self: 1 / 0), "`MyAdam` fails: ZeroDivisionError"),
    ],
)
def test_a_wrong_adam_is_told_why(attempt, words):
    verdict = chapter.repair.check(attempt)
    assert not verdict.solved and words in text_of(verdict)


def test_the_repaired_adam():
    assert chapter.repair.check(MyAdam).solved
    assert chapter.repair.check(torch.optim.Adam).solved


# --- the smallest optimizer


class Keeps(Optimizer):
    """Holds a tensor of 10 bytes in each place that is asked for."""

    def __init__(self, parameters, *places):
        super().__init__(parameters, {})
        p, new = self.param_groups[0]["params"][0], lambda: torch.zeros(10, dtype=torch.int8)
        if "state" in places:
            self.state[p]["m"] = new()
        if "attribute" in places:
            self.kept = {"list": [new()]}
        if "parameter" in places:
            p.kept = (new(),)
        if "views" in places:
            whole = new()
            self.views = [whole[:5], whole[5:]]


@pytest.mark.parametrize(
    ("places", "count"),
    [((), 0), (("state",), 10), (("attribute",), 10), (("parameter",), 10), (("views",), 10),
     (("state", "attribute", "parameter"), 30)],
)  # fmt: skip
def test_every_tensor_that_is_kept_counts(places, count):
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    assert kept_bytes(Keeps([parameter], *places), [parameter]) == count


class Lean(Optimizer):
    """Divides by factored moments of a gradient and goes as far as the weights are large."""

    def __init__(self, parameters, lr=0.1):
        super().__init__(parameters, {"lr": lr})
        self.t = 0

    @torch.no_grad()
    def step(self):
        self.t += 1
        for p in self.param_groups[0]["params"]:
            step, square = p.grad, p.grad**2 + 1e-30
            if p.dim() == 2:
                rows, columns = square.mean(1, keepdim=True), square.mean(0, keepdim=True)
                state = self.state.setdefault(p, {"rows": rows, "columns": columns})
                state["rows"] = state["rows"].lerp(rows, self.t**-0.8)
                state["columns"] = state["columns"].lerp(columns, self.t**-0.8)
                nu = state["rows"] * state["columns"] / state["rows"].mean()
                step = step / nu.sqrt()
            step = step / (step.square().mean().sqrt() + 1e-12)
            scale = p.square().mean().sqrt().clamp(min=1e-3)
            p -= self.param_groups[0]["lr"] * scale * step


class KeepsNothing(Lean):
    """Divides each gradient by its root mean square."""

    def __init__(self, parameters, lr=0.01):
        super().__init__(parameters, lr)

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            rms = p.grad.square().mean().sqrt() + 1e-12
            p -= self.param_groups[0]["lr"] * p.grad / rms


def keeps_more(parameters):
    optimizer = Lean(parameters)
    optimizer.more = torch.zeros(10_000)
    return optimizer


@pytest.mark.limit(600)
def test_the_smallest_optimizer_is_judged_by_bytes_and_loss():
    solved = chapter.smallest.check(Lean)
    assert solved.solved and "3,908 bytes less than par" in text_of(solved)
    assert task.par().kept == 13_124 and task.adam().loss > task.par().loss + 0.1
    without = text_of(chapter.smallest.check(KeepsNothing))
    assert "It keeps no more than par, but its loss is higher than par's" in without
    more = text_of(chapter.smallest.check(keeps_more))
    assert "It learns as well as par, but keeps more" in more


def test_what_does_not_train_is_told_why(monkeypatch):
    monkeypatch.setattr(task, "STEPS", 3)
    monkeypatch.setattr(task, "par", lambda: task.Score(100, (2.4,)))
    monkeypatch.setattr(task, "adam", lambda: task.Score(1000, (2.5,)))
    assert chapter.smallest.check().text.startswith("Not solved yet: there is no optimizer")
    failing = lambda parameters: torch.optim.SGD(parameters, lr=-1.0)
    assert "fails: ValueError" in text_of(chapter.smallest.check(failing))
    slow = text_of(chapter.smallest.check(KeepsNothing))
    assert "its loss is higher than Adam's" in slow
    wild = lambda parameters: torch.optim.SGD(parameters, lr=1e300)
    assert "lower the rate" in text_of(chapter.smallest.check(wild))
