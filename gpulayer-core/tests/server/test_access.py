"""Every route: who may call it, and the one form of its errors."""

import ast
import inspect
from types import ModuleType

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from starlette.applications import Starlette

from gpulayer.clock import ManualClock
from gpulayer.server import PlaneSettings
from gpulayer.server.app import OPEN_PATHS, create_app
from gpulayer.server.plane import Plane
from gpulayer.server.routes import ROUTES
from gpulayer.server.tokens import TokenKind, make_token, parse_token
from gpulayer.server.web import Access, Query, Route, json_response

_CLOSED = [route for route in ROUTES if not route.access.is_open]


def _url(route: Route) -> str:
    return route.path.replace("{ref}", "abc").replace("{id}", "w").replace("{epoch}", "1").replace("{digest}", "0" * 64)


def _id(route: Route) -> str:
    return f"{route.method} {route.path}"


def _ask(plane, route: Route, header: str | None) -> httpx.Response:
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    return plane.bare.request(route.method, plane.url + _url(route), headers=headers, content=b"")


def test_every_route_refuses_whoever_has_no_token_that_is_good(make_plane) -> None:
    clock = ManualClock()
    plane = make_plane(clock=clock).start()
    worker = plane.worker()
    good = [plane.token, plane.new_token(TokenKind.JOIN, life_s=10_000_000), worker.token]
    short = [plane.new_token(kind, life_s=5) for kind in (TokenKind.CLIENT, TokenKind.JOIN)]
    clock.advance(6_000)
    refused = [None, "", "Bearer", "Basic abc", "Bearer nonsense", "Bearer glc_x_y", "Bearer \xff"]
    refused += [f"Bearer {make_token(kind)}" for kind in TokenKind]  # well formed, and unknown
    refused += [f"Bearer {token[:-1]}{'1' if token[-1] == '0' else '0'}" for token in good]
    refused += [f"Bearer {token}" for token in short]
    for route in _CLOSED:
        for header in refused:
            answer = _ask(plane, route, header)
            assert answer.status_code == 401, (_id(route), header, answer.text)
            assert plane.check_envelope(answer)["code"] == "unauthenticated"
            assert answer.headers["www-authenticate"] == "Bearer"
    clock.advance(plane.settings.session_life_s * 1000)
    for route in _CLOSED:
        if TokenKind.WORKER in route.access.kinds:
            assert _ask(plane, route, f"Bearer {worker.token}").status_code == 401


def test_a_secret_of_another_token_opens_nothing(plane) -> None:
    _, first, _ = parse_token(plane.token)
    other = plane.new_token(TokenKind.CLIENT)
    mixed = other.replace(parse_token(other)[1], first)
    answer = plane.bare.get(plane.url + "/v1/plane", headers={"Authorization": f"Bearer {mixed}"})
    assert answer.status_code == 401


def test_a_session_opens_only_its_own_workers_routes(plane) -> None:
    one, two = plane.worker("one"), plane.worker("two")
    for route in ROUTES:
        if route.access.kinds == {TokenKind.WORKER}:
            url = plane.url + _url(route).replace("/w/", f"/{two.id}/")
            body = {"schema": 1, "boot": 1, "seq": 1, "sent_ms": 0, "holding": [], "items": []}
            answer = plane.bare.request(route.method, url, headers=one.headers, json=body)
            assert answer.status_code == 403, _id(route)
            plane.check_envelope(answer)


def test_a_route_that_declares_nobody_stops_the_program(tmp_path) -> None:
    async def handler(call):
        return json_response({})

    plane = Plane(PlaneSettings(tmp_path))
    try:
        for access in (None, Access()):
            with pytest.raises(ValueError, match="does not say whose tokens"):
                create_app(plane, routes=[Route("GET", "/x", handler, access, "x")])
        with pytest.raises(ValueError, match="not meant to be"):
            create_app(plane, routes=[Route("GET", "/x", handler, Access(is_open=True), "x")])
    finally:
        plane.store.close()


def test_nothing_is_served_beside_the_table(tmp_path) -> None:
    plane = Plane(PlaneSettings(tmp_path))
    try:
        app = create_app(plane)
        assert isinstance(app, Starlette)
        served = {(method, route.path) for route in app.routes for method in route.methods}
        assert served == {(route.method, route.path) for route in ROUTES}
        assert {route.path for route in ROUTES if route.access.is_open} == OPEN_PATHS
    finally:
        plane.store.close()


