"""What every test shares: one warm World per size for the whole session."""

import pytest


@pytest.fixture(scope="session")
def worlds():
    """`worlds(4)` is the session's World of four ranks on the CPU, made when first asked for."""
    made = {}

    def of(size: int, **options):
        key = (size, *sorted((name, repr(value)) for name, value in options.items()))
        if key not in made:
            from lib import World

            made[key] = World(size, **{"device": "cpu", **options})
        return made[key]

    yield of
    for world in made.values():
        world.close()


@pytest.fixture(params=[1, 2, 4], ids="{} ranks".format)
def world(request, worlds):
    """The warm World of 1, of 2 and of 4 ranks, one after the other."""
    return worlds(request.param)
