"""What processes cost while something is measured: memory and processor time, out of /proc (Linux only)."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

__all__ = ["cpu_s", "proportional_bytes", "watched_growth", "with_word"]

_LOOK_S = 0.02


def proportional_bytes(pid: int) -> int:
    """PSS: private memory, and a fair share of what is shared. Raises OSError for a process that has gone."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"process {pid} has no memory of its own")


def cpu_s(pid: int) -> float:
    """Processor time of all its threads that live, to the nanosecond."""
    spent = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        spent += int((thread / "schedstat").read_text("ascii").split()[0])
    return spent / 1e9


def with_word(*words: str) -> list[int]:
    """Processes in whose command line all the words stand."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if all(word in line for word in words):
                found.append(int(entry.name))
    return sorted(found)


@contextmanager
def watched_growth(processes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """By how many bytes each grew at most while inside; filled in when the context is left."""
    growth = dict.fromkeys(processes, 0)
    before = {name: proportional_bytes(pid) for name, pid in processes.items()}
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_S):
            for name, pid in processes.items():
                try:
                    growth[name] = max(growth[name], proportional_bytes(pid) - before[name])
                except OSError:
                    continue  # it has ended

    thread = threading.Thread(target=look, name="watch-memory", daemon=True)
    thread.start()
    try:
        yield growth
    finally:
        ended.set()
        thread.join()
