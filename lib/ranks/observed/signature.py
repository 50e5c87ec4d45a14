"""Writing what a collective is given, in the words that ranks compare on the board."""

import torch
import torch.distributed as dist

from lib.ranks.shared.notice_slots import Kind, Launch
from lib.ranks.state.this_rank import this_rank


def flat(item) -> list[torch.Tensor]:
    """Give the tensors of nested lists, in order."""
    if isinstance(item, torch.Tensor):
        return [item]
    if not isinstance(item, list | tuple):
        return []
    return [tensor for part in item for tensor in flat(part)]


def bytes_of(tensors) -> int:
    """Add up the bytes of tensors; of the large model's, where they stand for such."""
    if this_rank.slow and this_rank.slow.stand_ins:
        return this_rank.slow.stand_ins.bytes_of(tensors)
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def say(tensors, shapes: bool = False) -> str:
    """Write tensors as the board compares them: a sum needs one shape, all else one size."""
    if not tensors:
        return ""
    kinds = dict.fromkeys(map(_kind, tensors)) if len(tensors) > 1 else (_kind(tensors[0]),)
    sizes = [list(t.shape) if shapes else t.numel() for t in tensors]
    return f"{' and '.join(kinds)} {str(sizes)[1:-1] if shapes else sizes}"


def _kind(tensor: torch.Tensor) -> str:
    """Write the dtype, and what keeps a tensor from being sent as an ordinary one."""
    kind = str(tensor.dtype)[6:]
    if tensor.layout is not torch.strided:
        kind = f"{str(tensor.layout)[6:]} {kind}"
    return f"meta {kind}" if tensor.is_meta else kind


def collective(op: str, args: tuple, kwargs: dict, group) -> tuple[Launch, int, int, list]:
    """Describe a collective as the board compares it: (launch, bytes of full buffer, root, splits).

    `root` is a rank, -1 where there is none; `splits`, of an all_to_all alone, are the entries that
    go to each member, then those that come from each.
    """
    outputs = flat(args[0])
    inputs = flat(args[1]) if op in _TWO_SIDED else outputs
    full = outputs if op in ("all_gather", "gather") else inputs
    if not full:  # a gather seen from a rank that is not its root: as much as the root gathers
        full = (inputs or outputs) * group.size()
    options, root, splits, own = args[-1] if args[1:] else None, -1, [], ""
    what = say(full, shapes=op == "all_reduce")
    if op in _ROOTED:
        root = getattr(options, "rootRank", kwargs.get("root", 0))
        root = group.member(root, f"to be the root of a {op}")
        what = f"{what} root {root}"
    elif op == "all_to_all":
        into, out = _splits(group.size(), outputs, inputs, args)
        what = " ".join([*map(_kind, inputs[:1]), "splits"])
        own = f"{_list(into)}>{_list(out)}"
        if len(into) == len(out) == group.size():
            splits = [*into, *out]
        else:  # gloo judges; the ranks must at least do the same
            what, own = f"{what} {own}", ""
    if op in ("all_reduce", "reduce", "reduce_scatter"):
        how = getattr(options, "reduceOp", None) or kwargs.get("op", dist.ReduceOp.SUM)
        what += " " + _REDUCTIONS[int(getattr(how, "op", how))]
    return Launch(Kind.GROUP, op, what, own), bytes_of(full), root, splits


def check_list(op: str, outputs, inputs, group) -> None:
    """Raise ValueError unless a list has a tensor for each member, this rank's of the right size.

    Gloo would refuse it on this rank alone. NCCL does not look: it writes past the end of a tensor,
    or waits for ever.
    """
    many, own = (inputs, outputs) if op in ("scatter", "reduce_scatter") else (outputs, inputs)
    if not many or not (many := flat(many)):
        return  # a gather or a scatter, seen from a rank that is not its root
    if len(many) != group.size():
        raise ValueError(
            f"{op} got a list of {len(many)} tensors, but group {group.label} has {group.size()} "
            "ranks: give one tensor for each."
        )
    place, own = many[group.rank()].numel(), flat(own)[0].numel()
    if place != own:
        raise ValueError(
            f"{op} got a tensor of {own} numbers, but this rank's entry in the list has {place}: "
            "make both the same size."
        )


_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_REDUCTIONS = {int(how): name for name, how in dist.ReduceOp.RedOpType.__members__.items()}
_TWO_SIDED = ("all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")


def _splits(n: int, outputs, inputs, args) -> tuple[list[int], list[int]]:
    """Give what goes to and what comes from each of the `n` members in an all_to_all."""
    if len(args) > 3:  # one tensor each way, cut along dim 0
        return tuple(
            list(lengths) or [tensor.shape[0] // n] * n
            for lengths, tensor in ((args[3], inputs[0]), (args[2], outputs[0]))
        )
    return [t.numel() for t in inputs], [t.numel() for t in outputs]


def unequal_parts(into, nbytes: int) -> tuple[int, ...]:
    """Return the bytes that go to each member; () where all get as much, `nbytes` in all."""
    if len(set(into)) < 2:
        return ()
    return tuple(nbytes * entries // sum(into) for entries in into)


def _list(numbers) -> str:
    return ",".join(map(str, numbers))


def fits(mine, theirs, here: int, there: int) -> bool:
    """True if two all_to_all fit: what I send to them is what they expect, and the other way round.

    `mine` and `theirs` are (entries to each member, entries from each); `here` and `there` are the
    places of the two ranks in the group.
    """
    (my_in, my_out), (their_in, their_out) = mine, theirs
    return my_in[there] == their_out[here] and my_out[there] == their_in[here]
