"""The last lines of what a rank has printed, as they are shown while its call runs."""

from lib.ranks.transport.printed import last_lines


def lines_of(*pieces):
    return last_lines([("stdout", piece) for piece in pieces])


def test_the_last_lines_are_whole_and_in_order():
    assert lines_of() == []
    assert lines_of("a", " ", "b", "\n") == ["a b"]
    assert lines_of("a\n", "\n", "not ended") == ["a", "", "not ended"]
    assert lines_of(*(f"{i}\n" for i in range(1000))) == [str(i) for i in range(988, 1000)]


def test_of_a_bar_that_is_written_over_the_last_state_is_shown():
    assert lines_of("\r 10 %", "\r 20 %") == [" 20 %"]
    assert lines_of("10 %\r", "20 %\r") == ["20 %"]


def test_what_is_shown_is_short_and_can_be_sent():
    assert lines_of("x" * 10**6) == ["x" * 200]
    assert lines_of("\ud800") == ["\\ud800"]
