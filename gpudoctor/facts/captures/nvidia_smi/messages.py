"""Single lines that nvidia-smi prints (failures of the driver, of a GPU, of an infoROM); /proc/driver/nvidia."""

from __future__ import annotations

import re

from gpudoctor.facts.captures import BUS_ID, SourceError, clipped
from gpudoctor.facts.captures.nvidia_smi.names import PATHS
from gpudoctor.facts.captures.nvidia_smi.query_dump import SmiDump, init_failure
from gpudoctor.facts.captures.nvidia_smi.query_gpu import GpuDump, GpuDumps, gpu_from
from gpudoctor.facts.captures.nvidia_smi.values import normal_name
from gpudoctor.facts.captures.reader import Block, Part, text_reader
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.node import Driver, short_bus_id

FAILURE = re.compile(
    r"NVIDIA-SMI has failed|NVIDIA-SMI couldn't find|Failed to initialize NVML|No devices were found"
    r"|Unable to determine the device handle for"
)
# in the middle of a sentence only if the driver's words are complete
_BEGIN = re.compile(
    rf"(?!.*\?\W*$)[^|]{{0,60}}?(?:{FAILURE.pattern})"
    rf"|[^|]{{0,400}}(?:Unable to determine the device handle for GPU ?(?:\d{{1,3}}: ?)?{BUS_ID}: \w"
    r"|NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver)"
)
_MORE = re.compile(r"\s*NVML library version:|.{0,80}?(?:latest NVIDIA driver is installed|Reboot the system)")
# in the middle of a sentence only if it quotes the whole message: other words may be about any node
_INFOROM = re.compile(
    rf"(?:\s*(?i:WARNING: )?|[^|]{{1,400}}WARNING: )(?i:infoROM is corrupted at gpu )(?P<bus>{BUS_ID})?"
)
# /proc/driver/nvidia/gpus/BUS/information
_PROC = re.compile(r"Model:\s+\S")
_PROC_BEGIN = re.compile(r"Model:[ \t]+(?:NVIDIA|Tesla|GeForce|Quadro|GRID)\b")
# a GPU that is excluded is "Blacklisted" up to driver 455
_PROC_FIELD = re.compile(
    r"(Model|GPU UUID|Video BIOS|Bus Location|Device Minor|GPU Excluded|Blacklisted):\s+(\S.{0,200})$"
)
_PROC_MORE = re.compile(
    r"(?:Model|IRQ|GPU UUID|Video BIOS|Bus Type|DMA Size|DMA Mask|Bus Location|Device Minor|GPU \w+|Blacklisted):"
)


@text_reader("nvidia-smi message", _BEGIN.match, _MORE.match)
def read_failure(block: Block) -> Part:
    failure = init_failure(block.text)
    if failure is None:
        raise SourceError("not an answer of nvidia-smi")
    return Part(smi=(failure,))


@text_reader("nvidia-smi warning", _INFOROM.match)
def read_inforom(block: Block) -> Part:
    """The GPUs in "WARNING: infoROM is corrupted at gpu 0008:00:00.0", which follows nvidia-smi's table."""
    bus_ids = {short_bus_id(found["bus"]) for found in block.matches(_INFOROM) if found["bus"]}
    if not bus_ids:
        raise SourceError("a corrupted infoROM, but no bus id")
    gpus = tuple(Gpu(index, bus_id, inforom_corrupted=True) for index, bus_id in enumerate(sorted(bus_ids)))
    return Part(smi=(SmiDump(gpus, Driver(), name="nvidia-smi", complete=False),))


@text_reader("/proc/driver/nvidia", _PROC_BEGIN.match, _PROC_MORE.match)
def read_proc(block: Block) -> Part:
    """The GPUs that the kernel module knows; a UUID or version that it has not read yet has "?" in it."""
    dumps, gpu = GpuDumps(), GpuDump()
    for line in block.lines:
        if _PROC.match(line):
            gpu = dumps.at(len(dumps))
        if (field := _PROC_FIELD.match(line)) and "?" not in field[2]:
            name = normal_name(field[1])
            gpu.values[PATHS.get(f"proc.{name}", name)] = clipped(field[2])
    for gpu in dumps.values():
        gpu.bus_id = gpu.values.get("bus_location", "")
    named = [dump for dump in dumps.values() if dump.address]
    if not named:
        return Part()
    excluded = [dump for dump in named if "Yes" in (dump.values.get("gpu_excluded"), dump.values.get("blacklisted"))]
    gpus = tuple(gpu_from(dump, index) for index, dump in enumerate(named) if dump not in excluded)
    # not evidence of a driver that answers: NVML may fail beside it
    driver = Driver(module_loaded=True, excluded_gpus=tuple(dump.address for dump in excluded))
    return Part(smi=(SmiDump(gpus, driver, name="/proc/driver/nvidia", complete=False, only_adds_facts=True),))
