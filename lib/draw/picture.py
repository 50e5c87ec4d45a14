"""A picture: marks in pixels, drawn as PNG for the notebook and as SVG for everything else."""

from dataclasses import dataclass
from html import escape
from pathlib import Path

from lib.draw import style
from lib.draw.style import Shade


@dataclass(frozen=True)
class Mark:
    """One thing in a picture: a "box", a "line" or an "area" of points, or a "text"; pixels.

    x, y is the upper left corner of a box, the anchor of a text (its middle line).
    """

    kind: str
    x: float = 0.0
    y: float = 0.0
    w: float = 0.0
    h: float = 0.0
    fill: Shade | None = None
    edge: Shade | None = None
    hatch: bool = False
    dash: bool = False
    text: str = ""
    align: str = "left"  # or "middle", "right"
    points: tuple[tuple[float, float], ...] = ()
    alpha: float = 0.3  # of an area: how much of its colour covers what lies under it
    about: str = ""  # what it shows, in words: "rank 0 all_reduce moving"


class Picture:
    """Marks and a summary in words; the summary is all that a test sees of it.

    A notebook shows the still, made of the marks, or its living twin: `live` is (kind, data), the
    file lib/draw/js/<kind>.js and what it draws from. `ask(name, state)` answers, where a kernel
    runs, a button of the picture with new data. `save("x.svg")` follows the reader's light or dark;
    `save("x.png")` is on light paper.
    """

    def __init__(
        self,
        marks: list[Mark],
        height: float,
        summary: str,
        width: float = style.WIDTH,
        *,
        live: tuple[str, dict] | None = None,
        ask=None,
    ):
        self.marks, self.summary = marks, summary
        self.width, self.height = round(width), round(height)
        self.live, self.ask, self._widget = live, ask, None

    def __repr__(self) -> str:
        return self.summary

    def _repr_mimebundle_(self, include=None, exclude=None):
        data = {"text/plain": self.summary, "image/png": self.png()}
        if self.live:
            view = {"version_major": 2, "version_minor": 0, "model_id": self.widget().model_id}
            data["application/vnd.jupyter.widget-view+json"] = view
        return data, {"image/png": {"width": self.width}}

    def widget(self):
        """The living twin; made when it is first shown."""
        if self._widget is None:
            from lib.draw.live import Live  # ipywidgets is slow to import, and stills do without

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
        """The picture as a PNG with a palette, two pixels for one; the same bytes every time."""
        from lib.draw.pixels import draw  # Pillow, which drawing SVG does without
        from lib.draw.png import png

        shades = {style.PAPER} | {s for mark in self.marks for s in (mark.fill, mark.edge) if s}
        return png(draw(self, dark), [shade[dark] for shade in shades])

    def svg(self) -> str:
        """The picture as SVG text, with the colours for light and for dark paper in it."""
        shades = sorted({s for m in self.marks for s in (m.fill, m.edge) if s} | {style.PAPER})
        names = {shade: f"c{number}" for number, shade in enumerate(shades)}
        light, dark = (
            " ".join(f"--{name}:{shade[i]};" for shade, name in names.items()) for i in (0, 1)
        )
        size = f'width="{self.width}" height="{self.height}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'{size} role="img">',
            f"<title>{escape(self.summary)}</title>",
            f"<style>svg{{{light}}} @media (prefers-color-scheme:dark){{svg{{{dark}}}}} "
            f"text{{font:{style.SIZE}px '{style.FONT}',sans-serif;dominant-baseline:central}}"
            "</style>",
            '<pattern id="wait" width="5" height="5" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate(45)"><line y2="5" stroke="{style.FAINT.light}"/></pattern>',
            f'<rect {size} style="fill:var(--{names[style.PAPER]})"/>',
            *(_svg(mark, names) for mark in self.marks),
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
        paints = f"{paint('fill', mark.fill)};{paint('stroke', mark.edge)}{dash}"
        return f'{where} style="{paints}">{title}</rect>{hatch}'
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in mark.points)
    shape, opacity = (
        ("polygon", f";opacity:{mark.alpha:g}") if mark.kind == "area" else ("polyline", "")
    )
    paints = f"{paint('fill', mark.fill)};{paint('stroke', mark.edge)}{dash}{opacity}"
    return f'<{shape} points="{points}" style="stroke-width:1.6;{paints}">{title}</{shape}>'
