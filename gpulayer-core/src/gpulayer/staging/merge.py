"""Several trees as one: what the elements of an array brought home. Pure, but for what reads and keeps objects."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from gpulayer.ids import Digest
from gpulayer.spec.tree import EMPTY_TREE, Entry, EntryKind, decode_tree, digest_of, encode_tree

__all__ = ["Merged", "merge_trees"]


@dataclass(frozen=True, slots=True)
class Merged:
    """clashes: how many files, links and folders are not in it, because an earlier tree has something else of that
    path. objects: what has to be kept, by digest."""

    root: Digest
    clashes: int = 0
    objects: dict[Digest, bytes] = field(default_factory=dict)


def merge_trees(roots: Sequence[Digest], read: Callable[[Digest], bytes]) -> Merged:
    """Folders of one path become one folder; of anything else the first tree's counts. The same trees in the same order
    always give the same root. Raises what ``read`` raises, and BadRequest for an object that is none."""
    found = Merged(EMPTY_TREE)
    root, clashes = _merge(list(dict.fromkeys(roots)), read, found.objects) if roots else (EMPTY_TREE, 0)
    return replace(found, root=root, clashes=clashes)


def _merge(
    roots: Sequence[Digest], read: Callable[[Digest], bytes], objects: dict[Digest, bytes]
) -> tuple[Digest, int]:
    if len(roots) == 1:
        return roots[0], 0
    by_name: dict[str, list[Entry]] = {}
    for root in roots:
        for entry in decode_tree(read(root)).entries:
            by_name.setdefault(entry.name, []).append(entry)
    entries: list[Entry] = []
    clashes = 0
    for several in by_name.values():
        first = several[0]
        if first.kind is EntryKind.DIRECTORY:
            folders = list(dict.fromkeys(one.digest for one in several if one.kind is EntryKind.DIRECTORY))
            digest, below = _merge(folders, read, objects)
            clashes += below + sum(one.kind is not EntryKind.DIRECTORY for one in several)
            first = replace(first, digest=digest)
        else:
            clashes += sum(_content(one) != _content(first) for one in several)
        entries.append(first)
    content = encode_tree(entries)
    digest = digest_of(content)
    objects[digest] = content
    return digest, clashes


def _content(entry: Entry) -> tuple[EntryKind, Digest, str]:
    return entry.kind, entry.digest, entry.target
