"""ZeRO-1: every rank has all weights and gradients, and a share of the optimizer's state.

    gradient [L] on each rank -> step of W [L/dp], state [L/dp] -> all_gather over dp -> W [L]

Source: Rajbhandari et al. 2019, "ZeRO" (arXiv 1910.02054), section 5.1. PyTorch's class of the same
name divides whole parameters among ranks, the largest first, each to the rank that has least; so a
rank can have more than its share, and one large embedding cannot be divided. Here all parameters
are laid into flat buffers that are cut into equal shares (layout.py), to the byte.
"""

import torch
from torch.optim import Optimizer

from lib.parallel.sharded import states
from lib.parallel.sharded.replicated import ReplicatedFlat
from lib.predict.data.buckets import assign


class ZeroRedundancyOptimizer(Optimizer):
    """An optimizer of which each rank of a group keeps and steps an equal share.

    Average the gradients first, for example with DistributedDataParallel; or pass a
    ShardedDataParallel as `params`, which keeps shares of gradients itself (ZeRO-2). Otherwise
    `params` are parameters or groups of them, as for any optimizer. `optimizer_class` must
    treat each element of a parameter by itself, as SGD and Adam do. Buffers hold about
    `bucket_bytes`: while one is gathered, the share of the next is stepped. The attributes of
    `param_groups`, for example lr, can be changed between steps. Raises ValueError for sparse
    gradients.
    """

    def __init__(self, params, optimizer_class, group=None, *, bucket_bytes=25 * 2**20, **defaults):
        flats = getattr(params, "flats", None)
        super().__init__(params.parameters() if flats else params, defaults)
        if flats:
            self.flats, grouped = flats, [flats]
        else:
            grouped = [_buffers(g["params"], group, bucket_bytes) for g in self.param_groups]
            self.flats = [flat for flats in grouped for flat in flats]
        self._group_of = [n for n, flats in enumerate(grouped) for _ in flats]
        pieces = [
            _options(group) | {"params": [piece for flat in flats for piece in flat.pieces]}
            for group, flats in zip(self.param_groups, grouped)
        ]
        self.inner = optimizer_class(pieces, **defaults)
        self.state, self.defaults = self.inner.state, self.inner.defaults
        for group, inner in zip(self.param_groups, self.inner.param_groups):
            group.update(_options(inner))

    @torch.no_grad()
    def step(self, closure=None):
        """Update this rank's share of each buffer and gather it, while the next is updated."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, inner in zip(self.param_groups, self.inner.param_groups):
            inner.update(_options(group))
        self._refuse_sparse()
        works = []
        for flat, number in zip(self.flats, self._group_of):
            flat.offer()
            self._step_on(flat.pieces, self.inner.param_groups[number])
            flat.withdraw()
            works.append(flat.gather())
        for work in works:
            work.wait()
        return loss

    def collect(self) -> None:
        """Raise RuntimeError where shares of the gradients are kept out of a loss scaler's sight.

        A `LossScaler` calls it before it looks at the gradients of this optimizer's parameters.
        """
        if any(flat.shared for flat in self.flats):
            raise RuntimeError(
                "A ShardedDataParallel keeps shares of its gradients itself, so a loss scaler "
                "would find none to unscale. Use FSDP(model, reshard_after_forward=False), whose "
                "shards of gradients are those of its parameters."
            )

    def _step_on(self, pieces: list, group: dict) -> None:
        """Step these pieces of a group alone, so that no other buffer's are looked at."""
        groups, params = self.inner.param_groups, group["params"]
        self.inner.param_groups, group["params"] = [group], pieces
        try:
            self.inner.step()
        finally:
            self.inner.param_groups, group["params"] = groups, params

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, whole ones and shares."""
        super().zero_grad(set_to_none)
        for flat in self.flats:
            flat.clear()

    # Kept in files; the weights are the plain model's, whole on every rank.

    def sharded_state_dict(self) -> dict:
        """Return this rank's share of the states; it sends nothing."""
        return states.sharded_optimizer_state(self)

    def load_sharded_state_dict(self, shards: list[dict]) -> None:
        """Load what any number of ranks saved; `shards` are the state dicts of all of them."""
        states.load_sharded_optimizer_state(self, shards)

    def state_dict(self) -> dict:
        """Gather the state dict of the plain optimizer, on every rank, on the CPU."""
        return states.full_optimizer_state(self)

    def load_state_dict(self, state_dict: dict) -> None:
        """Load a state dict of the plain optimizer; every rank passes it.

        Raises ValueError where it is of other parameters.
        """
        states.load_full_optimizer_state(self, state_dict)

    def _refuse_sparse(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    raise ValueError(
                        "A parameter has a sparse gradient, which cannot be cut into equal shares. "
                        "Build its Embedding with sparse=False."
                    )


def _options(group: dict) -> dict:
    return {key: value for key, value in group.items() if key != "params"}


def _buffers(parameters: list, group, bucket_bytes: int) -> list[ReplicatedFlat]:
    """Lay parameters of one dtype and device into buffers of about so many bytes."""
    kinds = [(parameter.dtype, parameter.device) for parameter in parameters]
    filled = assign([parameter.nbytes for parameter in parameters], [bucket_bytes], kinds)
    return [ReplicatedFlat([parameters[n] for n in positions], group) for positions in filled]
