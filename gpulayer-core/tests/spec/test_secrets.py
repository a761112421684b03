"""What can be a secret; and no refusal tells one."""

import pytest

from gpulayer.errors import UsageError
from gpulayer.spec.secrets import MAX_LINES, MAX_VALUE_BYTES, Secret, check_grant, check_secrets

VALUE = "abc123xyz"


@pytest.mark.parametrize("value", [VALUE, "a b\nc\td", "schlüssel", "x" * MAX_VALUE_BYTES, "  abcd  ", "'\"$`\\"])
def test_any_text_of_four_characters_and_64_kib_at_most_is_taken(value):
    check_secrets({"HF_TOKEN": value, "_x9": value}, env={"OTHER": "1"})


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("", VALUE, "can't name a variable"),
        ("9A", VALUE, "can't name a variable"),
        ("A-B", VALUE, "can't name a variable"),
        ("A B", VALUE, "can't name a variable"),
        ("A\n", VALUE, "can't name a variable"),
        ("Ä", VALUE, "can't name a variable"),
        (f"HF_TOKEN={VALUE}", VALUE, "'HF_TOKEN' can't name a variable"),
        ("A" * 256, VALUE, "can't name a variable"),
        ("GPULAYER_TOKEN", VALUE, "set by GPUlayer"),
        ("CUDA_VISIBLE_DEVICES", VALUE, "set by GPUlayer"),
        ("IN_ENV", VALUE, "variable of env, too"),
        ("A", "", "is empty"),
        ("A", " \n ", "is empty"),
        ("A", "q1w", "less than 4 characters"),
        ("A", " q1w ", "less than 4 characters"),
        ("A", VALUE + "\0", "NUL"),
        ("A", VALUE + "\udcff", "not UTF-8"),
        ("A", VALUE + "x" * MAX_VALUE_BYTES, "64 KiB"),
        ("A", VALUE + "ä" * (MAX_VALUE_BYTES // 2), "64 KiB"),
        ("A", VALUE + "\n" * MAX_LINES, "1,001 lines"),
    ],
)
def test_a_refusal_names_the_secret_and_tells_no_value(name, value, why):
    with pytest.raises(UsageError, match=why) as refused:
        check_secrets({name: value}, env={"IN_ENV"})
    told = f"{refused.value} {refused.value.hint} {refused.value.details}"
    assert VALUE not in told
    assert "q1w" not in told


def test_more_than_64_are_refused():
    with pytest.raises(UsageError, match="at most 64"):
        check_secrets({f"S{number}": VALUE for number in range(65)}, env=())


def test_a_secret_does_not_show_itself_and_is_its_text_for_all_else():
    secret = Secret(VALUE)
    assert VALUE not in repr({"HF_TOKEN": secret})
    assert secret == VALUE
    assert secret.encode() == VALUE.encode()


def test_only_known_grants_are_taken():
    for grant in ("", "own", "submit"):
        check_grant(grant)
    with pytest.raises(UsageError, match="'all' is unknown"):
        check_grant("all")
