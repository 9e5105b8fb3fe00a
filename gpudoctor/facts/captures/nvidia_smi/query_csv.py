"""`nvidia-smi --query-gpu=... --format=csv` with any columns, with or without header and units."""

from __future__ import annotations

import csv
import re
from itertools import zip_longest

from msgspec.structs import replace

from gpudoctor.facts.captures import BUS_ID, MOST_GPUS, SourceError, clipped
from gpudoctor.facts.captures.nvidia_smi.query_dump import (
    ANSWERED,
    SmiDump,
    count_by_index,
    is_selected,
    marked_as_cut,
)
from gpudoctor.facts.captures.nvidia_smi.query_gpu import GpuDump, gpu_from
from gpudoctor.facts.captures.nvidia_smi.values import missing_word
from gpudoctor.facts.captures.reader import Block, Part, text_reader
from gpudoctor.facts.model.gpu import EVENT_REASONS, Gpu
from gpudoctor.facts.model.missing import NOT_READ, Missing
from gpudoctor.facts.model.node import short_bus_id

NAME = "nvidia-smi --query-gpu"
_QUERY = re.compile(r"--query-gpu[= ][\"']?([A-Za-z0-9_.,]+)")
_COLUMN = re.compile(r" *([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*)(?: \[[\w/%]{1,8}\])? *$")
_ROW = re.compile(
    r"(?=[^,]{0,2000},)(?:[\w.]|\[(?:N/A|Not |Unknown|Insufficient|GPU |Requested))[\w \[\]/.:%!+\-()*\"',]{0,2000}$"
)
# field -> path of the same value in nvidia-smi -q; source: `nvidia-smi --help-query-gpu`, drivers 390 to 610
_SAME = (
    *("uuid", "serial", "vbios_version", "pci.device_id", "persistence_mode", "addressing_mode", "display_active"),
    *("compute_mode", "driver_model.current", "utilization.gpu", "utilization.memory", "retired_pages.pending"),
    *("remapped_rows.pending", "fabric.state", "fabric.status", "gpu_recovery_action"),
)
_PATHS = {
    **{name: name.replace(".", "/") for name in _SAME},
    "name": "product_name",
    "gpu_name": "product_name",
    "gpu_uuid": "uuid",
    "gpu_serial": "serial",
    "pci.sub_device_id": "pci/sub_system_id",
    "fan.speed": "fan_speed",
    "pstate": "performance_state",
    "mig.mode.current": "mig_mode/current",
    "mig.mode.pending": "mig_mode/pending",
    "memory.total": "fb_memory_usage/total",
    "memory.reserved": "fb_memory_usage/reserved",
    "memory.used": "fb_memory_usage/used",
    "memory.free": "fb_memory_usage/free",
    "ecc.mode.current": "ecc_mode/current",
    "ecc.mode.pending": "ecc_mode/pending",
    "retired_pages.single_bit_ecc.count": "retired_pages/single_bit_ecc",
    "retired_pages.sbe": "retired_pages/single_bit_ecc",
    "retired_pages.double_bit.count": "retired_pages/double_bit_ecc",
    "retired_pages.dbe": "retired_pages/double_bit_ecc",
    "remapped_rows.correctable": "remapped_rows/correctable_error",
    "remapped_rows.uncorrectable": "remapped_rows/uncorrectable_error",
    "remapped_rows.failure": "remapped_rows/remapping_failure_occurred",
    "temperature.gpu": "temperature/gpu_current_temp",
    "temperature.gpu.tlimit": "temperature/gpu_t_limit_temp",
    "temperature.memory": "temperature/memory_current_temp",
    "power.draw": "power_readings/power_draw",
    "power.draw.average": "power_readings/average_power_draw",
    "power.draw.instant": "power_readings/instantaneous_power_draw",
    "power.limit": "power_readings/power_limit",
    "enforced.power.limit": "power_readings/enforced_power_limit",
    "power.default_limit": "power_readings/default_power_limit",
    "power.min_limit": "power_readings/min_power_limit",
    "power.max_limit": "power_readings/max_power_limit",
    "pcie.link.gen.current": "pci/gpu_link_info/pcie_generation/current",
    "pcie.link.gen.gpucurrent": "pci/gpu_link_info/pcie_generation/current",
    "pcie.link.gen.max": "pci/gpu_link_info/pcie_generation/max",
    "pcie.link.gen.gpumax": "pci/gpu_link_info/pcie_generation/device_max",
    "pcie.link.gen.hostmax": "pci/gpu_link_info/pcie_generation/host_max",
    "pcie.link.width.current": "pci/gpu_link_info/link_width/current",
    "pcie.link.width.max": "pci/gpu_link_info/link_width/max",
    "reset_status.reset_required": "gpu_reset_status/reset_required",
    "reset_status.drain_and_reset_recommended": "gpu_reset_status/drain_and_reset_recommended",
}
for _spare in ("max", "high", "partial", "low", "none"):
    _PATHS[f"remapped_rows.histogram.{_spare}"] = f"remapped_rows/bank_remap_availability_histogram/{_spare}"
