"""Readings and processes by GPU: `nvidia-smi dmon`, `nvidia-smi pmon`, `dcgmi dmon`, dcgm-exporter."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from gpudoctor.facts.captures import clipped
from gpudoctor.facts.captures.nvidia_smi.names import PATHS
from gpudoctor.facts.captures.nvidia_smi.query_dump import numbered
from gpudoctor.facts.captures.nvidia_smi.query_gpu import GpuDumps
from gpudoctor.facts.captures.reader import Block, Part, TextReader, text_reader
from gpudoctor.facts.captures.text_statements import from_tool
from gpudoctor.facts.model.reported import Reported

# -o DT puts date and time before the index; --format csv puts commas between the cells
_WHEN = r"(?:(?:\d{8}[,\s]+)?\d\d:\d\d:\d\d[,\s]+)?"
_COLUMNS = "|".join(name[5:] for name in PATHS if name.startswith("dmon."))
_BEGIN = re.compile(
    r"#\s*(?:Date[,\s]+)?(?:Time[,\s]+)?gpu[,\s]+"
    rf"(?P<columns>(?:{_COLUMNS}|enc|dec|jpg|ofa|pviol|tviol|bar1|ccpm|pci|rxpci|txpci|pid)(?:[,\s]+[a-z][a-z0-9]{{1,9}}){{0,40}})$"
)
_UNITS = re.compile(r"#\s*(?:YYYYMMDD[,\s]+)?(?:HH:MM:SS[,\s]+)?Idx[,\s]")
# pmon has the type of a process in its third cell, and the command in its last one, which may contain blanks
_SAMPLE = re.compile(
    rf"\s*{_WHEN}(?P<gpu>\d{{1,4}})(?:, *|\s+)"
    r"(?P<cells>(?:-|\d{1,10})(?:(?:, +|\s+)(?:-|[CGM](?:\+[CGM])?|\d{1,10}(?:\.\d{1,3})?)){2,60}"
    r"(?:[,\s]+[^\s,;\d].{0,200})?)$"
)
_ENTITIES = re.compile(r"# ?Entity(?P<columns>(?:\s+[A-Z][A-Z0-9#]{3,5}){1,40})\s*$")
_ENTITY = re.compile(r"\s*GPU (?P<gpu>\d{1,4})(?P<cells>(?:\s+(?:-?[\d.]{1,20}|N/A)){1,40})\s*$")
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?")
_MOST_PROCESSES = 10_000
_MOST_NAMED = 16
# columns of errors: ECC, Xid, retired pages, remapped rows, replays, violations; XIDER is the last Xid
_ERROR_COLUMN = re.compile(r"(?i).*(?:ecc|err|xid|dbe|sbe|[ds]bv|[ds]ba|retir|remap|rpl|replay|crc)|.*er$")
_XID_COLUMN = re.compile(r"(?i)xid")
_SERIES = re.compile(
    r"(DCGM_FI_[A-Z0-9_]{3,80})\{(.{1,4000})\} (-?\d{1,20}(?:\.\d{1,20})?(?:e[+-]?\d{1,2})?)(?: \d{1,16})?\s*$"
)
_LABEL = re.compile(r'(\w{1,60})="((?:[^"\\]|\\.){0,300})"')
_SEVERAL = "the metrics of several nodes in one text: show those of the node that is judged"
_EXACT = 1e15
_XID = "DCGM_FI_DEV_XID_ERRORS"
_Rows = dict[int, dict[str, str]]  # by GPU: column -> cell of its last sample


def _samples(
    block: Block, head: re.Pattern[str], row: re.Pattern[str], *, only_whole: bool
) -> Iterator[tuple[int, dict[str, str]]]:
    """Each sample's GPU and its cells by column; `only_whole`: not one that is cut off."""
    columns: list[str] = []
    for line in block.lines:
        if found := head.match(line):
            columns = re.split(r"[,\s]+", found["columns"].strip())
        elif columns and (found := row.match(line)):
            cells = re.split(r"[,\s]+", found["cells"].strip(), maxsplit=len(columns) - 1)
            if len(cells) == len(columns) or not only_whole:
                yield int(found["gpu"]), dict(zip(columns, cells, strict=False))


def _with_readings(rows: _Rows, form: str) -> GpuDumps:
    """The GPUs with the values of the columns that are facts; a "-" (not supported, or not read) stays absent."""
    gpus = GpuDumps()
    for index, cells in rows.items():
        numbers = {form + name: cell for name, cell in cells.items() if _NUMBER.fullmatch(cell)}
        gpus.at(index).values |= {PATHS[name]: cell for name, cell in numbers.items() if name in PATHS}
    return gpus


def _unread_errors(tool: str, rows: _Rows, form: str) -> list[Reported]:
    """The last Xid of each GPU, and columns of errors that are not zero and that are no facts here."""
    found = []
    for index, cells in sorted(rows.items()):
        for name, cell in cells.items():
            if form + name in PATHS or not (_ERROR_COLUMN.match(name) and _NUMBER.fullmatch(cell) and float(cell)):
                continue
            if _XID_COLUMN.match(name):
                found.append(from_tool(tool, f"GPU {index}: Xid {float(cell):.0f} ({name})", xid=int(float(cell))))
            else:
                text = f"GPU {index}: column {name} is {cell}, which gpudoctor does not read"
                found.append(from_tool(tool, text, "unread"))
    return found[:_MOST_NAMED]


