"""Pictures made from plain rows, and `guess`; no torch."""

from lib.draw.buckets import buckets
from lib.draw.collective import collective
from lib.draw.curves import curve
from lib.draw.guess import guess
from lib.draw.memory import memory
from lib.draw.partition import partition
from lib.draw.picture import Picture
from lib.draw.schedule import schedule
from lib.draw.timeline import timeline
from lib.draw.traffic import traffic
from lib.draw.versions import versions

__all__ = [
    "Picture",
    "buckets",
    "collective",
    "curve",
    "guess",
    "memory",
    "partition",
    "schedule",
    "timeline",
    "traffic",
    "versions",
]
