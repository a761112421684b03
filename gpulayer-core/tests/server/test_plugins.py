"""The control plane and its plugins: what waits for them, what does not, and ``GET /v1/plugins``."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from gpulayer.clock import SystemClock
from gpulayer.errors import PluginFault
from gpulayer.plugins import Problem, Severity
from gpulayer.plugins.guard import Guard
from gpulayer.plugins.host import Host
from gpulayer.plugins.record import Fault, PluginRecord, PluginStatus
from gpulayer.plugins.registry import Registered, Registry
from gpulayer.plugins.reporting import plugin_to_wire
from gpulayer.plugins.settings import PluginSettings
from gpulayer.server import PlaneSettings
from gpulayer.server import plane as plane_module
from gpulayer.server import plugins as server_plugins
from gpulayer.testing.wire_worker import wire_facts
from gpulayer.wire.plugins import PluginPage
from gpulayer.wire.workers import ReportBody

BODY = {"schema": 1, "command": ["true"]}


def host(*records, **registered):
    return Host(Registry(**registered), Guard(clock=SystemClock()), lambda: records)


def refuses(spec):
    return [Problem(Severity.ERROR, "not today")]


class Loading:
    """In place of ``load_plugins``: it ends when it is told to."""

    def __init__(self, host):
        self.host = host
        self.may_end = threading.Event()
        self.asked = []

    def __call__(self, where, settings, **options):
        self.asked.append((where, settings, options))
        assert self.may_end.wait(20)
        if isinstance(self.host, BaseException):
            raise self.host
        return self.host


@pytest.fixture
def loading(monkeypatch):
    def prepare(host):
        made = Loading(host)
        monkeypatch.setattr(server_plugins, "load_plugins", made)
        started.append(made)
        return made

    started = []
    yield prepare
    for one in started:
        one.may_end.set()


def fields(name, **changes):
    return {
        "name": name,
        "distribution": "d",
        "version": "1",
        "api": "1.0",
        "is_builtin": False,
        "status": "ok",
        "error": "",
        "hint": "",
        "hooks": [],
        "provides": [],
        "faults": 0,
        "last_faults": [],
        **changes,
    }


def listed(live):
    answer = live.http.get("/v1/plugins")
    assert answer.status_code == 200, answer.text
    return answer.json()["plugins"]


def test_a_control_plane_serves_while_plugins_load_and_submissions_wait_for_them(make_plane, loading):
    held = loading(host(job_checks=(Registered("quota", refuses),)))
    live = make_plane().start()
    assert live.bare.get(live.url + "/healthz").status_code == 200
    assert live.http.get("/v1/jobs").status_code == 200
    with ThreadPoolExecutor(1) as pool:
        submitting = pool.submit(live.http.post, "/v1/jobs", json=BODY)
        live.until(lambda: live.plane.clients_now)
        assert live.http.get("/v1/jobs").json()["jobs"] == []
        assert not submitting.done()
        held.may_end.set()
        answer = submitting.result(20)
    assert answer.status_code == 422
    assert live.check_envelope(answer)["code"] == "job_refused"


def test_who_has_waited_long_enough_is_told_to_come_again(make_plane, loading):
    held = loading(host())
    live = make_plane(plugins_wait_s=0.05).start()
    answer = live.http.post("/v1/jobs", json=BODY)
    assert answer.status_code == 503
    refusal = live.check_envelope(answer)
    assert refusal["code"] == "storage_unavailable"
    assert "still loads its plugins" in refusal["message"]
    assert refusal["details"] == {"starting": True}, "a client goes on asking"
    held.may_end.set()
    live.until(lambda: live.http.post("/v1/jobs", json=BODY).status_code == 201)


def test_which_plugins_are_tried_is_told_to_who_asks_and_in_the_log_once_it_takes_long(
    make_plane, loading, caplog, monkeypatch
):
    monkeypatch.setattr("gpulayer.server.plane._SLOW_S", 0.01)
    held = loading(host())
    live = make_plane().start()
    live.until(lambda: held.asked)
    trying = held.asked[0][2]["trying"]

    def told():
        return live.http.get("/v1/plane").json().get("starting", "")

    assert told() == "it loads its plugins; each may take 10 s to be imported"
    trying(("slow", "slower"))
    assert told() == "it tries plugins slow, slower; each may take 10 s to be imported"
    live.until(lambda: "still trying plugins slow, slower" in caplog.text)
    trying(tuple(f"p{number:02}" for number in range(24)))
    assert told().startswith("it tries plugins p00, p01, p02, p03, p04, p05, p06, p07 and 16 more; ")
    trying(("slower",))
    live.until(lambda: "still trying plugin slower" in caplog.text)
    held.may_end.set()
    live.until(lambda: told() == "")


def test_a_control_plane_that_ends_takes_no_job_that_no_plugin_has_seen(make_plane, loading):
    held = loading(host(job_checks=(Registered("quota", refuses),)))
    live = make_plane().start()
    with ThreadPoolExecutor(1) as pool:
        submitting = pool.submit(live.http.post, "/v1/jobs", json=BODY)
        live.until(lambda: live.plane.clients_now)
        live.loop.call_soon_threadsafe(live.plane.stop_holding)
        answer = submitting.result(20)
    assert answer.status_code == 503
    assert "shutting down" in live.check_envelope(answer)["message"]
    assert live.http.get("/v1/jobs").json()["jobs"] == []
    held.may_end.set()


def test_what_is_to_be_loaded_is_what_the_settings_say(make_plane, loading):
    held = loading(host())
    held.may_end.set()
    settings = PluginSettings(allowed=frozenset({"a"}), options={"a": {"url": "u"}})
    live = make_plane(plugins=settings).start()
    assert live.http.post("/v1/jobs", json=BODY).status_code == 201
    ((where, given, _),) = held.asked
    assert (str(where), given) == ("plane", settings)


def test_a_fault_of_the_loading_itself_leaves_a_control_plane_without_plugins(make_plane, loading, caplog):
    loading(RuntimeError("a fault")).may_end.set()
    live = make_plane().start()
    assert live.http.post("/v1/jobs", json=BODY).status_code == 201
    assert listed(live) == []
    assert "goes on without any" in caplog.text


@pytest.mark.parametrize("raised", [PluginFault("plugin bad: no api"), SystemExit(3), RuntimeError("no such file")])
def test_a_strict_control_plane_does_not_start_with_a_plugin_that_fails(make_plane, loading, raised):
    held = loading(raised)
    held.may_end.set()
    live = make_plane(plugins=PluginSettings(strict=True))
    with pytest.raises(PluginFault, match=r"no api|SystemExit: 3|RuntimeError: no such file"):
        live.start()
    live.bare = live.http = type("Closed", (), {"close": lambda self: None})()  # it never got that far


def test_a_strict_control_plane_tells_what_was_raised_without_secrets(loading, caplog):
    """What is wrong with a plugin is raised by itself, and nothing else hides what it says."""
    held = loading(RuntimeError("denied for hunter2hunter2 and two words"))
    held.may_end.set()
    settings = PluginSettings(
        strict=True, variables={"ST_PASSWORD": "hunter2hunter2"}, options={"st": {"pair": "two\nwords"}}
    )
    plane = PlaneSettings(state_dir=Path(), plugins=settings)
    with pytest.raises(PluginFault) as caught:
        asyncio.run(server_plugins.load_for_plane(plane, clock=SystemClock()))
    assert "RuntimeError: denied for *** and ***" in caught.value.message
    assert "RuntimeError: denied for *** and ***" in caplog.text
    assert "hunter2" not in caught.value.message + caplog.text


def test_a_control_plane_ends_although_its_plugins_never_finish_loading(make_plane, loading, monkeypatch):
    monkeypatch.setattr("gpulayer.server.plane._LOADING_ENDS_S", 0.05)
    held = loading(host())
    live = make_plane().start()
    live.stop()
    held.may_end.set()


def test_plugins_that_are_loaded_too_late_are_closed(loading):
    closed = threading.Event()

    class Late(Host):
        def close(self):
            closed.set()

    held = loading(Late(Registry(), Guard(clock=SystemClock()), lambda: ()))

    async def give_up():
        task = asyncio.create_task(server_plugins.load_for_plane(PlaneSettings(state_dir=Path()), clock=SystemClock()))
        while not held.asked:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task})
        held.may_end.set()
        while not closed.is_set():
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(give_up(), 10))


def fails(*_, **__):
    raise RuntimeError("out of order")


@pytest.mark.parametrize("part", ["load_for_plane", "Scorers", "Announcer"])
def test_a_fault_of_ours_while_plugins_are_taken_in_use_is_logged_and_stops_nobody(
    make_plane, loading, monkeypatch, caplog, part
):
    loading(host(job_checks=(Registered("quota", refuses),))).may_end.set()
    monkeypatch.setattr(plane_module, part, fails)
    live = make_plane().start()
    live.worker("box").report()
    answer = live.http.post("/v1/jobs", json=BODY)
    assert answer.status_code == (201 if part == "load_for_plane" else 422), "the checks count all the same"
    assert live.plane.driver.look(lambda state: state.policy.scorers) == (), "nobody waits for scorers that load"
    assert "out of order" in caplog.text


@pytest.mark.parametrize("part", ["load_for_plane", "Scorers", "Announcer"])
def test_a_strict_control_plane_that_does_not_start_lets_go_of_its_store(tmp_path, loading, monkeypatch, part):
    loading(host()).may_end.set()
    monkeypatch.setattr(plane_module, part, fails)

    async def start():
        plane = plane_module.Plane(PlaneSettings(state_dir=tmp_path, plugins=PluginSettings(strict=True)))
        closed = []
        close = plane.store.close
        monkeypatch.setattr(plane.store, "close", lambda: (close(), closed.append(True)))
        with pytest.raises(RuntimeError, match="out of order"):
            await plane.start()
        await plane.close()
        assert closed

    asyncio.run(start())


def test_the_list_has_the_control_plane_s_own_and_each_worker_s(make_plane, plane_records):
    live = make_plane()
    live.host = lambda: host(*plane_records)
    live.start()
    silent, teller = live.worker("silent"), live.worker("box")
    silent.report()
    teller.report(plugins=[fields("zeta"), fields("alpha", status="broken", error="it \x1b[31m hurts")])
    found = listed(live)
    assert [(one["where"], one["name"]) for one in found] == [
        ("plane", "host"),
        ("plane", "quota"),
        ("worker box", "alpha"),
        ("worker box", "zeta"),
    ]
    own = found[1]
    assert own["status"] == "suspended"
    assert own["faults"] == 7
    assert own["last_faults"] == [
        {"at": "1970-01-01T00:00:01.000Z", "hook": "gpulayer_check_job", "message": "it fell"}
    ]
    assert found[2]["error"] == "it \x1b[31m hurts", "shown as it is: whoever prints it takes care"


def test_what_a_worker_tells_replaces_what_it_told_and_silence_changes_nothing(make_plane):
    live = make_plane()
    live.host = host
    live.start()
    worker = live.worker()
    worker.report(plugins=[fields("a"), fields("b")])
    worker.report()
    worker.report(plugins=None)
    assert [one["name"] for one in listed(live)] == ["a", "b"]
    worker.report(plugins=[fields("b", faults=1)])
    assert [(one["name"], one["faults"]) for one in listed(live)] == [("b", 1)]
    worker.report(plugins=[])
    assert listed(live) == []


def test_a_worker_s_plugins_are_forgotten_with_it(make_plane):
    live = make_plane()
    live.host = host
    live.start()
    worker = live.worker()
    worker.report(plugins=[fields("a")])
    assert live.http.post(f"/v1/workers/{worker.name}:remove", params={"force": 1}).status_code == 200
    assert listed(live) == []
    assert live.plane.worker_plugins == {}


def test_after_a_restart_a_worker_s_plugins_are_unknown_until_it_tells_them_again(make_plane):
    live = make_plane()
    live.host = host
    live.start()
    worker = live.worker()
    worker.report(plugins=[fields("a")])
    live.restart()
    assert listed(live) == []
    worker.open_session()
    worker.report(plugins=[fields("a")])
    assert [one["name"] for one in listed(live)] == ["a"]


@pytest.mark.parametrize(
    "bad",
    [
        {"name": "n" * 65},
        {"error": "e" * 513},
        {"status": "splendid"},
        {"provides": ["x"] * 65},
        {"faults": -1},
        {"last_faults": [{"at": None, "hook": "h", "message": "m"}] * 9},
        {"name": ""},
        {"name": "a\0"},
        {"name": "a\x1b[2J"},
        {"distribution": "d\n"},
        {"version": "\u202e1"},
        {"api": "\x07"},
        {"hooks": ["gpulayer_check_job\r"]},
        {"provides": ["probe \x9b2J"]},
        {"is_builtin": True},
        {"last_faults": [{"at": "evil", "hook": "h", "message": "m"}]},
        {"last_faults": [{"at": "2026-11-30", "hook": "h", "message": "m"}]},
        {"last_faults": [{"at": None, "hook": "h\x1b", "message": "m"}]},
    ],
)
def test_reports_of_plugins_have_bounds(shared_teller, bad):
    answer = shared_teller.try_report(plugins=[{**fields("a"), **bad}])
    assert answer.status_code == 400
    assert shared_teller.live.check_envelope(answer)["code"] == "bad_request"


@pytest.fixture(scope="module")
def shared_teller(shared_plane):
    return shared_plane.worker("teller")


def test_records_are_cut_to_what_the_wire_takes():
    long = PluginRecord(
        *("n" * 999, "d" * 999, "v" * 999, "a" * 999),
        status=PluginStatus.BROKEN,
        error="e" * 9999,
        hint="h" * 9999,
        hooks=("k" * 999,) * 99,
        provides=("p" * 999,) * 999,
        faults=99,
        last_faults=tuple(Fault(number, "h" * 999, "m" * 9999) for number in range(99)),
    )
    sent = plugin_to_wire(long)
    report = {"schema": 1, "boot": 1, "seq": 1, "sent_ms": 1, "holding": [], "items": [], "plugins": [sent]}
    TypeAdapter(ReportBody).validate_python(report)
    TypeAdapter(PluginPage).validate_python({"plugins": [{"where": "plane", **sent}], "next": None})
    assert sent["last_faults"][-1]["at"] == "1970-01-01T00:00:00.098Z", "the newest are kept"


@pytest.mark.parametrize("odd", ["", "\0", "a\x1b[2J", "Not Plain", "\ud800", "\u202e", "nä"])
def test_what_is_odd_about_a_plugin_costs_its_worker_no_report(shared_teller, odd):
    record = PluginRecord(
        *(odd, odd, odd, odd),
        status=PluginStatus.BROKEN,
        error=odd,
        hint=odd,
        hooks=(odd,),
        provides=(odd,),
        last_faults=(Fault(0, odd, odd), Fault(2**40, odd, odd)),
    )
    twice = [plugin_to_wire(record)] * 2  # of one name: that is what is wrong with both
    assert shared_teller.try_report(plugins=twice).status_code == 200


@pytest.mark.parametrize(
    "bad",
    [
        *({"resources": {name: 1}} for name in ("", "A", "a b", "a\0", "a\x1b", "1a", "ä", "a=1", "a,b")),
        *(
            {"capabilities": [text]}
            for text in ("", "launcher", "launcher:", ":torch", "launcher:To", "launcher:a\x1b", "La:a", "a:b:c")
        ),
        {"capabilities": ["launcher:torch", "launcher:torch"]},
    ],
)
def test_what_a_worker_has_by_name_is_refused_where_no_job_could_ask_for_it(shared_plane, shared_teller, bad):
    for answer in (
        shared_teller.try_report(facts=wire_facts(**bad)),
        shared_teller.enrol(facts=wire_facts(**bad)),
    ):
        assert answer.status_code == 400
        assert shared_plane.check_envelope(answer)["message"].startswith("facts.")


def test_a_kind_of_capability_that_is_not_known_yet_is_kept(shared_plane, shared_teller):
    facts = wire_facts(capabilities=["network:rdma"], resources={"licence": 0})
    assert shared_teller.try_report(facts=facts).status_code == 200
    assert shared_plane.http.get("/v1/workers/teller").json()["capabilities"] == ["network:rdma"]


@pytest.fixture
def plane_records():
    return (
        PluginRecord("host", "gpulayer-core", "0.1.0", "1.0", is_builtin=True),
        PluginRecord(
            *("quota", "quota-plugin", "3.0", "1.0"),
            status=PluginStatus.SUSPENDED,
            hooks=("gpulayer_check_job",),
            faults=7,
            last_faults=(Fault(1000, "gpulayer_check_job", "it fell"),),
        ),
    )


FAULT = {"at": None, "hook": "EnvironmentBuilder.build", "message": "no network"}
OTHER_FAULT = {**FAULT, "hook": "Probe.look"}


@pytest.fixture
def staged(make_plane):
    """A job that needs the environment e1 and is at its worker, which can tell of its plugins."""
    live = make_plane()
    live.host = host
    live.start()
    worker = live.worker(capabilities=["environment:e1"])
    worker.report()
    job = live.http.post("/v1/jobs", json={**BODY, "environment": "e1"}).json()["id"]
    (command,) = worker.commands(hold_s=5)
    return live, worker, job, command["epoch"]


@pytest.mark.parametrize("faults", [[], [FAULT], [OTHER_FAULT, FAULT]])
def test_a_job_that_its_worker_keeps_waiting_for_a_plugin_that_rests_says_so(staged, faults):
    live, worker, job, epoch = staged
    worker.report(
        {"epoch": epoch, "node": 0, "state": "staging"}, plugins=[fields("fine"), resting(last_faults=faults)]
    )
    record = live.http.get(f"/v1/jobs/{job}").json()
    assert record["state"] == "staging"
    assert record["reason"] == {
        "code": "plugin_suspended",
        "message": "worker box waits for plugin bad (environment e1), which failed several times in a row; "
        "it is tried again by itself: gpulayer plugins",
    }
    (shown,) = live.http.get("/v1/jobs").json()["jobs"]
    assert shown["reason"] == record["reason"]
    worker.report(plugins=[resting(status="ok")])
    assert live.http.get(f"/v1/jobs/{job}").json()["reason"] is None


def resting(**changes):
    return fields("bad", **{"status": "suspended", "provides": ["environment e1", "probe x"], **changes})


@pytest.mark.parametrize(
    "plugin",
    [
        resting(status="ok"),
        resting(provides=["environment e2", "launcher e1"]),
        resting(last_faults=[OTHER_FAULT]),
    ],
    ids=["it works", "the job does not need it", "something else of it rests"],
)
def test_a_job_that_waits_for_no_plugin_that_rests_has_no_such_reason(staged, plugin):
    live, worker, job, epoch = staged
    worker.report({"epoch": epoch, "node": 0, "state": "staging"}, plugins=[plugin])
    assert live.http.get(f"/v1/jobs/{job}").json()["reason"] is None


def test_a_job_that_runs_waits_for_no_plugin(staged):
    live, worker, job, epoch = staged
    worker.report(worker.running(epoch), plugins=[resting()])
    record = live.http.get(f"/v1/jobs/{job}").json()
    assert (record["state"], record["reason"]) == ("running", None)
