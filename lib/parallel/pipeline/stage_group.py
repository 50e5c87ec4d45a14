"""The group of ranks that share a stage of a pipeline, as replicas or by channel."""

from weakref import WeakKeyDictionary

import torch.distributed as dist

_groups: WeakKeyDictionary = WeakKeyDictionary()  # group -> ranks of it -> their group


def stage_group(ranks: tuple[int, ...], group=None):
    """Return a process group of these `ranks` of `group`, or None for a single rank.

    Only the members call it. Pipelines over the same ranks share their group, because with NCCL a
    group takes memory on the GPU for as long as it exists.
    """
    if len(ranks) == 1:
        return None
    parent = group or dist.group.WORLD
    known = _groups.setdefault(parent, {})
    if ranks not in known or getattr(known[ranks], "closed", ""):  # a failure closes every group
        members = dist.get_process_group_ranks(parent)
        own = [members[rank] for rank in ranks]
        known[ranks] = dist.new_group(own, use_local_synchronization=True, group_desc="stage")
    return known[ranks]
