"""An image as a small PNG with a palette of its own colours."""

import io

import numpy as np
from PIL import Image

FLAT = 12  # colours beside which 4 more do for the edges of letters


def png(image: Image.Image, flat: list[str]) -> bytes:
    """Encode an RGB image whose `flat` colours stay exact; the same bytes every time."""
    palette, at = _indexed(image, flat)
    drawn, file = Image.fromarray(at), io.BytesIO()
    drawn.putpalette(palette.tobytes())
    drawn.save(file, "PNG", optimize=True)
    return file.getvalue()


def _indexed(image: Image.Image, flat: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """A palette, flat colours first and then the most used, and for each pixel a place in it.

    Pillow's own `quantize` rounds colours before it looks for the nearest, so that flat colours
    which lie close would not stay exact.
    """
    exact = sorted({tuple(bytes.fromhex(colour[1:])) for colour in flat})
    colours = image.getcolors(4096) or image.getcolors(1 << 24)
    used = [c for _, c in sorted(colours, key=lambda c: (-c[0], c[1])) if c not in set(exact)]
    most = 16 if len(exact) <= FLAT else 256
    palette = np.array((exact + used)[:most])
    known = np.array([c for _, c in colours])
    nearest = [
        ((part[:, None] - palette) ** 2).sum(2).argmin(1)
        for part in np.split(known, range(1024, len(known), 1024))
    ]
    table = np.zeros(1 << 24, np.uint8)  # pages that are not touched cost nothing
    table[known @ (1, 1 << 8, 1 << 16)] = np.concatenate(nearest)
    pixels = np.asarray(image.convert("RGBX")).view("<u4")[..., 0]
    return palette.astype(np.uint8), table[pixels & 0xFFFFFF]
