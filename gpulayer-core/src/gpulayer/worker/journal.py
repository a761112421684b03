"""What must outlive the agent, in a folder a node: ``attempts/<epoch>.<node>/``.

``assign.json``, ``phase``, ``baseline.json``, ``log`` (and ``log.err``), ``exit.json``, ``work/`` and ``out/``; with
inputs also ``inputs/`` and ``inputs.json``.
``phase`` has a line a change, and its last whole line counts: appending one is a single write, while replacing a file
costs a tiny job more than all else here. Nothing is synced: a host that lost power has no program left to come back
to, and what was promised to the control plane is kept there; what seems not to have begun then is not begun any more.
A folder counts once its ``phase`` does, and goes by being renamed first, so that half of one is never read.
"""

import errno
import json
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpulayer.errors import Blame, GpulayerError
from gpulayer.faults import here
from gpulayer.ids import Digest
from gpulayer.plugins.contracts.launcher import LaunchSite
from gpulayer.protocol.messages import Phase, Progress
from gpulayer.spec.assignment import Assignment, NodeKey
from gpulayer.spec.outcome import EndedBy
from gpulayer.staging.workfolder import Baseline
from gpulayer.whole import write_whole
from gpulayer.wire.convert import assignment_from_wire, assignment_to_wire, outcome_from_wire, outcome_to_wire
from gpulayer.worker.folders import emptied, remove
from gpulayer.worker.spares import Spares

__all__ = ["Journal"]

_log: Final = logging.getLogger(__name__)
_TRASH: Final = ".trash-"


@dataclass(frozen=True, slots=True)
class _Files:
    folder: Path

    @property
    def assign(self) -> Path:
        return self.folder / "assign.json"

    @property
    def phase(self) -> Path:
        return self.folder / "phase"

    @property
    def baseline(self) -> Path:
        return self.folder / "baseline.json"

    @property
    def inputs(self) -> Path:
        return self.folder / "inputs"

    @property
    def inputs_list(self) -> Path:
        return self.folder / "inputs.json"


