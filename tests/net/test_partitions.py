"""Two workers and a net that falls apart between them and the control plane: for longer than the lease, in one
direction, with one end of a connection that nobody ends, or because a machine sleeps. Then it is whole again.

A job begins on the desk, behind a router; another worker, near the server, takes over what the desk loses. A test's
name begins with its case, where users met it elsewhere. A lease is 4 s here, so that a partition outlasts it in five.
"""

import signal
from collections import Counter
from contextlib import ExitStack

import pytest

from gpulayer.spawner.state import StateDir
from tests.net.lab import Lab
from tests.net.town import SERVER, Counting, Town, until

LEASE = "4s"
BOTH_WAYS = f"ip saddr {SERVER} drop\n    ip daddr {SERVER}"
OUT, IN = f"ip daddr {SERVER}", f"ip saddr {SERVER}"

# Beats of each attempt are by the clock that goes on in sleep, into a folder that all machines here share. It leaves a
# daemon behind, and files that tell which attempt made them.
PROGRAM = """
beat() { read up rest < /proc/uptime; echo $up >> "$0/beats.$1"; }
n=$GPULAYER_ATTEMPT
echo "attempt $n"
(setsid sh -c 'echo $$ > "$0"; exec sleep 600' "$0/daemon.$n" &)
until [ -e "$0/end.$n" ]; do beat $n; sleep 0.05; done
beat $n
echo "by $n" > result.txt; echo $n > "only.$n"
echo "end of $n"; touch "$0/ended.$n"
"""


class Field:
    """A town with the two workers; ``near`` takes nothing until it ``helps``."""

    def __init__(self, town):
        self.town = town
        self.invitation = town.up(lease=LEASE)
        self.desk, self.router = town.desk()
        town.joined(self.desk, *self.invitation.join)
        self.near = town.place(town.public("near", 40))
        self.invitation = town.up()  # a token joins one
        town.joined(self.near, *self.invitation.join)

    def helps(self, is_wanted=True):
        self.town.server.did("worker", "resume" if is_wanted else "drain", "near")

    def whole(self):
        """Both workers are there and hold nothing, as at the beginning."""
        self.helps(False)
        self.desk.signal_all(signal.SIGCONT)
        for job in self.town.jobs():  # of a test that failed
            if job["ended_at"] is None:
                self.town.server.did("job", "cancel", job["id"])
        self.town.ready(self.desk)
        for place in (self.desk, self.near):
            until(lambda place=place: not known(place), lambda place=place: f"{place.name} forgets: {known(place)}")


class Split:
    """A job of two attempts at most: one on the desk, one on the other worker."""

    def __init__(self, field, folder, *options):
        self.town, self.field, self.folder = field.town, field, folder
        words = ("submit", "--detach", "--grace", "0.5s", *options, "--", "sh", "-c", PROGRAM, str(folder))
        self.id = self.town.server.did(*words).out.decode().strip()
        until(lambda: self.beats(1), lambda: f"it runs: {self.record()}")

    def record(self):
        return self.town.job(self.id)

    def state(self):
        return self.record()["state"]

    def beats(self, attempt):
        path = self.folder / f"beats.{attempt}"
        return [float(line) for line in path.read_text().split()] if path.exists() else []

    def moves(self):
        """The other worker takes it."""
        self.field.helps()
        until(lambda: self.beats(2), lambda: f"it runs again: {self.record()}")

    def let_end(self, attempt):
        (self.folder / f"end.{attempt}").touch()

    def has_ended(self, attempt):
        """Its program came to its end by itself."""
        return (self.folder / f"ended.{attempt}").exists()

    def ended(self):
        until(lambda: self.record()["ended_at"], lambda: f"it ends: {self.record()}")
        return self.record()

    def log(self, attempt):
        return self.town.server.did("job", "logs", self.id, "--attempt", str(attempt)).out

    def daemon_lives(self, attempt):
        pid = int((self.folder / f"daemon.{attempt}").read_text())
        return pid in self.field.desk.machine.processes()

    def is_void(self):
        """The desk has been told, has nothing of the first attempt left, and no process of it runs."""
        until(lambda: not known(self.field.desk), lambda: f"it is void: {self.field.desk.log.read_text()}")
        until(lambda: not self.daemon_lives(1), "nothing of it runs on the desk")
        return True

    def is_of_second_alone(self):
        """One result, the second attempt's: its exit, its log, its files, and the events say so."""
        record = self.ended()
        tries = [(one["number"], one["nodes"][0]["worker"], one["ended_by"]) for one in record["attempts"]]
        assert tries == [(1, "desk", "worker_lost"), (2, "near", "program")], record
        assert (record["state"], record["exit_code"]) == ("succeeded", 0)
        assert record["attempts"][0]["evidence"].startswith("worker desk ")
        assert b"attempt 1\n".startswith(self.log(1))
        assert self.log(2) == b"attempt 2\nend of 2\n"
        assert [one["path"] for one in record["outputs"]] == ["only.2", "result.txt"]
        home = self.folder / "home"
        self.town.server.did("job", "result", self.id, "--download", "--dest", str(home))
        assert (home / "result.txt").read_text() == "by 2\n"
        with self.town.api() as client:
            events = Counter(event["event"] for event in client.job(self.id).events())
        assert (events["job_succeeded"], events["attempt_ended"]) == (1, 2), events
        assert sum(events[f"job_{state}"] for state in ("failed", "lost", "cancelled", "timed_out")) == 0
        return True


