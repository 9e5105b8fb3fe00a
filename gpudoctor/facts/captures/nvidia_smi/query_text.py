"""The indented text of `nvidia-smi -q`, complete, in part or per topic (-d), drivers 390 to 610."""

from __future__ import annotations

import re
from collections import defaultdict

from msgspec.structs import replace

from gpudoctor.facts.captures import SourceError, clipped
from gpudoctor.facts.captures.nvidia_smi.names import HEAD_LABELS, LABELS, NAMES, PARENTS, SECTIONS
from gpudoctor.facts.captures.nvidia_smi.query_dump import SmiDump, is_selected, smi_dump
from gpudoctor.facts.captures.nvidia_smi.query_gpu import CUT, GpuDump, GpuDumps
from gpudoctor.facts.captures.nvidia_smi.values import normal_name
from gpudoctor.facts.captures.reader import Block, Part, text_reader
from gpudoctor.facts.nvml.codes import cost_of, errors_in_dump

# by whatever drivers and devices they are named after
_SECTION_KINDS = ("reasons", "power_readings")
_DEEPEST = 16
_BANNER = re.compile(r"\s*=+ ?NVSMI LOG ?=+$")
_GPU = re.compile(r"\s*GPU ((?:[0-9A-Fa-f]{4,8}:)[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]|\S+:\S+)$")
_GPU_LINE = re.compile(r"[ \t]*GPU [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]$")
# not one that redaction made the same for all GPUs in plain sight: GPU-xxxxxxxx, GPU-00000000-...
_UUID = re.compile(r"GPU(?!-[0-]+$)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# what no two GPUs of a machine share, beside the UUID
_OF_ONE_GPU = ("serial_number", "minor_number", "pci/domain", "pci/bus", "pci/device", "pci/bus_id")
_LABEL = re.compile(r"[ \t]+v?[A-Z][^:]{0,60}?(?: :(?: |$)|$)")
# a value that is complete even though the text ends without a line end: a number with its unit, or a word
_WHOLE_VALUE = re.compile(r".*(?:\d (?:MiB|MHz|W|C|%|us|KB/s)|\dx|[A-Za-z][^\d]*)$")


def _begins(line: str) -> bool:
    """Whether a dump, or a part of one, may begin with this line."""
    if _BANNER.match(line) or _GPU_LINE.match(line):
        return True
    label, value = _split(line)
    name = normal_name(label)
    if value is None:
        return name in SECTIONS and label.strip().rstrip(":").removeprefix("v")[:1].isupper()
    return (name in HEAD_LABELS and bool(value)) or (name in LABELS and " " in label.strip() and bool(value))


def _goes_on(line: str) -> bool:
    """Whether this line may be part of a dump; false for prose."""
    if line[0] in " \t":
        return _LABEL.match(line) is not None and not line.endswith(".")
    label, value = _split(line)
    return _begins(line) or (value is not None and normal_name(label) in NAMES)


def parse_smi_text(text: str, *, whole_end: bool = True, selected: bool = False) -> tuple[SmiDump, ...]:
    """Read the dump. Raise SourceError if it contains nothing about a GPU.

    GPUs without a line that names them may be shown again: each further time is one more dump.
    A line is "label : value" or a section's label; each level is indented by four spaces. A part of a dump without a
    line that names its GPU belongs to a GPU without a bus id; whenever a section begins again, or a value is another
    than before, to the next one. A value in it that occurs in one section only is of that section, wherever it stands.
    If all indentation is lost, the levels are derived from the sections' names. If the dump is cut off, what is missing
    from its last GPU is Missing (failed).
    `whole_end`: False if the last line had no line end; `selected`: run with -i.
    """
    lines = text.splitlines()
    if not whole_end:
        lines = _without_cut_line(lines)
    read = _Sections(flat=_is_flat(lines))
    for number, line in enumerate(lines, 1):
        read.add(line.expandtabs(4).rstrip(), number)
    top, gpus = read.top, read.gpus
    if not gpus and "attached_gpus" not in top and "driver_version" not in top:
        raise SourceError("holds no GPU: a line like 'GPU 00000000:18:00.0' is missing")
    if gpus and _cut(list(gpus.values())):
        gpus[len(gpus) - 1].cut = CUT
    first, *again = _samples(list(gpus.values()), top.get("attached_gpus", ""))
    dump = smi_dump(top, first, "\n".join(read.outside), selected=selected)
    more = (smi_dump({}, each) for each in again)
    at = dump.collected_at
    return (dump, *(replace(each, collected_at=at, complete=False, sample=n) for n, each in enumerate(more, 1)))


def _samples(gpus: list[GpuDump], attached: str) -> list[list[GpuDump]]:
    """The GPUs, then those that are there a second time, a third time ...

    A dump shows each GPU once, so that one that counts as many as it shows has none twice, whatever its UUIDs.
    """
    if attached.isdecimal() and len(gpus) <= int(attached):
        return [gpus]
    samples: list[list[GpuDump]] = [[]]
    seen: defaultdict[str, list[GpuDump]] = defaultdict(list)
    for gpu in gpus:
        uuid = gpu.values.get("gpu_uuid", "")
        # an address tells them apart, though redaction made their UUIDs the same
        named = not gpu.bus_id and _UUID.fullmatch(uuid) is not None
        before = [other for other in seen[uuid] if named and _may_be_one(gpu, other)]
        gpu.number = before[0].number if before else len(samples[0])
        seen[uuid].append(gpu)
        if len(before) == len(samples):
            samples.append([])
        samples[len(before)].append(gpu)
    return samples


def _may_be_one(gpu: GpuDump, other: GpuDump) -> bool:
    """Whether nothing tells two sections of one UUID apart: redaction gives several GPUs one, too."""
    pairs = ((gpu.values.get(name), other.values.get(name)) for name in _OF_ONE_GPU)
    return all(one == two or None in (one, two) for one, two in pairs)


class _Sections:
    """The values of a dump by their sections; `flat`: its indentation is lost. Lines `outside` belong to none."""

    def __init__(self, *, flat: bool) -> None:
        self.top: dict[str, str] = {}
        self.gpus = GpuDumps()
        self._gpu = GpuDump()
        self.outside: list[str] = []
        self._flat = flat
        self._path: list[tuple[int, str]] = []  # open sections with their indent
        self._base = 0  # indent of the line that names the GPU

    def add(self, line: str, number: int) -> None:
        """Raise SourceError for a line that is nested too deeply, or for more GPUs than a machine has."""
        indent = len(line) - len(line.lstrip(" "))
        if header := _GPU.match(line):
            self._open_gpu(header.group(1))
            self._path, self._base = [], indent
            return
        label, value = _split(line.strip())
        name = normal_name(label)
        if not self.gpus and name in HEAD_LABELS and value is not None:
            self.top[name] = value
        elif line:
            indent = _flat_indent(name, value, self._path) if self._flat else indent
            if self._is_of_gpu(line, indent, name):
                if len(self._path) >= _DEEPEST:
                    raise SourceError(f"line {number}: nested deeper than {_DEEPEST} levels")
                self._path.append((indent, name))
                self._keep(name, value)

    def _open_gpu(self, bus_id: str) -> None:
        self._gpu = self.gpus.at(len(self.gpus), bus_id)
        self._gpu.lists_mig = True

    @property
    def _named(self) -> bool:
        """Whether a line has named the GPU that is read."""
        return self._gpu.bus_id != ""

    def _is_of_gpu(self, line: str, indent: int, name: str) -> bool:
        """Whether the line is about the GPU that is read, or a next one, which is opened; closes sections above it."""
        if self._named and indent <= self._base and not self._flat:
            self.outside.append(line)
            self._path = []
            return False
        while self._path and self._path[-1][0] >= indent:
            self._path.pop()
        if not self._path and not self._named:
            if name not in SECTIONS and name not in LABELS:
                self.outside.append(line)
                return False
            if not self.gpus or _again(self._gpu, name):
                self._open_gpu("")
        return True

    def _keep(self, name: str, value: str | None) -> None:
        where = [*PARENTS.get(self._path[0][1], ()), *(step for _, step in self._path)]
        if not self._named and value is not None:
            if _misplaced(name, where[0]):
                where = [*PARENTS[name], name]
            if self._gpu.values.get("/".join(where), value) != value:
                self._open_gpu("")
        self._gpu.keep(where, value or "")


def _split(line: str) -> tuple[str, str | None]:
    """Label and value; the value of a section is None. Bus ids contain colons too, but without a space before them."""
    if line.endswith(" :"):
        return line[:-2], ""
    label, colon, value = line.partition(" : ")
    return (label, clipped(value.strip())) if colon else (line, None)


def _without_cut_line(lines: list[str]) -> list[str]:
    """The lines without the last one, unless its value is complete: without a line end, it may be cut off."""
    if not lines:
        return lines
    value = _split(lines[-1].strip())[1]
    return lines if value is not None and _WHOLE_VALUE.match(value) else lines[:-1]


def _is_flat(lines: list[str]) -> bool:
    """Whether the indentation is lost, so that sections and their values begin in the same column."""
    sections = [line for line in lines if normal_name(line) in SECTIONS]
    indents = {len(line) - len(line.lstrip()) for line in (*sections, *(line for line in lines if " : " in line))}
    return len(indents) == 1 and bool(sections)


def _flat_indent(name: str, value: str | None, path: list[tuple[int, str]]) -> int:
    """The indent that the line would have: its own section's, or below the one that is open."""
    if name in SECTIONS or (name in LABELS and name not in PARENTS):
        return 4 + 4 * len(PARENTS.get(name, ()))
    return (
        path[-1][0] if value is None and path else max((at for at, step in path if step in SECTIONS), default=0)
    ) + 4


def _misplaced(name: str, section: str) -> bool:
    """Whether a value that one kind of section has stands in another: the lines of a fragment have changed places."""
    own = PARENTS.get(name, (section,))[0]
    return own != section and not any(kind in own and kind in section for kind in _SECTION_KINDS)


def _again(gpu: GpuDump, name: str) -> bool:
    """Whether a GPU without a bus id has this section already, so that it must be the next GPU's."""
    start = "/".join([*PARENTS.get(name, ()), name])
    return any(path == start or path.startswith(start + "/") for path in gpu.values)


def _cut(gpus: list[GpuDump]) -> bool:
    """Whether the dump ends inside its last GPU.

    Except for a lost GPU, a complete section starts with the product name and has processes at or near its end; with a
    topic (-d), it has as many values as those of the GPUs before it.
    """
    values = gpus[-1].values
    if any(cost_of(error.code, error.call) == "gpu" for error in errors_in_dump(values.items())):
        return False
    if "product_name" in values:
        return "processes" not in values
    before = [len(gpu.values) for gpu in gpus[:-1]]
    return not values or (bool(before) and len(values) < min(before))


@text_reader("nvidia-smi -q", _begins, _goes_on, restarts=_BANNER.match)
def read_query_text(block: Block) -> Part:
    dumps = parse_smi_text(block.text, whole_end=block.whole_end, selected=is_selected(block.command))
    return Part(smi=dumps, reported=tuple(each for dump in dumps for each in dump.reported))
