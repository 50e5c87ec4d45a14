"""Which World a `%%ranks` cell speaks to."""

from lib.ranks.kernel import open_worlds


class Open:
    is_open = True


def test_a_cell_goes_to_the_newest_world_that_is_still_open(monkeypatch):
    monkeypatch.setattr(open_worlds, "_opened", [])
    assert open_worlds.current() is None
    first, second = Open(), Open()
    open_worlds.opened(first)
    open_worlds.opened(second)
    assert open_worlds.current() is second
    second.is_open = False  # as after `with World(2) as second: ...`
    assert open_worlds.current() is first
    first.is_open = False
    assert open_worlds.current() is None


def test_a_world_that_is_gone_is_forgotten(monkeypatch):
    monkeypatch.setattr(open_worlds, "_opened", [])
    open_worlds.opened(Open())
    assert open_worlds.current() is None