def known(place):
    """Attempts that its worker, or its spawner, still knows of."""
    state = place.home / ".local/state/gpulayer"
    # By name, not by a walk: what is walked through may be deleted meanwhile.
    workers = list(state.glob("joined/*"))
    tables = [StateDir(str(worker / "spawner")) for worker in workers if (worker / "spawner/spawner.lock").exists()]
    attempts = [path.name for worker in workers for path in worker.glob("attempts/*")]
    return attempts + [job.key for table in tables for job in table.load()]


@pytest.fixture(scope="module")
def kept_field(tmp_path_factory):
    with Lab() as lab:
        town = Town(lab, tmp_path_factory.mktemp("town"))
        try:
            yield Field(town)
        finally:
            town.close()


@pytest.fixture
def field(kept_field):
    kept_field.whole()
    return kept_field


@pytest.fixture
def cut(field):
    """``cut(what)``: nothing that it matches passes the desk's router any more, until the stack is closed."""
    with ExitStack() as stack:

        def cut(what=BOTH_WAYS):
            stack.enter_context(field.router.wall(what))
            return stack.close

        yield cut


# Past the lease, then healed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_first_back", [True, False], ids=["while the other runs", "when the other has ended"])
def test_c1_a_result_that_comes_after_the_job_was_given_away_is_void_and_there_is_one_result(
    field, cut, tmp_path, is_first_back
):
    job = Split(field, tmp_path, "--retries", "1")
    heal = cut()
    job.moves()
    job.let_end(1)
    until(lambda: job.has_ended(1), "the first has succeeded where nobody hears of it")
    if is_first_back:
        heal()
        assert job.is_void()
        assert job.state() == "running", "what the desk said did not end it"
    job.let_end(2)
    assert job.is_of_second_alone()
    if not is_first_back:
        before = job.record()
        heal()
        assert job.is_void()
        assert job.record() == before
        assert job.is_of_second_alone()


def test_c1_a_worker_that_comes_back_ends_what_still_runs_of_a_job_that_was_given_away(field, cut, tmp_path):
    job = Split(field, tmp_path, "--retries", "1")
    heal = cut()
    job.moves()
    assert job.daemon_lives(1)
    heal()
    assert job.is_void()
    assert not job.has_ended(1), "it was ended, and had not come to its end"
    job.let_end(2)
    assert job.is_of_second_alone()


@pytest.mark.parametrize("lost", [BOTH_WAYS, OUT, IN], ids=["both ways", "only out", "only in"])
def test_c1_an_exclusive_job_is_dead_where_it_ran_before_it_begins_elsewhere_whichever_way_is_lost(
    field, cut, tmp_path, lost
):
    job = Split(field, tmp_path, "--retries", "1", "--exclusive")
    heal = cut(lost)
    job.moves()
    assert not job.daemon_lives(1)
    job.let_end(2)
    assert job.is_of_second_alone()
    heal()
    assert job.is_void()
    assert job.beats(1)[-1] < job.beats(2)[0]
    assert not job.has_ended(1)


def test_c1_without_retries_a_job_that_is_cut_off_is_unreachable_goes_on_and_its_result_arrives(field, cut, tmp_path):
    job = Split(field, tmp_path, "--retries", "0")
    heal = cut()
    field.helps()
    until(lambda: job.state() == "unreachable", "its worker is silent")
    job.let_end(1)
    until(lambda: job.has_ended(1), "it goes on to its end")
    assert job.state() == "unreachable"
    heal()
    record = job.ended()
    assert (record["state"], len(record["attempts"])) == ("succeeded", 1), record
    assert job.log(1) == b"attempt 1\nend of 1\n"
    assert [one["path"] for one in record["outputs"]] == ["only.1", "result.txt"]


