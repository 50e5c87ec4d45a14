"""Calls of `new_group`, noted on the board: every rank of the world must make them, in one order.

PyTorch gives each new group its name by counting: a rank that leaves out a call of new_group since
it is no member, or makes two of them in another order, meets the others under a wrong name. That
ends in a wait for ever, or in a wrong group. So each call is compared like a collective.

[Note: names of groups that only their members make]
With `use_local_synchronization=True` PyTorch makes the name from the members and from the number of
groups that this rank has. Two members that belong to different numbers of groups then never meet,
and a group that takes the place of a destroyed one gets its name, and finds what that one left in
the store. Here the number counts the groups of these very members, which all of them made.
"""

import collections
import functools
import hashlib
import inspect
import weakref

import torch.distributed as dist
from torch.distributed import distributed_c10d

from lib.ranks.groups.backend_names import OURS, get_backend

_new_group = distributed_c10d.new_group
_SIGNATURE = inspect.signature(_new_group)
_process_group_name = distributed_c10d._process_group_name
_made = weakref.WeakKeyDictionary()  # world -> how many groups of which members were named in it


@functools.wraps(_new_group)
def new_group(*args, **kwargs):
    """Do what dist.new_group does, once the other ranks are known to make the same group."""
    given = _SIGNATURE.bind(*args, **kwargs)
    given.apply_defaults()
    world = dist.group.WORLD
    if world is not None and not given.arguments["use_local_synchronization"]:
        ranks = given.arguments["ranks"]
        world.announce(list(range(world.size()) if ranks is None else ranks))
    if given.arguments["backend"] == get_backend():  # named, and still an observed one
        given.arguments["backend"] = OURS
    return _new_group(*given.args, **given.kwargs)


@functools.wraps(distributed_c10d.split_group)
def split_group(
    parent_pg=None, split_ranks=None, timeout=None, pg_options=None, group_desc=None, backend=None
):
    """Make the one of the groups `split_ranks` in which this rank is; None if it is in none.

    `split_ranks` holds lists of places in `parent_pg`. PyTorch splits the communicator of NCCL,
    which needs a device bound to the world; here the members of each list make a group.
    """
    parent = dist.get_process_group_ranks(parent_pg)
    places = [place for split in split_ranks or () for place in split]
    if not (split_ranks and all(split_ranks) and len(set(places)) == len(places)):
        raise ValueError(
            f"split_ranks must be lists of ranks, none of them empty and no rank in two, not "
            f"{split_ranks}."
        )
    if not set(places) <= set(range(len(parent))):
        raise ValueError(
            f"split_ranks counts the ranks of the group that is split, from 0 to {len(parent) - 1},"
            f" not {split_ranks}. dist.new_group takes the ranks of the world."
        )
    groups = [[parent[place] for place in sorted(split)] for split in split_ranks]
    own = next((members for members in groups if dist.get_rank() in members), None)
    if own is None:
        return None
    options = {"timeout": timeout, "pg_options": pg_options, "group_desc": group_desc}
    return new_group(own, backend=backend, use_local_synchronization=True, **options)


def _name(ranks, use_hashed_name):
    """Give the name of a new group; one that only its members make: see the note above."""
    if not use_hashed_name or dist.group.WORLD is None:
        return _process_group_name(ranks, use_hashed_name)
    members, made = tuple(ranks), _made.setdefault(dist.group.WORLD, collections.Counter())
    made[members] += 1
    text = f"members {members}, their group number {made[members]}"
    return distributed_c10d.GroupName(hashlib.sha1(text.encode()).hexdigest())


def install() -> None:
    """Let this process's `dist.new_group` be ours, and what splits: its world is observed."""
    dist.new_group = distributed_c10d.new_group = new_group
    dist.split_group = distributed_c10d.split_group = split_group
    distributed_c10d._process_group_name = _name
