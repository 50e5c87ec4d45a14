"""Pictures made from plain rows, and `guess`; no torch."""

from lib.draw.buckets import buckets
from lib.draw.collective import collective
from lib.draw.curves import curve
from lib.draw.guess import guess
from lib.draw.memory import memory
from lib.draw.picture import Picture
from lib.draw.schedule import schedule
from lib.draw.timeline import timeline
from lib.draw.traffic import traffic

__all__ = [
    "Picture",
    "buckets",
    "collective",
    "curve",
    "memory",
    "guess",
    "schedule",
    "timeline",
    "traffic",
]
