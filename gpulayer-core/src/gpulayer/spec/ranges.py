"""Ranges of versions that hold no version at all: ``>=9,<8``. Pure."""

from collections.abc import Iterator

__all__ = ["is_empty_range"]


def is_empty_range(text: str) -> bool:
    """Whether no version fits. Tried with each version that is named and those next to it on both sides: a range that
    holds any holds one of these. Raises InvalidSpecifier."""
    from packaging.specifiers import SpecifierSet  # noqa: PLC0415 - 40 ms, seldom needed

    specifiers = SpecifierSet(text)
    if len(specifiers) < 2 or any(one.operator == "===" for one in specifiers):
        return False
    tried = {version for one in specifiers for version in _around(one.version.removesuffix(".*"))}
    return not any(specifiers.contains(version, prereleases=True) for version in tried)


def _around(version: str) -> Iterator[str]:
    from packaging.version import Version  # noqa: PLC0415 - as above

    named = Version(version)
    yield str(named)
    epoch = f"{named.epoch}!" if named.epoch else ""
    release = epoch + ".".join(map(str, named.release))
    yield f"{release}.0.0.0.0.1"  # above it, below whatever else may be named
    if named.pre is not None:
        kind, number = named.pre
        yield f"{release}{kind}{number + 1}"
        yield release
    if named.post is not None or named.dev is not None:
        yield release
    yield f"{release}.post{(named.post or 0) + 1}"
    parts = list(named.release)
    while parts and not parts[-1]:
        parts.pop()
    if parts:
        parts[-1] -= 1
        yield epoch + ".".join(map(str, parts)) + ".999999"
    yield f"{epoch}{named.release[0] + 1}"