def test_c1_without_retries_a_job_is_lost_past_keep_for_and_its_worker_has_ended_it_by_then(field, cut, tmp_path):
    job = Split(field, tmp_path, "--retries", "0", "--keep-for", "6s")
    heal = cut()
    field.helps()
    until(lambda: job.state() == "unreachable", "its worker is silent")
    record = job.ended()
    assert not job.daemon_lives(1), "its worker has ended it by itself"
    assert (record["state"], record["ended_by"]) == ("lost", "worker_lost")
    job.let_end(1)
    heal()
    assert job.is_void()
    assert job.record() == record
    assert not job.has_ended(1)
    assert job.log(1) == b"attempt 1\n"


# In one direction ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [OUT, IN], ids=["only out", "only in"])
def test_what_gets_lost_in_one_direction_for_longer_than_the_lease_moves_the_job_and_is_void_after_it(
    field, cut, tmp_path, lost
):
    job = Split(field, tmp_path, "--retries", "1")
    heal = cut(lost)
    job.moves()
    job.let_end(1)
    until(lambda: job.has_ended(1), "the first has succeeded")
    job.let_end(2)
    assert job.is_of_second_alone()
    heal()
    assert job.is_void()
    assert job.is_of_second_alone()


# Half-open -----------------------------------------------------------------------------------------------------------


def established(machine):
    """Connections to the control plane that this machine's kernel takes to be alive, by the callers' ports."""
    lines = machine.run("ss", "-Htn", "state", "established").splitlines()
    ports = [[end.rpartition(":")[2] for end in line.split()[2:4]] for line in lines]
    return {other for pair in ports if "8470" in pair for other in pair if other != "8470"}


def test_a_connection_that_only_the_control_plane_takes_to_be_alive_swallows_no_job(field, cut):
    before = established(field.town.server.machine)
    heal = cut()
    agents = [process for process in field.desk.workers if process.poll() is None]
    for agent in agents:
        agent.kill()  # what its kernel says of that gets lost
        agent.wait()
    field.router.forgets_connections()
    heal()
    field.desk.join(*field.invitation.urls, *field.invitation.trust)
    field.town.ready(field.desk)
    ended = field.town.server.did("submit", "--worker", "desk", "--retries", "0", "--", "echo", "here")
    assert ended.out == b"here\n"
    assert established(field.town.server.machine) & before, "a dead one was still held when the job was given out"


def test_connections_that_only_the_worker_takes_to_be_alive_cost_a_job_nothing_when_the_control_plane_is_back(
    field, cut
):
    job = Counting(field.town, field.desk, field.town.server, "--retries", "0", "--worker", "desk")
    before = established(field.desk.machine)
    heal = cut()
    field.town.plane_dies()
    field.router.forgets_connections()
    assert established(field.desk.machine) & before, "to its kernel they are as they were"
    field.town.server.did("worker", "list")  # which starts the control plane again, as it was
    heal()
    assert job.goes_on()
    assert job.is_whole()


# Asleep --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--exclusive",)], ids=["shared", "exclusive"])
def test_a_workers_machine_that_slept_past_the_lease_wakes_to_a_void_attempt_and_ends_it(field, tmp_path, options):
    job = Split(field, tmp_path, "--retries", "1", *options)
    field.desk.signal_all(signal.SIGSTOP)
    job.moves()
    field.desk.signal_all(signal.SIGCONT)
    assert job.is_void()
    assert not job.has_ended(1)
    job.let_end(2)
    assert job.is_of_second_alone()


def test_a_laptop_that_slept_past_the_lease_follows_its_job_on_from_the_byte_where_it_was(field):
    laptop, exchange = field.town.laptop(delay_ms=5)
    laptop.variables.update(field.invitation.client)
    job = Counting(field.town, field.desk, laptop, "--retries", "0", "--worker", "desk")
    before = job.count()
    laptop.signal_all(signal.SIGSTOP)
    exchange.forgets_connections()
    beats = field.town.server.did("job", "logs", job.id).out.count(b"\n")
    until(lambda: field.town.server.did("job", "logs", job.id).out.count(b"\n") > beats + 200, "longer than the lease")
    assert job.state() == "running"
    laptop.signal_all(signal.SIGCONT)
    until(lambda: job.count() > before + 200, "what it slept through comes")
    assert job.is_whole()
