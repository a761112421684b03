"""What answers is no control plane, or what is configured is no address: a reason and a code, never a fault of ours."""

import pytest

COMMANDS = {
    "status": ("GET", "/v1/plane", ("status",)),
    "job list": ("GET", "/v1/jobs", ("job", "list")),
    "job show": ("GET", "/v1/jobs/{ref}", ("job", "show", "7f")),
    "job events": ("GET", "/v1/jobs/{ref}/events", ("job", "events", "7f3a000000000001")),
    "job logs": ("GET", "/v1/jobs/{ref}", ("job", "logs", "7f", "--follow")),
    "worker list": ("GET", "/v1/workers", ("worker", "list")),
    "token list": ("GET", "/v1/tokens", ("token", "list")),
    "audit": ("GET", "/v1/audit", ("audit",)),
    "explain": ("POST", "/v1/explain", ("explain",)),
    "submit": ("POST", "/v1/jobs", ("submit", "--", "true")),
}
BODIES = {
    "list": b"[]",
    "empty object": b"{}",
    "deep": b"[" * 200_000,
    "types": b'{"jobs": 1, "workers": 2, "tokens": 3, "entries": 4, "events": 5, "id": 6, "verdicts": 7}',
    "items": b'{"jobs": [[]], "workers": [[]], "tokens": [[]], "entries": [[]], "events": [[]], "verdicts": [3]}',
    "empty": b"",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize(("method", "path", "argv"), COMMANDS.values(), ids=COMMANDS)
def test_a_command_that_is_answered_with_rubbish_says_so(cli, plane, parts, method, path, argv, body):
    plane.on("GET", "/v1/jobs/{ref}", parts.job())
    plane.on(method, path, parts.Answer(body=body))
    said = cli(*argv, plane=plane)
    assert said.code == 6, said.err
    assert said.err.startswith("error: ")
    assert "internal" not in said.err


def test_candidates_that_are_no_list_are_not_shown(cli, plane, parts):
    plane.on("GET", "/v1/plane", parts.error(404, "not_found", "no", details={"candidates": 5}))
    said = cli("status", plane=plane)
    assert (said.code, "internal" in said.err) == (2, False)


LONG = f"https://{'a' * 64}.example:8470"


@pytest.mark.parametrize(
    "argv", [("status",), ("doctor",), ("context", "add", "lab", LONG), ("job", "list")], ids=lambda argv: argv[0]
)
def test_a_host_that_is_none_is_a_usage_error(cli, monkeypatch, argv):
    monkeypatch.setenv("GPULAYER_URL", LONG)
    monkeypatch.setenv("GPULAYER_TOKEN", "glc_" + "a" * 12 + "_secret")
    said = cli(*argv)
    assert (said.code, "1 to 63 letters" in said.err) == (2, True), said.err


@pytest.mark.parametrize("body", [b"[]", b"[" * 200_000, b'{"you": 1, "workers": 2, "jobs": [], "version": 3}'])
def test_doctor_looks_at_rubbish_without_falling(cli, plane, parts, body):
    plane.on("GET", "/healthz", {"status": "ok"})
    plane.on("GET", "/v1/plane", parts.Answer(body=body))
    plane.token = None
    plane._find = lambda asked: (
        parts.Answer(json={"status": "ok"}) if asked.path == "/healthz" else parts.Answer(body=body)
    )
    said = cli(
        "doctor", plane=type("Where", (), {"environment": {"GPULAYER_URL": plane.url, "GPULAYER_TOKEN": parts.TOKEN}})
    )
    assert said.code in (5, 6), said.out
    assert "internal" not in said.err
