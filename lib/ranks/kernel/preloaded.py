"""What the server loads from which ranks are forked; nothing but that server imports this file."""

import atexit
import importlib
import os

# torch._dynamo: every optimizer loads it in its first step, a second on each rank otherwise.
# slow_motion: an import that a failure cuts off on a rank leaves a package (yaml) that is broken.
MODULES = ("torch", "torch.distributed", "torch._dynamo", "lib.ranks.process.worker")
MODULES += ("lib.ranks.slow_motion",)

atexit.register(os._exit, 0)  # the server ends with its kernel: taking torch down takes a second
for name in MODULES:
    importlib.import_module(name)
