"""What is drawn in the browser: as on a still, and with room for it."""


def same(seen, picture) -> None:
    """Mark for mark the browser draws the still of `picture`, whatever led there.

    Boxes that only explain a legend are not drawn.
    """
    theirs = [mark for mark in seen.marks if not mark.get("isKey")]
    assert seen.ask("p => Math.round(p.laid.height)") == picture.still().height
    assert len(theirs) == len(picture.marks)
    for a, b in zip(theirs, picture.marks):
        assert (a["kind"], a.get("text", "")) == (b.kind, b.text)
        ours = (
            [b.x, b.y, b.w, b.h] if b.kind in ("box", "text") else [*sum(map(list, b.points), [])]
        )
        drawn = [a.get(name, 0) for name in "xywh"]
        drawn = drawn if b.kind in ("box", "text") else sum(a["points"], [])
        assert len(drawn) == len(ours), b
        assert max(abs(x - y) for x, y in zip(drawn, ours)) <= 0.1, (a, b)
        assert a.get("align", "left") == b.align
        for name in ("fill", "edge"):
            shade = getattr(b, name)
            assert a.get(name) == (list(shade) if shade else None), (a, b)


def crowded(seen) -> list[str]:
    """What is cut off at the edges, and which different words lie on one another: sentences."""
    return seen.ask("""p => {
        const ink = document.createElement("canvas").getContext("2d"), found = [];
        const canvas = document.querySelector("figure.mrom canvas"), width = canvas.clientWidth;
        ink.font = canvas.getContext("2d").font;
        const words = p.laid.marks.filter((m) => m.kind === "text").map((m) => {
            const wide = ink.measureText(m.text).width;
            const left = m.x - { left: 0, middle: wide / 2, right: wide }[m.align || "left"];
            return { text: m.text, left, right: left + wide, top: m.y - 6, bottom: m.y + 6 };
        });
        const boxes = p.laid.marks.filter((m) => m.kind === "box")
            .map((m) => ({ text: "a box", left: m.x, right: m.x + m.w, bottom: m.y + m.h }));
        for (const m of [...words, ...boxes])
            if (m.left < -0.5 || m.right > width + 0.5 || m.bottom > p.laid.height + 0.5)
                found.push(`${m.text} at ${m.left}, ${m.top} is cut off`);
        words.forEach((a, i) => words.slice(i + 1).forEach((b) => {
            const across = a.left < b.right && b.left < a.right;
            if (a.text !== b.text && across && a.top < b.bottom && b.top < a.bottom)
                found.push(`${a.text} lies on ${b.text}`);
        }));
        return found;
    }""")
