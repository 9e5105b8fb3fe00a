"""The indented text of `nvidia-smi -q`, complete, in part or per topic (-d), drivers 390 to 610."""

from __future__ import annotations

import re
from collections import defaultdict

from msgspec.structs import replace

from gpudoctor.facts.captures import MOST_GPUS, SourceError, clipped
from gpudoctor.facts.captures.nvidia_smi.query_dump import SmiDump, is_selected, smi_dump, unlicensed
from gpudoctor.facts.captures.nvidia_smi.query_gpu import GpuDump
from gpudoctor.facts.captures.nvidia_smi.values import normal_name
from gpudoctor.facts.captures.reader import Block, Part, text_reader
from gpudoctor.facts.nvml.codes import cost_of, errors_in_dump

# The labels of `nvidia-smi -q`. They distinguish a part of a dump from prose, and give the level of a line if the
# indentation is lost. Source: dumps of drivers 390 to 610, and the man page nvidia-smi(1).

HEAD_LABELS = frozenset({"timestamp", "driver_version", "cuda_version", "attached_gpus"})
# sections of a GPU, and the sections inside them
_TOP = """
mig_mode driver_model inforom_version inforom_bbx_object_flush gpu_operation_mode gpu_virtualization_mode
gpu_reset_status ibmnpu pci clocks_throttle_reasons clocks_event_reasons clocks_event_reasons_counters
sparse_operation_mode fb_memory_usage conf_compute_protected_memory_usage bar1_memory_usage utilization
encoder_stats fbc_stats ecc_mode ecc_errors retired_pages remapped_rows temperature power_readings
gpu_power_readings gpu_memory_power_readings module_power_readings power_smoothing workload_power_profiles
clocks applications_clocks default_applications_clocks deferred_clocks max_clocks max_customer_boost_clocks
clock_policy voltage fabric capabilities platform_info processes dram_encryption_mode
vgpu_software_licensed_product grid_licensed_product
"""
_INNER = {
    **dict.fromkeys(("volatile", "aggregate", "aggregate_uncorrectable_sram_sources"), ("ecc_errors",)),
    **dict.fromkeys(("gpu_link_info", "bridge_chip"), ("pci",)),
    **dict.fromkeys(("pcie_generation", "link_width"), ("pci", "gpu_link_info")),
    "bank_remap_availability_histogram": ("remapped_rows",),
    "health": ("fabric",),
}
_SINGLE = """
product_name product_brand product_architecture display_mode display_attached display_active persistence_mode
addressing_mode accounting_mode accounting_mode_buffer_size serial_number gpu_uuid minor_number vbios_version
multigpu_board board_id board_part_number gpu_part_number fru_part_number module_id gsp_firmware_version
fan_speed performance_state gpu_recovery_action compute_mode
"""
# values that occur in one section only: they identify the section if the line with its name is lost
_OF_SECTION = {
    ("temperature",): """gpu_current_temp gpu_t_limit_temp gpu_shutdown_temp gpu_slowdown_temp gpu_max_operating_temp
        memory_current_temp memory_max_operating_temp gpu_shutdown_t_limit_temp gpu_slowdown_t_limit_temp
        gpu_max_operating_t_limit_temp gpu_target_temperature""",
    ("gpu_power_readings",): """power_draw average_power_draw instantaneous_power_draw current_power_limit
        requested_power_limit default_power_limit min_power_limit max_power_limit enforced_power_limit power_limit""",
    ("clocks_event_reasons",): """applications_clocks_setting sw_power_cap hw_slowdown hw_thermal_slowdown sync_boost
        hw_power_brake_slowdown sw_thermal_slowdown display_clock_setting""",
    ("remapped_rows",): "correctable_error uncorrectable_error remapping_failure_occurred",
    ("retired_pages",): "single_bit_ecc double_bit_ecc pending_page_blacklist",
    ("pci",): "replays_since_reset replay_number_rollovers tx_throughput rx_throughput bus_id",
    ("fabric",): "cliqueid clusteruuid",
}

# values that occur in several sections
CHILDREN = frozenset(
    """
graphics sm memory video total used free reserved gpu encoder decoder max current pending device_max device_current
host_max none high partial low sram_correctable sram_uncorrectable sram_uncorrectable_parity
sram_uncorrectable_sec_ded dram_correctable dram_uncorrectable sram_threshold_exceeded idle state status
virtualization_mode process_id type name used_gpu_memory gpu_instance_id compute_instance_id
""".split()  # noqa: SIM905
)

