"""One layout, run twice: this browser draws what the V8 inside Python draws, for every kind."""

import pytest

from lib.draw import (
    attention_blocks,
    bits,
    blocks,
    buckets,
    collective,
    curve,
    guess,
    keep,
    memory,
    optimizers,
    partition,
    routing,
    schedule,
    shards,
    states,
    timeline,
    traffic,
    units,
    versions,
)
from lib.draw.parts import javascript
from lib.predict.allocator.replay import replay
from lib.predict.collectives.formulas import fit
from lib.predict.collectives.plans import all_to_all, halving_doubling, ring
from lib.predict.pipeline.cuts import equal
from lib.predict.pipeline.play import Costs, play
from lib.predict.pipeline.schedules import one_f_one_b, pipedream, zb_h1
from lib.predict.pipeline.versions import weight_versions
from lib.predict.recompute import BlockCost
from lib.predict.shape import GPTShape
from tests.browser.same import crowded, same
from tests.browser.test_traffic import mixed
from tests.draw.recorded_routes import runs
from tests.predict.allocator.lives import checkpointed

PAPER = Costs(1e-3, 1e-3, 1e-3, send=1e-4, activation=50_000_000)
SIZES = [1e3, 1e4, 1e5]
PICTURES = {
    "attention_blocks": lambda: attention_blocks("contiguous", ranks=8, step=3),
    "attention_blocks by heads": lambda: attention_blocks("heads"),
    "bits": lambda: bits(1 / 3, "fp32", "tf32"),
    "bits, with counts": lambda: bits(
        3e-7, exponents={-40: 3, -25: 9, -20: 20, -10: 5}, scale=2**16, what="gradients"
    ),
    "blocks": lambda: blocks(
        {"best": replay(checkpointed()), "arena": replay(checkpointed(), arena=["activations"])}
    ),
    "buckets": lambda: buckets([10, 1, 10**9], [1.0, 0.0, 2.0], link="Ethernet 10"),
    "collective": lambda: collective("all_to_all", "all_gather", ranks=8),
    "curve": lambda: curve({"a": (SIZES, SIZES)}, {"a": fit(SIZES, SIZES)}),
    "guess": lambda: guess("Which rank waits?", choices=["0", "1"]).reveal("1"),
    "keep": lambda: keep(GPTShape(layers=3), "budget", batch=2, budget=2_000_000),
    "keep by hand": lambda: keep(
        [BlockCost(1, 4, 0.1)] * 6, ((0, 1), 2, (3,), 4, 5), by_hand=True, budget=20, par=2, unit=""
    ),
    "memory": lambda: memory(play(zb_h1(4, 8), PAPER).ledger),
    "memory, two runs": lambda: memory(
        {"ZB-H1": play(zb_h1(2, 8), PAPER).ledger, "1F1B": play(one_f_one_b(4, 8), PAPER).ledger}
    ),
    "optimizers": lambda: optimizers("Llama 3 8B", {"adamw": [2.5, 2.6], "muon": [2.4]}),
    "partition": lambda: partition([3, 1, 2, 2], ("equal", equal([3, 1, 2, 2], 2)), unit=""),
    "routing": lambda: routing(runs(), capacity=1.25),
    "schedule": lambda: schedule("interleaved", 8, 8, 2, par=60, limit=5),
    "shards": lambda: shards("row", step=1),
    "shards on a cube": lambda: shards("3d", step=3),
    "states": lambda: states("Llama 3 70B", ranks=16),
    "steps": lambda: collective(halving_doubling(7), view="ring"),
    "steps, all to all": lambda: collective(all_to_all(5)),
    "steps, in rows": lambda: collective(ring(4), view="rows"),
    "timeline": lambda: timeline(play(one_f_one_b(4, 8), PAPER).ledger, memory=True),
    "traffic": lambda: traffic(mixed(16, 2), node=2),
    "units": lambda: units([10**8, *[4 * 10**8] * 6], 0.02, names="abcdefg"),
    "versions": lambda: versions(weight_versions(pipedream(4, 12), "latest")),
}


@pytest.mark.parametrize("which", PICTURES)
def test_the_browser_draws_the_still(bench_page, which):
    picture = PICTURES[which]()
    same(bench_page(picture, 640), picture)


@pytest.mark.parametrize("which", PICTURES)
def test_nothing_is_cut_off_on_a_phone(bench_page, which):
    """360 px less what the page and the frame leave free; letters are as large as anywhere."""
    picture = PICTURES[which]()
    seen = bench_page(picture, 304)
    assert not [text for text in crowded(seen) if text.endswith("is cut off")]
    drawn = seen.node.locator("canvas").first
    assert drawn.evaluate("node => parseFloat(node.getContext('2d').font)") >= 10
    for part in (".mrom-caption", ".mrom-heading", ".mrom-status"):
        node = seen.node.locator(part)
        assert node.evaluate("node => node.scrollWidth <= node.clientWidth"), part


def test_every_kind_of_picture_is_among_them():
    kinds = {p.stem for p in javascript.JS.glob("*.js") if "function picture(" in p.read_text()}
    assert {make().live[0] for make in PICTURES.values()} == kinds
