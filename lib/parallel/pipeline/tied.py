"""Sums of gradients over ranks: of weights that stages share, and of replicas."""

import torch
import torch.distributed as dist

from lib.ranks.algorithms import exchange


class Tied:
    """Holds the parameters that this rank's stages share with stages of other ranks.

    During a step, which `set_aside` begins, their .grad holds only this rank's part of the step's
    gradient. `add_up` sums the parts over the ranks, in the order of ranks, and adds the sum to the
    gradients of earlier steps.
    """

    def __init__(self, model, cuts, placement, rank: int, group):
        owners: dict[int, tuple] = {}
        for stage, (first, last) in enumerate(cuts):
            for parameter in model[first:last].parameters():
                owners.setdefault(id(parameter), (parameter, set()))[1].add(placement[stage])
        self.owners = [(p, sorted(r)) for p, r in owners.values() if len(r) > 1 and rank in r]
        self.rank, self.group, self.before = rank, group, []

    def __iter__(self):
        return (parameter for parameter, _ in self.owners)

    def set_aside(self) -> None:
        """Store the gradients of earlier steps separately, and begin this step with none."""
        self.before = [parameter.grad for parameter in self]
        for parameter in self:
            parameter.grad = None

    def add_up(self) -> None:
        """Sum this step's gradients over ranks; a gradient that no rank has stays None."""
        present = self._present()
        for (parameter, ranks), before in zip(self.owners, self.before):
            parts = {r: None for r in ranks if id(parameter) in present[r]}
            others = {r: torch.empty_like(parameter) for r in parts if r != self.rank}
            sends = {}
            if self.rank in parts:
                parts[self.rank] = parameter.grad.contiguous()
                sends = {r: parts[self.rank] for r in ranks if r != self.rank}
            exchange(sends, others, self.group, "shared by stages")
            parts |= others
            parameter.grad = before
            if parts and parameter.requires_grad:
                total = sum(list(parts.values())[1:], next(iter(parts.values())))
                parameter.grad = total if before is None else before.add_(total)

    def _present(self) -> dict[int, set]:
        """Return, by rank, which of these parameters got a gradient in this step."""
        present = {self.rank: {id(p) for p in self if p.grad is not None}}
        peers = {r for _, ranks in self.owners for r in ranks} - {self.rank}
        shared_with = {r: [p for p, ranks in self.owners if r in ranks] for r in sorted(peers)}
        sends = {
            r: torch.tensor([p.grad is not None for p in shared], device=shared[0].device).byte()
            for r, shared in shared_with.items()
        }
        receives = {r: torch.empty_like(flags) for r, flags in sends.items()}
        exchange(sends, receives, self.group, "shared by stages")
        for r, shared in shared_with.items():
            present[r] = {id(p) for p, flag in zip(shared, receives[r].tolist()) if flag}
        return present


def average(parameters, group):
    """Launch the averaging of these gradients over `group`; return a function that waits for it.

    A missing gradient counts as zeros, unless all ranks of the group lack it; then it stays None.
    This takes one all-reduce for each dtype, and an all-gather of one byte for each parameter.
    """
    trained = [p for p in parameters if p.requires_grad]
    if not trained:
        return lambda: None
    flats = {}
    for dtype in dict.fromkeys(p.dtype for p in trained):
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained
                     if p.dtype == dtype]  # fmt: skip
        flats[dtype] = torch.cat([gradient.flatten() for gradient in gradients])
    present = torch.tensor([p.grad is not None for p in trained], device=trained[0].device).byte()
    everywhere = present.new_empty(dist.get_world_size(group) * len(trained))
    works = [dist.all_reduce(flat, group=group, async_op=True) for flat in flats.values()]
    works.append(dist.all_gather_single(everywhere, present, group=group, async_op=True))

    def wait():
        for work in works:
            work.wait()
        used = everywhere.view(-1, len(trained)).any(0).tolist()
        for dtype, flat in flats.items():
            same = [(p, u) for p, u in zip(trained, used) if p.dtype == dtype]
            parts = flat.div_(dist.get_world_size(group)).split([p.numel() for p, _ in same])
            for (parameter, is_used), part in zip(same, parts):
                parameter.grad = part.view_as(parameter) if is_used else None

    return wait


def refuse_sparse(module, parameters) -> None:
    """Raise ValueError where one of these parameters will have a sparse gradient."""
    summed = set(map(id, parameters))
    for name, part in module.named_modules():
        if getattr(part, "sparse", False) and any(id(p) in summed for p in part.parameters(False)):
            raise ValueError(
                f"{name or 'The model'} has a sparse gradient, but ranks sum gradients as dense "
                "tensors. Build it with sparse=False."
            )
