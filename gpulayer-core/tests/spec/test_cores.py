import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.spec.cores import checked_cores, cores_of, cores_text


@given(st.sets(st.integers(min_value=0, max_value=9999), min_size=1, max_size=200))
def test_a_list_of_cores_is_read_as_it_was_written(cores):
    assert cores_of(cores_text(cores)) == cores


@pytest.mark.parametrize(
    ("text", "written"),
    [("0-31,64-95", "0-31,64-95"), (" 3\n", "3"), ("0-3,2-5", "0-5"), ("5,4", "4-5"), ("1", "1"), ("0-0", "0")],
)
def test_a_list_is_written_as_linux_does(text, written):
    assert checked_cores(text) == written


@pytest.mark.parametrize(
    "text", ["", " ", "N/A", "3-1", "0-", "-1", "0,,1", "0 1", "0-99999999999", "0-65536", "٣", "0-1," * 2000 + "0"]
)
def test_what_is_no_list_is_not_known_rather_than_empty(text):
    assert checked_cores(text) == ""
    assert cores_of(text) == frozenset()


def test_a_set_too_ragged_for_a_device_is_not_known():
    assert cores_text(range(0, 8192, 2)) == ""
