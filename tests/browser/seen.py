"""A living picture on a page, as a test sees and handles it."""

import time
from pathlib import Path

SCREENSHOTS = Path(__file__).parents[2] / "_build" / "screenshots"
PATIENCE = 30  # seconds for anything to appear; JupyterLab and a kernel start within


class Seen:
    """A living picture on a page. `node` is its <figure>, for all that Playwright can do."""

    def __init__(self, node, name: str):
        self.node, self.page, self.name = node, node.page, name

    def ask(self, script: str, given=None):
        """What a JavaScript function says of `figure.picture`: ask("p => p.took.layout")."""
        return self.node.evaluate(f"(figure, given) => ({script})(figure.picture, given)", given)

    @property
    def state(self) -> dict:
        """What the controls have made of it."""
        return self.ask("p => p.state")

    @property
    def marks(self) -> list[dict]:
        """All that is drawn, in pixels from the upper left corner of the picture."""
        return self.ask("""p => p.laid.marks.map((m) =>
            ({ ...m, about: typeof m.about === "function" ? m.about() : m.about }))""")

    @property
    def status(self) -> str:
        """The sentence under the picture."""
        return self.node.locator(".mrom-status").inner_text()

    @property
    def heading(self) -> str:
        """The sentence above the picture, or nothing."""
        return self.node.locator(".mrom-heading").inner_text()

    @property
    def caption(self) -> str:
        """What its numbers are, as it says below the picture."""
        return self.node.locator(".mrom-caption").inner_text()

    @property
    def tip(self) -> str:
        """What the tooltip says, or nothing."""
        tip = self.node.locator(".mrom-tip")
        return tip.inner_text() if tip.is_visible() else ""

    @property
    def wrong(self) -> str:
        """The sentence beside a field that refuses what was entered, or nothing."""
        return self.node.locator(".mrom-wrong").inner_text()

    def control(self, label: str):
        """The input, list or button of that label."""
        inputs = self.node.locator("input, select, textarea, button")
        named = self.node.get_by_role("button", name=label)
        return inputs.and_(self.node.get_by_label(label)).or_(named).first

    def slide(self, label: str, value: float) -> None:
        """Moves a slider there, and waits until the picture has followed."""
        self.control(label).evaluate(
            """(input, value) => {
                input.value = value;
                input.dispatchEvent(new Event("input", { bubbles: true }));
            }""",
            value,
        )
        self.settle()

    def settle(self) -> None:
        """Waits until what changed is painted: two frames."""
        self.page.evaluate(
            "() => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))"
        )

    def place(self, mark: dict) -> dict:
        """The middle of a mark, for hover(position=...) on `canvas`."""
        return {"x": mark["x"] + mark["w"] / 2, "y": mark["y"] + mark["h"] / 2}

    @property
    def canvas(self):
        """The upper canvas: it takes the pointer and the keys."""
        return self.node.locator("canvas").last

    def hover(self, mark: dict) -> str:
        """Points at a mark; returns what the tooltip says."""
        self.canvas.hover(position=self.place(mark))
        self.settle()
        return self.tip

    def drag(self, mark: dict, dx: float, dy: float = 0.0) -> None:
        """Takes a mark in its middle and lets go of it that many pixels further."""
        box, at = self.canvas.bounding_box(), self.place(mark)
        x, y = box["x"] + at["x"], box["y"] + at["y"]
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        self.page.mouse.move(x + dx / 2, y + dy / 2)
        self.page.mouse.move(x + dx, y + dy)
        self.page.mouse.up()
        self.settle()

    def press(self, key: str) -> str:
        """Presses a key on the canvas; returns what a screen reader is told."""
        self.canvas.press(key)
        self.settle()
        return self.node.locator(".mrom-announcement").inner_text()

    def colours(self) -> set[str]:
        """The colours on the canvas: a blank one has at most one."""
        return set(
            self.node.locator("canvas").first.evaluate("""(canvas) => {
                const { width, height } = canvas;
                const found = new Set();
                const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
                for (let i = 0; i < pixels.length; i += 4)
                    found.add(pixels.subarray(i, i + 4).join());
                return [...found];
            }""")
        )

    def screenshot(self, name: str = "") -> Path:
        """Takes its picture into _build/screenshots/."""
        path = SCREENSHOTS / f"{name or self.name}.png"
        self.node.screenshot(path=path)
        return path


ALIVE = """(figure) => Boolean(figure.picture && figure.picture.laid.height)"""


def alive(node, name: str) -> Seen:
    """Waits until a figure is drawn; fails where it only says that it could not be."""
    node.wait_for(state="attached", timeout=PATIENCE * 1000)
    node.scroll_into_view_if_needed()
    deadline = time.monotonic() + PATIENCE
    while not node.evaluate(ALIVE):
        assert not node.get_by_role("alert").count(), node.inner_text()
        assert time.monotonic() < deadline, f"{name} was not drawn within {PATIENCE} s"
        node.page.wait_for_timeout(50)
    return Seen(node, name)
