"""What counts as an overlap, by hand-made beats."""

from tests.soak.exclusive import Beat, overlaps, read_beats


def beats(text):
    """``a1 b2`` : a beats at 1 s, b at 2 s."""
    return [Beat(word[0], float(word[1:])) for word in text.split()]


def test_one_after_another_is_no_overlap_also_at_the_same_tick_and_in_any_order():
    assert overlaps(beats("a1 a2 b2 b3 c4")) == []
    assert overlaps(beats("b3 a1 b2 a2")) == []
    assert overlaps([]) == []


def test_who_beats_after_another_began_is_named_with_the_time():
    assert overlaps(beats("a1 b2 a3.5 b4")) == ["a beats 1.50 s after b began"]
    assert overlaps(beats("a1 b2 c3 a4 b4")) == ["a beats 2.00 s after b began", "b beats 1.00 s after c began"]


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    (tmp_path / "beats").write_text("a 1.00\na 2.0")
    assert read_beats(tmp_path / "beats") == [Beat("a", 1.0)]
    assert read_beats(tmp_path / "none") == []
