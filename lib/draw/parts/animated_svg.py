"""A still that plays by itself, for pages where nothing can be run: GitHub shows it in a README."""

from lib.draw.parts import style
from lib.draw.parts.picture import Picture


def playing(picture: Picture, seconds: float = 4.9) -> str:
    """Return the SVG of a picture with a time axis and a play head that goes over it once.

    It takes less than the five seconds that a page may move without a way to stop it (WCAG 2.2.2).
    What is still to come is pale, and in the end the picture is whole, as it is from the start for
    who has asked for less motion. Raises ValueError for a picture without a time axis.
    """
    if seconds <= 0:
        raise ValueError(f"A picture plays in more than 0 s, not in {seconds:g} s.")
    (left, bottom), (right, _) = _axis(picture)
    wide, tall = right - left, bottom
    paper, ink = (f"fill:{shade.light}" for shade in (style.PAPER, style.INK))
    dark = f".later{{fill:{style.PAPER.dark}!important}}.now{{fill:{style.INK.dark}!important}}"
    play = f"""<style>
@keyframes sweep{{from{{transform:translateX(0)}}88%,to{{transform:translateX({wide:.1f}px)}}}}
.head{{animation:sweep {seconds:g}s linear forwards}}
@media (prefers-color-scheme:dark){{{dark}}}
@media (prefers-reduced-motion:reduce){{.head{{display:none}}}}
</style>
<clipPath id="plot"><rect x="{left - 1:.1f}" width="{wide + 2:.1f}" height="{tall:.1f}"/></clipPath>
<g clip-path="url(#plot)"><g class="head">
<rect class="later" x="{left:.1f}" width="{wide:.1f}" height="{tall:.1f}" style="{paper}"
 opacity=".78"/>
<rect class="now" x="{left - 0.8:.1f}" width="1.6" height="{tall:.1f}" style="{ink}"/>
</g></g>
"""
    return picture.svg().replace("</svg>", play + "</svg>")


def _axis(picture: Picture):
    """The two ends of the axis: the longest level line in the colour of axes."""
    level = [
        mark.points
        for mark in picture.marks
        if mark.kind == "line" and mark.edge == style.FAINT and len(mark.points) == 2
        and mark.points[0][1] == mark.points[1][1]
    ]  # fmt: skip
    if not level:
        raise ValueError("This picture has no time axis to play along.")
    return max(level, key=lambda ends: ends[1][0] - ends[0][0])
