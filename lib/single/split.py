"""A backward in two parts: for the input now (I), for the weights later (W).

[Note: where a graph is cut]
Autograd's graph runs from the output down to leaves. Some of its nodes lead to the input: the
spine. A node of the spine with a branch to a weight needs one thing to serve that branch, the
gradient of its own output. I runs along the spine alone, and autograd skips what nobody asked for;
it notes that gradient at each such node. W starts again at each of these nodes and runs its branch.
A weight that hangs on several nodes of the spine (used twice) cannot wait: its gradient is found
along with I.
"""

from collections import Counter

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge


class SplitBackward:
    """The backward of `output` for `x`, then for the parameters: `inputs(...)`, later `weights()`.

    output [..], x [..], gradient [..] as output. `output` may be freed: only its graph is kept.
    Together they add to each .grad what `output.backward(gradient)` adds.
    """

    def __init__(self, output: torch.Tensor, x: torch.Tensor | None, parameters):
        self.output = get_gradient_edge(output) if output.requires_grad else None
        self.x = x if x is not None and x.requires_grad else None
        self.parameters = [p for p in parameters if p.requires_grad]
        self.later: list[tuple[list, list, list]] = []  # for W: edges, their gradients, weights

    def whole(self, gradient: torch.Tensor | None = None) -> torch.Tensor | None:
        """Both parts at once: add to each .grad, and give the gradient of x."""
        if self.output is not None:
            torch.autograd.backward([self.output], [gradient])
        x, self.output, self.x = self.x, None, None
        return None if x is None else torch.zeros_like(x) if x.grad is None else x.grad

    def inputs(self, gradient: torch.Tensor | None = None) -> torch.Tensor | None:
        """Give the gradient of x, [..] as x, or None where there is no x to give it to."""
        if self.output is None:
            return None if self.x is None else torch.zeros_like(self.x)
        if self.x is None:  # nobody waits for I: all of it is W
            self.later = [([self.output], [gradient], self.parameters)]
            return None
        # 1. Which weights hang on which node of the spine, and which hang on several.
        hanging = self._hanging()
        every = [p for found in hanging.values() for p in found]
        times = Counter(map(id, every))
        now = list({id(p): p for p in every if times[id(p)] > 1}.values())
        # 2. Along the spine, noting what comes by.
        noted: dict = {}
        hooks = [node.register_prehook(_note(node, noted)) for node in hanging]
        try:
            found, *sooner = torch.autograd.grad(
                [self.output], [self.x, *now], [gradient], retain_graph=True, allow_unused=True
            )
        finally:
            for hook in hooks:
                hook.remove()
        for parameter, found_now in zip(now, sooner):
            parameter.grad = found_now if parameter.grad is None else parameter.grad + found_now
        # 3. What W will do.
        for node, gradients in noted.items():
            wanted = [p for p in hanging[node] if times[id(p)] == 1]
            known = [(GradientEdge(node, i), g) for i, g in enumerate(gradients) if g is not None]
            if wanted and known:
                self.later.append((*map(list, zip(*known)), wanted))
        return torch.zeros_like(self.x) if found is None else found

    def weights(self) -> None:
        """Add the gradients of the parameters to their .grad, and let go of the graph."""
        for edges, gradients, wanted in self.later:
            torch.autograd.backward(edges, gradients, inputs=wanted)
        self.later, self.output, self.x = [], None, None

    def _hanging(self) -> dict:
        """For each node of the spine with branches to weights: these weights."""
        wanted, x = {id(p) for p in self.parameters}, get_gradient_edge(self.x).node
        children: dict = {}  # a node that was seen -> the nodes below it
        below: dict = {x: None}  # a node that is done -> the weights below it, None on the spine
        hanging: dict = {}
        stack = [self.output.node]
        while stack:
            node = stack[-1]
            if node not in children:
                children[node] = [n for n, _ in node.next_functions if n is not None]
                stack += [n for n in children[node] if n not in below]
                continue
            stack.pop()  # all below it are done
            if node in below:
                continue
            kinds = [below[n] for n in children[node]]
            mine = list({id(p): p for weights in kinds for p in weights or ()}.values())
            if not kinds and id(leaf := getattr(node, "variable", None)) in wanted:
                mine = [leaf]
            below[node] = None if None in kinds else mine
            if None in kinds and mine:
                hanging[node] = mine
        return hanging


def _note(node, noted):
    def hook(gradients):
        noted[node] = gradients

    return hook
