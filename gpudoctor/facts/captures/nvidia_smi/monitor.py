"""`nvidia-smi dmon` and `pmon`, the last sample of each GPU by its index; `--query-compute-apps`, its processes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from gpudoctor.facts.captures import ABSENT, BUS_ID, MOST_GPUS, clipped
from gpudoctor.facts.captures.nvidia_smi.query_dump import SmiDump, numbered
from gpudoctor.facts.captures.nvidia_smi.query_gpu import GpuDump, gpu_from
from gpudoctor.facts.captures.reader import Block, Part, TextReader
from gpudoctor.facts.model.gpu import Gpu, GpuProcess
from gpudoctor.facts.model.node import short_bus_id

# -o DT puts date and time before the index; --format csv puts commas between the cells
_WHEN = r"(?:(?:\d{8}[,\s]+)?\d\d:\d\d:\d\d[,\s]+)?"
# column -> path of the same value in nvidia-smi -q
_PATHS = {
    "pwr": "power_readings/power_draw",
    "gtemp": "temperature/gpu_current_temp",
    "temp": "temperature/gpu_current_temp",
    "mtemp": "temperature/memory_current_temp",
    "sm": "utilization/gpu",
    "mem": "utilization/memory",
    "mclk": "clocks/memory",
    "pclk": "clocks/graphics",
    "fb": "fb_memory_usage/used",
    "sbecc": "ecc_errors/aggregate/single_bit/total",
    "dbecc": "ecc_errors/aggregate/double_bit/total",
}
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


def _columns(line: str) -> list[str]:
    names = re.findall(r"[a-z][a-z0-9]*", line)
    return names[names.index("gpu") + 1 :]


def _read(block: Block) -> Part:
    columns: list[str] = []
    last: dict[int, dict[str, str]] = {}  # by GPU index: column -> cell of its last sample
    processes: dict[int, dict[int, GpuProcess]] = {}
    hot: set[int] = set()
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
                hot.add(index)
    gpus = {index: with_readings(index, cells, _PATHS) for index, cells in last.items()}
    for index, found in processes.items():
        gpu = gpus.get(index) or Gpu(index, f"unknown-{index}")
        gpus[index] = replace(gpu, processes=tuple(found.values()))
    if not gpus:
        return Part()
    reported = tuple(f"nvidia-smi dmon: thermal violation (tviol) of GPU {index}" for index in sorted(hot))
    return Part(smi=(numbered(gpus, "nvidia-smi dmon"),), reported=reported[:_MOST_NAMED])


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
    return gpu_from(GpuDump(f"unknown-{index}", values), index)


# `nvidia-smi --query-compute-apps=... --format=csv`

_APPS_COLUMN = r"(?:timestamp|gpu_\w{2,10}|pid|process_name|name|used_gpu_memory|used_memory)(?: \[\w{1,4}\])?"
_APPS = re.compile(rf"(?=.*\bpid\b)(?=.*_){_APPS_COLUMN}(?:, ?{_APPS_COLUMN}){{1,8}}\s*$")
_APPS_QUERY = re.compile(r"--query-(?:compute-)?apps[= ][\"']?([a-z_,]{3,200})")
_APPS_ROW = re.compile(
    rf"(?:(?:GPU|MIG)-[\w/-]{{8,80}}|{BUS_ID}|\d{{1,10}}|\d{{4}}/\d\d/\d\d [\d:.]{{8,15}}), .{{1,400}}$"
)


def _read_apps(block: Block) -> Part:
    """The processes by the UUID or bus id of their GPU; without one, which GPU they are on is not known."""
    queried = _APPS_QUERY.search(block.command)
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


MONITOR_READERS: tuple[TextReader, ...] = (
    TextReader(
        "nvidia-smi dmon",
        _BEGIN.match,
        lambda line: _UNITS.match(line) or _SAMPLE.match(line),
        _read,
    ),
    TextReader("nvidia-smi --query-compute-apps", _APPS.match, _APPS_ROW.match, _read_apps, after=_APPS_QUERY.search),
)
