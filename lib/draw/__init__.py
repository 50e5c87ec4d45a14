"""Pictures made from plain rows: `timeline`, `traffic`, `collective`, `curve`; no torch."""

from lib.draw.curves import curve
from lib.draw.picture import Picture
from lib.draw.static import collective, timeline, traffic

__all__ = ["Picture", "collective", "curve", "timeline", "traffic"]
