"""Output patterns as values; what they choose of real folders is in staging/test_outputs."""

import re
import time
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.errors import UsageError
from gpulayer.spec.globs import Glob

COSTLY = [
    "*a*" * 40 + "b",
    "*" * 4000,
    "*?" * 500 + "b",
    "**/" * 1000 + "b",
    "**/*/" * 400 + "b",
    "**/a*/" * 400 + "*b",
]


@pytest.mark.parametrize("pattern", COSTLY, ids=lambda pattern: pattern[:8])
@pytest.mark.parametrize("path", [["a" * 255], ["a"] * 200, ["a" * 15] * 200], ids=["long", "deep", "both"])
def test_no_pattern_takes_long_to_match(pattern, path):
    glob = Glob(pattern)
    before = time.process_time()
    glob.match(path)
    assert time.process_time() - before < 1.0


def test_a_path_is_chosen_with_all_that_lies_below_it():
    assert Glob("a/*.txt").match(["a", "x.txt"])
    assert Glob("a/*.txt").match(["a", "x.txt", "deep", "down"])
    assert not Glob("a/*.txt").match(["a"])
    assert not Glob("a/**").match(["a"])
    assert Glob("**/a/**/b").match(["a", "b"])
    assert Glob("**/a/**/b").match(["x", "a", "y", "z", "b"])
    assert not Glob("**/a/**/b").match(["x", "b"])


@pytest.mark.parametrize("pattern", ["[a--]", "[%--]x", "[[]", "[a&&b]", "[a||b]", "[!--0]"])
def test_sets_of_characters_read_as_no_syntax_of_another_language(pattern):
    try:
        Glob(pattern)
    except UsageError as error:
        assert "bad character range" in error.message  # noqa: PT017 - either is right, a warning is not


names = st.text(alphabet="ab*?[]!-\n.", max_size=8)


@given(
    names.filter(lambda text: "**" not in text and text not in ("", ".", "..")), st.text(alphabet="ab\n.-!", min_size=1)
)
def test_a_name_is_matched_as_fnmatch_does(pattern, name):
    try:
        glob = Glob(pattern)
    except UsageError:
        return
    try:
        expected = fnmatchcase(name, pattern)
    except re.error:
        return
    assert glob.match([name]) == expected
