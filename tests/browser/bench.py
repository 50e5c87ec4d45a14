"""A picture alone on a page, without Jupyter."""

from tests.browser.seen import Seen, alive

BENCH = """async ([text, data, asks]) => {
    const here = document.querySelector("#here"), heard = [];
    const address = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    const { mount, picture, madeBy } = await import(address);
    const model = {
        get: (name) => ({ data, asks })[name],
        on: (name, call) => heard.push([name, call]),
        off() {},
        send: (message) => window.sent.push(message),
    };
    window.sent = [];
    window.trigger = (event, ...more) =>
        heard.forEach(([name, call]) => name === event && call(...more));
    window.answer = (message) => trigger("msg:custom", message);
    window.renew = (given) => {
        data = given;
        trigger("change:data");
    };
    await mount(picture, here, model, madeBy);
}"""


def bench(page, picture, width: int | None = None) -> Seen:
    """Show a picture of lib.draw alone on `page`, laid out `width` wide, else as its still is."""
    from lib.draw.parts import javascript, live

    kind, data = picture.live
    room = width or picture.width
    page.set_content('<!doctype html><body style="margin:0"><div id="here"></div>')
    text, data = javascript.module(kind), live.packed({"summary": picture.summary} | data)
    for extra in (0, 40):  # the frame's own padding is learnt from the first
        page.evaluate("px => (here.style.width = `${px}px`)", room + extra)
        if not extra:
            page.evaluate(BENCH, [text, data, picture.ask is not None])
    seen = alive(page.locator("figure.mrom"), kind)
    seen.settle()
    laid = page.evaluate("() => document.querySelector('.mrom-stage').clientWidth")
    page.evaluate("px => (here.style.width = `${px}px`)", 2 * room + 40 - laid)
    seen.settle()
    return seen
