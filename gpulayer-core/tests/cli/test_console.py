"""What people see of lists on a terminal: an id that is broken over two lines can't be copied."""

import os
import pty
import subprocess
import sys

TOKEN_ROW = [
    ["e9bff95a394c", "submitter", "alice", "valid", "2m 32s ago", "2027-02-28 12:56:18", "2m ago", "1/3"],
    ["0123456789ab", "join", "a rather long name", "used up", "3d ago", "2027-02-28 12:56:18", "just now", "3/3"],
]


def shown(headers, rows, columns=80):
    """What ``print_table`` writes to a terminal of so many columns."""
    code = f"from gpulayer.cli.console import print_table; print_table({headers!r}, {rows!r}, empty='')"
    leader, follower = pty.openpty()
    env = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": ""}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=follower, env=env)
    os.close(follower)
    written = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        written += piece
    os.close(leader)
    assert process.wait(timeout=30) == 0
    return written.decode()


def test_no_cell_but_the_last_is_broken_on_a_narrow_terminal():
    headers = ["token", "role", "name", "state", "created", "expires", "last used", "uses"]
    text = shown(headers, TOKEN_ROW)
    for row in TOKEN_ROW:
        for cell in row:
            assert cell in text, cell


def test_a_long_last_cell_is_folded_below_its_own_column():
    text = shown(["seq", "details"], [["1", "word " * 60]])
    lines = [line.rstrip("\r\n") for line in text.splitlines()]
    assert max(map(len, lines[1:])) <= 80
    assert sum(line.count("word") for line in lines) == 60
