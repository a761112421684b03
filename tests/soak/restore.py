"""Promise 12: a restored backup never revives an old lease, whatever came after it and however often it is restored.
Nor does it lend an exclusive job while whoever had it may still run it (promise 3).

A real control plane is backed up while it works, goes on, is thrown away and made again of one of its last backups;
workers speak the wire, remember everything that they were ever lent, and say all of it again to whoever comes after.
"""

import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from gpulayer.clock import ManualClock, SystemClock
from gpulayer.engine import Policy, Step, holds
from gpulayer.engine.holds import HELD
from gpulayer.server import restoring
from gpulayer.server.restoring import restore
from gpulayer.server.store import Store
from gpulayer.testing.plane import LivePlane
from gpulayer.testing.wire_worker import WireWorker
from tests.soak.frame import Proof, Say, Tally

_WORKERS = 3
_HELD_MS = Policy().expiry_ms(Policy().lease_ttl_ms)
_BACKUPS = 3  # the last of them; an older one is a longer time that was lost


@dataclass
class Story:
    """What was ever lent, over all control planes that there were; ``kept``: backups, with the jobs then running."""

    chance: random.Random
    folder: Path
    plane: LivePlane
    workers: list[WireWorker] = field(default_factory=list)
    lent: dict[int, tuple[str, str]] = field(default_factory=dict)  # epoch: worker, job
    kept: list[tuple[Path, dict[str, int], frozenset[str]]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    stale: int = 0
    exclusive: set[str] = field(default_factory=set)  # jobs
    restored_ms: int = 0
    held: frozenset[str] = frozenset()  # of these, what the last backup knew

    @property
    def now_ms(self) -> int:
        return self.plane.clock.monotonic_ms()

    def post(self, path: str, body: object) -> Any:
        headers = {"Authorization": f"Bearer {self.plane.token}"}
        answer = self.plane.bare.post(self.plane.url + path, json=body, headers=headers)
        assert answer.status_code in (200, 201), answer.text
        return answer

    def job(self, id_: str) -> Any:
        headers = {"Authorization": f"Bearer {self.plane.token}"}
        return self.plane.bare.get(f"{self.plane.url}/v1/jobs/{id_}", headers=headers).json()

    def work(self) -> None:
        """Some jobs come, some start, some end."""
        for _ in range(self.chance.randrange(1, 6)):
            is_exclusive = self.chance.random() < 0.3
            body = {"schema": 1, "command": ["true"], "retries": self.chance.choice((0, 2, 50))}
            job = self.post("/v1/jobs", {**body, "exclusive": is_exclusive}).json()["id"]
            if is_exclusive:
                self.exclusive.add(job)
        for worker in self.workers:
            for command in worker.commands():
                if command["type"] != "assign":
                    continue
                epoch = command["epoch"]
                if self.lent.get(epoch, (worker.id, command["job_id"])) != (worker.id, command["job_id"]):
                    self.violations.append(f"epoch {epoch} was given out again, to another worker or job")
                elif epoch in self.lent and epoch not in worker.holding:
                    self.violations.append(f"epoch {epoch} was given out again after a restore")
                if command["job_id"] in self.held and self.now_ms < self.restored_ms + _HELD_MS:
                    self.violations.append(
                        f"exclusive job {command['job_id']} was lent while it may have run elsewhere"
                    )
                self.lent[epoch] = (worker.id, command["job_id"])
                worker.holding.append(epoch)
            items = []
            for epoch in list(worker.holding):
                match self.chance.randrange(3):
                    case 0:
                        items.append(worker.running(epoch))
                    case 1:
                        items.append(worker.ended(epoch))
                        worker.holding.remove(epoch)
                    case _:
                        pass
            for epoch in worker.report(*items)["void"]:
                if epoch in worker.holding:
                    worker.holding.remove(epoch)

    def back_up(self, number: int) -> None:
        path = self.folder / f"kept{number}"
        path.write_bytes(self.post("/v1/plane:backup", {}).content)
        live = {
            job: epoch
            for worker in self.workers
            for epoch in worker.holding
            if (job := self.lent[epoch][1]) and self.job(job)["state"] in ("staging", "running")
        }
        self.kept = [*self.kept, (path, live, frozenset(self.exclusive))][-_BACKUPS:]

    def lose_and_restore(self, number: int) -> None:
        backup, live, self.held = self.kept[-1] if self.chance.random() < 0.6 else self.chance.choice(self.kept)
        token = self.plane.token
        self.plane.stop()
        plane = LivePlane(self.folder / f"state{number}", clock=self.plane.clock)
        made = restore(backup, plane.settings.state_dir, clock=SystemClock())
        plane.token = token  # the same one is good
        self.plane = plane.start()
        self.exclusive, self.restored_ms = set(self.held), self.now_ms
        if made.lost < len(live):
            self.violations.append(f"{made.lost} attempts of {len(live)} ended with the restore")
        for worker in self.workers:
            self._come_back(worker)
        for job, epoch in live.items():
            record = self.job(job)
            (before,) = [attempt for attempt in record["attempts"] if attempt["epoch"] == epoch]
            if before["state"] != "ended" or before["ended_by"] != "worker_lost":
                self.violations.append(f"attempt {epoch} of job {job} is {before['state']} after the restore")

    def wait_for_leases(self) -> None:
        """Then nothing of before can run any more."""
        self.plane.clock.advance(_HELD_MS)
        self.plane.plane.driver.poke()
        self.work()
        for job in self.held:
            if (self.job(job)["reason"] or {}).get("code") == HELD:
                self.violations.append(f"exclusive job {job} is held back although all leases are over")

    def _come_back(self, worker: WireWorker) -> None:
        """With everything that this worker was ever lent."""
        worker.live = self.plane
        refused = worker.session()
        if refused.status_code == 201:
            self.violations.append(f"a signature over counter {worker.counter}, of before, opened a session")
            refused = worker.session(worker.counter)  # a used one
        worker.counter = refused.json()["error"]["details"]["counter"]
        worker.open_session()
        worker.cursor = ""
        old = sorted(epoch for epoch, (holder, _) in self.lent.items() if holder == worker.id)
        for epoch in self.chance.sample(old, min(3, len(old))):
            self.stale += 1
            if worker.put_log(epoch, 0, b"stale").status_code != 409:
                self.violations.append(f"a log line of attempt {epoch}, of before, was taken")
        worker.holding = old
        self.stale += len(old)
        void = worker.report()["void"]
        worker.report(*(worker.ended(epoch) for epoch in old))
        if sorted(void) != old:
            self.violations.append(f"attempts {sorted(set(old) - set(void))} are still {worker.name}'s after a restore")
        worker.holding = []


def old_leases_stay_dead(runs: int, *, seed: int, say: Say, until_found: bool = False) -> Tally:
    """Each run is a backup, a time that is lost, and a restore."""
    number = 0
    with tempfile.TemporaryDirectory(prefix="gpulayer-restore-") as folder:
        plane = LivePlane(Path(folder) / "state", clock=ManualClock()).start()
        story = Story(random.Random(seed), Path(folder), plane)
        try:
            for number in range(_WORKERS):
                story.workers.append(WireWorker(plane, f"box{number}", cpus=16))
                story.workers[-1].report()
            for number in range(runs):
                story.work()
                story.back_up(number)
                for _ in range(story.chance.randrange(3)):
                    story.work()
                story.lose_and_restore(number)
                story.work()
                if story.chance.random() < 0.5:
                    story.wait_for_leases()
                say(f"{number + 1} of {runs} restores")
                if until_found and story.violations:
                    break
        finally:
            story.plane.stop()
    again = f"again: python -m tests.soak --only 12 --seed {seed}"
    return Tally(number + 1, story.stale + number + 1, [f"{what}\n{again}" for what in story.violations[:20]])


def _numbers_go_on() -> Any:
    return mock.patch.object(restoring, "first_of_generation", lambda *, highest, **_: highest + 1)


def _attempts_go_on() -> Any:
    return mock.patch.object(restoring, "step", return_value=Step((), ()))


def _signatures_stay_good() -> Any:
    real = Store.begin_generation

    def begin(self: Store, *, first: int, marker: Any) -> None:
        with self.reading() as connection:
            before = connection.exec_driver_sql("SELECT worker, counter FROM identities").all()
        real(self, first=first, marker=marker)
        with self._writing.begin() as connection:
            for worker, counter in before:
                connection.exec_driver_sql("UPDATE identities SET counter = ? WHERE worker = ?", (counter, worker))

    return mock.patch.object(Store, "begin_generation", begin)


ENOUGH = 20  # restores, to notice one in


def _nothing_is_held() -> Any:
    return mock.patch.object(holds, "hold_all", return_value=None)


MUTANTS = (_nothing_is_held, _numbers_go_on, _attempts_go_on, _signatures_stay_good)


def each_mutant_is_found(runs: int, *, seed: int, say: Say) -> Tally:
    """Restores that leave one of the rules out; each must be found within so many restores, but for very few."""
    total, missed = Tally(mutants=(0, 0)), []
    for mutant in MUTANTS:
        with mutant():
            found = old_leases_stay_dead(runs, seed=seed, say=say, until_found=True)
        total.runs, total.faults = total.runs + found.runs, total.faults + found.faults
        if not found.violations:
            missed.append(f"{mutant.__name__.strip('_')} was not found within {runs} restores")
    total.mutants = (len(MUTANTS) - len(missed), len(MUTANTS))
    total.violations = missed if runs >= ENOUGH else []
    return total


PROOFS = [
    Proof(12, "backups, lost time, restores; late workers", old_leases_stay_dead, sample=5, full=200, unit="rounds"),
    Proof(14, "restores that leave a rule out", each_mutant_is_found, sample=4, full=ENOUGH, unit="rounds"),
]
