"""Run the few tests again, alone, that failed while the others ran beside them, and say which of them passed then.

It helps whoever mends them, and changes no verdict: the run has failed. Three processes share two cores with each other
and with what every test starts, and what fails only then is mostly true: somebody's machine is as busy.
"""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

AT_MOST = 3


def failed_tests(report: str) -> list[str] | None:
    """The ids of a junit report of the xunit1 family; None where a failure has none to run again by."""
    found = []
    for case in ET.fromstring(report).iter("testcase"):  # noqa: S314 - our own pytest wrote it
        if case.find("failure") is None and case.find("error") is None:
            continue
        file, classes = case.get("file"), case.get("classname", "").rpartition(".")[2]
        if file is None:
            return None
        inside = f"{classes}::" if classes != Path(file).stem else ""
        found.append(f"{file}::{inside}{case.get('name', '')}")
    return found


def main() -> int:
    path = Path(sys.argv[1])
    failed = failed_tests(path.read_text(encoding="utf-8"))
    if not failed or len(failed) > AT_MOST:
        return 1
    sys.stderr.write(f"second look, alone, at {', '.join(failed)}\n")
    again = path.with_name(f"{path.stem}-again{path.suffix}")
    command = [sys.executable, "-m", "pytest", "-q", "-o", "junit_family=xunit1", f"--junitxml={again}", *failed]
    if subprocess.run(command, check=False).returncode == 0:
        sys.stderr.write("".join(f"unsteady: {test} failed among the others and passed alone\n" for test in failed))
    return 1


if __name__ == "__main__":
    sys.exit(main())
