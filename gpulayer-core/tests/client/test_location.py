"""Where a command goes: a table."""

import json
from pathlib import Path

import pytest

from gpulayer.client.location import Configured, Local, Target, locate, parse_endpoint, parse_target
from gpulayer.errors import GpulayerError, NotSupported, Unauthenticated, UsageError

STATE = Path("/state")
HERE = "http://127.0.0.1:8470"
ENV = {"GPULAYER_URL": HERE, "GPULAYER_TOKEN": "glc_env"}


@pytest.mark.parametrize(
    ("environment", "arguments", "expected"),
    [
        ({}, {}, Local(STATE)),
        (ENV, {}, Configured(HERE, "glc_env")),
        (ENV, {"target": Target.LOCAL}, Local(STATE)),
        (ENV, {"target": Target.REMOTE}, Configured(HERE, "glc_env")),
        (ENV, {"url": "http://localhost:1/", "token": "glc_arg"}, Configured("http://localhost:1", "glc_arg")),
        ({}, {"url": HERE, "token": "t"}, Configured(HERE, "t")),
        ({}, {"target": Target.REMOTE}, UsageError),
        ({"GPULAYER_URL": HERE}, {}, Unauthenticated),
        ({"GPULAYER_URL": "nonsense", "GPULAYER_TOKEN": "t"}, {}, UsageError),
        ({"GPULAYER_URL": "https://far.example", "GPULAYER_TOKEN": "t"}, {}, NotSupported),
    ],
)
def test_the_place_follows_from_arguments_environment_and_state(environment, arguments, expected):
    if isinstance(expected, type):
        with pytest.raises(expected) as caught:
            locate(environment=environment, state_dir=STATE, **arguments)
        assert caught.value.hint
    else:
        assert locate(environment=environment, state_dir=STATE, **arguments) == expected


def test_a_contexts_name_is_refused_as_later():
    assert parse_target("") is Target.DEFAULT
    assert parse_target("local") is Target.LOCAL
    with pytest.raises(GpulayerError, match="later version"):
        parse_target("cluster")


ENDPOINT = {"schema": 1, "url": HERE, "token": "glc_x", "pid": 7, "version": "0.1.0", "embedded": True}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        json.dumps({**ENDPOINT, "schema": 2}).encode(),
        json.dumps({**ENDPOINT, "url": "http://far.example:1"}).encode(),
        json.dumps({**ENDPOINT, "pid": "7"}).encode(),
    ],
)
def test_an_endpoint_file_that_is_damaged_or_strange_is_no_endpoint(content):
    assert parse_endpoint(content) is None


def test_an_endpoint_file_with_more_fields_is_read():
    found = parse_endpoint(json.dumps({**ENDPOINT, "more": 1}).encode())
    assert found is not None
    assert (found.host, found.port, found.token, found.embedded) == ("127.0.0.1", 8470, "glc_x", True)
