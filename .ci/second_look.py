"""Run the few tests again, alone, that failed while the others ran beside them.

Three processes share two cores with each other and with what every test starts; what fails only then is unsteady. It
is named at the end of the run, for somebody to mend, and does not stop a change that has nothing to do with it. What
fails again, or fails in numbers, does.
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
    code = subprocess.run(command, check=False).returncode
    if code == 0:
        sys.stderr.write("".join(f"unsteady: {test} failed among the others and passed alone\n" for test in failed))
    return code


if __name__ == "__main__":
    sys.exit(main())
