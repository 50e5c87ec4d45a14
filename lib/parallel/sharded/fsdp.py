"""Fully sharded data parallelism: each rank keeps a part of every weight, gradient and state.

    x [B/dp, ...] · W [L/dp] -> all_gather over dp -> W [L] -> loss +dp
    gradient [L] +dp -> reduce_scatter (mean) over dp -> [L/dp]

L is the number of elements of a unit, padded to a multiple of dp; layout.py says how they lie.
Source: Rajbhandari et al. 2019, "ZeRO" (arXiv 1910.02054), section 5.3 (stage 3); Zhao et al. 2023,
"PyTorch FSDP" (arXiv 2304.11277).

[Note: a step]
1. Forward gathers the weights of the root, and then unit after unit: gather, compute, free.
2. Backward gathers each unit again, from the last to the first. Every rank computes the whole
   gradient of a unit, from its own samples.
3. When a unit's last gradient is there, a reduce_scatter averages them, and each rank keeps only
   the shard of the gradient that belongs to its shard of the weights.
4. The optimizer updates shards. So weights, gradients and optimizer state take 1/dp of the memory;
   in exchange a step sends 3ψ bytes instead of DDP's 2ψ (ψ: the bytes of the weights).
"""

import contextlib

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from lib.parallel.sharded import clip, refusals, states
from lib.parallel.sharded.hosted import keep_states, step_on_host
from lib.parallel.sharded.materialize import prepare, whole_weights
from lib.parallel.sharded.schedule import Schedule
from lib.parallel.sharded.unit import Unit, groups_of
from lib.parallel.sharded.units import find_units, weights_by_unit
from lib.predict.arguments import whole
from lib.ranks.agreement import from_first, on_any_rank, same_everywhere
from lib.single.host_memory import HostMemory


