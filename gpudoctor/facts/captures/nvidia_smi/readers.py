"""The readers of nvidia-smi's output, in the order in which they are tried on a line."""

from __future__ import annotations

import re

from gpudoctor.facts.captures import BUS_ID, MOST_GPUS, SourceError, clipped
from gpudoctor.facts.captures.nvidia_smi.monitor import MONITOR_READERS
from gpudoctor.facts.captures.nvidia_smi.nvlink import (
    begins_gpu_list,
    goes_on_gpu_list,
    parse_gpu_list,
    parse_nvlink,
    shows_links,
)
from gpudoctor.facts.captures.nvidia_smi.query_csv import begins_csv, goes_on_csv, parse_csv, query_of
from gpudoctor.facts.captures.nvidia_smi.query_dump import SmiDump, init_failure
from gpudoctor.facts.captures.nvidia_smi.query_gpu import GpuDump, gpu_from
from gpudoctor.facts.captures.nvidia_smi.query_text import (
    begins_smi_text,
    goes_on_smi_text,
    parse_smi_text,
    restarts_smi_text,
)
from gpudoctor.facts.captures.nvidia_smi.query_xml import parse_smi_xml
from gpudoctor.facts.captures.nvidia_smi.table import begins_table, goes_on_table, parse_table, restarts_table
from gpudoctor.facts.captures.nvidia_smi.topology import (
    begins_matrix,
    goes_on_matrix,
    is_p2p,
    parse_p2p,
    parse_topology,
)
from gpudoctor.facts.captures.reader import Block, Part, TextReader
from gpudoctor.facts.captures.recognise import FAILURE
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.node import Driver, short_bus_id

# Single lines that nvidia-smi prints besides its tables: failures of the driver, of a GPU, and of an infoROM.

# in the middle of a sentence only if the driver's words are complete
_BEGIN = re.compile(
    rf"[^|]{{0,60}}?(?:{FAILURE.pattern})"
    rf"|[^|]{{0,400}}Unable to determine the device handle for GPU ?(?:\d{{1,3}}: ?)?{BUS_ID}: \w"
)
_MORE = re.compile(r"\s*NVML library version:|.{0,80}?(?:latest NVIDIA driver is installed|Reboot the system)")
_INFOROM = re.compile(r"\s*(?:WARNING: )?infoROM is corrupted at gpu ", re.IGNORECASE)


def _goes_on_failure(line: str) -> object:
    return _MORE.match(line) or _BEGIN.match(line)


def _failure(block: Block) -> Part:
    failure = init_failure(block.text)
    if failure is None:
        raise SourceError("not an answer of nvidia-smi")
    return Part(smi=(failure,))


def _inforom(block: Block) -> Part:
    """The GPUs in "WARNING: infoROM is corrupted at gpu 0008:00:00.0", which follows nvidia-smi's table."""
    bus_ids = sorted({short_bus_id(found.group()) for line in block.lines if (found := re.search(BUS_ID, line))})
    if not bus_ids:
        raise SourceError("a corrupted infoROM, but no bus id")
    gpus = tuple(Gpu(index, bus_id, inforom_corrupted=True) for index, bus_id in enumerate(bus_ids))
    return Part(smi=(SmiDump(Driver(), gpus, name="nvidia-smi", ended=False),))


# /proc/driver/nvidia/gpus/BUS/information
_PROC = re.compile(r"Model:\s+\S")
_PROC_BEGIN = re.compile(r"Model:[ \t]+(?:NVIDIA|Tesla|GeForce|Quadro|GRID)\b")
_PROC_FIELD = re.compile(r"(Model|GPU UUID|Video BIOS|Bus Location|Device Minor):\s+(\S.{0,200})$")
_PROC_EXCLUDED = re.compile(r"(?:GPU Excluded|Blacklisted):\s+Yes\b")  # the second up to driver 455
_PROC_MORE = re.compile(
    r"(?:Model|IRQ|GPU UUID|Video BIOS|Bus Type|DMA Size|DMA Mask|Bus Location|Device Minor|GPU \w+|Blacklisted):"
)
_PROC_PATHS = {
    "Model": "product_name",
    "GPU UUID": "uuid",
    "Video BIOS": "vbios_version",
    "Device Minor": "minor_number",
    "Bus Location": "",
}


def _proc(block: Block) -> Part:
    """The GPUs that the kernel module knows; a UUID or version that it has not read yet has "?" in it."""
    found: list[GpuDump] = []
    excluded: list[GpuDump] = []
    for line in block.lines:
        if _PROC.match(line) and len(found) < MOST_GPUS:
            found.append(GpuDump("", {}))
        if found and _PROC_EXCLUDED.match(line):
            excluded.append(found[-1])
        if not found or (field := _PROC_FIELD.match(line)) is None or "?" in field[2]:
            continue
        if field[1] == "Bus Location":
            found[-1].bus_id = short_bus_id(field[2]) if re.fullmatch(BUS_ID, field[2]) else ""
        else:
            found[-1].values[_PROC_PATHS[field[1]]] = clipped(field[2])
    named = [dump for dump in found if dump.bus_id]
    if not named:
        return Part()
    gpus = tuple(gpu_from(dump, index) for index, dump in enumerate(named) if dump not in excluded)
    # not evidence of a driver that answers: NVML may fail beside it
    driver = Driver(module_loaded=True, excluded_gpus=tuple(dump.bus_id for dump in named if dump in excluded))
    return Part(smi=(SmiDump(driver, gpus, name="/proc/driver/nvidia", ended=False, beside=True),))


