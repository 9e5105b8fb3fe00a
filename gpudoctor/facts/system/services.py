"""Services of this machine, without calling systemd: nvidia-fabricmanager, and the folders that node_exporter reads.

From control groups, unit files, logs and processes.
"""

from __future__ import annotations

import os

import msgspec

from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import FabricManager
from gpudoctor.facts.system.sysfs import AnyPath, list_names, missing_from, present, read_text
from gpudoctor.facts.system.virtualization import container_engine, engine_of
from gpudoctor.lazy import lazy_pattern

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
_STARTED = lazy_pattern(r"Fabric Manager version (\d[\d.]*\d)")
_ERROR = lazy_pattern(r"\[ERROR\]|\[CRITICAL\]|\[FATAL\]")
# comm (15 bytes) -> built-in folder. Debian's package renames the program and builds a folder in;
# others have none: `node_exporter --help`, --collector.textfile.directory
BUILT_IN_BY_COMM = {"node_exporter": "", "prometheus-node": "/var/lib/prometheus/node-exporter"}
_FOLDER, _OFF, _ON = "--collector.textfile.directory", "--no-collector.textfile", "--collector.textfile"
_ALL_OFF = "--collector.disable-defaults"
_MAX_ARGUMENTS = 1 << 14  # any user can start a program of that name


def read_fabric_manager(root: AnyPath) -> FabricManager:
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


def _service(root: AnyPath) -> str | Missing:
    slices = [root / folder for folder in _SLICES if present(root / folder)]
    held = [read_text(folder / UNIT / "cgroup.procs") for folder in slices if present(folder / UNIT)]
    if any(map(known, held)):
        return "active"
    if not slices or container_engine(root) is not None:
        return Missing("the services of this machine are not to be seen here", "absent")
    if unread := [reported for reported in held if isinstance(reported, Missing) and reported.kind != "absent"]:
        return unread[0]
    return "inactive" if any(present(root / folder / UNIT) for folder in _UNIT_FOLDERS) else "not-found"


def _runs_elsewhere(root: AnyPath) -> bool:
    # without the driver's folder for switches there is nothing to run for, and no need to look at every process
    if not present(root / "proc/driver/nvidia-nvswitch"):
        return False
    pids = (name for name in known(list_names(root / "proc")) or () if name.isdecimal())
    return any(read_text(root / "proc" / pid / "comm", 64) == _PROCESS for pid in pids)


def _read_log(path: AnyPath) -> tuple[str | Missing, tuple[str, ...] | Missing]:
    try:
        with open(path, "rb") as file:
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
    reported = _STARTED.search(since[0]) if starts else None
    version = reported[1] if reported else Missing("the log does not tell the version", "absent")
    return version, tuple(line.strip()[:500] for line in since if _ERROR.search(line))[-_MOST_ERRORS:]


class NodeExporter(msgspec.Struct, frozen=True):
    """A running node_exporter and the folders whose .prom files it reads; these may be globs (`/var/lib/*/metrics`)."""

    pid: int
    folders: tuple[str, ...]


def read_node_exporters(root: AnyPath) -> tuple[NodeExporter, ...]:
    """Those in the same file system namespace: not in a container, and readable by this user."""
    found, proc = [], root / "proc"
    for pid in filter(str.isdecimal, known(list_names(proc)) or ()):
        # never read the arguments of other processes: that read blocks while such a process hangs in a driver
        comm = _comm(f"{proc}/{pid}/comm")
        if comm not in BUILT_IN_BY_COMM:
            continue
        cgroups, arguments = read_text(proc / pid / "cgroup"), read_text(proc / pid / "cmdline", _MAX_ARGUMENTS)
        if isinstance(arguments, Missing) or (isinstance(cgroups, str) and engine_of(cgroups)):
            continue
        folders = textfile_folders(arguments.split("\0")[1:], BUILT_IN_BY_COMM[comm])
        if all(folder.startswith("/") for folder in folders):  # others depend on its working directory
            found.append(NodeExporter(int(pid), folders))
    return tuple(found)


def _comm(path: str) -> str:
    """The name of a process; "" if it has ended. Uses bare system calls since a node has thousands of processes."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 64).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def textfile_folders(arguments: list[str], built_in: str) -> tuple[str, ...]:
    """The folders that node_exporter reads with these arguments; `built_in` is its default folder, "" if none."""
    folders: list[str] = []
    is_on = _ALL_OFF not in arguments
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == _FOLDER:
            folders.append(value if equals else "".join(arguments[position + 1 : position + 2]))
        elif argument in (_ON, _OFF):
            is_on = argument == _ON
    return tuple(filter(None, folders or [built_in])) if is_on else ()
