"""Passing between stages: the input of each stage, and the gradients that come back.

Stage s returns y, one tensor or several; stage s+1 gets x = y, and sends back gradients or None.
"""

import functools

import torch

from lib.parallel.pipeline.parcels import Parcel, parcel
from lib.parallel.pipeline.pipes import Pipes


class Passing:
    """Passes inputs and gradients between the stages of a row, over pipes or within the rank."""

    def __init__(self, schedule, rank: int, pipes: Pipes, stages):
        self.schedule, self.pipes, self.stages = schedule, pipes, stages
        self.row, self.last = schedule.actions(rank), schedule.stages - 1
        self.row_of = functools.cache(schedule.actions)
        self.local: dict[tuple, tuple] = {}  # from one stage of this rank to another

    def ahead(self, place: int) -> None:
        """Post the receives for the action at `place` and for the next one.

        On NCCL a receive occupies the GPU until the message is there, and CUDA may wait for that
        when it loads a kernel that runs for the first time. So there the next receive waits for its
        turn if its sender first needs what the action at `place` gives: both could wait for ever.
        Source: docs.nvidia.com/cuda/cuda-programming-guide/04-special-topics/lazy-loading.html
        """
        near = 2 if not self.pipes.one_at_a_time or self._independent(place) else 1
        for stage, kind, microbatch in self.row[place : place + near]:
            if kind == "F" and stage > 0:
                self.pipes.post("F", stage - 1, microbatch)
            elif kind in "BI" and stage < self.last:
                self.pipes.post("B", stage + 1, microbatch)

    def _independent(self, place: int) -> bool:
        """Return False if the sender for the action after `place` first needs that at `place`."""
        own, *others = self.row[place : place + 2]
        if not others or "W" in (own.kind, others[0].kind):  # nothing is given, or received
            return True
        after = others[0]
        step = 1 if own.kind == "F" else -1  # to the stage that gets what the action gives
        source = after.stage - 1 if after.kind == "F" else after.stage + 1
        if not (0 <= own.stage + step <= self.last and 0 <= source <= self.last):
            return True
        sender = self.schedule.rank_of(source, after.microbatch)
        sent = (source, after.kind == "F", after.microbatch)
        needed = (own.stage + step, own.kind == "F", own.microbatch)
        row = [(s, kind == "F", m) for s, kind, m in self.row_of(sender) if kind != "W"]
        return needed not in row or row.index(sent) < row.index(needed)

    def arrive(self, stage: int, microbatch: int) -> tuple:
        """Return the input of a stage, and the leaves that will hold its gradients."""
        tensors, flags, *own = self._take("F", stage - 1, microbatch)
        structure = own[0] if own else self.pipes.structure(stage - 1, microbatch)
        return entering(Parcel(structure, tensors), flags)

    def depart(self, stage: int, microbatch: int, y) -> list:
        """Pass on the output of a stage; return the tensors whose gradients will come back."""
        output = parcel(y, stage)
        flags = [tensor.requires_grad for tensor in output.tensors]
        sent = Parcel(output.structure, [tensor.detach() for tensor in output.tensors])
        if stage + 1 in self.stages:
            self.local["F", stage, microbatch] = sent.tensors, flags, sent.structure
        else:
            flags = self.pipes.forward(stage, microbatch, sent, flags)
        return [tensor for tensor, flag in zip(output.tensors, flags) if flag]

    def returned(self, stage: int, microbatch: int) -> list:
        """Return the gradients of a stage's outputs, None where there is none."""
        return self._take("B", stage + 1, microbatch)[0]

    def give_back(self, stage: int, microbatch: int, gradients: list, leaves: list) -> None:
        """Pass back the gradients of a stage's inputs."""
        if stage - 1 in self.stages:
            self.local["B", stage, microbatch] = (gradients,)
        else:
            self.pipes.backward(stage, microbatch, gradients, leaves)

    def _take(self, kind: str, stage: int, microbatch: int) -> tuple:
        key = kind, stage, microbatch
        return self.local.pop(key) if key in self.local else self.pipes.take(*key)


def entering(arrived: Parcel, flags: list[bool]) -> tuple:
    """Return the input of a stage and its leaves, which are the tensors with a flag."""
    leaves = [t.requires_grad_() for t, flag in zip(arrived.tensors, flags) if flag]
    inside = iter(_Arrived.apply(*leaves) if leaves else ())
    tensors = [next(inside) if flag else t for t, flag in zip(arrived.tensors, flags)]
    return Parcel(arrived.structure, tensors).whole(), leaves


class _Arrived(torch.autograd.Function):
    """Makes a stage's input from leaves; it is not a leaf itself, so the stage may change it."""

    @staticmethod
    def forward(ctx, *leaves):
        ctx.set_materialize_grads(False)
        return tuple(leaf.detach() for leaf in leaves)

    @staticmethod
    def backward(ctx, *gradients):
        return gradients


def same_batch(inputs, targets, dims: int = 1) -> None:
    """Raise ValueError where the batch is empty, or inputs and targets differ in number."""
    if inputs.shape[:dims] != targets.shape[:dims]:
        raise ValueError(
            f"The inputs have shape {list(inputs.shape)} and the targets {list(targets.shape)}, "
            f"but their first {'dim' if dims == 1 else f'{dims} dims'} must be the same."
        )
    if 0 in inputs.shape[:dims]:
        raise ValueError(f"The batch is empty: the inputs have shape {list(inputs.shape)}.")


def precision(model) -> torch.dtype:
    """Return the dtype in which losses are summed: the widest of the model's, at least float32."""
    widest = torch.float32
    for parameter in model.parameters():
        if parameter.is_floating_point():
            widest = torch.promote_types(widest, parameter.dtype)
    return widest


def microbatches(inputs: torch.Tensor, m: int) -> list[torch.Tensor]:
    """Return the m equal parts of a batch, as views of its memory.

    Autograd gives all views of a tensor one version counter, so a stage that changes a microbatch
    in place would invalidate the backward of the others. `.data` gives each view its own.
    """
    return [part if part.requires_grad else part.data for part in inputs.chunk(m)]
