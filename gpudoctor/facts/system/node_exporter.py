"""The folders from which this machine's node_exporter reads metrics."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.system.sysfs import list_names, read_text
from gpudoctor.facts.system.virtualization import engine_of

# comm (15 bytes) -> built-in folder. Debian's package renames the program and builds a folder in;
# others have none: `node_exporter --help`, --collector.textfile.directory
BUILT_IN_BY_COMM = {"node_exporter": "", "prometheus-node": "/var/lib/prometheus/node-exporter"}
_FOLDER, _OFF, _ON = "--collector.textfile.directory", "--no-collector.textfile", "--collector.textfile"
_ALL_OFF = "--collector.disable-defaults"
_MAX_ARGUMENTS = 1 << 14  # any user can start a program of that name


class NodeExporter(msgspec.Struct, frozen=True):
    """A running node_exporter and the folders whose .prom files it reads; these may be globs (`/var/lib/*/metrics`)."""

    pid: int
    folders: tuple[str, ...]


def read_node_exporters(root: Path) -> tuple[NodeExporter, ...]:
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
