"""What chapter 12 says under *Going further* follows from its tables."""

import re
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
import torch

from lib.course.sequence_parallel import lessons, limits
from lib.parallel.sequence import Context, context_parallel
from lib.predict.roofline import speeds
from lib.predict.sequence import traffic
from lib.predict.sequence.published_times import TABLE_4
from lib.predict.sequence.what_runs_out import what_runs_out
from lib.predict.sharded.models import model
from lib.predict.tensor import sequence as megatron
from lib.ranks.mesh import mesh
from lib.recipe import context, parallelize, tensor
from lib.single import GPT
from tests.every import every

DEVICE = speeds("H100", "NVLink4", node=8, between="InfiniBand NDR")
CHAPTER = Path(__file__).parents[3] / "chapters" / "12-sequence-parallel.ipynb"


@pytest.fixture(scope="module")
def text():
    return "\n".join(
        cell.source for cell in nbformat.read(CHAPTER, 4).cells if cell.cell_type == "markdown"
    )


def test_balance_gains_nothing_while_messages_are_longer(text):
    assert "both layouts take as long as the messages, so balance gains nothing there" in text
    rows = [line.split() for line in limits.ring_times("InfiniBand NDR").splitlines()[2:]]
    times = {(tokens, layout): float(ms) for tokens, layout, ms, _ in rows}
    alone = {(tokens, layout): float(ms) for tokens, layout, _, ms in rows}
    assert times["1,024", "zigzag"] == times["1,024", "contiguous"]
    assert times["1,024", "contiguous"] > 2 * alone["1,024", "contiguous"]
    long = times["16,384", "zigzag"] / times["16,384", "contiguous"]
    assert 0.5 < long < 0.6 and "zigzag takes little more than half of contiguous's time" in text


def rows_of(table):
    """{(method, ranks): the cells} of what runs out."""
    rows, method = {}, ""
    for line in table.splitlines():
        name, *cells = re.split(r"\s{2,}", line)
        if name.endswith(" ranks"):
            rows[method, int(name.removesuffix(" ranks"))] = cells
        else:
            method = name
    return rows


@pytest.fixture(scope="module")
def rows():
    return rows_of(limits.runs_out())


def share(cell: str) -> int:
    return int(cell.split("%")[0])


def test_the_model_that_runs_out_is_the_whole_llama_3_8b(text):
    """Its embeddings, head and gated MLP counted: without them three cells would not be memory."""
    assert "Llama 3 8B (8.03 billion parameters)" in text
    second = limits.LLAMA_8B.layers * limits.LLAMA_8B.width * limits.LLAMA_8B.hidden
    assert round((limits.LLAMA_8B.numel + second) / 1e9, 2) == 8.03
    kept = {}
    for again in (False, True):
        for ranks, length in ((2, 2**13), (8, 2**17), (64, 2**20)):
            limit = what_runs_out(limits.LLAMA_8B, "ring", length, ranks, DEVICE, 80e9, gated=True,
                                  recompute=again)  # fmt: skip
            kept[again] = [*kept.get(again, []), limit.missing]
    assert kept == {False: ["memory"] * 3, True: [""] * 3}


def test_inside_a_host_ring_and_ulysses_compute_most_of_the_time(text, rows):
    assert "Inside a host the ring and Ulysses compute more than 80 % of the time" in text
    inside = [cell for method in ("ring", "ulysses") for ranks in (2, 8)
              for cell in rows[method, ranks]]  # fmt: skip
    assert {cell for cell in inside if not cell.endswith("%")} == {"memory"}
    assert [cell for cell in rows["megatron", 8] if cell.endswith("low")]
    pairs = list(zip(rows["ulysses", 8], rows["ring", 8]))[:3]
    assert every(share(ours) > share(ring) for ours, ring in pairs)
    assert every(rows[method, ranks][3] == "memory" for method in ("ring", "ulysses", "megatron")
          for ranks in (2, 8))  # fmt: skip


