"""Every figure has unit, sense, source and date; ratios that physics and vendors fix hold."""

import pickle
import re

import pytest

from lib.predict.hardware import Figure, gpu, gpus, link, links, sweep, sweeps


def figures():
    """Every figure of the tables, with the place it stands at."""
    for name in gpus():
        card = gpu(name)
        for dtype, figure in card.peak.items():
            yield f"{name} peak {dtype}", figure
        yield f"{name} memory_bytes", card.memory_bytes
        yield f"{name} memory_bandwidth", card.memory_bandwidth
        if card.matmul is not None:
            yield f"{name} matmul", card.matmul
    for name in links():
        yield f"{name} bandwidth", link(name).bandwidth
        yield f"{name} alpha", link(name).alpha


FIGURES = dict(figures())


@pytest.mark.parametrize("place", FIGURES)
def test_a_figure_says_what_it_is(place):
    figure = FIGURES[place]
    unit, sense, low, high = {
        "peak": ("FLOP/s", "dense", 1e13, 1e16),
        "matmul": ("FLOP/s", "dense", 1e13, 1e16),
        "memory_bytes": ("B", "", 1e10, 1e12),
        "memory_bandwidth": ("B/s", "", 5e11, 1e13),
        "bandwidth": ("B/s", "one way", 1e9, 1e12),
        "alpha": ("s", "", 1e-6, 1e-4),
    }[re.search(r"(peak|matmul|memory_bytes|memory_bandwidth|bandwidth|alpha)( \w+)?$", place)[1]]
    assert (figure.unit, figure.sense) == (unit, sense)
    assert low < figure < high
    assert figure.value == figure and type(figure.value) is float
    assert len(figure.source) > 15
    assert re.fullmatch(r"20\d\d(-\d\d)?(-\d\d)?", figure.date)


def test_the_cards_and_links_of_the_course_are_there():
    assert {"V100", "A100", "H100", "H200", "B200", "MI300X", "RTX4090"} <= set(gpus())
    assert {f"NVLink{k}" for k in (2, 3, 4, 5)} | {f"PCIe{k}" for k in (3, 4, 5, 6)} <= set(links())
    assert {f"InfiniBand {k}" for k in ("EDR", "HDR", "NDR", "XDR")} <= set(links())
    assert {"xGMI", *(f"Ethernet {k}" for k in (10, 25, 100, 400))} <= set(links())


def test_printed_figures_arrive_in_base_units():
    """Spot checks typed by hand from the vendors' pages: a slip of the scale cannot hide."""
    h100 = gpu("H100")
    assert h100.peak["bf16"] == 989e12
    assert h100.memory_bytes == 80e9
    assert h100.memory_bandwidth == 3.35e12
    assert link(h100.link).bandwidth == 450e9
    assert link("NVLink4").beta == pytest.approx(1 / 450e9)
    assert link("NVLink4").alpha == pytest.approx(3.4e-6)
    assert link("InfiniBand HDR").bandwidth == 200e9 / 8
    assert link("Ethernet 10").bandwidth == 10e9 / 8
    assert link("PCIe3").bandwidth == pytest.approx(16 * 8e9 * 128 / 130 / 8, rel=1e-3)
    assert gpu("RTX4090").peak["bf16"] == 165.2e12, "sums in fp32; 330.3 is fp16 sums or fp8"


def test_a_figure_is_from_the_source_that_prints_it():
    """Case 16: the A100's 2,039 GB/s stood under a source that prints 2.00 TB/s."""
    a100 = gpu("A100")
    assert a100.memory_bandwidth == 2039e9
    assert "A100 Tensor Core GPU data sheet" in a100.memory_bandwidth.source
    assert "1935 GB/s" in a100.memory_bandwidth.note
    assert "ml-engineering" in a100.peak["bf16"].source == a100.memory_bytes.source


@pytest.mark.parametrize("name", gpus())
def test_halving_the_format_about_doubles_the_dense_peak(name):
    """A sparse figure among dense ones would show here as a factor of 4 or of 1."""
    peak = gpu(name).peak
    for wide, narrow in (("tf32", "bf16"), ("bf16", "fp8"), ("fp8", "fp4")):
        if wide in peak and narrow in peak:
            assert peak[narrow] / peak[wide] == pytest.approx(2, rel=0.01)
    assert peak.get("bf16", peak["fp16"]) == peak["fp16"]


def test_a_generation_of_a_link_is_about_twice_the_one_before():
    for names in (
        ["NVLink2", "NVLink3"],
        ["NVLink4", "NVLink5"],
        ["PCIe3", "PCIe4", "PCIe5", "PCIe6"],
    ):
        for old, new in zip(names, names[1:]):
            assert link(new).bandwidth / link(old).bandwidth == pytest.approx(2, rel=0.05)
    assert link("NVLink4").bandwidth / link("NVLink3").bandwidth == 1.5


