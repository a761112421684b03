"""Where the values of --secret and --secret-file come from, and that no error tells one."""

import io
import sys

import pytest

from gpulayer.cli.secret_flags import read_secrets
from gpulayer.errors import UsageError

VALUE = "abc123xyz"
HERE = {"HF_TOKEN": VALUE, "SHORT": "q1w", "EMPTY": ""}


def standard_input(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"abc123xyz", "abc123xyz"),
        (b"abc123xyz\n", "abc123xyz"),
        (b"abc123xyz\r\n", "abc123xyz"),
        (b"abc123xyz\n\n", "abc123xyz\n"),
        (b"one1\ntwo2\n", "one1\ntwo2"),
    ],
)
def test_of_a_file_one_trailing_newline_is_left_out(tmp_path, monkeypatch, content, value):
    (tmp_path / "token=1").write_bytes(content)
    standard_input(monkeypatch, content)
    found = read_secrets(["HF_TOKEN"], [f"A={tmp_path}/token=1", "B=-"], environment=HERE)
    assert found == {"HF_TOKEN": VALUE, "A": value, "B": value}
    assert VALUE not in repr(found)


@pytest.mark.parametrize(
    ("names", "files", "why"),
    [
        (["OTHER"], [], "--secret OTHER: OTHER is not set here"),
        ([f"HF_TOKEN={VALUE}"], [], "seen by all"),
        (["SHORT"], [], "less than 4"),
        (["EMPTY"], [], "is empty"),
        (["HF_TOKEN", "HF_TOKEN"], [], "given twice"),
        (["HF_TOKEN"], ["HF_TOKEN=-"], "given twice"),
        ([], ["A=-", "B=-"], "read for another"),
        ([], ["file"], "NAME=FILE"),
        ([], ["=file"], "NAME=FILE"),
        ([], ["A="], "NAME=FILE"),
        ([], ["A=/nowhere/at/all"], "can't be read"),
        ([], ["A=/"], "can't be read"),
        ([], ["A=binary"], "not UTF-8"),
        ([], ["A=large"], "64 KiB"),
        ([], ["A=large-text"], "64 KiB"),
        ([], ["GPULAYER_A=-"], "set by GPUlayer"),
    ],
)
def test_what_can_not_be_had_is_said_with_the_flag(tmp_path, monkeypatch, names, files, why):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff" + VALUE.encode())
    (tmp_path / "large").write_bytes(b"\xff" * 70_000)
    (tmp_path / "large-text").write_bytes(b"x" * 70_000)
    standard_input(monkeypatch, VALUE.encode())
    with pytest.raises(UsageError, match=why) as refused:
        read_secrets(names, files, environment=HERE)
    assert VALUE not in f"{refused.value} {refused.value.details}"
