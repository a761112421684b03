"""No input makes a fault (PROMISES: security 2): schemathesis makes requests from the control plane's own description,
such as it allows and such as it does not, and every answer is one that the description names.

Half of the names in paths are of things that are there. The examples are the same each time.
"""

import hashlib
import json

import pytest
import requests
import schemathesis
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gpulayer.server.openapi import describe
from gpulayer.server.routes import ROUTES
from gpulayer.server.tokens import TokenKind

_CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
_EXCLUDED = {("POST", "/v1/plane:shutdown"): "it ends the control plane; test_serve calls it"}
_CALLERS = (TokenKind.CLIENT, TokenKind.WORKER, TokenKind.JOIN)
_OPERATIONS = [
    pytest.param(route, kind, id=f"{route.method} {route.path} as {kind or 'anybody'}")
    for route in ROUTES
    if (route.method, route.path) not in _EXCLUDED
    for kind in ([None] if route.access.is_open else [kind for kind in _CALLERS if kind in route.access.kinds])
]


@pytest.fixture(scope="module")
def schema():
    document = json.loads(json.dumps(describe(ROUTES)))
    return schemathesis.openapi.from_dict(document)


class _Things:
    """What there is, for paths to name; made anew where an operation has taken it away."""

    def __init__(self, live) -> None:
        self.live = live
        self.worker = live.worker(f"box-{live.new_token(TokenKind.JOIN)[4:16]}")
        self.job = live.submit("true")["id"]
        self.ended = live.submit("true")["id"]
        live.http.post(f"/v1/jobs/{self.ended}:cancel")
        self.digest = live.put_blob(b"here")
        self.worker.commands()
        self.tokens = {kind: live.new_token(kind) for kind in (TokenKind.CLIENT, TokenKind.JOIN)}
        self.tokens[TokenKind.WORKER] = self.worker.token

    def known(self, path: str, name: str, pick: int) -> object:
        if name == "digest":
            return self.digest
        if name == "epoch":
            return 1
        if name == "id" or path.startswith("/v1/workers"):
            return self.worker.id
        if path.startswith("/v1/tokens"):
            return "nobody"
        # A log that is followed goes on until its job has ended.
        return self.ended if pick % 4 or path.endswith("/logs") else self.job


_MEANINGS = ("kind", "retry_on", "grant", "source", "secret_names", "accelerators", "frameworks", "compute_capability")


def _mended(body: object, pick: int) -> object:
    """A body whose shape is random and whose meaning is not refused at once, so that it comes further."""
    match body:
        case dict():
            mended = {key: _mended(value, pick) for key, value in body.items() if key not in _MEANINGS}
            mended |= {key: 1 for key in ("schema",) if key in body}
            mended |= {key: [] for key in ("devices", "frameworks") if isinstance(body.get(key), list)}
            return mended
        case list():
            return [_mended(value, pick) for value in body]
        case str():
            return body.replace("\0", "")
        case _:
            return body


def _signed(live, body: object, join_token: str) -> object:
    if not isinstance(body, dict) or not isinstance(body.get("name"), str):
        return body
    key = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(body["name"].encode()).digest())
    signed = live.enrolment(key, join_token, body["name"])
    return body | {field: signed[field] for field in ("public_key", "signature") if field in body}


def _search(live, schema, route, kind, examples: int) -> None:
    operation = schema[route.path][route.method]
    things = _Things(live)
    modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
    cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes))
    seen: list[int] = []
    with requests.Session() as session:
        session.trust_env = False

        @settings(
            max_examples=examples,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases, pick=st.integers(0, 7))
        def every_answer_is_one_that_is_described(case, pick: int) -> None:
            if pick % 2:
                for name in case.path_parameters:
                    case.path_parameters[name] = things.known(route.path, name, pick)
            if pick >= 4 and not route.raw:
                case.body = _mended(case.body, pick)
                if route.path == "/v1/workers:enrol":
                    case.body = _signed(live, case.body, things.tokens[TokenKind.JOIN])
            # Nothing is waited for: the time of this control plane stands still, and no wait would end.
            held = {each.name: 0 for each in route.query if each.name in ("wait_s", "hold_s")}
            headers = {} if kind is None else {"Authorization": f"Bearer {things.tokens[kind]}"}
            answer = case.call(base_url=live.url, session=session, headers=headers, params=held, timeout=60)
            case.validate_response(answer, checks=_CHECKS)
            seen.append(answer.status_code)

        every_answer_is_one_that_is_described()
    assert len(seen) >= min(examples, 5), "schemathesis made no requests"
    assert live.http.get("/v1/plane").status_code == 200


@pytest.mark.parametrize(("route", "kind"), _OPERATIONS)
def test_every_answer_is_one_that_is_described(shared_plane, schema, route, kind) -> None:
    _search(shared_plane, schema, route, kind, 20)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("route", "kind"), _OPERATIONS)
def test_every_answer_is_one_that_is_described_2000_times(shared_plane, schema, route, kind, scaled) -> None:
    _search(shared_plane, schema, route, kind, scaled(2000))


def test_no_operation_is_left_out_without_a_reason() -> None:
    tried = {(param.values[0].method, param.values[0].path) for param in _OPERATIONS}
    assert tried | set(_EXCLUDED) == {(route.method, route.path) for route in ROUTES}
    assert all(_EXCLUDED.values())


def test_the_description_is_whole(schema) -> None:
    """What a reader of the description needs: who may call, what comes back, and where every value ends."""
    document = describe(ROUTES)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            where = f"{method} {path}"
            assert operation["security"] or path in ("/healthz", "/readyz", "/v1/workers/{id}/sessions"), where
            assert {"4XX", "500", "503"} <= set(operation["responses"]), where
            for parameter in operation["parameters"]:
                kind = parameter["schema"]
                bounds = {"maximum", "maxLength", "enum", "pattern"} & set(kind)
                assert bounds, f"{where}: {parameter['name']} has no end"
    names = [operation["operationId"] for each in document["paths"].values() for operation in each.values()]
    assert len(names) == len(set(names))
