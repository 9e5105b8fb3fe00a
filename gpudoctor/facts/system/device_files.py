"""Which of the machine's GPUs a device cgroup or a file's mode keeps from this process."""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import short_bus_id
from gpudoctor.facts.system.pci import BUS_ID
from gpudoctor.facts.system.sysfs import key_values, list_names, present, read_text

_GPUS = "proc/driver/nvidia/gpus"


def read_driven_gpus(root: Path) -> tuple[str, ...] | Missing:
    """Bus ids of the GPUs that the kernel module drives, whether it shows them or not."""
    names = list_names(root / _GPUS)
    if isinstance(names, Missing):
        return names
    return tuple(short_bus_id(name) for name in names if BUS_ID.fullmatch(name.lower()))


def read_denied_gpus(root: Path, shown: Container[str]) -> tuple[str, ...] | Missing:
    """Bus ids of GPUs that the kernel module drives, are not `shown`, and whose /dev/nvidiaN may not be opened.

    access(2) asks for permission only, the control group's included, and never opens the file: that would
    start the GPU, or hang on a broken one. The kernel module may take its locks to write `information`, so
    this belongs into the collector process.
    """
    names = list_names(root / _GPUS)
    if isinstance(names, Missing):
        return names
    denied = []
    for name in names:
        bus_id = short_bus_id(name) if name.count(":") == 2 else name
        if bus_id in shown:
            continue
        text = read_text(root / _GPUS / name / "information")
        minor = "" if isinstance(text, Missing) else key_values(text).get("Device Minor", "")
        file = root / "dev" / f"nvidia{minor}"
        # the driver's library opens it for both
        if minor.isdecimal() and present(file) and not os.access(file, os.R_OK | os.W_OK):
            denied.append(bus_id)
    return tuple(denied)
