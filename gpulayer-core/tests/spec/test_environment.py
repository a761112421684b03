"""What a job's variables may have together; and that a program can be started with the most of it."""

import os
import subprocess
import sys

import pytest

from gpulayer.errors import UsageError
from gpulayer.spec.environment import MAX_ALL_BYTES, MAX_VARIABLE_BYTES, check_environment
from gpulayer.spec.secrets import MAX_VALUE_BYTES

VALUE = "abc123xyz"


def full(size, each):
    """Variables that have so many bytes in all, with their names."""
    count = size // each
    sizes = [each] * (count - 1) + [each + size % each]
    return {f"V{number:05}": "x" * (length - len("V00000=\0")) for number, length in enumerate(sizes)}


@pytest.mark.parametrize("each", [MAX_VARIABLE_BYTES, 4096, 100])
def test_what_is_taken_can_be_started_with_and_a_byte_more_is_refused(each):
    env = full(MAX_ALL_BYTES, each)
    check_environment(env, {})
    command = [sys.executable, "-I", "-c", "import os; print(len(os.environ))"]
    kept = {name: os.environ[name] for name in ("PATH",)}
    done = subprocess.run(command, env={**kept, **env}, capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) >= len(env)
    with pytest.raises(UsageError, match="1,048,583 bytes in all; the variables of a job have 1 MiB together"):
        check_environment(env, {"A": "four"})


def test_a_variable_counts_with_its_name_in_bytes():
    name = "N" * 10
    check_environment({name: "x" * (MAX_VARIABLE_BYTES - 12)}, {})
    for value in ("x" * (MAX_VARIABLE_BYTES - 11), "ä" * (MAX_VARIABLE_BYTES // 2)):
        with pytest.raises(UsageError, match=r"N has 131,.* 128 KiB") as refused:
            check_environment({name: value}, {})
        assert value[:20] not in f"{refused.value} {refused.value.hint}"


def test_secrets_that_are_each_small_enough_can_be_too_much_together():
    secrets = {f"S{number}": VALUE + "x" * (MAX_VALUE_BYTES - 100) for number in range(17)}
    with pytest.raises(UsageError, match="env and secrets: 1,") as refused:
        check_environment({}, secrets)
    assert VALUE not in f"{refused.value} {refused.value.hint}"