_XML = re.compile(r"\s*<(?:\?xml|!DOCTYPE nvidia_smi_log|nvidia_smi_log[\s>])")
_XML_ROOT = re.compile(r"\s*<nvidia_smi_log[\s>]")
_XML_END = "</nvidia_smi_log>"
_LICENCE = re.compile(
    r"(?P<gpu>GPU [0-9a-fA-F]{4,8}:|<gpu id=)"
    r"|(?:Virtualization Mode\s{0,80}:|<virtualization_mode>)\s{0,8}(?P<mode>[\w/-]{1,40})"
    r"|(?:License Status\s{0,80}:\s|<license_status>\s{0,8})\s{0,8}(?P<none>Unlicensed|Expired)\b"
)
_NOT_VGPU = ("NONE", "PASS-THROUGH", "HOST")
_SELECTED = re.compile(r" (?:-i|--id)[ =]?\d")
_WRITES = re.compile(r"p2p(?:_?status)?[-_ =]?w|write", re.IGNORECASE)
# `topo -p2p` (or --p2pstatus) with n (NVLink), a (atomics) or p (prop) prints the same words for other capabilities
_NO_ACCESS = re.compile(r"p2p(?:_?status)?[-_ =]{1,3}[nap]\b", re.IGNORECASE)


def _selected(block: Block) -> bool:
    return _SELECTED.search(block.command) is not None


def _xml(block: Block) -> Part:
    return Part(smi=(parse_smi_xml(block.text, selected=_selected(block)),), reported=_unlicensed(block.text))


def _text(block: Block) -> Part:
    dump = parse_smi_text(block.text, whole_end=block.whole_end, selected=_selected(block))
    return Part(smi=(dump,), reported=_unlicensed(block.text))


def _unlicensed(text: str) -> tuple[str, ...]:
    """That a vGPU has no licence: its driver slows it down then. Source: Virtual GPU Client Licensing User Guide.

    A GPU whose mode is not that of a vGPU shows the same line, and needs no licence.
    """
    status, mode = "", ""
    for found in (*_LICENCE.finditer(text), None):
        if found is None or found["gpu"]:
            if status and not mode.startswith(_NOT_VGPU):
                return (f"nvidia-smi: vGPU licence status {status}: the driver slows it down",)
            status, mode = "", ""
        else:
            mode, status = (found["mode"] or mode).upper(), found["none"] or status
    return ()


def _table(block: Block) -> Part:
    return Part(smi=parse_table(block.text, whole_end=block.whole_end))


def _csv(block: Block) -> Part:
    return Part(smi=(parse_csv(block.lines, block.command, whole_end=block.whole_end),))


def _matrix(block: Block) -> Part:
    text = block.text
    if not is_p2p(text):
        return Part(topology=parse_topology(text))
    # the matrix itself does not show whether it is about reads or writes
    shown_by = block.command if "p2p" in block.command else block.file
    if _NO_ACCESS.search(shown_by):
        return Part(notes=("nvidia-smi topo -p2p: neither for reads (r) nor for writes (w), and not used",))
    writes = _WRITES.search(shown_by)
    return Part(p2p={"p2p_write" if writes else "p2p_read": parse_p2p(text)})


def _gpu_list(block: Block) -> Part:
    text = block.text
    if shows_links(text, block.command):
        links = tuple(parse_nvlink(text, whole_end=block.whole_end))
        return Part(links=links, notes=tuple(gpu.cut for gpu in links if gpu.cut))
    return Part(smi=(parse_gpu_list(text),))


NVIDIA_SMI_READERS: tuple[TextReader, ...] = (
    TextReader(
        "nvidia-smi -q -x", _XML.match, _XML.match, _xml, restarts=_XML_ROOT.match, until=lambda s: _XML_END in s
    ),
    TextReader("nvidia-smi message", _BEGIN.match, _goes_on_failure, _failure),
    TextReader("nvidia-smi warning", _INFOROM.match, _INFOROM.match, _inforom),
    TextReader("nvidia-smi", begins_table, goes_on_table, _table, restarts=restarts_table),
    TextReader("nvidia-smi -L or nvlink", begins_gpu_list, goes_on_gpu_list, _gpu_list),
    TextReader("nvidia-smi topo", begins_matrix, goes_on_matrix, _matrix, restarts=begins_matrix),
    TextReader("nvidia-smi -q", begins_smi_text, goes_on_smi_text, _text, restarts=restarts_smi_text),
    TextReader("nvidia-smi --query-gpu", begins_csv, goes_on_csv, _csv, after=query_of, restarts=begins_csv),
    *MONITOR_READERS,
    TextReader("/proc/driver/nvidia", _PROC_BEGIN.match, _PROC_MORE.match, _proc),
)
