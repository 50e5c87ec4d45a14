"""Methods combined on one mesh, in the one order that works.

    run = parallelize(model, mesh(pp=2, dp=2), pipeline("pp", schedule), zero1("dp"))
    optimizer = run.optimizer(torch.optim.AdamW, lr=1e-3)
    loss = run.forward_backward(*run.share(batch))      x [B, ...] -> x [B/dp, ...] on each rank
    optimizer.step()

[Note: the order]
Each method changes what the one before it has made, so the order is not a matter of taste:
1. `tensor` or `grid` splits matrices, and `context` replaces the core of attention. They change
   parts of the plain model in place, so they come first.
2. `pipeline` cuts the model into stages, as long as it is still a list of blocks.
3. `ddp`, `zero1`, `zero2` or `fsdp` shares the batch. It comes last, because it averages the
   gradient of every weight that a rank has then, and gives each rank the same values at the start.
4. The optimizer is made from what the last method has left: stages, shards, or whole weights.
`ORDER` has this order. A new method is a function that returns a Method of a kind in it.
"""

from lib.recipe.method import ORDER, Method
from lib.recipe.methods import context, ddp, fsdp, grid, pipeline, tensor, zero1, zero2
from lib.recipe.parallel import Parallel, parallelize

__all__ = [
    "ORDER",
    "Method",
    "Parallel",
    "context",
    "ddp",
    "fsdp",
    "grid",
    "parallelize",
    "pipeline",
    "tensor",
    "zero1",
    "zero2",
]