@pytest.mark.parametrize("name", gpus())
def test_a_card_names_links_that_exist(name):
    card = gpu(name)
    assert link(card.link).bandwidth > 0
    assert link(card.host).name.startswith("PCIe")


def test_matmul_efficiency_is_the_published_share_or_none():
    """ml-engineering, MAMF: A100 86.9 %, H100 and H200 80.3 %, B200 77.6 %, MI300X 51.4 %."""
    shares = {"A100": 86.9, "H100": 80.3, "H200": 80.3, "B200": 77.6, "MI300X": 51.4}
    for name in gpus():
        share = gpu(name).matmul_efficiency
        if name in shares:
            assert round(100 * share, 1) == shares[name]
        else:
            assert share is None


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("rtx 4090", "RTX4090"),
        ("h100-sxm", "H100"),
        ("mi300x", "MI300X"),
        ("H100 pcie", "H100 PCIe"),
    ],
)
def test_names_forgive_capitals_spaces_and_dashes(said, meant):
    assert gpu(said) is gpu(meant)
    assert link("nvlink 4") is link("NVLink4")
    assert link("NDR") is link("infiniband ndr")
    assert link("100gbe") is link("Ethernet 100")


def test_an_unknown_name_is_told_the_closest():
    with pytest.raises(
        ValueError, match=r"No GPU here is called 'H1000'\. The closest names are .*H100"
    ):
        gpu("H1000")
    with pytest.raises(
        ValueError, match=r"No link here is called 'NVLink 7'\. The closest names are .*NVLink"
    ):
        link("NVLink 7")
    with pytest.raises(ValueError, match=r"The closest names are .*V100"):
        gpu("???")
    with pytest.raises(ValueError, match=r"no figure for 'bf16', only for fp32, fp16"):
        gpu("V100").peak["bf16"]


def test_a_figure_keeps_its_source_when_it_travels():
    """Slow motion sends its GPU to the ranks by pickle."""
    card, wire = pickle.loads(pickle.dumps((gpu("MI300X"), link("xGMI"))))
    assert (card, wire) == (gpu("MI300X"), link("xGMI"))
    assert card.peak["bf16"].source == gpu("MI300X").peak["bf16"].source
    assert "64 GB/s" in wire.note and wire.source == link("xGMI").bandwidth.source
    assert repr(Figure(2.5e12, "B/s", sense="one way")) == "2.5e+12 B/s one way"


@pytest.mark.parametrize("name", sweeps())
def test_a_sweep_is_whole(name):
    found = sweep(name)
    assert len(found.nbytes) == len(found.seconds) >= 5
    assert list(found.nbytes) == sorted(set(found.nbytes))
    assert 2 <= found.ranks <= 64 and found.tool
    assert len(found.source) > 15 and re.match(r"20\d\d", found.date)
    assert not found.link or link(found.link)
    assert (found.nodes > 1) == bool(found.inside) == bool(found.outside) == (found.rails > 0)
    assert found.ranks % found.nodes == 0 and not (found.link and found.inside)
    rates = [
        2 * (found.ranks - 1) / found.ranks * s / t for s, t in zip(found.nbytes, found.seconds)
    ]
    assert rates[-1] > rates[0], "large messages use the link better"
    if found.link and "NVLS" not in found.note:
        assert max(rates) < link(found.link).bandwidth


def test_sweeps_of_several_nodes_say_how_these_are_joined():
    """Case 17: of each, the link inside, the rails outside, and the corners typed by hand."""
    several = sweeps(one_node=False)
    assert len(several) >= 4 and set(several) | set(sweeps(one_node=True)) == set(sweeps())
    for name in several:
        found = sweep(name)
        assert link(found.inside).bandwidth > link(found.outside).bandwidth
        assert found.ranks // found.nodes % found.rails == 0
    last = {name: sweep(name).seconds[-1] for name in several}
    assert last["A100 2-node all-reduce"] == pytest.approx(51406e-6)
    assert last["H100 2-node all-reduce"] == pytest.approx(66132e-6)
    busbw = 1.875 * 2**34 / last["H100 2-node all-reduce"] / 1e9
    assert busbw == pytest.approx(487.09, rel=1e-4)  # as printed, and no link's bandwidth


def test_sweeps_arrive_in_base_units():
    """The corners of published tables, typed by hand."""
    a100, h200 = sweep("A100 8-GPU all-reduce"), sweep("H200 8-GPU all-reduce")
    assert (a100.nbytes[0], a100.nbytes[-1]) == (32 * 2**10, 16 * 2**30)
    assert (a100.seconds[0], a100.seconds[-1]) == pytest.approx((43.83e-6, 127997e-6))
    assert h200.nbytes[-1] / h200.seconds[-1] == pytest.approx(275.58e9, rel=1e-4)  # printed algbw
    assert h200.nbytes[5] / h200.seconds[5] == pytest.approx(22.82e9, rel=1e-3)
