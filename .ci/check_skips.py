"""Fail when a test was skipped that docs/status.md does not list.

A skipped test proves nothing, so each one is named in the table "Skipped tests" of the status page with the reason:
the first column holds a pattern in backticks (as for fnmatch) that matches ``path/to/test_file.py::test_name``.
"""

import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from xml.etree import ElementTree as ET


def listed_patterns(status_page: str) -> list[str]:
    """The patterns of the table under the heading "Skipped tests"."""
    section = re.split(r"^#+ Skipped tests\s*$", status_page, maxsplit=1, flags=re.MULTILINE)
    if len(section) < 2:
        return []
    table = re.split(r"^#+ ", section[1], maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"^\|\s*`([^`]+)`\s*\|", table, flags=re.MULTILINE)


def skipped_tests(report: str) -> list[tuple[str, str]]:
    """(test id, reason) of every skipped or expectedly failing test in a junit report of the xunit1 family."""
    found = []
    for case in ET.fromstring(report).iter("testcase"):  # noqa: S314 - our own pytest wrote it
        skipped = case.find("skipped")
        if skipped is not None:
            where = case.get("file") or (case.get("classname") or "").replace(".", "/")
            found.append((f"{where}::{case.get('name', '')}", skipped.get("message") or skipped.get("type") or ""))
    return found


def main() -> int:
    report, status_page = (Path(name).read_text(encoding="utf-8") for name in sys.argv[1:3])
    patterns = listed_patterns(status_page)
    unlisted = [
        (test, reason) for test, reason in skipped_tests(report) if not any(fnmatchcase(test, p) for p in patterns)
    ]
    for test, reason in unlisted:
        sys.stderr.write(f"skipped, but not listed in {sys.argv[2]}: {test} ({reason})\n")
    return 1 if unlisted else 0


if __name__ == "__main__":
    sys.exit(main())
