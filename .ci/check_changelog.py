"""Every file in changelog.d/ must be a fragment that towncrier will pick up: <name>.<type>.md, one or more lines."""

import sys
import tomllib
from pathlib import Path


def problems(folder: Path, types: set[str]) -> list[str]:
    """One line for each fragment that the next release would drop or print empty."""
    found = []
    for fragment in sorted(folder.iterdir()):
        if fragment.name in {".gitkeep", ".gitignore", "README.md"}:
            continue
        parts = fragment.name.split(".")
        if len(parts) < 3 or parts[-1] != "md" or parts[1] not in types:
            found.append(f"{fragment}: name it <name>.<type>.md, where <type> is one of {', '.join(sorted(types))}")
        elif not fragment.read_text(encoding="utf-8").strip():
            found.append(f"{fragment}: is empty")
    return found


def main() -> int:
    settings = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]
    lines = problems(Path(sys.argv[1]), {kind["directory"] for kind in settings["type"]})
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
