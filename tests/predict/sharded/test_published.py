"""Every published figure recomputes, or its table says that it does not, and how far it is off."""

import pytest

from lib.predict.sharded.published import find, printed_as, tables
from lib.predict.sharded.states import bytes_per_parameter, held, largest_model
from tests.every import every

ZERO = tables()["zero"]


def test_a_figure_is_rounded_cut_off_or_neither():
    assert printed_as(1.875, 1.88) == "rounded" and printed_as(41.25, 41.3) == "rounded"
    assert printed_as(2054.69, 2054) == "cut off" and printed_as(120, 120) == "rounded"
    assert printed_as(30.55, 30.4) == "" and printed_as(1.874, 1.88) == ""
    assert printed_as(16000.0, 16000) == "rounded" and printed_as(15999.4, 16000) == ""


def cells_of_table_1():
    table = ZERO["table_1"]
    for ranks, row in table["rows"].items():
        for numel, printed in zip(table["parameters"], row, strict=True):
            for stage, cell in enumerate(printed, 1):
                yield ranks, int(numel), stage, cell


def test_every_cell_of_table_1_of_zero_recomputes():
    cells = list(cells_of_table_1())
    assert len(cells) == 6 * 3 * 3
    how = {}
    for ranks, numel, stage, cell in cells:
        gigabytes = held(numel, ranks, stage).total / 1e9
        if ranks == 1:  # a share of one is everything, whatever the stage
            assert gigabytes == 16 * numel / 1e9 == cell
        how[ranks, numel, stage] = printed_as(bytes_per_parameter(ranks, stage) * numel / 1e9, cell)
        assert gigabytes == pytest.approx(bytes_per_parameter(ranks, stage) * numel / 1e9)
    assert every(how.values()), [cell for cell, word in how.items() if not word]
    cut_off = {cell for cell, word in how.items() if word == "cut off"}
    assert (64, 10**12, 1) in cut_off and (256, 10**12, 2) in cut_off
    assert every(numel >= 128e9 for _, numel, _ in cut_off), "small cells are rounded"


def test_figure_1_of_zero_recomputes():
    figure = ZERO["figure_1"]
    numel, ranks = int(figure["parameters"]), figure["ranks"]
    for stage, printed in enumerate(figure["gigabytes"]):
        assert printed_as(held(numel, ranks, stage).total / 1e9, printed) == "rounded"


def test_the_examples_in_the_text_of_zero_recompute():
    text = ZERO["examples"]
    assert held(int(text["gpt_2"]["parameters"])).total / 1e9 == text["gpt_2"]["gigabytes"]
    buffer = text["fused_buffer"]
    assert 4 * buffer["parameters"] / 1e9 == buffer["gigabytes"]
    kept = text["activations"]
    elements = 12 * kept["width"] * kept["batch"] * kept["sequence"] * kept["layers"]
    assert printed_as(2 * elements / 1e9, kept["gigabytes"]) == "rounded"


def theory_of_table_2():
    """(model parallelism, stage, what the formula gives, what is printed), in billions."""
    table = ZERO["table_2"]
    for mp, row in table["theory"].items():
        for stage, printed in enumerate(row):
            size = largest_model(table["memory"], table["ranks"], stage) * mp / 1e9
            yield mp, stage, size, printed


def test_table_2_of_zero_recomputes_in_its_first_row():
    first = [(size, printed) for mp, _, size, printed in theory_of_table_2() if mp == 1]
    assert [printed_as(*pair) for pair in first] == ["rounded"] * 4
    assert [round(size, 2) for size, _ in first] == [2, 7.64, 14.42, 128]


def test_the_other_rows_of_table_2_are_multiples_of_rounded_cells_and_the_table_says_so():
    """The formula gives 122.3 where the paper prints 121.6 = 16 × 7.6."""
    first, differ = ZERO["table_2"]["theory"][1], {}
    for mp, stage, size, printed in theory_of_table_2():
        if stage < 3:
            assert printed == pytest.approx(first[stage] * mp)
        else:  # 0.5T stands for 512 billion
            assert printed in (first[3] * mp, first[3] * mp // 256 * 250)
        if not printed_as(size, printed):
            differ[mp, stage] = f"{size:.1f}"
    assert {cell for cell in differ if cell[1] < 3} == {(4, 1), (8, 1), (16, 1), (8, 2), (16, 2)}
    assert every(differ[cell] in ZERO["table_2"]["note"] for cell in differ if cell[1] < 3)


def test_what_was_measured_is_less_than_what_the_formula_allows():
    table = ZERO["table_2"]
    for mp, measured in table["measured"].items():
        assert every(size < most for size, most in zip(measured, table["theory"][mp]))


def test_fsdp_and_data_parallel_figures_are_shares_of_others():
    fsdp = tables()["fsdp"]
    shares = [100 * rate / 312 for rate in fsdp["teraflops"]]
    assert [printed_as(*pair) for pair in zip(shares, fsdp["percent"])] == ["rounded"] * 2
    run = tables()["ultra_scale"]["data_parallel"]
    lost = [100 * (1 - b / a) for a, b in zip(run["tokens"], run["tokens"][1:])]
    assert [printed_as(*pair) for pair in zip(lost, run["lost"])] == ["rounded"] * 5


def test_a_name_that_is_not_there_is_refused_with_those_that_are():
    assert find("models", "llama-3 8b")["numel"] == 8030261248
    with pytest.raises(ValueError, match="None of the models is called 'GPT-5'. Choose one of GPT"):
        find("models", "GPT-5")
