"""Which methods of ProcessGroup are collectives: an observed group has them all, by one rule."""

from lib.ranks.observed.signature import check_list, collective, flat

_METHODS = {  # by plain name
    "all_reduce": "allreduce allreduce_coalesced",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_gather": "allgather _allgather_base all_gather_single all_gather_single_coalesced "
    "allgather_coalesced allgather_into_tensor_coalesced",
    "gather": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter _reduce_scatter_base reduce_scatter_single "
    "reduce_scatter_single_coalesced reduce_scatter_tensor_coalesced",
    "all_to_all": "alltoall alltoall_base all_to_all_single",
}

_LISTS = ("allgather", "gather", "scatter", "reduce_scatter")  # a list has a tensor for each member


def override(kind: type) -> None:
    """Let each collective of the group class `kind` be described, noted, compared, forwarded."""
    for op, methods in _METHODS.items():
        for method in methods.split():
            setattr(kind, method, _observed(method, op))


def _observed(method: str, op: str):
    def observed(self, *args, **kwargs):
        if method in _LISTS:
            check_list(op, *args[:2], self)
        launch, nbytes, root, splits = collective(op, args, kwargs, self)
        launch = self._by_device(launch, flat(args[:2]))
        call = self._call(method, args, flat(args[0]), **kwargs)
        return self._collective(op, launch, nbytes, call, root, splits)

    return observed
