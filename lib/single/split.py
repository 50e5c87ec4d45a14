"""Splits a backward into two parts: for the input now (I), and for the weights later (W).

[Note: where a graph is cut]
Autograd's graph leads from the outputs to the leaves. The nodes that lead to the input form the
spine; branches that lead only to weights hang on it. I runs along the spine, and at each node with
branches it stores the gradient that arrived there, after all hooks. W computes from this gradient
the gradients that flow into the branches, and runs them. Branches that share a weight are run
together, so every branch and every weight is visited once.

[Note: a node without its hooks]
If W let autograd run a stored node again, autograd would call the hooks of that node again. Calling
`node(gradient)` does not call them, but it computes the gradients for all edges, those of the spine
included. Within a run of autograd a node computes only the gradients that the run was asked for, so
W starts such a run.
"""

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, _engine_run_backward, get_gradient_edge
from torch.utils.checkpoint import CheckpointFunction


class SplitBackward:
    """Runs the backward of `output` for `x` in `inputs(...)`, and for other leaves in `weights()`.

    output is a tensor [..] or a list of tensors, x a leaf [..] or a list of leaves, and gradient
    has the form of output. Together the two calls add to each .grad what
    `output.backward(gradient)` adds, and call each hook as often. Where a node cannot be split (a
    Python function with weights among its inputs, a reentrant checkpoint), `inputs` runs the whole
    backward. `output` may be freed, because only its graph is kept.
    """

    def __init__(self, output, x=()):
        outputs = _listed(output)
        self.outputs = [get_gradient_edge(y) if y.requires_grad else None for y in outputs]
        self.loss = {"dtype": outputs[0].dtype, "device": outputs[0].device} if outputs else {}
        self.x, self.alone = _listed(x), isinstance(x, torch.Tensor)
        self.later: dict = {}  # for W: group of branches -> [(node, its gradients, its branches)]

    def whole(self, gradient=None):
        """Run the whole backward; return the gradient of x, None where no output depends on x.

        `gradient` has the form of the output, with None where a tensor has none; a loss [] needs
        none.
        """
        edges, gradients = self._arriving(gradient)
        if edges:
            torch.autograd.backward(edges, gradients)
        gradients_of_x = [x.grad for x in self.x]
        self.outputs = self.x = ()
        return gradients_of_x[0] if self.alone else gradients_of_x

    def inputs(self, gradient=None):
        """Return the gradient of x, [..] as x, and leave every .grad to `weights`."""
        edges, gradients = self._arriving(gradient)
        cut = _Cut(edges, self.x)
        if cut.indivisible:
            return self.whole(gradient)
        spine = []
        for edge, arrived in zip(edges, gradients):
            if cut.on_spine[edge.node]:
                spine.append((edge, arrived))
            else:  # the output itself is the root of this branch
                self._keep(cut.together(edge.node), None, (arrived,), [(0, edge)])
        gradients_of_x, stored = [None] * len(self.x), {}
        if spine:
            hooks = [node.register_prehook(_store(node, stored)) for node in cut.branches]
            try:
                edges, gradients = zip(*spine)
                gradients_of_x = torch.autograd.grad(
                    edges, self.x, gradients, retain_graph=True, allow_unused=True
                )
            finally:
                for hook in hooks:
                    hook.remove()
        for node, arrived in stored.items():
            branches = cut.branches[node]
            self._keep(cut.together(branches[0][1].node), node, arrived, branches)
        return gradients_of_x[0] if self.alone else list(gradients_of_x)

    def weights(self) -> None:
        """Add the gradients of all leaves but x to their .grad, and free the graph."""
        self.outputs = self.x = ()
        groups, self.later = list(self.later.values())[::-1], {}
        edges = [e for group in groups for node, _, branches in group if node for _, e in branches]

        def run():
            while groups:  # popping a group lets its memory be freed
                _run(groups.pop())

        _within(edges, run) if edges else run()

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes of the gradients that `inputs` has stored for `weights`."""
        arrived = [g for group in self.later.values() for _, several, _ in group for g in several]
        return sum(g.numel() * g.element_size() for g in arrived if g is not None)

    def one(self) -> torch.Tensor:
        """Return the gradient of a loss: 1, in the precision and on the device of the output."""
        return torch.ones((), **self.loss)

    def _arriving(self, gradient) -> tuple[list, list]:
        """Return the outputs' edges at which a gradient arrives, and these gradients."""
        if gradient is None:
            gradient = self.one()
        pairs = zip(self.outputs, _listed(gradient))
        known = [(edge, g) for edge, g in pairs if edge is not None and g is not None]
        return [edge for edge, _ in known], [g for _, g in known]

    def _keep(self, group, node, arrived, branches) -> None:
        if any(gradient is not None for gradient in arrived):
            self.later.setdefault(group, []).append((node, arrived, branches))


