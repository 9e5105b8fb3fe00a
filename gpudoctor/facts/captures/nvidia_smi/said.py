"""Single lines that nvidia-smi says beside its tables: failures of the driver, of a GPU, and of an infoROM."""

from __future__ import annotations

import re

from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.captures.nvidia_smi.query_dump import BUS_ID, SmiDump, init_failure
from gpudoctor.facts.captures.reader import Block, Part
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.node import Driver, short_bus_id

FAILURE = re.compile(
    r"NVIDIA-SMI has failed|NVIDIA-SMI couldn't find|Failed to initialize NVML|No devices were found"
    r"|Unable to determine the device handle for"
)
_BEGIN = re.compile(rf"[^|]{{0,60}}?(?:{FAILURE.pattern})")
_MORE = re.compile(r"\s*NVML library version:|.{0,80}?(?:latest NVIDIA driver is installed|Reboot the system)")
_INFOROM = re.compile(r"\s*(?:WARNING: )?infoROM is corrupted at gpu ", re.IGNORECASE)


def begins_failure(line: str) -> object:
    return _BEGIN.match(line)


def goes_on_failure(line: str) -> object:
    return _MORE.match(line) or _BEGIN.match(line)


def read_failure(block: Block) -> Part:
    failure = init_failure(block.text)
    if failure is None:
        raise SourceError("not an answer of nvidia-smi")
    return Part(smi=(failure,))


def begins_inforom(line: str) -> object:
    return _INFOROM.match(line)


def read_inforom(block: Block) -> Part:
    """The GPUs of "WARNING: infoROM is corrupted at gpu 0008:00:00.0", which follows nvidia-smi's table."""
    bus_ids = sorted({short_bus_id(found.group()) for line in block.lines if (found := BUS_ID.search(line))})
    if not bus_ids:
        raise SourceError("a corrupted infoROM, but no bus id")
    gpus = tuple(Gpu(index, bus_id, inforom_corrupted=True) for index, bus_id in enumerate(bus_ids))
    return Part(smi=(SmiDump(Driver(), gpus, name="nvidia-smi", ended=False),))
