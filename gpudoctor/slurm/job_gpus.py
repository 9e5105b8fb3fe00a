"""The bus ids of a job's GPUs, and whether this machine has any GPU."""

from __future__ import annotations

import re
from pathlib import Path

_NUMBERS = re.compile(r"\d{1,4}(?:,\d{1,4})*")
_MINOR = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)
_BUS = re.compile(r"^Bus Location:\s*(\S+)", re.MULTILINE)
# MIG instances: if there are any, Slurm numbers these, and number 1 may be an instance on GPU 0
_MIG = "proc/driver/nvidia/capabilities/gpu*/mig/gi*"
_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"


def job_gpus(slurm_job_gpus: str, root: Path = Path("/")) -> str | None:
    """SLURM_JOB_GPUS as comma-separated bus ids: Slurm counts device files, whose order need not be the driver's.

    Returned unchanged if the driver lists no GPUs in /proc. None if the GPUs cannot be told (MIG, a device that the
    driver does not know): the whole node is then checked.
    """
    if not _NUMBERS.fullmatch(slurm_job_gpus) or any(root.glob(_MIG)):
        return None
    tree = root / "proc/driver/nvidia/gpus"
    if not tree.is_dir():
        return slurm_job_gpus
    bus_of: dict[str, str] = {}
    for file in tree.glob("*/information"):
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        minor, bus = _MINOR.search(text), _BUS.search(text)
        if minor and bus:
            bus_of[minor[1]] = bus[1]
    wanted = [bus_of.get(number) for number in slurm_job_gpus.split(",")]
    return None if None in wanted else ",".join(bus for bus in wanted if bus)


def has_gpus(root: Path = Path("/")) -> bool:
    """Whether device files or the PCI bus show an NVIDIA GPU. A slurm.conf is shared with nodes that have none."""
    if any(root.glob("dev/nvidia[0-9]*")):
        return True
    return any(
        _word(device / "vendor") == _NVIDIA and _word(device / "class").startswith(_DISPLAY_CLASS)
        for device in root.glob("sys/bus/pci/devices/*")
    )


def _word(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
