"""Whatever somebody says is plain text in the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.spec.plain import plain_line, plain_text

ANYTHING = st.text(st.characters(), max_size=200)  # half surrogate pairs and control characters, too


@pytest.mark.parametrize(
    ("said", "line", "text"),
    [
        ("all is well", "all is well", "all is well"),
        ("", "", ""),
        (" two\n  lines\t!\r\n\n", "two lines !", " two\n  lines !"),
        ("\x1b[2Jgone\x07 \x9b31m\x00", "[2Jgone 31m", " [2Jgone   31m"),
        ("one\u2028two\x0cthree\rV", "one two three V", "one\ntwo\nthree\nV"),
        ("\u202eright to left\u200b", "right to left", " right to left"),
        ("caf\udce9.txt", "caf\ufffd.txt", "caf\ufffd.txt"),
        ("Grüße, 世界 🙂", "Grüße, 世界 🙂", "Grüße, 世界 🙂"),
        ("0123456789abcdefX", "0123456789abcde…", "0123456789abcde…"),
        ("0123456789abcdef", "0123456789abcdef", "0123456789abcdef"),
        (" " * 1000 + "late", "…", None),
    ],
)
def test_what_drives_a_terminal_or_is_no_text_is_gone_and_what_is_long_is_cut(said, line, text):
    assert plain_line(said, 16) == line
    if text is not None:
        assert plain_text(said, 16) == text


@given(ANYTHING, st.integers(1, 64))
def test_the_result_is_printable_utf8_of_the_length_and_stays_the_same(said, at_most):
    line, text = plain_line(said, at_most), plain_text(said, at_most)
    assert line.isprintable()
    assert all(one.isprintable() for one in text.split("\n"))
    for plain in (line, text):
        assert len(plain.encode()) >= len(plain) <= at_most
    assert plain_line(line, at_most) == line
    assert plain_text(text, at_most) == text