# each clock has a long and a short name
for _section, _long, _short in (
    ("clocks", "clocks.current", "clocks"),
    ("max_clocks", "clocks.max", "clocks.max"),
    ("applications_clocks", "clocks.applications", "clocks.applications"),
    ("default_applications_clocks", "clocks.default_applications", "clocks.default_applications"),
):
    for _clock, _abbreviation in (("graphics", "gr"), ("sm", "sm"), ("memory", "mem")):
        _PATHS[f"{_long}.{_clock}"] = _PATHS[f"{_short}.{_abbreviation}"] = f"{_section}/{_clock}"
_ECC = re.compile(r"ecc\.errors\.(corrected|uncorrected)\.(volatile|aggregate)\.(\w+)$")
# these parts add up to the total; registers, caches and textures are SRAM
_ECC_NAMES = {
    "corrected": {"total": "single_bit/total", "sram": "sram_correctable", "dram": "dram_correctable"},
    "uncorrected": {"total": "double_bit/total", "sram": "sram_uncorrectable", "dram": "dram_uncorrectable"},
}
_REASON = re.compile(r"clocks_(?:throttle|event)_reasons\.(\w+)$")
_NO_REASONS = ("supported", "active")
_OTHER = frozenset(
    {"timestamp", "driver_version", "count", "index", "pci.bus_id", "gpu_bus_id", "pci.bus", "pci.device", "pci.domain"}
)
_BROKEN_ROW = Missing("its row could not be read", "failed")
# --query-remapped-rows prints some flags as 0 or 1
_NUMBERED_FLAGS = ("remapped_rows.pending", "remapped_rows.failure")
_YES_NO = {"0": "No", "1": "Yes"}
_COUNTED = ("ecc_errors/", "retired_pages/", "remapped_rows/correctable", "remapped_rows/uncorrectable")


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
    return name in _PATHS or name in _OTHER or bool(_ECC.match(name) or _REASON.match(name))


class _Rows:
    """The rows of a table read so far: one GPU each, and of a GPU with several rows (-l) the last one.

    Of its counters the highest one: they do not decrease.
    """

    def __init__(self, columns: list[str]) -> None:
        self.columns = columns
        self.notes: list[str] = []
        self.of_driver: dict[str, str] = {}
        self._dumps: dict[str, GpuDump] = {}
        self._indices: dict[str, int] = {}
        self._unread: set[str] = set()
        self._last: str | None = None

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
        bus_id = next((values[name] for name in ("pci.bus_id", "gpu_bus_id") if name in values), "")
        index = values.get("index", "")
        known_as = (index, bus_id, values.get("uuid"), values.get("gpu_uuid"))
        identity = next(filter(None, known_as), f"row {len(self._dumps)}")
        if len(self._dumps) >= MOST_GPUS and identity not in self._dumps:
            raise SourceError(f"more than {MOST_GPUS} GPUs: not those of one machine")
        bus_id = short_bus_id(bus_id) if re.fullmatch(BUS_ID, bus_id) else ""
        order = self._indices.get(identity, len(self._dumps))
        self._indices[identity] = int(index) if index.isdecimal() and len(index) < 5 else order
        paths = _paths(values)
        if (before := self._dumps.get(identity)) is not None:
            if bus_id and before.bus_id and bus_id != before.bus_id:
                raise SourceError(
                    f"GPU {identity} is {before.bus_id} in one row and {bus_id} in another: keep those of one machine"
                )
            paths |= _higher_counters(before.values, paths)
        self._dumps[identity] = GpuDump(bus_id, paths, lists_mig=False)
        self._last = identity
        self._unread.discard(identity)
        if len(cells) != len(self.columns) and len(values) < len(self.columns):
            self._unread.add(identity)
            self.notes.append(f"{counted} could not be read")
        self.of_driver |= {name: values[name] for name in ("driver_version", "count") if name in values}

    def gpus(self, *, last_is_cut: bool) -> tuple[Gpu, ...]:
        """A GPU whose row could not be read, or was cut, lacks what a whole row has."""
        gpus = {
            identity: replace(gpu_from(dump, index), bus_id=dump.bus_id or f"unknown-{index}")
            for (identity, dump), index in zip(self._dumps.items(), self._indices.values(), strict=True)
        }
        whole = next((gpu for key, gpu in gpus.items() if key not in self._unread and key != self._last), None)
        for identity in self._unread:
            gpus[identity] = marked_as_cut(gpus[identity], whole, _BROKEN_ROW)
        if last_is_cut and self._last is not None:
            gpus[self._last] = marked_as_cut(gpus[self._last], whole)
            self.notes.append("the last line has no end: its last cell was not read")
        return tuple(sorted(gpus.values(), key=lambda gpu: gpu.bus_id))


