"""The probe: reads a small file, each time it is asked."""

from pathlib import Path

from gpulayer.plugins import Findings, ProbeSite, is_plain_name

__all__ = ["LicenceProbe", "parse_licences"]


class LicenceProbe:
    """``file`` has a line a licence, its name and how many there are: ``matlab 2``. What follows a ``#`` is a remark.

    A file that is not there, can't be read, or makes no sense, is a fault: the worker then goes on with what was found
    last, so that a half-written file takes no licence from anybody. A machine without licences has an empty file, or
    does not name any.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    @property
    def name(self) -> str:
        return "licences"

    def look(self, site: ProbeSite) -> Findings:
        try:
            text = self._file.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise FileNotFoundError(f"GPULAYER_PLUGIN_LICENCES_FILE names {self._file}, which is not there") from error
        return Findings(resources=parse_licences(text))


def parse_licences(text: str) -> tuple[tuple[str, int], ...]:
    """Names and counts; those of which there is none are left out. Raises ValueError that names the line."""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match line.partition("#")[0].split():
            case []:
                continue
            case [name, count] if is_plain_name(name) and count.isascii() and count.isdigit() and name not in found:
                found[name] = int(count)
            case _:
                raise ValueError(f"line {number}: {line.strip()!r} is not a new name and a number, like: matlab 2")
    return tuple((name, count) for name, count in sorted(found.items()) if count)