def test_between_hosts_the_combination_is_best(text, rows):
    assert "On 64 ranks only *ring* and *both* work" in text
    assert set(rows["ulysses", 64] + rows["megatron", 64]) == {"heads"}
    alone = [rows[method, 32] for method in ("ring", "ulysses")]
    assert every(cell.endswith("low") for cells in alone for cell in cells[:3])
    assert every(cells[3].endswith("%") for cells in alone)
    for ranks in (32, 64):
        both, ring = rows["both", ranks], rows["ring", ranks]
        assert every(share(ours) > share(other) for ours, other in zip(both, ring))
    told = re.search(r"on 64 ranks it computes (\d+) % .* 128 k .* alone computes (\d+) %", text)
    assert [int(n) for n in told.groups()] == [share(rows[m, 64][2]) for m in ("both", "ring")]
    assert "*both* on 32 ranks misses it with 79 %" in text and rows["both", 32][1] == "79% low"


def test_from_which_length_on_a_method_alone_is_fast_between_hosts(text):
    told = "On 32 ranks each passes 80 % from 256 k on (`limits.runs_out(lengths=(2**18, 2**19))`)"
    assert told in text and "On 64 ranks a ring does so at peak speed from 512 k on" in text
    rows = rows_of(limits.runs_out(lengths=(2**17, 2**18, 2**19)))
    for alone, low in ((("ring", 32), 1), (("ulysses", 32), 1), (("ring", 64), 2)):
        assert [cell.endswith("low") for cell in rows[alone]] == [True] * low + [False] * (3 - low)
        assert every(share(cell) > 80 for cell in rows[alone][low:])


def test_at_half_the_peak_a_ring_and_ulysses_alone_pass_the_bound_earlier(text, rows, monkeypatch):
    assert "The shares assume the H100's peak FLOP/s" in text
    assert "is slow up to 128 k tokens at peak speed" in text
    half = lambda *args, **more: replace(full := speeds(*args, **more), peak=full.peak / 2)
    monkeypatch.setattr(limits, "speeds", half)
    slower = rows_of(limits.runs_out())
    told = re.search(r"on 32 ranks, a ring computes (\d+) % .* instead of (\d+) %, and Ulysses "
                     r"(\d+) % instead of (\d+) %", text)  # fmt: skip
    pairs = [(table[method, 32][2]) for method in ("ring", "ulysses") for table in (slower, rows)]
    assert [int(n) for n in told.groups()] == [share(cell) for cell in pairs]
    assert [cell.endswith("low") for cell in pairs] == [False, True] * 2
    assert "or from 128 k on at half the peak. On 64 ranks" in text
    alone = [slower[method, ranks][n] for method, ranks in (("ring", 32), ("ulysses", 32))
             for n in (0, 1)]  # fmt: skip
    assert every(cell.endswith("low") for cell in alone), "shorter sequences stay slow"


def test_the_numbers_of_the_published_layer_are_those_of_its_table(text):
    rows = limits.published_layer().splitlines()[1:]
    predicted = [line.split()[-1] for line in rows]
    assert predicted == ["0.48", "0.82", "0.19", "0.88", "7.6"], "the last one is published"
    assert "takes 7.6 ms, about as long as the published forward of 7.7 ms" in text
    assert TABLE_4["tensor parallel"][0] == 7.7
    assert "the saving is 0.82 ms, and if it hides none of them, 0.19 ms" in text


def test_labels_are_shifted_before_the_sequence_is_split(text, worlds):
    assert "`context.shard(row[:, :-1], row[:, 1:])`" in text
    row = torch.arange(17).unsqueeze(0)

    def shifted(row):
        tokens, labels = Context(None, "ring", "zigzag").shard(row[:, :-1], row[:, 1:])
        return torch.equal(labels, tokens + 1)

    assert worlds(4).run(shifted, row) == [True] * 4


def rotary_loss(positions) -> float:
    """Return the loss of a ring on a GPT with rotary positions, whose positions are changed."""
    torch.manual_seed(0)
    model = GPT(replace(lessons.SHAPE, positions="rotary")).double()
    context_parallel(model, method="ring")
    for part in model.modules():
        if getattr(part, "position_ids", None):
            part.position_ids = positions(model.context)
    tokens, labels = model.context.shard(*lessons.batch())
    return model.context.loss(model(tokens), labels).item()


