"""A backward in two parts: for the input now (I), for the weights later (W).

[Note: where a graph is cut]
Autograd's graph runs from the output down to leaves. Some of its nodes lead to the input: the
spine. A node of the spine with a branch to a weight needs one thing to serve that branch, the
gradient of its own output. I runs along the spine alone, and autograd skips what nobody asked for;
it notes that gradient at each such node. W starts again at each of these nodes and runs its branch.
A weight that hangs on several nodes of the spine (used twice) cannot wait: its gradient is found
along with I.
"""

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
        now = list({id(p): p for p in every if sum(q is p for q in every) > 1}.values())
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
            wanted = [p for p in hanging[node] if not any(p is q for q in now)]
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
        leaf = {get_gradient_edge(p).node: p for p in self.parameters}
        x = get_gradient_edge(self.x).node
        spine: dict = {}  # node -> does it lead to x
        below: dict = {}  # node off the spine -> the weights below it
        stack = [(self.output.node, False)]
        while stack:
            node, done = stack.pop()
            children = [n for n, _ in node.next_functions if n is not None]
            if not done and node not in spine:
                spine[node] = node is x
                stack.append((node, True))
                stack += [(n, False) for n in children]
            elif done:
                spine[node] = spine[node] or any(spine[n] for n in children)
                if not spine[node]:
                    mine = {id(p): p for n in children for p in below[n]}
                    below[node] = [leaf[node]] if node in leaf else list(mine.values())
        hanging = {}
        for node in spine:
            if spine[node]:
                children = [n for n, _ in node.next_functions if n is not None and not spine[n]]
                mine = {id(p): p for n in children for p in below[n]}
                if mine:
                    hanging[node] = list(mine.values())
        return hanging


def _note(node, noted):
    def hook(gradients):
        noted[node] = gradients

    return hook
