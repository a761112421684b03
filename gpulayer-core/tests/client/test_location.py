"""Where a command goes: a table."""

import json
from pathlib import Path

import pytest

from gpulayer.client.contexts import Context, Contexts
from gpulayer.client.locate import is_context_wanted, locate
from gpulayer.client.location import Configured, Local, Location, check_token, parse_endpoint
from gpulayer.errors import Unauthenticated, UsageError

STATE = Path("/state")
HERE = "http://127.0.0.1:8470"
FAR = "https://far.example"
PIN = f"sha256:{'ab' * 32}"
OTHER = f"sha256:{'cd' * 32}"
ENV = {"GPULAYER_URL": HERE, "GPULAYER_TOKEN": "glc_env"}
LAB = Context((FAR,), "glc_lab", (PIN,))
HOME = Context((HERE,), "glc_home", proxy="http://proxy:1")
NAMED = Contexts("lab", {"lab": LAB, "home": HOME})
PROXY = {"GPULAYER_PROXY": "http://gate.example:3128"}


@pytest.mark.parametrize(
    ("environment", "arguments", "expected"),
    [
        ({}, {}, Local(STATE)),
        (ENV, {}, Configured(Location.of(HERE, "glc_env"))),
        (ENV, {"target": "local"}, Local(STATE)),
        (ENV, {"target": "remote"}, Configured(Location.of(HERE, "glc_env"))),
        (ENV, {"url": "http://localhost:1/", "token": "glc_a"}, Configured(Location.of("http://localhost:1", "glc_a"))),
        ({}, {"url": HERE, "token": "t"}, Configured(Location.of(HERE, "t"))),
        ({}, {"target": "remote"}, UsageError),
        ({}, {"target": "lab"}, UsageError),
        ({"GPULAYER_URL": HERE}, {}, Unauthenticated),
        ({"GPULAYER_URL": "nonsense", "GPULAYER_TOKEN": "t"}, {}, UsageError),
        ({"GPULAYER_URL": FAR, "GPULAYER_TOKEN": "t"}, {}, Configured(Location.of(FAR, "t"))),
        (
            {"GPULAYER_URL": f"{FAR},{HERE}", "GPULAYER_TOKEN": "t", "GPULAYER_FINGERPRINT": f"{PIN} {OTHER}", **PROXY},
            {},
            Configured(Location.of(f"{FAR} {HERE}", "t", fingerprint=f"{PIN},{OTHER}", proxy="http://gate.example:3128")),
        ),
        (
            {**ENV, "GPULAYER_FINGERPRINT": PIN},
            {"fingerprint": OTHER},
            Configured(Location.of(HERE, "glc_env", fingerprint=OTHER)),
        ),
        ({**ENV, "GPULAYER_FINGERPRINT": PIN[:-1]}, {}, UsageError),
        ({**ENV, "GPULAYER_PROXY": "gate.example:3128"}, {}, UsageError),
        ({}, {"contexts": NAMED}, Configured(LAB.location(), "lab")),
        ({}, {"contexts": NAMED, "target": "remote"}, Configured(LAB.location(), "lab")),
        ({}, {"contexts": NAMED, "target": "home"}, Configured(HOME.location(), "home")),
        ({}, {"contexts": NAMED, "target": "local"}, Local(STATE)),
        ({}, {"contexts": NAMED, "target": "cluster"}, UsageError),
        (ENV, {"contexts": NAMED}, Configured(Location.of(HERE, "glc_env"))),
        (ENV, {"contexts": NAMED, "target": "lab"}, Configured(LAB.location(), "lab")),
        (PROXY, {"contexts": NAMED}, Configured(LAB.location(proxy="http://gate.example:3128"), "lab")),
        (PROXY, {"contexts": NAMED, "target": "home"}, Configured(HOME.location(), "home")),
        ({}, {"contexts": Contexts("", {"lab": LAB})}, Local(STATE)),
        ({}, {"contexts": Contexts("", {"lab": LAB}), "target": "remote"}, UsageError),
    ],
)  # fmt: skip
def test_the_place_follows_from_arguments_environment_contexts_and_state(environment, arguments, expected):
    if isinstance(expected, type):
        with pytest.raises(expected) as caught:
            locate(environment=environment, state_dir=STATE, **arguments)
        assert caught.value.hint
    else:
        assert locate(environment=environment, state_dir=STATE, **arguments) == expected


@pytest.mark.parametrize(
    ("environment", "arguments", "expected"),
    [
        ({}, {}, True),
        ({}, {"target": "local"}, False),
        (ENV, {}, False),
        (ENV, {"target": "remote"}, False),
        (ENV, {"target": "lab"}, True),
        ({}, {"url": HERE}, False),
    ],
)
def test_contexts_are_looked_at_only_where_they_count(environment, arguments, expected):
    assert is_context_wanted(environment=environment, **arguments) is expected


@pytest.mark.parametrize("token", ["glc_a\r\nHost: b", "glc_é", "glc_a b", "gle_join", "glw_session"])
def test_what_is_no_clients_token_is_refused_without_being_shown(token):
    with pytest.raises(UsageError) as caught:
        check_token(token)
    assert token not in str(caught.value)


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
