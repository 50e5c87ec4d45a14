"""A part of dp.py: one batch on all devices, as a single function of autograd."""

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from lib.parallel.data import virtual_devices
from lib.single.batches import share


class OneBatch(torch.autograd.Function):
    """Runs one batch on all devices, forward and backward.

    Backward runs autograd on each device's copy of the model and sums the gradients of the copies.
    Hooks on the model's own parameters see only the sum.
    """

    @staticmethod
    def forward(ctx, parallel, spec, training, nesting, count, *tensors):
        inputs, devices = list(tensors[:count]), parallel.devices
        shares = [share(inputs, n, len(devices)) for n in range(len(devices))]
        shares = parallel._scatter(shares)
        replicas = parallel._replicate()
        asked = [n for n in range(count) if ctx.needs_input_grad[5 + n]]
        kind = devices[0].torch.type
        autocast = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)

        def run(device):
            inputs = list(shares[device.number])
            # Each thread has its own autocast state, so it is set again here.
            with torch.set_grad_enabled(training), torch.autocast(kind, *autocast):
                for n in asked:  # forward may write into its inputs, but not into a leaf
                    inputs[n] = inputs[n].requires_grad_().clone()
                args, kwargs = tree_unflatten(inputs, spec)
                return tree_flatten(replicas[device.number](*args, **kwargs))

        results = virtual_devices.at_once("forward", parallel.devices, run)
        nesting.append(results[0][1])
        outputs = [tensors for tensors, _ in results]
        ctx.state = parallel, replicas, shares, outputs, asked
        flat = [[virtual_devices.detached(item) for item in part] for part in outputs]
        gathered = parallel._home(
            "gather", sum(map(virtual_devices.nbytes, flat)), flat, virtual_devices.joined
        )
        constant = [
            t for n, t in enumerate(gathered) if torch.is_tensor(t) and not _graph(outputs, n)
        ]
        ctx.mark_non_differentiable(*constant)
        ctx.set_materialize_grads(
            False
        )  # an output that the loss does not use gets None, not zeros
        return tuple(gathered)

    @staticmethod
    def backward(ctx, *gradients):
        if torch.is_grad_enabled():
            raise RuntimeError(
                "DataParallel has no second derivatives, and its backward ran with "
                "create_graph=True. Use DistributedDataParallel, or the plain model."
            )
        if ctx.state is None:
            raise RuntimeError(
                "This batch has been through backward already, which freed the copies of the "
                "model. Run forward again before another backward."
            )
        (parallel, replicas, shares, outputs, asked), ctx.state = ctx.state, None
        # 1. Find each device's outputs that have a gradient, and send it its part of the gradient.
        places = [n for n, g in enumerate(gradients) if g is not None and _graph(outputs, n)]
        parts = [virtual_devices.cut(gradients[n], [part[n] for part in outputs]) for n in places]
        parts = parallel._scatter([[part[d] for part in parts] for d in range(len(outputs))])
        ends = [[part[n] for n in places] for part in outputs]
        trained = [[p for p in r.parameters() if p.requires_grad] for r in replicas]
        leaves = [[s[n] for n in asked] + own for s, own in zip(shares, trained)]

        # 2. Run backward on all devices. Autograd has a thread for each GPU, but one for all CPUs.
        def run(*devices):
            pairs = [pair for d in devices for pair in zip(ends[d.number], parts[d.number])]
            pairs = [(end, gradient) for end, gradient in pairs if end.requires_grad]
            if pairs:
                torch.autograd.backward(*zip(*pairs))
            for d in devices:
                d.hold("gradients", [p.grad for p in trained[d.number]])

        with virtual_devices.set_aside(trained[0]):
            if parallel.devices[0].torch.type == "cpu":
                virtual_devices.at_once("backward", parallel.devices, run)
            else:
                run(*parallel.devices)
            by_device = [[leaf.grad for leaf in own] for own in leaves]
        # 3. Sum the parameters' gradients on device 0, and join those of the inputs.
        sums = iter(parallel._reduce([own[len(asked) :] for own in by_device]))
        weights = [next(sums) if p.requires_grad else None for p in parallel.module.parameters()]
        return None, None, None, None, None, *_inputs(parallel, shares, asked, by_device), *weights


def _graph(outputs: list, n: int) -> bool:
    """Return True where the n-th output of some device can have a gradient."""
    return any(torch.is_tensor(part[n]) and part[n].requires_grad for part in outputs)


def _inputs(parallel, shares: list, asked: list, by_device: list) -> list:
    """Return the gradient of each input, joined on device 0; None if not `asked` for, or unused."""
    gradients, used = [None] * len(shares[0]), []
    for position, n in enumerate(asked):
        if any(own[position] is not None for own in by_device):
            used.append((position, n))
    if used:
        parts = [
            [torch.zeros_like(s[n]) if own[i] is None else own[i] for i, n in used]
            for s, own in zip(shares, by_device)
        ]
        nbytes = sum(map(virtual_devices.nbytes, parts))
        joined = parallel._home("gather", nbytes, parts, virtual_devices.joined)
        for (_, n), gradient in zip(used, joined):
            gradients[n] = gradient
    return gradients
