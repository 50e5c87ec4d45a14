"""Pictures from plain rows: `timeline`, `schedule`, `traffic`, `collective`, `curve`; no torch."""

from lib.draw.collective import collective
from lib.draw.curves import curve
from lib.draw.picture import Picture
from lib.draw.schedule import schedule
from lib.draw.timeline import timeline
from lib.draw.traffic import traffic

__all__ = ["Picture", "collective", "curve", "schedule", "timeline", "traffic"]
