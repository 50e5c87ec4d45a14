"""The exercises of chapter 4: predict, write, repair, and a plan for somebody else's model."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from lib.course.checks.arguments import name_of
from lib.course.checks.difference import difference
from lib.course.checks.numbers import Numbers
from lib.course.checks.on_ranks import Exercise
from lib.course.checks.read_number import is_missing
from lib.course.checks.verdict import Hints, Verdict
from lib.course.tensor_parallel.stranger import Stranger
from lib.parallel.tensor import plain_gradients, tensor_parallel
from lib.predict.collectives.exchange import Exchange, sent_bytes
from lib.ranks.shared.failures import RankError

# --- predict

TOKENS, WIDTH, RANKS, BF16 = 2048, 4096, 8, 2
_SUM = Exchange("all_reduce", RANKS, TOKENS * WIDTH * BF16)

predict = Numbers(
    name="predict",
    task="Put a number in place of each None.",
    answers={
        "forward": 2,  # after o and after down
        "backward": 5,  # of the input of q, k, v, gate and up
        "shared": 2,  # of the input of q, k and v together, and of that of gate and up
        "megabytes": round(_SUM.bytes / 1e6, 2),
        "sent": round(sent_bytes([_SUM] * 4) / 1e6, 1),
    },
    kinds={"megabytes": "MB", "sent": "sent MB"},
    ranks=RANKS,
    hints=(
        "A row layer needs an all-reduce in forward and none in backward. A column layer needs "
        "none in forward; what does it need in backward?",
        "Each column layer sums the gradient of its own input, and there are five. Where several "
        "layers share one Copy, a rank adds their gradients itself, before the one all-reduce.",
        "Every all-reduce has 2,048 · 4,096 numbers of 2 bytes. In a ring of 8, a rank sends "
        "2 · 7/8 of the buffer.",
    ),
)


# --- write


def _row_inputs(ranks: int, size: int):
    """Return each rank's x [3, size], W [5, size], the whole bias [5], and dy [3, 5]."""
    draw = torch.Generator("cpu").manual_seed(size)
    make = lambda *shape: torch.randn(*shape, generator=draw, device="cpu")
    bias, dy = make(5), make(3, 5)
    return [(make(3, size), make(5, size), bias, dy) for _ in range(ranks)]


def _row_reference(inputs):
    y = sum(x @ weight.T for x, weight, _, _ in inputs) + inputs[0][2]
    return [[y, dy @ weight, dy.T @ x, dy.sum(0)] for x, weight, _, dy in inputs]


def _forward_and_backward(attempt, x, weight, bias, dy):
    """Run an autograd function on this rank; return y and the gradients of its three inputs."""
    own = [tensor.detach().clone().requires_grad_() for tensor in (x, weight, bias)]
    y = attempt.apply(*own)
    if y is None or y is ...:
        return None
    y.backward(dy)
    return [y.detach(), *(tensor.grad for tensor in own)]


def _z_of(attempt, inputs):
    """Return this rank's z of an autograd function."""
    return attempt.apply(*inputs[dist.get_rank()][:3])


class _Row(Exercise):
    """Also counts the collectives: one all_reduce is enough, and backward needs none."""

    def check(self, attempt: type[torch.autograd.Function], world) -> Verdict:
        """Run forward and backward of `attempt` on every rank, and return the verdict."""
        run = partial(_forward_and_backward, attempt)
        run.__name__ = f"{name_of(attempt)}.forward"
        verdict = super().check(run, world)
        if " differs first:\n  z is " in verdict.text and self._counts_bias_often(attempt, world):
            return self._not_yet(
                f"z has the bias {world.size} times, because each rank adds it to its part before "
                "the all_reduce. Add it once, to the sum."
            )
        return verdict

    def _counts_bias_often(self, attempt, world) -> bool:
        """Say whether z is right but for a bias that every rank has added before the sum."""
        inputs = self.inputs(world.size, self.sizes[0])
        often = self.reference(inputs)[0][0] + (world.size - 1) * inputs[0][2]
        return not difference(world.run(_z_of, attempt, inputs)[0], often)

    def _scored(self, ledger, world, inputs) -> Verdict:
        ops = [row.op for row in ledger.where(rank=0, lane="comm")]
        if ops == ["all_reduce"]:
            return Verdict(True, "Solved with one all_reduce, in forward.")
        return self._not_yet(
            f"The numbers are right, but rank 0 launched {', '.join(ops)}. One all_reduce in "
            "forward is enough."
        )


write = _Row(
    name="write",
    task="Fill in both methods of `MyRow`.",
    inputs=_row_inputs,
    reference=_row_reference,
    sizes=(2, 6),
    words="F/tp = {}",
    names=("z", "the gradient of `y`", "the gradient of `weight`", "the gradient of `bias`"),
    hints=(
        "Forward: each rank's product y @ weight.T is one term of a sum over the ranks. When must "
        "the bias be added, if it shall count once?",
        "Backward: every rank is given the same dz, that of the sum, and each term of a sum has "
        "the gradient of the sum. So nothing has to be sent.",
        "dy = dz @ weight, dW = dz.T @ y, and db = dz.sum(0). ctx.save_for_backward(y, weight) in "
        "forward, and return dy, dW, db.",
    ),
)


