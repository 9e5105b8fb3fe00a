"""`nvidia-smi --query-gpu=...` or `--query-compute-apps=...` with any columns, with or without header and units."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest

from msgspec.structs import replace

from gpudoctor.facts.captures import BUS_ID, SourceError, clipped
from gpudoctor.facts.captures.nvidia_smi.names import PATHS
from gpudoctor.facts.captures.nvidia_smi.query_dump import ANSWERED, SmiDump, count_by_index, is_selected, unwell
from gpudoctor.facts.captures.nvidia_smi.query_gpu import CUT, GpuDump, GpuDumps
from gpudoctor.facts.captures.nvidia_smi.values import missing_word
from gpudoctor.facts.captures.reader import Block, NoRow, Part, text_reader
from gpudoctor.facts.captures.text_statements import from_tool
from gpudoctor.facts.model.gpu import EVENT_REASONS, Gpu
from gpudoctor.facts.model.missing import NOT_READ, Missing
from gpudoctor.facts.model.reported import Reported

NAME = "nvidia-smi --query-gpu"
_QUERY = r"--query-gpu[= ][\"']?([A-Za-z0-9_.,]+)"
_COLUMN = re.compile(r" *([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*)(?: \[[\w/%]{1,8}\])? *$")
_ROW = re.compile(
    r"(?=[^,]{0,2000},)(?:[\w.]|\[(?:N/A|Not |Unknown|Insufficient|GPU |Requested))[\w \[\]/.:%!+\-()*\"',]{0,2000}$"
)
# of a row that may lack its end
_BEGIN_OF_ROW = re.compile(
    rf"\s*(?:\d{{1,3}}|GPU-[0-9a-f]{{8}}[0-9a-f-]*|{BUS_ID}|\d{{4}}/\d\d/\d\d [\d:.]+|(?:NVIDIA|Tesla) [^,]{{1,60}}),"
)
_NAME_IN_ROW = re.compile(rf"GPU-[0-9a-f]{{8}}[0-9a-f-]*|{BUS_ID}|(?:^|, *)\d{{1,3}}(?=,)")
_REASONS = re.compile(r"clocks_(?:throttle|event)_reasons\.(\w+)$")
# fields that no fact holds
_OTHER = frozenset(
    """
    timestamp driver_version count index pci.bus_id gpu_bus_id pci.bus pci.device pci.domain fan.speed
    driver_model.current clocks.applications.sm clocks.default_applications.sm
    """.split()  # noqa: SIM905
)
_BUS_IDS = ("pci.bus_id", "gpu_bus_id")
# counts of errors, as in ecc.errors.uncorrected.volatile.l2_cache
_ERROR_COUNT = re.compile(r"(?:.*[._])?(?:uncorrected|uncorrectable|remapped|retired|xid)")
_MOST_NAMED = 16
_BROKEN_ROW = Missing("its row could not be read", "failed")
_COUNTED = ("ecc_errors/", "retired_pages/", "remapped_rows/correctable", "remapped_rows/uncorrectable")
_APPS_COLUMN = r"(?:timestamp|gpu_\w{2,10}|pid|process_name|name|used_gpu_memory|used_memory)(?: \[\w{1,4}\])?"
_APPS = re.compile(rf"(?=.*\bpid\b)(?=.*_){_APPS_COLUMN}(?:, ?{_APPS_COLUMN}){{1,8}}\s*$")
_APPS_QUERY = r"--query-(?:compute-)?apps[= ][\"']?([a-z_,]{3,200})"
_MOST_PROCESSES = 10_000


def _begins(line: str) -> bool:
    """Whether the line is a header: only field names, at least one of them certainly from nvidia-smi."""
    if "," not in line and "." not in line:
        return False
    columns = [_COLUMN.match(cell) for cell in line.split(",")]
    names = [column[1] for column in columns if column is not None]
    if "pid" in names:  # --query-compute-apps: a row is a process
        return False
    return len(names) == len(columns) and any(_is_field(name) and ("." in name or len(names) > 2) for name in names)


def _is_field(name: str) -> bool:
    return name in PATHS or name in _OTHER or name.startswith("ecc.errors.") or _REASONS.match(name) is not None


class _Rows:
    """The rows of a table read so far: one GPU each, and of a GPU with several rows (-l) the last one.

    Of its counters the highest one: they do not decrease.
    """

    def __init__(self, columns: list[str]) -> None:
        self.columns = columns
        self.notes: list[str] = []
        self.of_driver: dict[str, str] = {}
        self.unread: dict[str, Reported] = {}
        self._dumps = GpuDumps()
        self._indices: dict[str, int] = {}
        self._last: GpuDump | None = None

    def add(self, row: list[str], *, ends_with_line: bool = True) -> None:
        """Raise SourceError if these are more GPUs than a machine has, or two that have one index."""
        cells = [clipped(cell.strip()) for cell in row]
        values = _values(self.columns, cells)
        counted = f"a row of {len(cells)} cells under {len(self.columns)} columns"
        if values is None:
            self.notes.append(f"{counted} was not read")
            return
        if not ends_with_line:
            values.pop(self.columns[-1], None)
        bus_id = next((values[name] for name in _BUS_IDS if name in values), "")
        index = values.get("index", "")
        known_as = (index, bus_id, values.get("uuid"), values.get("gpu_uuid"))
        identity = next(filter(None, known_as), f"row {len(self._dumps)}")
        self.unread |= {text: from_tool("nvidia-smi", text, "unread") for text in _unread_errors(values, identity)}
        before, now = self._dumps.at(identity), GpuDump(bus_id, _by_path(values))
        self.unread |= {each.text: each for each in unwell(now.values, identity)}
        order = self._indices.get(identity, len(self._dumps) - 1)
        self._indices[identity] = int(index) if index.isdecimal() and len(index) < 5 else order
        if now.address and before.address and now.address != before.address:
            raise SourceError(
                f"GPU {identity} is {before.address} in one row and {now.address} in another: keep those of one machine"
            )
        now.values |= _higher_counters(before.values, now.values)
        self._dumps[identity] = self._last = now
        if len(cells) != len(self.columns) and len(values) < len(self.columns):
            now.cut = _BROKEN_ROW
            self.notes.append(f"{counted} could not be read")
        self.of_driver |= {name: values[name] for name in ("driver_version", "count") if name in values}

    def without_address(self) -> tuple[Reported, ...]:
        """What the driver answered in place of a bus id, for each GPU beside others that have one."""
        if not any(dump.address for dump in self._dumps.values()):
            return ()
        named = ((name, dump.bus_id, missing_word(dump.bus_id)) for name, dump in self._dumps.items())
        texts = [f"GPU {name} has no bus id: {said}" for name, said, word in named if word and word.kind == "failed"]
        return tuple(from_tool("nvidia-smi", text, "unread") for text in texts)

    def gpus(self, *, last_is_cut: bool) -> tuple[Gpu, ...]:
        if last_is_cut and self._last is not None:
            self._last.cut = self._last.cut or CUT
            self.notes.append("the last line has no end: its last cell was not read")
        return self._dumps.numbered(self._indices)


def _unread_errors(values: dict[str, str], gpu: str) -> Iterator[str]:
    """In words, the counts of errors that are not zero, that are no facts, and that no total beside them contains."""
    for name, text in values.items():
        known = name in PATHS or values.get(f"{name.rpartition('.')[0]}.total", "").isdecimal()
        if not known and _ERROR_COUNT.match(name) and (text == "Yes" or (text.isdecimal() and int(text))):
            yield f"GPU {gpu}: column {name} is {text}, which gpudoctor does not read"


def _higher_counters(before: dict[str, str], now: dict[str, str]) -> dict[str, str]:
    counts = {path: text for path, text in before.items() if path.startswith(_COUNTED) and text.isdecimal()}
    return {path: text for path, text in counts.items() if now.get(path, "").isdecimal() and int(text) > int(now[path])}


def _is_of_a_loop(block: Block, no_row: NoRow) -> bool:
    """Whether each GPU has as many rows above, and several (-l): whoever ends that leaves out nothing."""
    named = (_NAME_IN_ROW.search(line) for line in block.lines[: no_row.above])
    rows = {*Counter(found.group() for found in named if found is not None).values()}
    return len(rows) == 1 and rows != {1}


@text_reader(NAME, _begins, _ROW.match, after=_QUERY, restarts=_begins, row=_BEGIN_OF_ROW.match, is_whole=_is_of_a_loop)
def read_query(block: Block) -> Part:
    """The GPUs in the rows. Raise SourceError if neither a header nor the command names the columns.

    A row with another number of cells is a GPU that could not be read. Indices with a gap show that rows are missing.
    """
    table = _table(block)
    rows = _Rows(_columns(table, block.command, _QUERY))
    for row in table:
        rows.add(row, ends_with_line=block.whole_end or row is not table[-1])
    gpus = rows.gpus(last_is_cut=not block.whole_end)
    indexed = "index" in rows.columns
    if not indexed:
        rows.notes.append("the columns hold no index: GPUs are counted in their order, from 0")
    shown = {gpu.index for gpu in gpus} if indexed and not is_selected(block.command) else set()
    driver = replace(
        ANSWERED,
        library_version=_version(rows.of_driver.get("driver_version")),
        device_count=_count(rows.of_driver.get("count"), shown),
    )
    dump = SmiDump(gpus, driver, notes=tuple(dict.fromkeys(rows.notes)), name=NAME, indexed=indexed)
    return Part(smi=(dump,), reported=(*rows.unread.values(), *rows.without_address())[:_MOST_NAMED])


@text_reader(
    "nvidia-smi --query-compute-apps",
    _APPS.match,
    rf"(?:(?:GPU|MIG)-[\w/-]{{8,80}}|{BUS_ID}|\d{{1,10}}|\d{{4}}/\d\d/\d\d [\d:.]{{8,15}}), .{{1,400}}$",
    after=_APPS_QUERY,
    restarts=_APPS.match,
)
def read_apps(block: Block) -> Part:
    """The processes by the UUID or bus id of their GPU; without one, which GPU they are on is not known."""
    table = _table(block)
    columns = _columns(table, block.command, _APPS_QUERY)
    processes: dict[tuple[str, str], dict[str, str]] = {}
    for row in table:
        cells = [clipped(cell.strip()) for cell in row]
        process = dict(zip(columns, cells, strict=False)) | {columns[-1]: cells[-1]}  # a name may have a comma
        named, pid = process.get("gpu_uuid") or process.get("gpu_bus_id") or "", process.get("pid", "")
        if named and len(cells) >= len(columns) and pid.isdecimal() and len(processes) < _MOST_PROCESSES:
            processes[named, pid] = process
    gpus = GpuDumps()
    for (named, _), process in processes.items():
        gpu = gpus.at(named, named)
        gpu.processes.append(process)
        if not gpu.address:
            gpu.values["gpu_uuid"] = named
    if not gpus:
        return Part(notes=("nvidia-smi --query-compute-apps: no process of a GPU that it names",))
    dump = SmiDump(gpus.in_order(), name="nvidia-smi --query-compute-apps", complete=False, only_adds_facts=True)
    return Part(smi=(dump,))


def _table(block: Block) -> list[list[str]]:
    try:
        return [row for row in csv.reader(line for line in block.lines if line) if row]
    except csv.Error as error:  # a cell of more than 128 KiB
        raise SourceError(f"no CSV of nvidia-smi: {error}") from None


def _columns(rows: list[list[str]], command: str, query: str) -> list[str]:
    """The columns' names: those of the header, which is taken from the rows, or of the command. Raise SourceError."""
    header = ",".join(rows[0]) if rows else ""
    if _begins(header) or _APPS.match(header):
        return [(_COLUMN.match(cell) or [cell, cell])[1] for cell in rows.pop(0)]
    queried = re.search(query, command)
    if queried is None:
        raise SourceError("no header that names the columns (paste the command with it)")
    return queried[1].lower().split(",")