def test_health_needs_no_token(plane) -> None:
    assert plane.bare.get(plane.url + "/healthz").json() == {"status": "ok"}
    assert plane.bare.get(plane.url + "/readyz").status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost..", "[localhost]:1"]
)
def test_a_request_for_another_host_is_refused(plane, host) -> None:
    answer = plane.http.get("/healthz", headers={"Host": host})
    assert answer.status_code == 400
    plane.check_envelope(answer)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1", "LOCALHOST", "[::1]:8470", "[::2]:1"])
def test_this_machines_own_names_are_accepted(plane, host) -> None:
    assert plane.http.get("/healthz", headers={"Host": host}).status_code == 200


def test_unknown_routes_and_methods_answer_in_the_envelope(plane) -> None:
    for method, path, status in [
        ("GET", "/", 404),
        ("GET", "/docs", 404),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/jobs/", 404),
        ("DELETE", "/v1/jobs", 405),
        ("POST", "/v1/jobs/abc", 405),
        ("HEAD", "/v1/jobs", 405),
        ("PATCH", "/healthz", 405),
    ]:
        answer = plane.http.request(method, path)
        assert answer.status_code == status, (method, path)
        if method != "HEAD":
            plane.check_envelope(answer)


@pytest.mark.parametrize("route", [route for route in ROUTES if route.body is not None], ids=_id)
def test_every_body_is_checked(plane, route) -> None:
    worker = plane.worker()
    tokens = {TokenKind.CLIENT: plane.token, TokenKind.WORKER: worker.token, TokenKind.JOIN: worker.join_token}
    token = next((tokens[kind] for kind in TokenKind if kind in route.access.kinds), plane.token)
    url = plane.url + _url(route).replace("/w/", f"/{worker.id}/").replace("abc", plane.submit()["id"])
    for body in (b"{", b"[]", b"3", b"\xff", b'"x"', b"[" * 100_000, b'{"schema": 1, "jobs": 3}', b'{"a": "\\ud800"}'):
        answer = plane.bare.request(route.method, url, content=body, headers={"Authorization": f"Bearer {token}"})
        # Readers ignore unknown fields where nothing is required.
        lenient = body.startswith(b'{"') and answer.status_code < 300 and "optional" in _kind(route)
        assert lenient or 400 <= answer.status_code < 500, (body[:20], answer.status_code, answer.text)
        if not lenient:
            plane.check_envelope(answer)


def _kind(route: Route) -> str:
    return "optional" if not getattr(route.body, "__required_keys__", True) else "required"


def test_the_description_covers_every_route(plane) -> None:
    document = plane.http.get("/openapi.json").json()
    described = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert described == {(route.method, route.path) for route in ROUTES}
    ids = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
    assert len(ids) == len(set(ids))
    text = plane.http.get("/openapi.json").text
    for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in document["components"]["schemas"]


def _readings(module: ModuleType) -> set[tuple[str, str, float, float]]:
    """How handlers of this module read their queries: name, kind, least, most, as the description has them."""
    kinds = {"query_int": "integer", "query_number": "number", "query_flag": "flag", "query": "string"}
    found = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        match node:
            case ast.Call(ast.Attribute(ast.Name("call"), reader), [ast.Constant(str(name)), *_], bounds) if (
                reader in kinds
            ):
                given = {each.arg: eval(ast.unparse(each.value), vars(module)) for each in bounds}
                plain = Query(name, "", kinds[reader], **given)
                found.add((name, plain.kind, plain.least, plain.most))
            case _:
                pass
    return found


def test_every_query_is_described_as_it_is_read() -> None:
    modules = {inspect.getmodule(route.handler) for route in ROUTES}
    by_module = {module: _readings(module) for module in modules}
    everywhere = set().union(*by_module.values())
    for module, readings in by_module.items():
        routes = [route for route in ROUTES if inspect.getmodule(route.handler) is module]
        described = {
            (query.name, query.kind, query.least, 2**62 if query.kind == "string" else query.most)
            for route in routes
            for query in route.query
        }
        assert described <= everywhere, module  # one may be read by what two modules share
        assert readings <= described, module


def test_a_join_token_is_good_for_one_worker_which_may_show_it_again(plane) -> None:
    worker = plane.worker("one")
    again = worker.enrol()
    assert again.status_code == 200
    assert again.json()["worker_id"] == worker.id
    worker.key = Ed25519PrivateKey.generate()
    refused = worker.enrol(name="two")
    assert refused.status_code == 401
    assert "used by another worker" in plane.check_envelope(refused)["message"]
    assert len(plane.http.get("/v1/workers").json()["workers"]) == 1