# --- repair


def _norm_inputs(ranks: int, size: int):
    """Return each rank's heads x [3, size, 4], the whole gain [4], and its dy [3, size, 4]."""
    draw = torch.Generator("cpu").manual_seed(size)
    make = lambda *shape: torch.randn(*shape, generator=draw, device="cpu")
    gain = make(4)
    return [(make(3, size, 4), gain, make(3, size, 4)) for _ in range(ranks)]


def _norm_reference(inputs):
    found, gain_gradient = [], torch.zeros_like(inputs[0][1])
    for x, gain, dy in inputs:
        x, gain = (tensor.detach().clone().requires_grad_() for tensor in (x, gain))
        y = x * x.square().mean(-1, keepdim=True).rsqrt() * gain
        y.backward(dy)
        gain_gradient += gain.grad
        found.append([y.detach(), x.grad])
    return [[*own, gain_gradient] for own in found]


def _normed(attempt, x, gain, dy):
    """Run a norm forward and backward on this rank; return y and the gradients of x and gain."""
    x, gain = (tensor.detach().clone().requires_grad_() for tensor in (x, gain))
    y = attempt(x, gain)
    if y is None or y is ...:
        return None
    y.backward(dy)
    return [y.detach(), x.grad, gain.grad]


class _Norm(Exercise):
    """Runs a norm over each head forward and backward, with heads that are split."""

    def check(self, attempt: Callable, world) -> Verdict:
        """Run `attempt` on every rank, and return the verdict."""
        run = partial(_normed, attempt)
        run.__name__ = name_of(attempt)
        return super().check(run, world)


repair = _Norm(
    name="repair",
    task="Repair `my_norm`, so that the gradient of the gain is right on every rank.",
    inputs=_norm_inputs,
    reference=_norm_reference,
    sizes=(2, 3),
    words="{} heads a rank",
    names=("what it returned", "the gradient of `x`", "the gradient of `gain`"),
    hints=(
        "The heads and the gradient of x are right on every rank. Which heads does a rank know in "
        "its gradient of `gain`?",
        "The gradient of `gain` is a sum over all heads, and so over all ranks. Which operator of "
        "this chapter does nothing in forward and sums in backward?",
        "Use Copy.apply(gain) in place of gain.",
    ),
)


# --- a plan for somebody else's model


def _losses(model, tokens, targets):
    """Run forward and backward of a model that returns whole logits; return the logits."""
    logits = model(tokens)
    cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    return logits.detach()


def _tokens():
    draw = torch.Generator("cpu").manual_seed(0)
    tokens = torch.randint(64, (2, 9), generator=draw, device="cpu")
    tokens = tokens.to(torch.get_default_device())
    return tokens[:, :-1], tokens[:, 1:]


def _plain_stranger() -> dict:
    model = Stranger()
    logits = _losses(model, *_tokens())
    return {"logits": logits} | {name: p.grad for name, p in model.named_parameters()}


def _split_stranger(plan):
    """Split the model by a plan; return the numbers kept here, logits and whole gradients."""
    try:
        model = tensor_parallel(Stranger(), plan=plan)
    except ValueError as error:
        return str(error), None
    kept = sum(p.numel() for p in model.parameters())
    logits = _losses(model, *_tokens())
    return kept, {"logits": logits} | plain_gradients(model)


@dataclass
class _Plan(Hints):
    """Splits a Stranger by the reader's plan on real ranks, and compares it with the plain one."""

    task: str = "Write a dict from name patterns to kinds of split."
    share: float = 0.27  # of the numbers of the whole model, on each of 4 ranks

    def check(self, plan, world) -> Verdict:
        """Say whether logits and gradients are right, and whether all matrices are split."""
        if is_missing(plan) or (isinstance(plan, dict) and not plan):
            return self._open("the plan is empty", self.task)
        if not isinstance(plan, dict):
            return self._not_yet(f"The plan is a {type(plan).__name__}, not a dict. {self.task}")
        try:
            answers = world.run(_split_stranger, plan)
        except RankError as error:
            return self._not_yet(f"The split model failed:\n\n{error}\n")
        kept, found = answers[0]
        if found is None:
            return self._not_yet(kept)
        expected = _plain_stranger()
        for rank, (_, own) in enumerate(answers):
            if wrong := difference(own, expected, "the results", close=1e-9):
                return self._not_yet(f"On rank {rank} {wrong}.")
        whole = sum(p.numel() for p in Stranger().parameters())
        score = f"  numbers on each rank: {kept:,} of {whole:,}"
        if kept > self.share * whole:
            return self._not_yet(f"All is right, but matrices stay whole.\n{score}")
        return Verdict(True, f"Solved.\n{score}")


plan = _Plan(
    name="plan",
    hints=(
        "q, k, v, gate and up begin a split region, o and down end it. Which kinds are these? With "
        "4 ranks a layer has how many of its n_heads?",
        '"*.n_heads": "divide" gives each rank its number of heads. The norm over each head keeps '
        'its gain whole, while it works on split heads: "summed".',
        'The embedding is "vocabulary", and lm_head is "gathered vocabulary", because this model '
        "returns whole logits.",
    ),
)
