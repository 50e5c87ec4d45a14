"""Pictures made from plain rows, and `guess`; no torch."""

from lib.draw.attention_blocks import attention_blocks
from lib.draw.bits import bits
from lib.draw.blocks import blocks
from lib.draw.buckets import buckets
from lib.draw.collective import collective
from lib.draw.curves import curve
from lib.draw.guess import guess
from lib.draw.keep import keep
from lib.draw.memory import memory
from lib.draw.optimizers import optimizers
from lib.draw.partition import partition
from lib.draw.parts.picture import Picture
from lib.draw.routing import routing
from lib.draw.schedule import schedule
from lib.draw.shards import shards
from lib.draw.states import states
from lib.draw.timeline import timeline
from lib.draw.traffic import traffic
from lib.draw.units import units
from lib.draw.versions import versions

__all__ = [
    "Picture",
    "attention_blocks",
    "bits",
    "blocks",
    "buckets",
    "collective",
    "curve",
    "guess",
    "keep",
    "memory",
    "optimizers",
    "partition",
    "routing",
    "schedule",
    "shards",
    "states",
    "timeline",
    "traffic",
    "units",
    "versions",
]