class FSDP(nn.Module):
    """A model whose weights, gradients and optimizer states are sharded over a group.

    All ranks begin with the weights and buffers of the group's first rank. `parameters()` are this
    rank's pieces, flat, under the plain model's names; make the optimizer from them. (An optimizer
    made earlier, which has not stepped yet, works too: the parameters stay the same objects.)

    `group_or_mesh` is a group or a mesh: with two axes, the model is replicated along the first and
    sharded along the second (hybrid sharding). `units` says which modules are gathered and freed
    together: None for the blocks of the model's lists, a list of modules, a class, or a function of
    name and module. `reshard_after_forward` frees a unit after its forward (True, which is ZeRO-3),
    keeps it until its backward (False: less communication, more memory), or keeps it sharded over
    a smaller number of neighbouring ranks. `prefetch` units are gathered ahead. Compute takes place
    in `param_dtype` and the reduction in `reduce_dtype`; the shards keep the dtype of the model.
    With `offload`, shards of weights and gradients and the optimizer's states and step are the
    host's (hosted.py): `parameters()` lie in its memory, and shards are copied for each gather.
    A model on the meta device is materialized unit by unit: `init(module)` sets the weights of a
    module, by default with its `reset_parameters()`. Buffers are not sharded, and each rank goes on
    with its own. Raises ValueError where the models of the ranks differ or a unit is unknown.
    """

    def __init__(
        self, module: nn.Module, group_or_mesh=None, units=None,
        reshard_after_forward: bool | int = True, prefetch: int = 1, param_dtype=None,
        reduce_dtype=None, offload: HostMemory | None = None, *, init=None,
    ):  # fmt: skip
        super().__init__()
        first = next(module.parameters(), torch.empty(0))
        device = torch.get_default_device() if first.is_meta else first.device
        if not isinstance(reshard_after_forward, bool):
            whole(reshard_after_forward, "reshard_after_forward")
        self.groups = groups_of(group_or_mesh, reshard_after_forward, device)
        same_everywhere(module, self.groups.all, device)
        prepare(module, device, init)
        named = find_units(module, units)
        self._order = [name for name, _ in module.named_parameters(remove_duplicate=False)]
        self.module, self.param_dtype, self.offload = module, param_dtype, offload
        owned = weights_by_unit(module, named)
        schedule = Schedule([], whole(prefetch, "prefetch", 0), self.groups.all, device)
        self._schedule = schedule
        for name, part in {"": module, **named}.items():
            after = reshard_after_forward if name else False
            unit = Unit(name, part, owned[name], self.groups, after, (param_dtype, reduce_dtype),
                        schedule.arrived, offload)  # fmt: skip
            for flat in unit.flats:
                flat.shard_from(whole_weights(flat, init))
            schedule.units.append(unit)
        if offload is not None:
            step_on_host(self, offload)
        schedule.expected = schedule.units[1:]
        for buffer in module.buffers():
            from_first(buffer, self.groups.all)
        for unit in schedule.units[1:]:
            unit.module.register_forward_pre_hook(
                self._before(unit), prepend=True, with_kwargs=True
            )
            unit.module.register_forward_hook(self._after(unit))

    @property
    def units(self) -> list[Unit]:
        """The units, the root first."""
        return self._schedule.units

    # A step.

    def forward(self, *args, **kwargs):
        schedule, root = self._schedule, self.units[0]
        self._check_frozen()
        schedule.begin()
        try:
            args, kwargs = self._before(root)(self.module, args, kwargs)
            outputs = self._after(root)(self.module, args, self.module(*args, **kwargs))
            schedule.end_forward()
        except BaseException:
            schedule.reset()
            raise
        return outputs

    def _before(self, unit):
        """Return the hook that runs before a unit's forward."""

        def hook(module, args, kwargs):
            if _in_backward():  # a checkpoint computes this unit again
                unit.gather()
                unit.wait()
                return args, kwargs
            self._schedule.enter(unit)
            items, spec = tree_flatten((args, kwargs))
            items = [self._cast(item) for item in items]
            if torch.is_grad_enabled():
                places = [n for n, item in enumerate(items) if _needs_gradient(item)]
                if places:
                    unit.passing += 1
                    passed = _Passed.apply(self._schedule, unit, *(items[n] for n in places))
                    for n, tensor in zip(places, passed):
                        items[n] = tensor
            return tree_unflatten(items, spec)

        return hook

    def _after(self, unit):
        """Return the hook that runs after a unit's forward."""

        def hook(module, args, outputs):
            if not _in_backward() and (run := self._schedule.leave(unit)):
                for item in tree_flatten(outputs)[0]:
                    if _needs_gradient(item):
                        item.register_hook(lambda _: self._schedule.enter_backward(run))
            return outputs

        return hook

    def _cast(self, item):
        if self.param_dtype and isinstance(item, torch.Tensor) and item.is_floating_point():
            return item.to(self.param_dtype)
        return item

    def _check_frozen(self) -> None:
        for flat in self.flats():
            for weight, parameter in zip(flat.weights, flat.parameters):
                if parameter.requires_grad != flat.trained:
                    raise RuntimeError(refusals.trained_then(weight.name, flat.trained))

    @contextlib.contextmanager
    def no_sync(self):
        """Add up whole gradients on this rank only: a backward inside sends no gradients.

        It counts where backward runs. The next backward outside sends the sum. Between the two each
        rank keeps whole gradients, so this saves communication and costs memory.
        """
        before, self._schedule.sync = self._schedule.sync, False
        try:
            yield
        finally:
            self._schedule.sync = before

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scale the gradients so that the norm of the whole model's is at most `max_norm`.

        Returns the norm before, which is the same on every rank: that of all gradients, not of this
        rank's shards.
        """
        pieces = [p for flat in self.flats() for p in flat.parameters]
        gradients = [piece.grad for piece in pieces if piece.grad is not None]
        like = torch.empty(0, dtype=self.flats()[0].dtype, device=self.groups.device)
        working = self._on_the_host if self.offload else contextlib.nullcontext
        return clip.clip_grad_norm_(
            gradients, self.groups.shard, like, max_norm, norm_type, working
        )

    def found_anywhere(self, flag: torch.Tensor) -> torch.Tensor:
        """Return the largest flag of the ranks that share the gradients, for a loss scaler.

        Pass it as `LossScaler(found_anywhere=fsdp.found_anywhere)`. Ranks that hold equal shards
        find the same, so on a mesh one line of it is asked.
        """
        return on_any_rank(flag.to(self.groups.device), self.groups.shard)

    @contextlib.contextmanager
    def _on_the_host(self):
        """Run what is inside as the host's work on all gradients."""
        shards = [flat.hosted for flat in self.flats()]
        after = [task for shard in shards for task in shard.tasks]
        with self.offload.working("clip", after) as task:
            yield
        for shard in shards:
            shard.tasks = [task]

    # Whole weights, gradients and states.

    def flats(self) -> list:
        """Return the flat buffers of all units, the root's first."""
        return [flat for unit in self.units for flat in unit.flats]

    def kept_tensors(self) -> dict[str, list[torch.Tensor]]:
        """Return by kind what `parameters()` does not show: the buffers of whole units."""
        flats = self.flats()
        gradients = [f.gradient for f in flats] + [w.grad for f in flats for w in f.whole]
        fetched = [f.hosted.on_device for f in flats if f.hosted]
        return {
            "parameters": [f.flat for f in flats] + [w for f in flats for w in f.whole] + fetched,
            "gradients": [g for g in gradients if g is not None],
        }

    @contextlib.contextmanager
    def unshard(self):
        """Put whole weights into the model, for reading and changing them; all ranks enter.

        At the end each rank keeps its shard of them, as it left them; so make the same change on
        every rank.
        """
        self._schedule.begin()
        wholes = []
        for flat in self.flats():
            wholes.append([nn.Parameter(w, flat.trained) for w in flat.whole_of(flat.shard)])
            flat.put(wholes[-1])
        try:
            yield self.module
        finally:
            for flat, tensors in zip(self.flats(), wholes):
                flat.put(flat.parameters)
                flat.cut(tensors)

    def full_gradients(self) -> dict[str, torch.Tensor | None]:
        """Gather the whole gradients, by the plain model's names; None where there is none."""
        return states.full_gradients(self)

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """Gather the state dict of the plain model, on every rank, on the CPU."""
        return states.full_state_dict(self)

    def load_full_state_dict(self, state: dict | None) -> None:
        """Load a state dict of the plain model: the first rank's counts, others may pass None.

        Raises ValueError on every rank where names or shapes differ from the model's.
        """
        states.load_full_state_dict(self, state)

    def sharded_state_dict(self, optimizer=None) -> dict:
        """Return what this rank keeps, of the optimizer too; it sends nothing."""
        return states.sharded_state_dict(self, optimizer)

    def load_sharded_state_dict(self, shards: list[dict], optimizer=None) -> None:
        """Load what any number of ranks saved: the state dicts of all, or of all of one replica."""
        states.load_sharded_state_dict(self, shards, optimizer)
        if self.offload and optimizer is not None:
            keep_states(optimizer, self.offload)

    state_dict, load_state_dict = full_state_dict, load_full_state_dict

    # What an nn.Module has.

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate=True):
        """Yield this rank's pieces under the plain model's names, in its order."""
        pieces = {id(w): (w, p) for f in self.flats() for w, p in zip(f.weights, f.parameters)}
        names = {
            n: p for w, p in pieces.values() for n in w.names[: 1 if remove_duplicate else None]
        }
        dot = "." if prefix else ""
        for name in self._order:
            if name in names:
                yield f"{prefix}{dot}{name}", names[name]

    def named_buffers(self, *args, **kwargs):
        """Yield the buffers under the plain model's names."""
        return self.module.named_buffers(*args, **kwargs)

    def _apply(self, *args, **kwargs):
        raise RuntimeError(refusals.cast_before("FSDP"))


class _Passed(torch.autograd.Function):
    """Passes a unit's inputs on; its backward is the end of the unit's backward."""

    @staticmethod
    def forward(ctx, schedule, unit, *inputs):
        ctx.state = schedule, unit
        ctx.set_materialize_grads(False)
        return tuple(x.view_as(x) for x in inputs)

    @staticmethod
    def backward(ctx, *gradients):
        schedule, unit = ctx.state
        schedule.leave_backward(unit)
        return None, None, *gradients


def _in_backward() -> bool:
    return torch._C._current_autograd_node() is not None


def _needs_gradient(item) -> bool:
    return isinstance(item, torch.Tensor) and item.requires_grad