def _higher_counters(before: dict[str, str], now: dict[str, str]) -> dict[str, str]:
    return {
        path: text
        for path, text in before.items()
        if path.startswith(_COUNTED)
        and text.isdecimal()
        and now.get(path, "").isdecimal()
        and int(text) > int(now[path])
    }


@text_reader(NAME, _begins, _ROW.match, after=_QUERY.pattern, restarts=_begins)
def read_query(block: Block) -> Part:
    """The GPUs in the rows. Raise SourceError if neither a header nor the command names the columns.

    A row with another number of cells is a GPU that could not be read. Indices with a gap show that rows are missing.
    """
    try:
        table = [row for row in csv.reader(line for line in block.lines if line) if row]
    except csv.Error as error:  # a cell of more than 128 KiB
        raise SourceError(f"no CSV of nvidia-smi: {error}") from None
    rows = _Rows(_columns(table, block.command))
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
    return Part(smi=(SmiDump(gpus, driver, notes=tuple(dict.fromkeys(rows.notes)), name=NAME, indexed=indexed),))


def _columns(rows: list[list[str]], command: str) -> list[str]:
    """The columns' names: those of the header, which is taken from the rows, or of the command. Raise SourceError."""
    if rows and _begins(",".join(rows[0])):
        return [(_COLUMN.match(cell) or [cell, cell])[1] for cell in rows.pop(0)]
    queried = _QUERY.search(command)
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


def _paths(values: dict[str, str]) -> dict[str, str]:
    """The values of a row by their paths in nvidia-smi -q."""
    made: dict[str, str] = {}
    for name, text in values.items():
        if name in _PATHS:
            made[_PATHS[name]] = _YES_NO.get(text, text) if name in _NUMBERED_FLAGS else text
        elif ecc := _ECC.match(name):
            path = _ECC_NAMES[ecc[1]].get(ecc[3])
            total = f"ecc.errors.{ecc[1]}.{ecc[2]}.total" in values
            if path is not None and (ecc[3] == "total" or not total or ecc[3] == "sram"):
                made[f"ecc_errors/{ecc[2]}/{path}"] = text
        elif (reason := _REASON.match(name)) and reason[1] not in _NO_REASONS:
            made[f"clocks_event_reasons/{reason[1]}"] = text
        elif reason and reason[1] == "active":
            made.update(_reasons(text))
    _total_without_sram(made)
    return made


def _total_without_sram(made: dict[str, str]) -> None:
    """Subtract the SRAM count from the total, because the reader of -q adds the two."""
    for scope in ("volatile", "aggregate"):
        for kind, part in (("double_bit/total", "sram_uncorrectable"), ("single_bit/total", "sram_correctable")):
            total, sram = made.get(f"ecc_errors/{scope}/{kind}", ""), made.get(f"ecc_errors/{scope}/{part}", "")
            if total.isdecimal() and sram.isdecimal():
                made[f"ecc_errors/{scope}/{kind}"] = str(max(0, int(total[:18]) - int(sram[:18])))


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
