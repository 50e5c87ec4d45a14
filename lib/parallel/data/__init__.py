"""Data parallelism: every rank has the whole model and a share of the batch."""

from lib.parallel.data.compressors import PowerSGD, Quantized, Sign, TopK
from lib.parallel.data.ddp import DistributedDataParallel
from lib.parallel.data.dp import DataParallel
from lib.parallel.data.gossip import Gossip
from lib.parallel.data.local_sgd import LocalSGD
from lib.parallel.data.parameter_server import ParameterServer

__all__ = [
    "DataParallel",
    "DistributedDataParallel",
    "Gossip",
    "LocalSGD",
    "ParameterServer",
    "PowerSGD",
    "Quantized",
    "Sign",
    "TopK",
]
