"""Readings and processes by GPU: `nvidia-smi dmon`, `pmon`, `--query-compute-apps`, `dcgmi dmon`, dcgm-exporter."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from gpudoctor.facts.captures import ABSENT, BUS_ID, MOST_GPUS, clipped
from gpudoctor.facts.captures.nvidia_smi.query_dump import SmiDump, numbered
from gpudoctor.facts.captures.nvidia_smi.query_gpu import GpuDump, gpu_from
from gpudoctor.facts.captures.reader import Block, Part, TextReader, text_reader
from gpudoctor.facts.captures.text_statements import from_tool
from gpudoctor.facts.model.gpu import Gpu, GpuProcess
from gpudoctor.facts.model.node import short_bus_id
from gpudoctor.facts.model.reported import Reported

# -o DT puts date and time before the index; --format csv puts commas between the cells
_WHEN = r"(?:(?:\d{8}[,\s]+)?\d\d:\d\d:\d\d[,\s]+)?"
# path of a reading in nvidia-smi -q, and what it is called: columns of dmon, DCGM's short name, field of dcgm-exporter
_READINGS: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("power_readings/power_draw", ("pwr",), "POWER", "POWER_USAGE"),
    ("temperature/gpu_current_temp", ("gtemp", "temp"), "TMPTR", "GPU_TEMP"),
    ("temperature/memory_current_temp", ("mtemp",), "MMTMP", "MEMORY_TEMP"),
    ("utilization/gpu", ("sm",), "GPUTL", "GPU_UTIL"),
    ("utilization/memory", ("mem",), "MCUTL", "MEM_COPY_UTIL"),
    ("clocks/memory", ("mclk",), "MMCLK", "MEM_CLOCK"),
    ("clocks/graphics", ("pclk",), "SMCLK", ""),
    ("clocks/sm", (), "", "SM_CLOCK"),
    ("fb_memory_usage/used", ("fb",), "FBUSD", "FB_USED"),
    ("fb_memory_usage/free", (), "", "FB_FREE"),
    ("ecc_errors/aggregate/single_bit/total", ("sbecc",), "", "ECC_SBE_AGG_TOTAL"),
    ("ecc_errors/aggregate/double_bit/total", ("dbecc",), "", "ECC_DBE_AGG_TOTAL"),
    ("ecc_errors/volatile/single_bit/total", (), "", "ECC_SBE_VOL_TOTAL"),
    ("ecc_errors/volatile/double_bit/total", (), "", "ECC_DBE_VOL_TOTAL"),
    ("remapped_rows/correctable_error", (), "", "CORRECTABLE_REMAPPED_ROWS"),
    ("remapped_rows/uncorrectable_error", (), "", "UNCORRECTABLE_REMAPPED_ROWS"),
    ("remapped_rows/remapping_failure_occurred", (), "", "ROW_REMAP_FAILURE"),
    ("pci/replays_since_reset", (), "", "PCIE_REPLAY_COUNTER"),
)
_PATHS = {column: path for path, columns, _, _ in _READINGS for column in columns}
_ENTITY_PATHS = {name: path for path, _, name, _ in _READINGS if name}
_SERIES_PATHS = {f"DCGM_FI_DEV_{field}": path for path, _, _, field in _READINGS if field}
_COLUMNS = f"{'|'.join(_PATHS)}|enc|dec|jpg|ofa|pviol|tviol|bar1|ccpm|pci|rxpci|txpci|pid"
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?")
_BEGIN = re.compile(
    rf"#\s*(?:Date[,\s]+)?(?:Time[,\s]+)?gpu[,\s]+(?:{_COLUMNS})(?:[,\s]+[a-z][a-z0-9]{{1,9}}){{0,40}}$"
)
_UNITS = re.compile(r"#\s*(?:YYYYMMDD[,\s]+)?(?:HH:MM:SS[,\s]+)?Idx[,\s]")
# pmon has the type of a process in its third cell, and the command in its last one, which may contain blanks
_SAMPLE = re.compile(
    rf"\s*{_WHEN}(?P<gpu>\d{{1,4}})(?:, *|\s+)"
    r"(?P<cells>(?:-|\d{1,10})(?:(?:, +|\s+)(?:-|[CGM](?:\+[CGM])?|\d{1,10}(?:\.\d{1,3})?)){2,60}"
    r"(?:[,\s]+[^\s,;\d].{0,200})?)$"
)
_MOST_PROCESSES = 1000
_MOST_NAMED = 16
# columns of errors: ECC, Xid, retired pages, remapped rows, replays, violations; XIDER is the last Xid
_ERROR_COLUMN = re.compile(r"(?i).*(?:ecc|err|xid|dbe|sbe|[ds]bv|[ds]ba|retir|remap|rpl|replay|crc)|.*er$")
_XID_COLUMN = re.compile(r"(?i)xid")
_APPS_COLUMN = r"(?:timestamp|gpu_\w{2,10}|pid|process_name|name|used_gpu_memory|used_memory)(?: \[\w{1,4}\])?"
_APPS = re.compile(rf"(?=.*\bpid\b)(?=.*_){_APPS_COLUMN}(?:, ?{_APPS_COLUMN}){{1,8}}\s*$")
_APPS_QUERY = r"--query-(?:compute-)?apps[= ][\"']?([a-z_,]{3,200})"
_ENTITY_ROW = re.compile(r"\s*GPU (\d{1,4})((?:\s+(?:-?[\d.]{1,20}|N/A)){1,40})\s*$")
_SERIES = re.compile(
    r"(DCGM_FI_[A-Z0-9_]{3,80})\{(.{1,4000})\} (-?\d{1,20}(?:\.\d{1,20})?(?:e[+-]?\d{1,2})?)(?: \d{1,16})?\s*$"
)
_LABEL = re.compile(r'(\w{1,60})="((?:[^"\\]|\\.){0,300})"')
_FLAGS = ("DCGM_FI_DEV_ROW_REMAP_FAILURE",)
_SEVERAL = "the metrics of several nodes in one text: show those of the node that is judged"
_EXACT = 1e15
_XID = "DCGM_FI_DEV_XID_ERRORS"


def _columns(line: str) -> list[str]:
    names = re.findall(r"[a-z][a-z0-9]*", line)
    return names[names.index("gpu") + 1 :]


@text_reader("nvidia-smi dmon", _BEGIN.match, lambda line: _UNITS.match(line) or _SAMPLE.match(line))
def _read(block: Block) -> Part:
    columns: list[str] = []
    last: dict[int, dict[str, str]] = {}  # by GPU index: column -> cell of its last sample
    processes: dict[int, dict[int, GpuProcess]] = {}
    hot: dict[int, None] = {}
    for line in block.lines:
        if _BEGIN.match(line):
            columns = _columns(line)
        elif columns and (sample := _SAMPLE.match(line)):
            index = int(sample["gpu"])
            if index not in last and index not in processes and len(last) + len(processes) >= 2 * MOST_GPUS:
                continue
            cells = re.split(r"[,\s]+", sample["cells"].strip(), maxsplit=len(columns) - 1)
            if len(cells) < len(columns):
                continue
            sample_cells = dict(zip(columns, cells, strict=False))
            if "pid" in columns:
                _add_process(processes.setdefault(index, {}), sample_cells)
                continue
            last.setdefault(index, {}).update(sample_cells)  # an earlier text may have had other columns
            if sample_cells.get("tviol") == "1":
                hot[index] = None
    gpus = {index: with_readings(index, cells, _PATHS) for index, cells in last.items()}
    for index, found in processes.items():
        gpu = gpus.get(index) or Gpu(index, f"unknown-{index}")
        gpus[index] = replace(gpu, processes=tuple(found.values()))
    if not gpus:
        return Part()
    reported = [from_tool("nvidia-smi dmon", f"thermal violation (tviol) of GPU {index}", "warning") for index in hot]
    reported += _unread_errors("nvidia-smi dmon", last, _PATHS)
    return Part(smi=(numbered(gpus, "nvidia-smi dmon"),), reported=tuple(reported[:_MOST_NAMED]))


def _unread_errors(tool: str, rows: Mapping[int, Mapping[str, str]], read: Mapping[str, str]) -> list[Reported]:
    """The last Xid of each GPU, and columns of errors that are not zero and that are no facts here."""
    found = []
    for index, cells in sorted(rows.items()):
        for name, cell in cells.items():
            if name in read or not _ERROR_COLUMN.match(name) or not _NUMBER.fullmatch(cell) or not float(cell):
                continue
            if _XID_COLUMN.match(name):
                found.append(from_tool(tool, f"GPU {index}: Xid {float(cell):.0f} ({name})", xid=int(float(cell))))
            else:
                text = f"GPU {index}: column {name} is {cell}, which gpudoctor does not read"
                found.append(from_tool(tool, text, "unread"))
    return found[:_MOST_NAMED]


def _add_process(found: dict[int, GpuProcess], cells: Mapping[str, str]) -> None:
    if cells["pid"].isdecimal() and len(found) < _MOST_PROCESSES:
        pid = int(cells["pid"])
        memory = cells.get("fb", "")
        found[pid] = GpuProcess(
            pid,
            name=clipped(cells["command"].strip()) if "command" in cells else ABSENT,
            kind=cells.get("type", "C"),
            memory_mib=int(memory) if memory.isdecimal() else ABSENT,
        )


def with_readings(index: int, cells: Mapping[str, str], paths: Mapping[str, str]) -> Gpu:
    """The GPU with the values of the columns in `paths`; a "-" (not supported, or not read) stays absent."""
    values = {paths[name]: cell for name, cell in cells.items() if name in paths and _NUMBER.fullmatch(cell)}
    return gpu_from(GpuDump(f"unknown-{index}", values, lists_mig=False), index)


# `nvidia-smi --query-compute-apps=... --format=csv`


@text_reader(
    "nvidia-smi --query-compute-apps",
    _APPS.match,
    rf"(?:(?:GPU|MIG)-[\w/-]{{8,80}}|{BUS_ID}|\d{{1,10}}|\d{{4}}/\d\d/\d\d [\d:.]{{8,15}}), .{{1,400}}$",
    after=_APPS_QUERY,
)
def _read_apps(block: Block) -> Part:
    """The processes by the UUID or bus id of their GPU; without one, which GPU they are on is not known."""
    queried = re.search(_APPS_QUERY, block.command)
    columns = queried[1].split(",") if queried else []
    processes: dict[str, dict[int, GpuProcess]] = {}
    for line in block.lines:
        if _APPS.match(line):
            columns = [cell.split()[0] for cell in line.split(",")]
            continue
        cells = [cell.strip() for cell in line.split(",")]
        if len(columns) < 2 or len(cells) < len(columns):
            continue
        row = dict(zip(columns, cells, strict=False))
        gpu = row.get("gpu_uuid") or row.get("gpu_bus_id") or ""
        if row.get("pid", "").isdecimal() and (gpu in processes or len(processes) < MOST_GPUS):
            memory = re.match(r"\d{1,9}", cells[-1]) if "memory" in columns[-1] else None
            found = processes.setdefault(gpu, {})
            if len(found) < _MOST_PROCESSES:
                name = clipped(row["process_name"]) if "process_name" in row else ABSENT
                used = int(memory[0]) if memory else ABSENT
                found[int(row["pid"][:10])] = GpuProcess(int(row["pid"][:10]), name=name, memory_mib=used)
    if not processes.keys() - {""}:
        return Part(notes=("nvidia-smi --query-compute-apps: no process of a GPU that it names",))
    gpus = []
    for index, (named, found) in enumerate(sorted(processes.items())):
        on_bus = re.fullmatch(BUS_ID, named) is not None
        bus_id, uuid = (short_bus_id(named), ABSENT) if on_bus else (f"unknown-{index}", clipped(named) or ABSENT)
        gpus.append(Gpu(index, bus_id, uuid=uuid, processes=tuple(found.values())))
    return Part(smi=(SmiDump(tuple(gpus), name="nvidia-smi --query-compute-apps", ended=False, beside=True),))


# `dcgmi dmon`


@text_reader(
    "dcgmi dmon",
    r"# ?Entity(?:\s+[A-Z][A-Z0-9#]{3,5}){1,40}\s*$",
    r"\s*I[Dd](?:\s+[^\s\d]{1,8})*\s*$|\s*(?:GPU|GPU-I|GPU-CI|Switch|Link|CPU|CPU Core) \d+\s",
)
def read_entities(block: Block) -> Part:
    columns: list[str] = []
    rows: dict[int, dict[str, str]] = {}
    for line in block.lines:
        if line.startswith("#"):
            columns = line.partition("Entity")[2].split()
        elif row := _ENTITY_ROW.match(line):
            rows.setdefault(int(row[1]), {}).update(zip(columns, row[2].split(), strict=False))
    gpus = {index: with_readings(index, cells, _ENTITY_PATHS) for index, cells in rows.items()}
    part = part_by_dcgm(gpus, "dcgmi dmon")
    return replace(part, reported=tuple(_unread_errors("dcgmi dmon", rows, _ENTITY_PATHS)))


def part_by_dcgm(gpus: Mapping[int, Gpu], name: str) -> Part:
    """GPUs by DCGM's number: NVML's index, unless GPUs came or went since."""
    if not gpus:
        return Part(notes=(f"{name}: no GPU in it that gpudoctor reads",))
    note = f"{name}: GPUs are named by DCGM's numbers, taken as the indices of nvidia-smi"
    return Part(smi=(numbered(gpus, name),), notes=(note,))


# dcgm-exporter, as Prometheus reads it: the readings of each GPU by the labels of its series


@text_reader("dcgm-exporter", rf"{_SERIES.pattern}|# (?:HELP|TYPE) DCGM_FI_")
def read_series(block: Block) -> Part:
    gpus: dict[int, GpuDump] = {}
    reported: list[Reported] = []
    hosts: set[str] = set()
    for line in block.lines:
        series = _SERIES.match(line)
        labels = dict(_LABEL.findall(series[2])) if series is not None else {}
        # the series of a MIG instance are not those of its GPU
        if series is None or not labels.get("gpu", "").isdecimal() or "GPU_I_ID" in labels:
            continue
        index = int(labels["gpu"][:6])
        if index not in gpus and len(gpus) >= MOST_GPUS:
            continue
        bus_id = labels.get("pci_bus_id", "")
        named = short_bus_id(bus_id) if re.fullmatch(BUS_ID, bus_id) else f"unknown-{index}"
        hosts.add(clipped(labels.get("Hostname", "")))
        gpu = gpus.setdefault(index, GpuDump(named, {}, lists_mig=False))
        values, uuid = gpu.values, clipped(labels.get("UUID", ""))
        if len(hosts) > 1 or gpu.bus_id != named or values.get("uuid", uuid) != uuid:
            return Part(reported=(from_tool("dcgm-exporter", _SEVERAL, "unread"),))
        values |= {"product_name": clipped(labels.get("modelName", "")), "uuid": uuid}
        field, number = series[1], series[3]
        if field == _XID and float(number):
            code = int(float(number))
            reported.append(from_tool("dcgm-exporter", f"GPU {index}: the last Xid is {code}", xid=code))
        elif field in _SERIES_PATHS:
            value = float(number)
            whole = str(int(value)) if value.is_integer() and abs(value) < _EXACT else number
            values[_SERIES_PATHS[field]] = ("Yes" if float(number) else "No") if field in _FLAGS else whole
    if not gpus:
        return Part(notes=("dcgm-exporter: no series of a GPU",))
    made = {index: gpu_from(gpu, index) for index, gpu in gpus.items()}
    return Part(smi=(numbered(made, "dcgm-exporter"),), reported=tuple(reported))


MONITOR_READERS: tuple[TextReader, ...] = (_read, _read_apps)