class Journal:
    """See the module. Everything blocks, for small files only but ``sweep`` and ``forget``. ``boot_id``: names the
    time since the host started; times that were kept under another one mean nothing now."""

    def __init__(self, work_dir: Path, *, boot_id: str) -> None:
        self._root = work_dir / "attempts"
        self._root_path = str(self._root)  # for the hot path: building Path objects takes longer than the calls
        self._spares = Spares(str(work_dir / "spare"))
        self._sites: dict[tuple[NodeKey, bool], LaunchSite] = {}
        self._open: dict[NodeKey, int] = {}  # ``phase`` of what this agent has written lately
        self._staged: set[NodeKey] = set()  # a thread may still be at work in these folders, also after a cancel
        self._contact = work_dir / "contact.json"
        self._boot_id = boot_id
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def site(self, key: NodeKey, *, is_split: bool = False) -> LaunchSite:
        """Paths alone; nothing is made. is_split: stderr has a log of its own."""
        known = self._sites.get((key, is_split))
        if known is None:
            folder = self._root / str(key)
            err_path = folder / "log.err" if is_split else None
            known = LaunchSite(folder / "work", folder / "out", folder / "log", folder / "exit.json", err_path)
            self._sites[key, is_split] = known
        return known

    def admit(self, assignment: Assignment) -> None:
        """Raises OSError where the disk is full; nothing half-made is read later."""
        key = assignment.key
        here("agent.before_admission")
        folder = self._folder(key)
        if not self._spares.take(folder):
            if not os.path.isdir(self._root_path):  # somebody has removed it: one job's loss, and not of all that come
                os.makedirs(self._root_path, mode=0o700)
            for path in (folder, f"{folder}/work", f"{folder}/out"):
                try:
                    os.mkdir(path, 0o700)
                except FileExistsError:
                    pass
        self._close(key)
        # A folder that is used again has another job's ``phase``, which must not count once ``assign.json`` does.
        self._open[key] = phase = _open_blank(f"{folder}/phase")
        descriptor = _open_blank(f"{folder}/assign.json")
        try:
            _write_line(descriptor, json.dumps(assignment_to_wire(assignment)))
        finally:
            os.close(descriptor)
        here("agent.in_admission")
        _write_line(phase, _progress_to_text(Progress(Phase.STAGING)))

    def write(self, key: NodeKey, progress: Progress) -> None:
        """Whole or not at all. Raises OSError; FileNotFoundError for a node that was never admitted."""
        here("agent.before_journal")
        descriptor = self._open.get(key)
        if descriptor is None:
            path = f"{self._folder(key)}/phase"
            descriptor = self._open[key] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        _write_line(descriptor, _progress_to_text(progress))
        here("agent.after_journal")
        if progress.phase is Phase.ENDED:  # the last line; many may wait for a control plane that is away
            self._close(key)

    def renew_work_folder(self, key: NodeKey) -> None:
        """Staging begins (again): into an empty folder. From now on this folder serves no other job."""
        self._staged.add(key)
        emptied(self.site(key).work_dir)

    def renew_inputs(self, key: NodeKey) -> Path:
        """The empty folder for its inputs; where earlier ones lay is forgotten. This folder serves no other job."""
        self._staged.add(key)
        files = self._files(key)
        files.inputs_list.unlink(missing_ok=True)
        return emptied(files.inputs)

    def inputs_file(self, key: NodeKey) -> Path:
        """Where to keep where its inputs lie."""
        return self._files(key).inputs_list

    def keep_baseline(self, key: NodeKey, baseline: Baseline) -> None:
        """Whole or not at all."""
        write_whole(self._files(key).baseline, baseline.to_bytes(), point="agent.baseline")

    def made_nothing(self, key: NodeKey) -> bool:
        """Nothing was staged, and nothing lies in its folders: the quick answer for tiny jobs; False is no answer."""
        folder = self._folder(key)
        try:
            if os.path.lexists(f"{folder}/baseline.json"):
                return False
            for name in ("work", "out"):
                if os.path.islink(f"{folder}/{name}") or os.listdir(f"{folder}/{name}"):
                    return False
        except OSError:
            return False
        return True

    def baseline(self, key: NodeKey) -> Baseline:
        """What lay in the work folder before the program; empty where nothing was staged."""
        try:
            return Baseline.from_bytes(self._files(key).baseline.read_bytes())
        except FileNotFoundError:
            return Baseline({})

    def load(self) -> list[tuple[Assignment, Progress]]:
        """All nodes, by epoch. A folder that can't be read was never acknowledged as begun: it is thrown away."""
        found: list[tuple[Assignment, Progress]] = []
        for folder in sorted(self._root.iterdir()):
            if folder.name.startswith(_TRASH):
                continue
            files = _Files(folder)
            try:
                assignment = assignment_from_wire(json.loads(files.assign.read_bytes()))
                if str(assignment.key) != folder.name:
                    raise ValueError(f"it holds {assignment.key}")
                found.append((assignment, _last_progress(files.phase.read_bytes())))
            except (OSError, ValueError, KeyError, TypeError, GpulayerError) as error:
                _log.warning("%s can't be read and is thrown away: %s", folder, error)
                self._discard(folder)
        return sorted(found, key=lambda node: node[0].key)

    def close(self) -> None:
        """Closes descriptors; everything may be used again."""
        for key in list(self._open):
            self._close(key)

    def put_by(self, key: NodeKey) -> bool:
        """Keep the folder of a job that left nothing for another job; False where ``forget`` is to delete it."""
        self._close(key)
        for is_split in (False, True):
            self._sites.pop((key, is_split), None)
        if key in self._staged:
            self._staged.discard(key)
            return False
        return self._spares.keep(self._folder(key))

    def forget(self, key: NodeKey) -> None:
        """Delete a node's folder. May be repeated; slow for large ones."""
        folder = self._files(key).folder
        if folder.exists():
            self._discard(folder)

    def forget_all(self, keys: Iterable[NodeKey]) -> None:
        """``forget`` for many."""
        for key in keys:
            self.forget(key)

    def sweep(self) -> None:
        """Delete what an earlier agent was deleting."""
        for folder in self._root.glob(f"{_TRASH}*"):
            _remove(folder)

    def save_contact(self, contact_ms: int) -> None:
        """Good for this boot of the machine only: the clock starts anew with the next."""
        content = json.dumps({"boot_id": self._boot_id, "contact_ms": contact_ms}).encode()
        write_whole(self._contact, content, point="agent.contact")

    def has_rebooted(self) -> bool:
        """Whether the machine may have since a contact was saved. One is saved before anything is admitted, and not
        synced: where none can be read, a loss of power is what took it."""
        try:
            return bool(json.loads(self._contact.read_bytes())["boot_id"] != self._boot_id)
        except (OSError, ValueError, KeyError, TypeError):
            return True

    def contact_ms(self) -> int | None:
        """None where none was saved since the machine booted, or the file can't be read."""
        try:
            document = json.loads(self._contact.read_bytes())
            return int(document["contact_ms"]) if document["boot_id"] == self._boot_id else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _files(self, key: NodeKey) -> _Files:
        return _Files(self._root / str(key))

    def _folder(self, key: NodeKey) -> str:
        return f"{self._root_path}/{key}"

    def _close(self, key: NodeKey) -> None:
        descriptor = self._open.pop(key, None)
        if descriptor is not None:
            os.close(descriptor)

    def _discard(self, folder: Path) -> None:
        trash = folder.with_name(_TRASH + folder.name)
        _remove(trash)
        folder.rename(trash)
        here("agent.in_delete")
        _remove(trash)


