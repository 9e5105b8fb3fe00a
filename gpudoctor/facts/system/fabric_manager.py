"""The service nvidia-fabricmanager, without calling systemd: from its control group, unit file and log."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import FabricManager
from gpudoctor.facts.system.sysfs import list_names, missing_from, present, read_text
from gpudoctor.facts.system.virtualization import container_engine

UNIT = "nvidia-fabricmanager.service"
_LOG = "var/log/fabricmanager.log"
# systemd.unit(5), "Unit File Load Path"
_UNIT_FOLDERS = ("etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
# control groups of version 2, of both versions in parallel, and of version 1
_SLICES = tuple(f"sys/fs/cgroup/{mount}system.slice" for mount in ("", "unified/", "systemd/"))
# its process, as the kernel cuts the name; GPU Operator runs it in the container of the driver, without systemd
_PROCESS = "nv-fabricmanage"
_MAX_LOG = 1 << 18
_MOST_ERRORS = 20
# the first line after every start; source: Fabric Manager user guide, log file
_STARTED = re.compile(r"Fabric Manager version (\d[\d.]*\d)")
_ERROR = re.compile(r"\[ERROR\]|\[CRITICAL\]|\[FATAL\]")


def read_fabric_manager(root: Path) -> FabricManager:
    """State, version and errors. `service` is active, inactive or not-found; a failed service is inactive too.

    `service` is Missing (absent) if the services of the machine are not visible: a container shows its own, if any.
    One that runs in another container is active, and its log is in there.
    """
    version, errors = _read_log(root / _LOG)
    service = _service(root)
    if service != "active" and _runs_elsewhere(root):
        service = "active"
        version = errors = Missing("the fabric manager runs outside of systemd, with a log of its own", "absent")
    return FabricManager(service=service, version=version, errors=errors)


def _service(root: Path) -> str | Missing:
    slices = [root / folder for folder in _SLICES if present(root / folder)]
    held = [read_text(folder / UNIT / "cgroup.procs") for folder in slices if present(folder / UNIT)]
    if any(map(known, held)):
        return "active"
    if not slices or container_engine(root) is not None:
        return Missing("the services of this machine are not to be seen here", "absent")
    if unread := [told for told in held if isinstance(told, Missing) and told.kind != "absent"]:
        return unread[0]
    return "inactive" if any(present(root / folder / UNIT) for folder in _UNIT_FOLDERS) else "not-found"


def _runs_elsewhere(root: Path) -> bool:
    # without the driver's folder for switches there is nothing to run for, and no need to look at every process
    if not present(root / "proc/driver/nvidia-nvswitch"):
        return False
    pids = (name for name in known(list_names(root / "proc")) or () if name.isdecimal())
    return any(read_text(root / "proc" / pid / "comm", 64) == _PROCESS for pid in pids)


def _read_log(path: Path) -> tuple[str | Missing, tuple[str, ...] | Missing]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _MAX_LOG))
            text = file.read(_MAX_LOG).decode("utf-8", "replace")
    except OSError as error:
        missing = missing_from(error, f"/{_LOG}")
        return missing, missing
    return parse_fabric_manager_log(text)


def parse_fabric_manager_log(text: str) -> tuple[str | Missing, tuple[str, ...]]:
    """The version that was started last, and the last errors since then."""
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if _STARTED.search(line)]
    since = lines[starts[-1] :] if starts else lines
    told = _STARTED.search(since[0]) if starts else None
    version = told[1] if told else Missing("the log does not tell the version", "absent")
    return version, tuple(line.strip()[:500] for line in since if _ERROR.search(line))[-_MOST_ERRORS:]
