"""An optimizer in the host's memory: what training does not need on the device lies there.

[Note: offload]
A GPU has a small, fast memory; the machine around it has a large, slow one; between them lies a
link (PCIe) that carries both directions at once (lib/single/host_memory.py). ZeRO-Offload (Ren et
al. 2021, arXiv 2101.06840) keeps the optimizer's states and the weights in full precision in the
host's memory, and takes the optimizer's step there: 2ψ bytes of gradients go down and 2ψ bytes of
weights come up in each step, the least that any division into two memories sends while the device
keeps only the 16-bit weights. GeePS (Cui et al. 2016, EuroSys) keeps even the weights there, and
its cache on the device holds those of the layers that run now, while those that run next are on
their way (lib/single/parameter_cache.py).
"""

from collections.abc import Iterable

import torch

from lib.ledger.host import as_the_host
from lib.predict.sharded.offload import chunks
from lib.single.host_memory import Copy, HostMemory


class OffloadedOptimizer(torch.optim.Optimizer):
    """An optimizer whose states, weights in full precision and step are the host's (ZeRO-Offload).

    Backward sends each gradient to the host as soon as it is complete, and frees it. `step` steps
    there, in pieces of about `chunk_bytes`, and sends the weights of one piece back while it
    computes the next. Weights of 16 bits have copies of 32 (`home`); those are what is stepped.
    `optimizer_class` is any optimizer of PyTorch whose step looks at each weight by itself, and
    `defaults` are its arguments. Gradients of several backward passes are added.

    With `delayed`, each step uses the gradients of the step before, so the host computes while the
    device does (one-step delayed update; the first step changes nothing). Then training is not the
    same as without: its weights are one step old.

    Weights that you change yourself (loading, initialization) must be told: call `refresh()`.
    Raises ValueError for parameters on several devices, or none that is trained.
    """

    def __init__(
        self, params: Iterable, optimizer_class=torch.optim.AdamW, host: HostMemory | None = None,
        *, chunk_bytes: int = 32 * 2**20, delayed: bool = False, **defaults,
    ):  # fmt: skip
        groups = [g if isinstance(g, dict) else {"params": [g]} for g in params]
        if groups and all(list(g) == ["params"] for g in groups):  # plain parameters: one group
            groups = [{"params": [p for g in groups for p in _listed(g["params"])]}]
        trained = [p for g in groups for p in _listed(g["params"]) if p.requires_grad]
        _refuse_strangers(trained)
        self.host, self.delayed = host or HostMemory(), delayed
        self.home = {p: self._home_of(p) for p in trained}
        kept = [{**g, "params": [self.home[p] for p in _listed(g["params"]) if p.requires_grad]}
                for g in groups]  # fmt: skip
        self.inner = optimizer_class(kept, **defaults)
        super().__init__(self.inner.param_groups, self.inner.defaults)
        self.state = self.inner.state
        sizes = [parameter.nbytes for parameter in trained]
        self.chunks = [[trained[n] for n in piece] for piece in chunks(sizes, chunk_bytes)]
        self.sent: dict[torch.Tensor, tuple] = {}  # parameter -> (copy, where it arrives)
        self.held: dict[torch.Tensor, tuple] = {}  # parameter -> (gradient, the copies' tasks)
        self.before: dict[torch.Tensor, tuple] = {}  # with `delayed`: those of the last step
        self.spare: dict[torch.Tensor, list] = {p: [] for p in trained}  # buffers not in use
        self.stepped: dict[torch.Tensor, list] = {}  # parameter -> what its last step was
        self.hooks = [p.register_post_accumulate_grad_hook(self.send) for p in trained]

    def _home_of(self, parameter) -> torch.Tensor:
        wide = torch.promote_types(parameter.dtype, torch.float32)
        home = self.host.empty(parameter, wide)
        with as_the_host(), torch.no_grad():
            home.copy_(parameter)
        return home.requires_grad_()

    def refresh(self) -> None:
        """Take the weights that the model has now as those of the host."""
        with as_the_host(), torch.no_grad():
            for parameter, home in self.home.items():
                if parameter.untyped_storage().nbytes():
                    home.copy_(parameter)

    # Gradients go down.

    def send(self, parameter: torch.Tensor) -> None:
        """Send a gradient to the host and free it; backward calls this for each parameter."""
        if parameter.grad is None:
            return
        if parameter in self.sent:
            self._add(parameter)
        spare = self.spare[parameter]
        buffer = spare.pop() if spare else self.host.empty(parameter.grad)
        copy = self.host.to_host(buffer, parameter.grad)
        self.sent[parameter] = copy, buffer
        parameter.grad = None

    def _arrive(self) -> None:
        """Wait for all gradients that are on their way."""
        for parameter in self.home:
            self.send(parameter)  # those that no backward has sent
        for parameter in list(self.sent):
            self._add(parameter)

    def _add(self, parameter) -> None:
        """Wait for a gradient, and add it to what the host holds of this parameter."""
        copy, buffer = self.sent.pop(parameter)
        copy.wait()
        if parameter not in self.held:
            self.held[parameter] = buffer, [copy.task]
            return
        gradient, tasks = self.held[parameter]
        with self.host.working("add", [*tasks, copy.task]) as task, torch.no_grad():
            gradient.add_(buffer)
        self.held[parameter] = gradient, [task]
        self.spare[parameter].append(buffer)

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scale the gradients on the host to a norm of at most `max_norm`; return the norm: []."""
        self._arrive()
        gradients = [gradient for gradient, _ in self.held.values()]
        after = [task for _, tasks in self.held.values() for task in tasks]
        with self.host.working("clip", after) as task:
            norm = torch.nn.utils.get_total_norm(gradients)
            scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
            for gradient in gradients:
                gradient.mul_(scale)
        self.held = {p: (gradient, [task]) for p, (gradient, _) in self.held.items()}
        return norm

    # The step, and weights go up.

    @torch.no_grad()
    def step(self, closure=None):
        """Step on the host and send the weights back; return what `closure` returns, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._arrive()
        gradients, self.held = self.held, {}
        if self.delayed:
            gradients, self.before = self.before, gradients
        copies = []
        for chunk in self.chunks:
            present = [parameter for parameter in chunk if parameter in gradients]
            if present:
                copies += self._step_on(present, gradients)
        for copy in copies:
            copy.wait()
        return loss

    def _step_on(self, chunk: list, gradients: dict) -> list[Copy]:
        """Step one piece of the weights, and start to send it back."""
        after = [task for parameter in chunk for task in gradients[parameter][1]]
        with self.host.working("step", after, background=self.delayed) as task:
            for parameter in chunk:
                home, gradient = self.home[parameter], gradients[parameter][0]
                home.grad = gradient.to(home.dtype)  # the same tensor where nothing changes
                self.spare[parameter].append(gradient)
            self.inner.step()
            for parameter in chunk:
                self.home[parameter].grad, self.stepped[parameter] = None, [task]
        self._keep_states()
        # A cache may hold none of it.
        on_device = [p for p in chunk if p.untyped_storage().nbytes()]
        return [self.host.to_device(p.data, self.home[p].data, [task]) for p in on_device]

    def _keep_states(self) -> None:
        for values in self.state.values():
            for value in values.values():
                if isinstance(value, torch.Tensor):
                    self.host.keep(value)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients that no step has used."""
        self._arrive()
        for parameter, (gradient, _) in self.held.items():
            self.spare[parameter].append(gradient)
        self.held = {}

    # Kept in files.

    def state_dict(self) -> dict:
        """Return the states and the host's weights: those of the device have lost digits."""
        return self.inner.state_dict() | {"weights": [w.detach() for w in self.home.values()]}

    def load_state_dict(self, state_dict: dict) -> None:
        """Load what `state_dict` returned, and send the weights to the device."""
        state_dict = dict(state_dict)
        weights = state_dict.pop("weights")
        self.inner.load_state_dict(state_dict)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state
        with as_the_host(), torch.no_grad():
            for (parameter, home), weight in zip(self.home.items(), weights, strict=True):
                home.copy_(weight)
                if parameter.untyped_storage().nbytes():
                    parameter.copy_(home)
        self._keep_states()


def _listed(params) -> list:
    return [params] if isinstance(params, torch.Tensor) else list(params)


def _refuse_strangers(trained: list) -> None:
    devices = {p.device for p in trained}
    if len(devices) != 1:
        listed = ", ".join(sorted(map(str, devices)))
        where = (
            f"on {len(devices)} devices ({listed})" if devices else "and none of them is trained"
        )
        raise ValueError(
            f"There are {len(trained)} parameters {where}. Give the trained parameters of one "
            "device to an OffloadedOptimizer."
        )