PARENTS: dict[str, tuple[str, ...]] = {
    **_INNER,
    **{name: section for section, names in _OF_SECTION.items() for name in names.split()},
}
SECTIONS = frozenset((*_TOP.split(), *_INNER))
LABELS = frozenset((*_SINGLE.split(), *(name for names in _OF_SECTION.values() for name in names.split())))
# the indent of a section's line, in spaces
INDENTS: dict[str, int] = {
    **dict.fromkeys((*_TOP.split(), *_SINGLE.split()), 4),
    **{name: 4 + 4 * len(parents) for name, parents in _INNER.items()},
}


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
    return _begins(line) or (value is not None and normal_name(label) in LABELS | CHILDREN)


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
    first, *again = _samples(gpus, top.get("attached_gpus", ""))
    cut = bool(gpus) and _cut(gpus)
    dump = smi_dump(top, first, "\n".join(read.outside), cut=cut and gpus[-1] is first[-1], selected=selected)
    more = (smi_dump({}, each, cut=cut and gpus[-1] is each[-1]) for each in again)
    at = dump.collected_at
    return (dump, *(replace(each, collected_at=at, ended=False, sample=n) for n, each in enumerate(more, 1)))


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
        at = 0 if gpu.bus_id or not _UUID.fullmatch(uuid) else sum(_may_be_one(gpu, other) for other in seen[uuid])
        seen[uuid].append(gpu)
        if at == len(samples):
            samples.append([])
        samples[at].append(gpu)
    return samples


def _may_be_one(gpu: GpuDump, other: GpuDump) -> bool:
    """Whether nothing tells two sections of one UUID apart: redaction gives several GPUs one, too."""
    pairs = ((gpu.values.get(name), other.values.get(name)) for name in _OF_ONE_GPU)
    return all(one == two or None in (one, two) for one, two in pairs)


class _Sections:
    """The values of a dump by their sections; `flat`: its indentation is lost. Lines `outside` belong to none."""

    def __init__(self, *, flat: bool) -> None:
        self.top: dict[str, str] = {}
        self.gpus: list[GpuDump] = []
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
        if len(self.gpus) >= MOST_GPUS:
            raise SourceError(f"more than {MOST_GPUS} GPUs: not the dump of one machine")
        self.gpus.append(GpuDump(bus_id))

    @property
    def _named(self) -> bool:
        """Whether a line has named the GPU that is read."""
        return bool(self.gpus) and self.gpus[-1].bus_id != ""

    def _is_of_gpu(self, line: str, indent: int, name: str) -> bool:
        """Whether the line is about the GPU that is read, or a next one, which is opened; closes sections above it."""
        if self._named and indent <= self._base and not self._flat:
            self.outside.append(line)
            self._path = []
            return False
        while self._path and self._path[-1][0] >= indent:
            self._path.pop()
        if not self._path and not self._named:
            if not _begins_part(name):
                self.outside.append(line)
                return False
            if not self.gpus or _again(self.gpus[-1], name):
                self._open_gpu("")
        return True

    def _keep(self, name: str, value: str | None) -> None:
        where = [*PARENTS.get(self._path[0][1], ()), *(step for _, step in self._path)]
        if not self._named and value is not None:
            if _misplaced(name, where[0]):
                where = [*PARENTS[name], name]
            if self.gpus[-1].values.get("/".join(where), value) != value:
                self._open_gpu("")
        _keep(self.gpus[-1], where, value)


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
    if name in INDENTS:
        return INDENTS[name]
    return (path[-1][0] if value is None and path else max((at for at, step in path if step in INDENTS), default=0)) + 4


def _begins_part(name: str) -> bool:
    return name in SECTIONS or name in LABELS or name in PARENTS


def _misplaced(name: str, section: str) -> bool:
    """Whether a value that one kind of section has stands in another: the lines of a fragment have changed places."""
    own = PARENTS.get(name, (section,))[0]
    return own != section and not any(kind in own and kind in section for kind in _SECTION_KINDS)


def _again(gpu: GpuDump, name: str) -> bool:
    """Whether a GPU without a bus id has this section already, so that it must be the next GPU's."""
    start = "/".join([*PARENTS.get(name, ()), name])
    return any(path == start or path.startswith(start + "/") for path in gpu.values)


def _keep(gpu: GpuDump, path: list[str], value: str | None) -> None:
    if path[0] == "mig_device":
        if len(path) == 1 or not gpu.mig_devices:
            gpu.mig_devices.append({})
        if value is not None:
            gpu.mig_devices[-1]["/".join(path[1:])] = value
    elif path[0] == "processes" and len(path) > 1:
        name = path[-1]
        # a process starts with its instance id, or with its pid if the driver prints no instances
        if not gpu.processes or name in gpu.processes[-1]:
            gpu.processes.append({})
        if value is not None:
            gpu.processes[-1][name] = value
        gpu.values.setdefault("processes", "")
    else:
        gpu.values["/".join(path)] = value if value is not None else ""


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
    return Part(smi=dumps, reported=unlicensed(block.text))
