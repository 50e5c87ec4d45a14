"""A picture: words and data, drawn as PNG for the notebook and as SVG for everything else."""

from html import escape
from pathlib import Path

from lib.draw.parts import layout, style
from lib.draw.parts.marks import Mark, Still
from lib.draw.parts.page import page


class Picture:
    """A summary in words and what is drawn from data; the summary is all that a test sees of it.

    `live` is (kind, data): the file lib/draw/js/<kind>.js and what it draws from. A notebook shows
    the living picture; its still, laid out by the same file, stands where nothing can run. In the
    data, "caption" says what the numbers are, and "heading" is a sentence above the picture. `ask`,
    called with (name, state), answers where a kernel runs a button of the picture with new data.
    `save("x.svg")` follows the reader's light or dark; `save("x.png")` is on light paper.
    """

    def __init__(self, summary: str, live: tuple[str, dict], *, ask=None):
        self.summary, self.live, self.ask = summary, live, ask
        self._widget, self._stills = None, {}

    def still(self, *, words: bool = True) -> Still:
        """Return the marks and their size, laid out when first needed; sooner without `words`."""
        if words not in self._stills:
            kind, data = self.live
            data = {"summary": self.summary} | data
            self._stills[words] = layout.still(kind, data, style.WIDTH, words=words)
        return self._stills[words]

    @property
    def marks(self) -> list[Mark]:
        """What is drawn, from the lowest to the highest."""
        return self.still().marks

    @property
    def width(self) -> int:
        """Pixels from left to right."""
        return page(self.still(words=False)).width

    @property
    def height(self) -> int:
        """Pixels from top to bottom, with heading and caption."""
        return page(self.still(words=False)).height

    @property
    def caption(self) -> str:
        """What the numbers are: measured, slow motion, predicted or published."""
        return self.still(words=False).caption

    def __repr__(self) -> str:
        return self.summary

    def _repr_mimebundle_(self, include=None, exclude=None):
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget().model_id}
        data = {
            "text/plain": self.summary,
            "image/png": self.png(),
            "application/vnd.jupyter.widget-view+json": view,
        }
        return data, {"image/png": {"width": self.width}}

    def widget(self):
        """Return the living picture; it is made when it is first shown."""
        if self._widget is None:
            from lib.draw.parts.live import Live  # its imports are slow, and stills do without

            kind, data = self.live
            self._widget = Live(kind, {"summary": self.summary} | data, self.ask)
        return self._widget

    def save(self, path) -> None:
        """Write the picture to a file, by its ending: .svg or .png."""
        path = Path(path)
        if path.suffix not in (".svg", ".png"):
            raise ValueError(f"{path.name}: a picture is saved as .svg or .png.")
        path.write_bytes(self.png() if path.suffix == ".png" else self.svg().encode())

    def png(self, *, dark: bool = False) -> bytes:
        """Return the picture as a PNG with a palette, two pixels for one; always the same bytes."""
        from lib.draw.parts.pixels import draw  # Pillow, which drawing SVG does without
        from lib.draw.parts.png import png

        laid = page(self.still(words=False))
        shades = {style.PAPER} | {s for mark in laid.marks for s in (mark.fill, mark.edge) if s}
        return png(draw(laid, dark), [shade[dark] for shade in shades])

    def svg(self) -> str:
        """Return the picture as SVG text, with the colours for light and for dark paper in it."""
        laid = page(self.still())
        shades = sorted({s for m in laid.marks for s in (m.fill, m.edge) if s} | {style.PAPER})
        names = {shade: f"c{number}" for number, shade in enumerate(shades)}
        light, dark = (
            " ".join(f"--{name}:{shade[i]};" for shade, name in names.items()) for i in (0, 1)
        )
        size = f'width="{laid.width}" height="{laid.height}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {laid.width} {laid.height}" '
            f'{size} role="img">',
            f"<title>{escape(self.summary)}</title>",
            f"<style>svg{{{light}}} @media (prefers-color-scheme:dark){{svg{{{dark}}}}} "
            f"text{{font:{style.SIZE}px '{style.FONT}',sans-serif;dominant-baseline:central}}"
            "</style>",
            '<pattern id="wait" width="5" height="5" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate(45)"><line y2="5" stroke="{style.FAINT.light}"/></pattern>',
            f'<rect {size} style="fill:var(--{names[style.PAPER]})"/>',
            *(_svg(mark, names) for mark in laid.marks),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


def _svg(mark: Mark, names: dict) -> str:
    def paint(kind, shade):
        return f"{kind}:var(--{names[shade]})" if shade else f"{kind}:none"

    if mark.kind == "text":
        anchor = {"left": "start", "middle": "middle", "right": "end"}[mark.align]
        return (
            f'<text x="{mark.x:.1f}" y="{mark.y:.1f}" text-anchor="{anchor}" '
            f'style="{paint("fill", mark.fill)}">{escape(mark.text)}</text>'
        )
    title = f"<title>{escape(mark.about)}</title>" if mark.about else ""
    dash = ";stroke-dasharray:4 3" if mark.dash else ""
    if mark.kind == "box":
        size = f'width="{mark.w:.1f}" height="{mark.h:.1f}"'
        where = f'<rect x="{mark.x:.1f}" y="{mark.y:.1f}" {size}'
        hatch = f'{where} fill="url(#wait)"/>' if mark.hatch else ""
        thick = f";stroke-width:{mark.thick:g}" if mark.thick else ""
        paints = f"{paint('fill', mark.fill)};{paint('stroke', mark.edge)}{dash}{thick}"
        return f'{where} style="{paints}">{title}</rect>{hatch}'
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in mark.points)
    shape, opacity = (
        ("polygon", f";opacity:{mark.alpha:g}") if mark.kind == "area" else ("polyline", "")
    )
    paints = f"{paint('fill', mark.fill)};{paint('stroke', mark.edge)}{dash}{opacity}"
    thick = f"stroke-width:{mark.thick or 1.6:g}"
    return f'<{shape} points="{points}" style="{thick};{paints}">{title}</{shape}>'
