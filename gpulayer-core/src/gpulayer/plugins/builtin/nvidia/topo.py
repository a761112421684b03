"""How NVIDIA's devices are joined and what stands next to them: ``nvidia-smi topo -m`` read, and put to the devices.

Reading is pure and gives up cell by cell: what is blank, glued to its neighbour or contradicted by the other half of
the matrix is not known, and nothing else is lost by it. The formats are those of public reports, in tests/data/topo:
tabs or what people's terminals made of them, escapes in the header, NICs by two kinds of names, two to five columns at
the end, of which any may be blank. NVML (``nvml_child``, ``nvml_topology``) is the other way to the same ``Topology``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gpulayer.plugins.builtin.child import CHILD_DEADLINE_S, Child
from gpulayer.spec.cores import checked_cores
from gpulayer.spec.machine import Device
from gpulayer.spec.plain import plain_line
from gpulayer.spec.topology import strength

__all__ = ["Nic", "Topology", "look", "parse_topo", "with_topology"]

_ESCAPES: Final = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles
    r"|\x1b\[[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b|\x9b)?\[[0-9;]*m"  # of what lost its first character, too
    r"|\x1b(?:[()][A-Z0-9])?"
)
_BLANKS: Final = str.maketrans({"\xa0": " ", "\ufeff": "", "\u200b": "", "\v": " ", "\f": " ", "\0": ""})
_NAMES: Final = re.compile(r"(?:(?:GPU|NIC)\d{1,5}|mlx\d+_\d+)")
_GPU: Final = re.compile(r"GPU(\d{1,5})")
_COLUMNS: Final = tuple(re.compile(words) for words in (r"CPU\s*Affinity", r"NUMA\s*Affinity", r"GPU\s*NUMA\s*ID"))
_KNOWN: Final = re.compile(r"NV\d{1,4}|NODE|SYS|SOC|PHB|PXB|PIX|PSB|X")
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+-]{0,15}")
_NIC_DEVICE: Final = re.compile(r"\s*(NIC\d+)\s*:\s*(\S{1,64})\s*")
_TAB: Final = 8
_MOST_READ: Final = 200_000  # characters; a matrix of 16 GPUs and 32 NICs has 10,000
_LONGEST_REASON: Final = 200


@dataclass(frozen=True, slots=True)
class Nic:
    """name: as in the matrix. device: as Linux names it. links: by the index of the GPU."""

    name: str
    device: str
    links: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Topology:
    """By the indices of GPUs, as ``nvidia-smi`` counts them; what is not there is not known.

    links: by pairs, the lower index first. cores: as Linux lists them, never empty. reason: why nothing is known, or
    not all.
    """

    links: Mapping[tuple[int, int], str] = field(default_factory=dict)
    cores: Mapping[int, str] = field(default_factory=dict)
    numa_nodes: Mapping[int, int] = field(default_factory=dict)
    nics: tuple[Nic, ...] = ()
    reason: str = ""


def look(
    child: Child, program: str, environment: Mapping[str, str], *, deadline_s: float = CHILD_DEADLINE_S
) -> Topology:
    """Ask ``nvidia-smi``; blocks for up to ``deadline_s``. What it can't tell is not known, and its words say why.

    Raises Unanswered.
    """
    said = child.ask([program, "topo", "-m"], environment=environment, deadline_s=deadline_s)
    if said.code == 0:
        return parse_topo(said.out)
    # Errors go to either stream.
    return Topology(reason=_first_line(said.out) or _first_line(said.err) or f"nvidia-smi topo ended with {said.code}")


def with_topology(
    devices: Sequence[Device], topology: Topology, *, indices: Mapping[str, int] | None = None
) -> tuple[Device, ...]:
    """The same devices with their links (strongest first), NUMA nodes and cores, where the topology knows them.

    indices: by the uuids of whole ones, as the tools counted when the topology was told, which is not how the devices
    are numbered once one has vanished; None: as they are numbered. A slice stands where its whole one stands. It has no
    links: as long as GPUs are sliced, none reaches another's memory, by NVLink or by PCIe (NVIDIA's MIG User Guide,
    "Application Considerations").
    """
    counted = {device.parent or device.uuid: device.index for device in devices} if indices is None else indices
    wholes = sorted((counted[device.uuid], device.uuid) for device in devices if device.uuid in counted)
    return tuple(
        _placed(device, counted[device.parent or device.uuid], wholes, topology)
        if (device.parent or device.uuid) in counted
        else device
        for device in devices
    )


def _placed(device: Device, index: int, wholes: Sequence[tuple[int, str]], topology: Topology) -> Device:
    pairs = [(uuid, (min(peer, index), max(peer, index))) for peer, uuid in wholes if not device.parent]
    links = [(uuid, topology.links[pair]) for uuid, pair in pairs if pair in topology.links]
    return replace(
        device,
        links=tuple(sorted(links, key=lambda link: -(strength(link[1]) or 0))) or device.links,
        numa_node=topology.numa_nodes.get(index, device.numa_node),
        cores=topology.cores.get(index, device.cores),
    )


def parse_topo(text: str) -> Topology:
    """What ``nvidia-smi topo -m`` printed, or a part of it. Never raises: what is no matrix is the reason."""
    # A last line without an end is half a line.
    lines = _ESCAPES.sub("", text[:_MOST_READ]).translate(_BLANKS).replace("\r", "\n").split("\n")[:-1]
    found = next(((number, header) for number, line in enumerate(lines) if (header := _header(line))), None)
    if found is None:
        return Topology(reason=_first_line(text) or "nvidia-smi topo printed nothing")
    number, header = found
    said: list[tuple[str, str, str]] = []
    cores: dict[int, str] = {}
    numa_nodes: dict[int, int] = {}
    devices: dict[str, str] = {}
    for line in lines[number + 1 :]:
        if match := _NIC_DEVICE.fullmatch(line):
            devices[match[1]] = match[2]
        row = header.row(line)
        if row is None:
            continue
        name, cells, tail = row
        said += [(name, column, cell) for column, cell in zip(header.names, cells, strict=True)]
        if gpu := _GPU.fullmatch(name):
            affinity, node = header.affinities(tail)
            if checked_cores(affinity):
                cores[int(gpu[1])] = checked_cores(affinity)
            if node.isascii() and node.isdigit() and len(node) < 5:
                numa_nodes[int(gpu[1])] = int(node)
    links: dict[tuple[int, int], str] = {}
    nics: dict[str, dict[int, str]] = {name: {} for name in header.names if not _GPU.fullmatch(name)}
    for (one, other), word in _resolved(said).items():
        match _GPU.fullmatch(one), _GPU.fullmatch(other):
            case re.Match() as left, re.Match() as right:
                links[min(int(left[1]), int(right[1])), max(int(left[1]), int(right[1]))] = word
            case re.Match() as gpu, None:
                nics[other][int(gpu[1])] = word
            case None, re.Match() as gpu:
                nics[one][int(gpu[1])] = word
    return Topology(
        links=dict(sorted(links.items())),
        cores=cores,
        numa_nodes=numa_nodes,
        nics=tuple(Nic(name, devices.get(name, name), dict(sorted(of.items()))) for name, of in nics.items()),
    )


def _resolved(said: Iterable[tuple[str, str, str]]) -> dict[tuple[str, str], str]:
    """The words for pairs of names, of which each half of a matrix may tell: not known where the two differ."""
    words: dict[tuple[str, str], set[str]] = {}
    for one, other, word in said:
        if one != other and _WORD.fullmatch(word):
            words.setdefault((min(one, other), max(one, other)), set()).add(word)
    return {pair: next(iter(told)) for pair, told in words.items() if len(told) == 1}


@dataclass(frozen=True, slots=True)
class _Header:
    """names: of the columns with links. columns: which of ``_COLUMNS`` follow them."""

    names: tuple[str, ...]
    columns: tuple[int, ...]

    def row(self, line: str) -> tuple[str, list[str], str] | None:
        """The name, a cell for each column, and the rest of the line; None: no row, or too damaged a one."""
        start = len(line) - len(line.lstrip())
        name = next((name for name in self._longest_first() if _starts(line, name, start)), None)
        if name is None:
            return None
        after = start + len(name)
        for cells, end in (self._by_words(line, after), self._by_tabs(line, after)):
            # A row tells where it stands by the X in its own column.
            if len(cells) == len(self.names) and [cell == "X" for cell in cells] == [
                column == name for column in self.names
            ]:
                return name, cells, line[end:] if "\t" in line or start else _tabbed(line, end)
        return None

    def affinities(self, tail: str) -> tuple[str, str]:
        """Of cores and of memory: the last columns, in which blanks count as long as it is certain which is blank."""
        words = tail.split()
        if len(words) != len(self.columns):
            fields = tail.split("\t")
            # The column of GPU's own NUMA nodes stands behind two tabs.
            if len(fields) != 1 + len(self.columns) + (2 in self.columns) or fields[0].strip():
                return "", ""
            words = [field.strip() for field in fields[1:]]
        told = dict(zip(self.columns, words, strict=False))
        return told.get(0, ""), told.get(1, "")

    def _longest_first(self) -> list[str]:
        return sorted(self.names, key=len, reverse=True)

    def _by_words(self, line: str, after: int) -> tuple[list[str], int]:
        """Cells by what they say, blanks and tabs alike."""
        cells: list[str] = []
        end = after
        for match in re.finditer(r"\S+", line[after:]):
            if len(cells) == len(self.names):
                break
            words, used = _words(match[0], len(self.names) - len(cells))
            if not words:
                break
            cells += words
            end = after + match.start() + used
        return cells, end

    def _by_tabs(self, line: str, after: int) -> tuple[list[str], int]:
        """Cells by where they stand: some are blank."""
        cells: list[str] = []
        end = after
        for match in re.finditer(r"\t([^\t]*)", line[after:]):
            if len(cells) >= len(self.names):
                break
            words, used = _words(match[1].strip(), len(self.names) - len(cells))
            if match[1].strip() and used != len(match[1].strip()):
                return [], after
            cells += words or [""]
            end = after + match.end()
        return cells, end


def _header(line: str) -> _Header | None:
    starts = [match.start() if (match := column.search(line)) else -1 for column in _COLUMNS]
    links = line[: min((start for start in starts if start >= 0), default=len(line))]
    names: list[str] = []
    for word in links.split():
        glued = re.fullmatch(f"{_NAMES.pattern}+", word)
        names += _NAMES.findall(word) if glued else [word]
    if not names or not _GPU.fullmatch(names[0]) or len(set(names)) != len(names):
        return None
    if any(_KNOWN.fullmatch(name) for name in names):
        return None  # a row
    return _Header(tuple(names), tuple(number for number, start in enumerate(starts) if start >= 0))


def _starts(line: str, name: str, start: int) -> bool:
    return line.startswith(name, start) and re.match(r"[a-z0-9_:]", line[start + len(name) :]) is None


def _words(text: str, at_most: int) -> tuple[list[str], int]:
    """The cells in a text without blanks, and how much of it they are: none in what is no word."""
    if re.fullmatch(f"(?:{_KNOWN.pattern})+", text):
        words = _KNOWN.findall(text)[:at_most]
        return words, len("".join(words))
    # The last one glued to the cores that follow: NV120-7 may be NV1 and 20-7, or NV12 and 0-7.
    glued = re.fullmatch(rf"((?:{_KNOWN.pattern})*)({_KNOWN.pattern})(\d[\d,-]*)", text)
    if glued:
        words = [*_KNOWN.findall(glued[1]), "" if glued[2].startswith("NV") else glued[2]]
        used = len(text) - (0 if glued[2].startswith("NV") else len(glued[3]))
        return (words, used) if len(words) <= at_most else ([], 0)
    return ([text], len(text)) if text[:1].isalpha() and text != "N/A" else ([], 0)


def _tabbed(line: str, end: int) -> str:
    """The rest of a line whose tabs became blanks up to the next multiple of eight; as it is where they did not."""
    tail = ""
    last = end
    for match in re.finditer(r"\S+", line[end:]):
        start = end + match.start()
        if start % _TAB:
            return line[end:]
        tail += "\t" * (start // _TAB - last // _TAB) + match[0]
        last = end + match.end()
    return tail


def _first_line(text: str) -> str:
    lines = (plain_line(line, _LONGEST_REASON) for line in _ESCAPES.sub("", text[:10_000]).splitlines())
    return next((line for line in lines if line), "")