def _values(columns: list[str], cells: list[str]) -> dict[str, str] | None:
    """The cells by column. An error word at the end of a short row is the answer to the rest of the columns.

    Of any other row with the wrong number of cells only the index is certain; without one it is prose (None).
    """
    if len(cells) == len(columns):
        return dict(zip(columns, cells, strict=True))
    refused = missing_word(cells[-1])
    if len(cells) < len(columns) and refused is not None and refused.kind == "failed":
        return dict(zip_longest(columns, cells, fillvalue=cells[-1]))
    index = dict(zip(columns, cells, strict=False)).get("index", "")
    return {"index": index} if index.isdecimal() else None


def _by_path(values: dict[str, str]) -> dict[str, str]:
    """The values of a row by their paths in nvidia-smi -q."""
    made: dict[str, str] = {}
    for name, text in values.items():
        reason = _REASONS.match(name)
        if reason is None:
            made[PATHS.get(name, name)] = text
        elif reason[1] == "active":
            made.update(_reasons(text))
        elif reason[1] != "supported":
            made[name.replace(".", "/")] = text
    return made


def _reasons(text: str) -> dict[str, str]:
    """The bits of `clocks_event_reasons.active` as reasons by path."""
    at = "clocks_event_reasons/"
    refused = missing_word(text)
    if refused is not None or not re.fullmatch(r"0x[0-9A-Fa-f]{1,16}", text):
        return {at + "idle": text}
    bits = int(text, 16)
    unknown = bits & ~sum(EVENT_REASONS)
    made = {at + name: "Active" if bits & bit else "Not Active" for bit, name in EVENT_REASONS.items()}
    return made | ({at + hex(unknown): "Active"} if unknown else {})


def _version(text: str | None) -> str | Missing:
    return text if text and re.fullmatch(r"\d{3}\.[\d.]{1,12}", text) else NOT_READ


def _count(text: str | None, indices: set[int]) -> int | Missing:
    return int(text) if text and text.isdecimal() and len(text) < 5 else count_by_index(indices)
