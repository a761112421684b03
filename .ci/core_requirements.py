"""Print the run-time requirements of one pyproject.toml, so that they install under the constraints file."""

import sys
import tomllib
from pathlib import Path

if __name__ == "__main__":
    project = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["project"]
    sys.stdout.write("".join(f"{requirement}\n" for requirement in project["dependencies"]))
