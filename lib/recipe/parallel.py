"""A model that methods have spread over a mesh, and its steps."""

import torch

from lib.parallel.pipeline import Pipeline
from lib.ranks.agreement import from_first, same_everywhere
from lib.ranks.mesh import Mesh
from lib.recipe.method import Method, has
from lib.recipe.refusals import refusal_of
from lib.single.batches import share
from lib.single.experts.layer import with_auxiliary
from lib.single.train import next_token_loss


class Parallel:
    """A model that methods have spread over a mesh; `parallelize` makes it.

    `model` is what the last method made, for example a Pipeline or an FSDP, and `data` the Axis
    along which the batch is shared, None where every rank takes the whole batch. `context` says how
    tokens are shared, None where each rank has whole sequences. `loss` is that of the outputs, and
    `loss_factor` multiplies it before backward, where gradients are averaged that are parts of a
    sum.
    """

    def __init__(self, model, mesh: Mesh, methods, loss):
        self.model, self.mesh, self.methods = model, mesh, methods
        self.context, self.loss, self.loss_factor = None, loss, 1
        if refusal := refusal_of(self, methods):
            raise ValueError(refusal)
        axes = [method.axes for method in methods if method.kind == "data"]
        self.data = mesh[axes[0]] if axes else None
        if has(methods, "pipeline"):  # afterwards no rank has the whole model
            same_everywhere(model, None)
            for tensor in (*model.parameters(), *model.buffers()):
                from_first(tensor, None)
        for method in methods:
            self.model = method.wrap(self)
        self._make_optimizer = methods[-1].optimizer

    def take_loss(self, loss) -> None:
        """Take a loss over split outputs for the next token's; another one stays as it was given.

        Logits of a split vocabulary, and tokens that are split, need a loss over all their ranks.
        """
        if self.loss is next_token_loss:
            self.loss = loss

    def optimizer(self, optimizer_class, **defaults) -> torch.optim.Optimizer:
        """Return the optimizer of what this rank keeps: `run.optimizer(torch.optim.SGD, lr=0.1)`.

        Under ZeRO it is a ZeroRedundancyOptimizer around one of this class.
        """
        return self._make_optimizer(self, optimizer_class, defaults)

    def share(self, batch):
        """Return this rank's share of a whole batch: [B, ...] -> [B/dp, ...].

        With context parallelism it is this rank's tokens and labels of the share: [B/dp, S/cp]
        each. Raises ValueError where the ranks cannot share the batch equally, or need labels.
        """
        own = batch if self.data is None else share(batch, self.data.rank, self.data.size)
        if self.context is None:
            return own
        if not isinstance(own, list | tuple) or len(own) != 2:
            raise ValueError(
                "With context parallelism a batch is a pair, (tokens, labels), because both are "
                "cut along the sequence. Give share both."
            )
        return self.context.shard(*own)

    def forward_backward(self, inputs, targets) -> torch.Tensor:
        """Run forward and backward of this rank's share; return the mean loss of the share: [].

        Gradients add up, so call `zero_grad` of the optimizer before. Losses of layers of experts
        are added for backward: each rank's over its own tokens, averaged. All ranks of one pipeline
        pass the same share, and all of them get its loss; so do all ranks that split its matrices
        or its tokens.
        """
        if isinstance(self.model, Pipeline):
            return self.model.step(inputs, targets)
        loss = self.loss(self.model(inputs), targets)
        with_auxiliary(self.loss_factor * loss, self.model).backward()
        return loss.detach()


def parallelize(model, mesh: Mesh, *methods: Method, loss=next_token_loss) -> Parallel:
    """Spread a plain model over a mesh by these methods, given in the order of `ORDER`.

    All ranks begin with the weights and buffers of the first rank. `loss(outputs, targets)` is a
    mean over its samples. Raises ValueError, before anything is sent, for an order, a mesh or a
    combination that does not work, and for a model that is wrapped already.
    """
    return Parallel(model, mesh, methods, loss)