def test_with_rotary_positions_only_distances_between_ranks_can_be_wrong(text, worlds):
    assert "With rotary positions, distances between ranks are wrong instead." in text
    moved = lambda context: lambda *length: context.positions(*length) + 5
    right, same, restarted = (
        worlds(4).run(rotary_loss, positions)
        for positions in (lambda context: context.positions, moved, lambda context: None)
    )
    assert same == pytest.approx(right), "all positions moved alike, so distances are right"
    assert restarted != pytest.approx(right)


def two_methods(call: str) -> tuple[list, str]:
    """Return the kinds of the methods that the call combines, and a refusal of two alike."""
    names = {"mesh": mesh, "parallelize": parallelize, "tensor": tensor, "context": context}
    run = eval(call, names | {"model": GPT(lessons.SHAPE).double()})
    run.forward_backward(*run.share(lessons.batch()))
    try:
        parallelize(GPT(lessons.SHAPE).double(), run.mesh, tensor("tp"), tensor("tp"))
    except ValueError as error:
        return [method.kind for method in run.methods], str(error)


def test_the_call_at_the_end_combines_two_methods(text, worlds):
    call = re.search(r"On four ranks, `(parallelize\(.*?\))` of `lib.recipe`", text)[1]
    assert "What comes next is to combine two of them yourself." in text
    for kinds, refused in worlds(4).run(two_methods, call):
        assert kinds == ["tensor", "context"] and "both make a tensor parallelism" in refused


def test_what_the_chapter_prints_fits_a_phone():
    """49 characters stand beside one another on 360 px."""
    cells = nbformat.read(CHAPTER, 4).cells
    printed = [out.text for cell in cells for out in cell.get("outputs", []) if "text" in out]
    tables = [text for text in printed if len(text.splitlines()) > 3]
    assert len(tables) > 5
    assert max(len(line) for text in tables for line in text.splitlines()) <= 49


def test_gradients_of_whole_weights_put_megatron_first_in_a_small_model_alone(text):
    """A rank sends 2(P - 1)/P of them in a ring; Megatron's ranks hold a share of each matrix."""
    small = 2 * 3 / 4 * lessons.SHAPE.numel * 8
    assert 153_600 < 24_576 + small < 73_728 + small, "activations, in the chapter's table"
    layer = replace(lessons.LLAMA, layers=2).numel - lessons.LLAMA.numel
    sent = {line[:24].strip(): float(line[24:34]) for line in lessons.a_layer(8).splitlines()[1:]}
    assert max(sent["ulysses"], sent["ring"]) + 2 * 7 / 8 * layer * 2 / 1e9 < sent["megatron"]
    assert (
        "With them Megatron would send the fewest bytes in this small model, but not with a million"
        in text
    )


def test_in_a_whole_step_a_ring_sends_more_than_twice_what_ulysses_sends(text):
    steps = {}
    for method in ("ulysses", "ring"):
        moves = traffic.of_layer(lessons.LLAMA, method, 8, batch=1, itemsize=2)
        forward, backward = (sum(m.sent for m in way) for way in (moves.forward, moves.backward))
        steps[method] = forward + backward
    assert backward == 2 * forward, "the ring's"
    layers = (lessons.LLAMA, replace(lessons.LLAMA, layers=2))
    one, two = (sum(m.sent for m in megatron.of_step(shape, 8, batch=1, itemsize=2))
                for shape in layers)  # fmt: skip
    told = re.search(r"a whole step Megatron sends (\S+) times .* the ring (\S+) times", text)
    assert told[1] == f"{(two - one) / steps['ulysses']:.0f}"
    assert told[2] == f"{steps['ring'] / steps['ulysses']:.1f}"


def test_before_a_column_layer_megatron_gathers_one_whole_input(text):
    whole = lessons.LLAMA.sequence * lessons.LLAMA.width * 2
    assert f"Megatron also gathers a whole input, {whole / 1e9:.1f} GB" in text
    moves = megatron.of_step(lessons.LLAMA, 8, batch=1, itemsize=2)
    assert whole in {move.bytes for move in moves if move.op == "all_gather"}


def test_what_fsdp_gathers_for_a_layer_is_not_counted(text):
    llama = model("Llama 3 8B")
    layer = llama.numel - replace(llama, layers=llama.layers - 1).numel
    assert f"a layer's weights are {2 * layer / 1e9:.2f} GB" in text
