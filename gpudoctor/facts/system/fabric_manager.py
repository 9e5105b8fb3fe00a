"""The service nvidia-fabricmanager, without calling systemd: from its control group, unit file and log."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import FabricManager
from gpudoctor.facts.system.sysfs import missing_from, present, read_text

UNIT = "nvidia-fabricmanager.service"
_LOG = "var/log/fabricmanager.log"
# systemd.unit(5), "Unit File Load Path"
_UNIT_FOLDERS = ("etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
# control groups of version 2, of both versions in parallel, and of version 1
_SLICES = tuple(f"sys/fs/cgroup/{mount}system.slice" for mount in ("", "unified/", "systemd/"))
_MAX_LOG = 1 << 18
_MOST_ERRORS = 20
# the first line after every start; source: Fabric Manager user guide, log file
_STARTED = re.compile(r"Fabric Manager version (\d[\d.]*\d)")
_ERROR = re.compile(r"\[ERROR\]|\[CRITICAL\]|\[FATAL\]")


def read_fabric_manager(root: Path) -> FabricManager:
    """State, version and errors. `service` is active, inactive or not-found; a failed service is inactive too.

    `service` is Missing (absent) if the services of the machine are not visible, as in a container.
    """
    version, errors = _read_log(root / _LOG)
    return FabricManager(service=_service(root), version=version, errors=errors)


def _service(root: Path) -> str | Missing:
    slices = [root / folder for folder in _SLICES if present(root / folder)]
    if not slices:
        return Missing("the services of this machine are not to be seen here", "absent")
    for group in (folder / UNIT for folder in slices):
        if present(group) and read_text(group / "cgroup.procs") != "":
            return "active"
    return "inactive" if any(present(root / folder / UNIT) for folder in _UNIT_FOLDERS) else "not-found"


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
    version: str | Missing = Missing("the log does not tell the version", "absent")
    if starts and (told := _STARTED.search(lines[starts[-1]])):
        version = told[1]
    since = lines[starts[-1] :] if starts else lines
    return version, tuple(line.strip()[:500] for line in since if _ERROR.search(line))[-_MOST_ERRORS:]