def test_nobody_takes_a_worker_over_with_its_public_key_and_another_join_token(plane) -> None:
    worker = plane.worker("one", labels={"room": "1"})
    before = plane.http.get("/v1/workers/one").json()
    thief = Ed25519PrivateKey.generate()
    token = plane.new_token(TokenKind.JOIN, labels=(("room", "9"),))
    stolen = {"public_key": worker.public_key}
    bodies = [
        plane.enrolment(thief, token, "one", **stolen),
        plane.enrolment(worker.key, worker.join_token, "one"),  # signed for another token
        {**plane.enrolment(worker.key, token, "two"), "name": "one"},  # and for another name
        plane.enrolment(worker.key, token, "one", signature="0" * 128),
        plane.enrolment(worker.key, token, "one", signature="z" * 128),
    ]
    for body in bodies:
        answer = worker.http_post("/v1/workers:enrol", body, token)
        assert (answer.status_code, plane.check_envelope(answer)["code"]) == (401, "unauthenticated")
    without = plane.enrolment(worker.key, token, "one")
    del without["signature"]
    assert worker.http_post("/v1/workers:enrol", without, token).status_code == 400
    assert plane.http.get("/v1/workers/one").json() == before
    unknown = plane.enrolment(
        thief, token, "new", public_key=Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    )
    assert worker.http_post("/v1/workers:enrol", unknown, token).status_code == 401
    assert worker.http_post("/v1/workers:enrol", plane.enrolment(thief, token, "new"), token).status_code == 201


def test_two_workers_with_one_name_are_refused(plane) -> None:
    plane.worker("box")
    other = plane.worker("other")
    other.key = Ed25519PrivateKey.generate()
    other.join_token = plane.new_token(TokenKind.JOIN)
    answer = other.enrol(name="box")
    assert answer.status_code == 409
    assert plane.check_envelope(answer)["code"] == "conflict"
    assert other.enrol(name="third").status_code == 201  # the refusal did not use the token up


def test_a_session_needs_the_workers_own_signature_and_a_counter_that_grows(plane) -> None:
    worker = plane.worker()
    for counter in (worker.counter, 0):
        used = worker.session(counter=counter)
        assert used.status_code == 409
        assert plane.check_envelope(used)["details"] == {"counter": worker.counter}
    key, worker.key = worker.key, Ed25519PrivateKey.generate()
    assert worker.session(counter=99).status_code == 401
    worker.key = key
    plane.restart()
    assert worker.session(counter=1).status_code == 409  # the counter is durable
    assert worker.session(counter=2).status_code == 201
    worker.id = "0" * 16
    assert worker.session(counter=3).status_code == 401


def test_a_removed_worker_is_out_and_its_name_free(plane) -> None:
    worker = plane.worker("box")
    worker.report()
    plane.submit()
    (command,) = worker.commands(hold_s=5)
    worker.report(worker.running(command["epoch"]))
    assert plane.http.post("/v1/workers/box:remove").status_code == 409
    removed = plane.http.post("/v1/workers/box:remove", params={"force": 1})
    assert removed.json()["state"] == "gone"
    assert worker.try_report().status_code == 401
    assert worker.session().status_code == 401
    assert plane.job(command["job_id"])["state"] == "queued"
    plane.restart()
    assert plane.http.get("/v1/workers").json()["workers"] == []
    plane.worker("box")


def test_drain_and_resume(plane) -> None:
    worker = plane.worker("box")
    worker.report()
    assert plane.http.post(f"/v1/workers/{worker.id[:6]}:drain").json()["state"] == "draining"
    assert plane.submit()["state"] == "queued"
    assert worker.commands() == []
    assert plane.http.post("/v1/workers/box:resume").json()["state"] == "ready"
    assert len(worker.commands(hold_s=5)) == 1
    assert plane.http.get("/v1/workers/nobody").status_code == 404


def test_a_worker_that_was_not_heard_since_the_start_is_counted_as_silent(plane) -> None:
    """As the list of workers says it: ``status`` and ``doctor`` read the counts."""
    plane.worker().report()
    assert plane.http.get("/v1/plane").json()["workers"] == {"ready": 1}
    plane.stop()
    plane.start()
    (worker,) = plane.http.get("/v1/workers").json()["workers"]
    assert worker["state"] == "silent"
    assert plane.http.get("/v1/plane").json()["workers"] == {"silent": 1}
