"""Answers that no control plane gives, to both shells: an error of the tree with its reason, never a fault of ours."""

import importlib
import socket
import types
import typing
from typing import NotRequired, Required

import pytest
from typing_extensions import get_type_hints, is_typeddict

from gpulayer.client import calls
from gpulayer.client.endpoints import ENDPOINTS
from gpulayer.client.forms import FORMS, Fields, misfit
from gpulayer.client.transport import StreamBroken
from gpulayer.errors import GpulayerError, ProtocolError, StorageUnavailable

OK = b"HTTP/1.1 200 OK\r\n"


def form_of(annotation, rows):
    """What ``forms`` should say of a wire schema."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is typing.Any:
        return object
    if is_typeddict(annotation):
        name = f"{annotation.__module__.removeprefix('gpulayer.wire.')}.{annotation.__name__}"
        rows.append((name, annotation))
        return name
    if origin in (NotRequired, Required):
        return form_of(args[0], rows)
    if origin is typing.Literal:
        return type(args[0])
    if origin in (typing.Union, types.UnionType):
        (one,) = (each for each in args if each is not type(None))
        return (form_of(one, rows), None)
    if origin is list:
        return [form_of(args[0], rows)]
    return {"*": form_of(args[1], rows)} if origin is dict else annotation


def test_the_forms_are_those_of_the_wire_schemas():
    found, rows = {}, []
    for endpoint in ENDPOINTS.values():
        if endpoint.reply not in ("", "raw"):
            module, _, kind = endpoint.reply.partition(".")
            rows.append((endpoint.reply, getattr(importlib.import_module(f"gpulayer.wire.{module}"), kind)))
    while rows:
        name, schema = rows.pop()
        if name not in found:
            found[name] = {field: form_of(hint, rows) for field, hint in get_type_hints(schema).items()}
    assert found == FORMS


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"[]", "it is no object"),
        (b"null", "it is no object"),
        (b"1", "it is no object"),
        (b"[" * 200_000, "not JSON"),
        (b'{"a":' * 200_000, "not JSON"),
        (b"1" * 5000, "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b'{"jobs": 5}', "jobs is no object"),
        (b'{"jobs": {"queued": "5"}}', "jobs is no int"),
        (b'{"jobs": {"queued": true}}', "jobs is no int"),
        (b'{"you": []}', "you is no object"),
        (b'{"version": null}', "version is no str"),
        (b'{"urls": [1]}', "urls is no str"),
    ],
)
def test_json_that_is_no_reply_is_a_protocol_error_that_says_where(plane, parts, shell, body, words):
    plane.on("GET", "/v1/plane", parts.Answer(body=body))
    with pytest.raises(ProtocolError, match=words) as caught:
        shell(plane.url).send(calls.get_plane())
    assert caught.value.hint
    plane.on("GET", "/v1/plane", parts.Answer(500, body=body))
    with pytest.raises(ProtocolError, match="answered 500 by something that is no control plane"):
        shell(plane.url).send(calls.get_plane())


def test_a_field_that_is_missing_is_told_when_it_is_asked_for_and_one_that_is_new_is_let_be(plane, shell):
    plane.on("GET", "/v1/jobs/{ref}", {"id": "7f3a", "colour": [1], "reason": {"code": "x"}})
    record = shell(plane.url).send(calls.get_job("7f3a"))
    assert record["colour"] == [1]
    for one, name in ((record, "state"), (record["reason"], "message")):
        with pytest.raises(ProtocolError, match=f"no field '{name}'"):
            one[name]
    assert (record.get("state"), "state" in record, type(record)) == (None, False, Fields)


def test_what_every_record_of_the_tests_holds_has_its_form(parts):
    for record, row in ((parts.job(), "jobs.JobRecord"), (parts.plane(), "plane.PlaneRecord")):
        assert misfit(record, row) is None
    assert misfit(parts.worker(), "workers.WorkerRecord") is None
    assert misfit({"jobs": [parts.job(), parts.job(attempts=[3])]}, "jobs.JobPage") == "jobs.attempts is no object"


@pytest.fixture
def answering(listen):
    """A server that says these bytes to each request and closes."""

    def start(said):
        def serve(connection):
            received = b""
            while b"\r\n\r\n" not in received:
                piece = connection.recv(65536)
                if not piece:
                    return
                received += piece
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)

        return f"http://127.0.0.1:{listen(serve).port}"

    return start


NUMBERS = ["-1", "+5", "1_0", "5.0", "five", "\xb2", "\xb9\xb2", "9" * 30, "9" * 5000, "99999999999999999999"]


@pytest.mark.parametrize("number", [*NUMBERS, str(2**62), str(2**31)])
def test_a_length_that_is_none_or_absurd_is_an_error_with_its_reason(answering, shell, number):
    url = answering(OK + f"Content-Length: {number}\r\n\r\n{{}}".encode("latin-1"))
    with pytest.raises(GpulayerError) as caught:
        shell(url, retry_for_s=0.0).send(calls.get_plane())
    assert caught.value.code in ("unreachable", "protocol")
    with pytest.raises((GpulayerError, StreamBroken)):
        shell(url, retry_for_s=0.0).read(calls.get_blob("ab" * 32))


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_in_a_header_that_is_none_counts_for_nothing(answering, shell, number):
    head = f"X-Gpulayer-Log-Start: {number}\r\nX-Gpulayer-Attempt: {number}\r\nContent-Length: 2\r\n\r\nok"
    url = answering(OK + head.encode("latin-1"))
    assert shell(url).read(calls.read_logs("j")) == (b"ok", 0, None)
    refused = f"HTTP/1.1 503 No\r\nRetry-After: {number}\r\nContent-Length: 0\r\n\r\n"
    with pytest.raises(ProtocolError, match="answered 503"):
        shell(answering(refused.encode("latin-1")), retry_for_s=0.0).send(calls.get_plane())


def test_not_now_for_a_century_is_not_waited_for_though_there_are_other_addresses(plane, parts, shell):
    refused = parts.error(429, "storage_unavailable", "not now")
    refused.headers["Retry-After"] = "3000000000"
    plane.on("GET", "/v1/plane", refused)
    slept = []
    with pytest.raises(StorageUnavailable):
        shell(f"{plane.url} http://127.0.0.1:9", sleep=slept.append).send(calls.get_plane())
    assert slept == []