class _Cut:
    """Finds, in the graph below some edges, the nodes that lead to `x` and their branches."""

    def __init__(self, edges, x):
        self.on_spine = {get_gradient_edge(leaf).node: True for leaf in x}
        self.branches: dict = {}  # a node of the spine -> its branches, (position, edge) each
        self.indivisible = False
        self._parent: dict = {}
        below: dict = {}
        stack = [edge.node for edge in edges]
        while stack:
            node = stack[-1]
            if node not in below and node not in self.on_spine:
                below[node] = [(p, n, nr) for p, (n, nr) in enumerate(node.next_functions) if n]
                stack += [n for _, n, _ in below[node] if n not in self.on_spine]
                continue
            stack.pop()  # all nodes below it have been visited
            if node not in self.on_spine:
                self._settle(node, below[node])

    def _settle(self, node, below) -> None:
        self.on_spine[node] = any(self.on_spine[child] for _, child, _ in below)
        off = [(p, child, nr) for p, child, nr in below if not self.on_spine[child]]
        tied = [child for _, child, _ in off] + ([] if self.on_spine[node] else [node])
        for child in tied[1:]:
            self._parent[self.together(child)] = self.together(tied[0])
        if self.on_spine[node] and off:
            self.branches[node] = [(p, GradientEdge(child, nr)) for p, child, nr in off]
        python = isinstance(node, BackwardCFunction)
        reentrant = python and node._forward_cls is CheckpointFunction
        self.indivisible |= reentrant or (python and node in self.branches)

    def together(self, node):
        """Return the node that represents all branches that must be run with this one."""
        while (parent := self._parent.get(node, node)) is not node:
            node = self._parent[node] = self._parent.get(parent, parent)
        return node


class _Within(torch.autograd.Function):
    """An identity whose backward calls a function."""

    @staticmethod
    def forward(ctx, anchor, work):
        ctx.work = work
        return anchor.detach()

    @staticmethod
    def backward(ctx, gradient):
        ctx.work()
        return gradient, None


def _within(edges, work) -> None:
    """Call `work` within a run of autograd that was asked for the gradients of these edges."""
    anchor = torch.empty(0, device="cpu", requires_grad=True)  # on the CPU, this thread runs it
    inside = _Within.apply(anchor, work)
    torch.autograd.grad(inside, [anchor, *edges], anchor.detach(), allow_unused=True)


def _run(group) -> None:
    """Run branches that belong together, from the gradients that were stored at their nodes."""
    edges, gradients = [], []
    for node, arrived, branches in group:
        flowing = arrived if node is None else node(*arrived)
        flowing = flowing if isinstance(flowing, tuple) else (flowing,)
        known = [(edge, flowing[position]) for position, edge in branches]
        edges += [edge for edge, gradient in known if gradient is not None]
        gradients += [gradient for _, gradient in known if gradient is not None]
    if edges:  # torch.autograd.backward would refuse a gradient that is not summed yet
        _engine_run_backward(tuple(edges), tuple(gradients), False, False, (),
                             allow_unreachable=True, accumulate_grad=True)  # fmt: skip


def _store(node, stored):
    def hook(gradients):
        stored[node] = gradients

    return hook


def _listed(tensors) -> list:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
