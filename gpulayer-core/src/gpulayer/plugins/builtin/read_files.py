"""Reads small files and prints what is in them as one JSON document by their paths: a program, never imported.

``python -I -S read_files.py PATTERN…``; patterns as of ``glob``. A folder is there with an empty text, what can't be
read is not there. Whoever answers for a file may keep this process for as long as it likes.
"""

import glob
import json
import sys

_MOST_READ = 65_536  # characters


def main(patterns: list[str]) -> dict[str, str]:
    """By path."""
    found = {}
    for pattern in patterns:
        for path in sorted(glob.glob(pattern)):
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    found[path] = file.read(_MOST_READ).strip()
            except IsADirectoryError:
                found[path] = ""
            except OSError:
                continue  # not ours to read
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))  # noqa: T201 - what it is for
