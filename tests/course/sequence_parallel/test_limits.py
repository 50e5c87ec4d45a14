"""What chapter 12 says under *Going further* follows from its tables."""

import re
from pathlib import Path

import nbformat
import pytest
import torch

from lib.course.sequence_parallel import limits
from lib.parallel.sequence import Context

CHAPTER = Path(__file__).parents[3] / "chapters" / "12-sequence-parallel.ipynb"


@pytest.fixture(scope="module")
def text():
    return "\n".join(
        cell.source for cell in nbformat.read(CHAPTER, 4).cells if cell.cell_type == "markdown"
    )


def test_balance_gains_nothing_while_messages_are_longer(text):
    assert "both layouts take as long as the messages: balance gains nothing there" in text
    rows = [line.split() for line in limits.ring_times("InfiniBand NDR").splitlines()[2:]]
    times = {(tokens, layout): float(ms) for tokens, layout, ms, _ in rows}
    alone = {(tokens, layout): float(ms) for tokens, layout, _, ms in rows}
    assert times["1,024", "zigzag"] == times["1,024", "contiguous"]
    assert times["1,024", "contiguous"] > 2 * alone["1,024", "contiguous"]
    long = times["16,384", "zigzag"] / times["16,384", "contiguous"]
    assert 0.5 < long < 0.6 and "zigzag takes little more than half of the time" in text


def table(link):
    """{(method, ranks): the cells} of what runs out."""
    rows, method = {}, ""
    for line in limits.runs_out(link).splitlines():
        name, *cells = re.split(r"\s{2,}", line)
        if not name.isdigit():
            method = name
        else:
            rows[method, int(name)] = cells
    return rows


def test_only_a_ring_goes_on_over_a_slow_link(text):
    assert "A ring is the only one of the three that goes on beyond 32 ranks" in text
    rows = table("InfiniBand NDR")
    good = {
        method: [cell for key, cells in rows.items() if key[0] == method for cell in cells
                 if cell.endswith("%")]
        for method in ("ring", "ulysses", "megatron")
    }  # fmt: skip
    assert good["ring"] and not good["ulysses"] and not good["megatron"]
    assert set(rows["ulysses", 64] + rows["megatron", 64]) == {"heads"}
    assert {method: rows[method, 2][3] for method in good} == dict.fromkeys(good, "memory")


def test_ulysses_computes_more_inside_an_nvlink_domain(text):
    assert '`limits.runs_out("NVLink4")`: on eight ranks' in text
    rows = table("NVLink4")
    share = lambda cell: int(cell.split("%")[0])
    pairs = list(zip(rows["ulysses", 8], rows["ring", 8]))[:3]
    assert all(share(ours) > share(ring) for ours, ring in pairs) and len(pairs) == 3


def test_the_numbers_of_the_published_layer_are_those_of_its_table(text):
    rows = limits.published_layer().splitlines()[1:]
    predicted = [line.split()[-1] for line in rows]
    assert predicted == ["0.48", "0.82", "0.19", "0.88", "7.70"]
    assert "0.82 ms would be saved" in text and "it hid nothing, 0.19 ms" in text


def test_labels_are_shifted_before_the_sequence_is_split(text, worlds):
    assert "`context.shard(row[:, :-1], row[:, 1:])`" in text
    row = torch.arange(17).unsqueeze(0)

    def shifted(row):
        tokens, labels = Context(None, "ring", "zigzag").shard(row[:, :-1], row[:, 1:])
        return torch.equal(labels, tokens + 1)

    assert worlds(4).run(shifted, row) == [True] * 4


def test_what_the_chapter_prints_fits_a_phone():
    """49 characters stand beside one another on 360 px."""
    cells = nbformat.read(CHAPTER, 4).cells
    printed = [out.text for cell in cells for out in cell.get("outputs", []) if "text" in out]
    tables = [text for text in printed if len(text.splitlines()) > 3]
    assert len(tables) > 5
    assert max(len(line) for text in tables for line in text.splitlines()) <= 49
