"""Count the words of a folder (or file) of text and write them to counts.csv. Standard library only.

    wordcount.py [FOLDER-or-FILE]      without one: the help topics that come with every Python

The result depends on the text alone: ties are ordered by the word.
"""

import csv
import importlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")


def texts(where: Path | None) -> Iterator[str]:
    """The file itself, or every file below the folder, sorted; None: the topics of Python's own help."""
    if where is None:
        yield from importlib.import_module("pydoc_data.topics").topics.values()
    elif where.is_file():
        yield where.read_text(encoding="utf-8", errors="replace")
    else:
        for file in sorted(where.rglob("*")):
            if file.is_file():
                yield file.read_text(encoding="utf-8", errors="replace")


def count(where: Path | None) -> Counter[str]:
    words: Counter[str] = Counter()
    for text in texts(where):
        words.update(WORD.findall(text.lower()))
    return words


def main(arguments: list[str]) -> int:
    where = Path(arguments[0]) if arguments else None
    if where is not None and not where.exists():
        print(f"{where} does not exist", file=sys.stderr)
        return 1
    words = count(where)
    ranked = sorted(words.items(), key=lambda item: (-item[1], item[0]))
    with Path("counts.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["word", "count"])
        writer.writerows(ranked)
    print(f"{words.total()} words, {len(words)} different, in counts.csv")
    for word, number in ranked[:10]:
        print(f"{number:8d}  {word}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