def _remove(folder: Path) -> None:
    try:
        remove(folder)
    except OSError as error:  # nothing counts in it, and the next start tries again
        _log.debug("%s stays: %s", folder, error)


def _last_progress(content: bytes) -> Progress:
    whole, _, _ = content.rpartition(b"\n")  # what follows the last line break was cut short
    return _progress_from_json(json.loads(whole.rpartition(b"\n")[2]))


def _open_blank(path: str) -> int:
    """A file without a whole line, at whose beginning the next write goes."""
    # Of what is no plain file neither a link is followed nor a reader waited for.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        # To one byte, not to none: ext4 writes out what follows a truncation to zero at once (auto_da_alloc), so that
        # people who replace a file that way lose nothing; that takes milliseconds, and nothing is promised here.
        if os.fstat(descriptor).st_size > 1:
            os.ftruncate(descriptor, 1)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _write_line(descriptor: int, text: str) -> None:
    line = text.encode() + b"\n"
    written = os.write(descriptor, line)
    if written != len(line):
        end = os.lseek(descriptor, 0, os.SEEK_CUR)
        os.ftruncate(descriptor, end - written)  # half a line would spoil the next one
        os.lseek(descriptor, end - written, os.SEEK_SET)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _progress_to_text(progress: Progress) -> str:
    return json.dumps(_progress_to_json(progress))


def _progress_to_json(progress: Progress) -> dict[str, Any]:
    return {
        "phase": str(progress.phase),
        "started_ms": progress.started_ms,
        "stop": None if progress.stop is None else str(progress.stop),
        "stop_evidence": progress.stop_evidence,
        "stop_blame": None if progress.stop_blame is None else str(progress.stop_blame),
        "kill_at_ms": progress.kill_at_ms,
        "is_signalled": progress.is_signalled,
        "outcome": None if progress.outcome is None else outcome_to_wire(progress.outcome),
        "outputs": progress.outputs,
    }


def _progress_from_json(document: dict[str, Any]) -> Progress:
    stop, outcome, outputs = document["stop"], document["outcome"], document["outputs"]
    blame = document.get("stop_blame")
    return Progress(
        phase=Phase(document["phase"]),
        started_ms=document["started_ms"],
        stop=None if stop is None else EndedBy(stop),
        stop_evidence=document.get("stop_evidence", ""),
        stop_blame=None if blame is None else Blame(blame),
        kill_at_ms=document["kill_at_ms"],
        is_signalled=document["is_signalled"],
        outcome=None if outcome is None else outcome_from_wire(outcome),
        outputs=None if outputs is None else Digest(outputs),
    )
