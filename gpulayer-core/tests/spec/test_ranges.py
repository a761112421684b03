"""Ranges of versions that hold none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from gpulayer.spec.ranges import is_empty_range


@pytest.mark.parametrize(
    ("text", "is_empty"),
    [
        (">=9,<8", True),
        (">=8,<8", True),
        (">8.0,<8.0", True),
        ("==2.4,==2.5", True),
        ("==2.4,!=2.4", True),
        ("==2.*,>=3", True),
        ("~=2.4,<2.4", True),
        (">=1!2,<5", True),
        ("", False),
        (">=8.0", False),
        (">=8.0,<9.0", False),
        (">2,<2.0.1", False),
        ("==2.*,!=2.0", False),
        ("<2,<3", False),
        ("<1,!=0", False),
        (">1.0.post1,<1.0.post3", False),
        (">2.0a1,<2.0a3", False),
        ("===odd,>=2", False),
    ],
)
def test_a_range_is_empty_where_no_version_is_in_it(text, is_empty):
    assert is_empty_range(text) is is_empty


_VERSIONS = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts)))


@given(st.lists(st.tuples(st.sampled_from(("<", "<=", ">", ">=", "==", "!=")), _VERSIONS), max_size=4), _VERSIONS)
def test_a_range_with_a_version_in_it_is_never_called_empty(parts, version):
    text = ",".join(operator + bound for operator, bound in parts)
    if SpecifierSet(text).contains(version):
        assert not is_empty_range(text)
