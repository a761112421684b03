"""100 MB of log, followed by two clients at once: every byte arrives at both, and no process grows with it."""

import hashlib
import subprocess
import sys
import threading
import time
from pathlib import Path

from stage import Stage

SIZE = 100_000_000
LINE = b"a line of output as a training run prints them, again and again\n"
SCRIPT = f"yes '{LINE.decode().strip()}' | head -c {SIZE}"
LIMIT_MB = 150


def expected() -> str:
    hasher = hashlib.sha256()
    whole, rest = divmod(SIZE, len(LINE) * 10_000)
    for _ in range(whole):
        hasher.update(LINE * 10_000)
    hasher.update((LINE * (rest // len(LINE) + 1))[:rest])
    return hasher.hexdigest()


def peak_mb(pid: int) -> float:
    """The most that it ever had in memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM:")), 0.0)


class Reader(threading.Thread):
    """Reads all that a follower prints."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        super().__init__()
        self.process = process
        self.hasher = hashlib.sha256()
        self.size = 0
        self.peak_mb = 0.0

    def run(self) -> None:
        assert self.process.stdout is not None
        while piece := self.process.stdout.read(1 << 20):
            self.hasher.update(piece)
            self.size += len(piece)
            self.peak_mb = peak_mb(self.process.pid) or self.peak_mb  # a zombie has none
        self.process.wait()


def main() -> int:
    with Stage() as stage:
        started = time.monotonic()
        job_id = stage.run("submit", "--detach", "--", "sh", "-c", SCRIPT).strip()
        readers = [Reader(stage.start("job", "logs", "--follow", job_id)) for _ in range(2)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        stage.say(f"2 × {readers[0].size:,} bytes in {time.monotonic() - started:.1f} s")
        peaks = {name: peak_mb(pid) for name, pid in stage.floor().items()}
        peaks |= {"agent": peak_mb(stage.agent()), "control plane": peak_mb(stage.plane())}
        peaks |= {f"client {number}": reader.peak_mb for number, reader in enumerate(readers, 1)}
        for name, peak in sorted(peaks.items()):
            stage.say(f"{name:14} {peak:5.1f} MB at most")
        for number, reader in enumerate(readers, 1):
            stage.check(f"client {number} got every byte (sha256)", reader.hasher.hexdigest() == expected())
        stage.check("no process held the log in memory", all(0 < peak < LIMIT_MB for peak in peaks.values()))
        return stage.verdict()


if __name__ == "__main__":
    sys.exit(main())