@text_reader("nvidia-smi dmon", _BEGIN.match, lambda line: _UNITS.match(line) or _SAMPLE.match(line))
def _read_dmon(block: Block) -> Part:
    rows: _Rows = {}
    processes: dict[tuple[int, str], dict[str, str]] = {}
    with_processes: set[int] = set()
    hot: dict[int, None] = {}
    for index, cells in _samples(block, _BEGIN, _SAMPLE, only_whole=True):
        if "pid" in cells:
            with_processes.add(index)
            if cells["pid"].isdecimal() and len(processes) < _MOST_PROCESSES:
                processes[index, cells["pid"]] = cells
        else:
            rows.setdefault(index, {}).update(cells)  # an earlier text may have had other columns
            if cells.get("tviol") == "1":
                hot[index] = None
    gpus = _with_readings(rows, "dmon.")
    for index in with_processes:
        gpus.at(index).values["processes"] = "None"
    for (index, _), cells in processes.items():
        names = {"pid": "pid", "type": "type", "name": "command", "used_memory": "fb"}
        shown = {name: clipped(cells[column]) for name, column in names.items() if cells.get(column, "-") != "-"}
        gpus[index].processes.append(shown)
    if not gpus:
        return Part()
    reported = [from_tool("nvidia-smi dmon", f"thermal violation (tviol) of GPU {index}", "warning") for index in hot]
    reported += _unread_errors("nvidia-smi dmon", rows, "dmon.")
    return Part(smi=(numbered(gpus.by_index(), "nvidia-smi dmon"),), reported=tuple(reported[:_MOST_NAMED]))


@text_reader(
    "dcgmi dmon",
    _ENTITIES.match,
    r"\s*I[Dd](?:\s+[^\s\d]{1,8})*\s*$|\s*(?:GPU|GPU-I|GPU-CI|Switch|Link|CPU|CPU Core) \d+\s",
)
def _read_entities(block: Block) -> Part:
    rows: _Rows = {}
    for index, cells in _samples(block, _ENTITIES, _ENTITY, only_whole=False):
        rows.setdefault(index, {}).update(cells)
    part = part_by_dcgm(_with_readings(rows, "dcgmi."), "dcgmi dmon")
    return replace(part, reported=tuple(_unread_errors("dcgmi dmon", rows, "dcgmi.")))


def part_by_dcgm(gpus: GpuDumps, name: str) -> Part:
    """GPUs by DCGM's number: NVML's index, unless GPUs came or went since."""
    if not gpus:
        return Part(notes=(f"{name}: no GPU in it that gpudoctor reads",))
    note = f"{name}: GPUs are named by DCGM's numbers, taken as the indices of nvidia-smi"
    return Part(smi=(numbered(gpus.by_index(), name),), notes=(note,))


# dcgm-exporter, as Prometheus reads it: the readings of each GPU by the labels of its series


@text_reader("dcgm-exporter", rf"{_SERIES.pattern}|# (?:HELP|TYPE) DCGM_FI_")
def _read_series(block: Block) -> Part:
    gpus = GpuDumps()
    reported: list[Reported] = []
    hosts: set[str] = set()
    for line in block.lines:
        series = _SERIES.match(line)
        labels = dict(_LABEL.findall(series[2])) if series is not None else {}
        # the series of a MIG instance are not those of its GPU
        if series is None or not labels.get("gpu", "").isdecimal() or "GPU_I_ID" in labels:
            continue
        index = int(labels["gpu"][:6])
        bus_id, uuid = labels.get("pci_bus_id", ""), clipped(labels.get("UUID", ""))
        hosts.add(clipped(labels.get("Hostname", "")))
        gpu = gpus.at(index, bus_id)
        if len(hosts) > 1 or gpu.bus_id != bus_id or gpu.values.get("gpu_uuid", uuid) != uuid:
            return Part(reported=(from_tool("dcgm-exporter", _SEVERAL, "unread"),))
        gpu.values |= {"product_name": clipped(labels.get("modelName", "")), "gpu_uuid": uuid}
        field, number = series[1], series[3]
        if field == _XID and float(number):
            code = int(float(number))
            reported.append(from_tool("dcgm-exporter", f"GPU {index}: the last Xid is {code}", xid=code))
        elif field in PATHS:
            value = float(number)
            whole = value.is_integer() and abs(value) < _EXACT
            gpu.values[PATHS[field]] = str(int(value)) if whole else number
    if not gpus:
        return Part(notes=("dcgm-exporter: no series of a GPU",))
    return Part(smi=(numbered(gpus.by_index(), "dcgm-exporter"),), reported=tuple(reported))


MONITOR_READERS: tuple[TextReader, ...] = (_read_dmon, _read_entities, _read_series)
