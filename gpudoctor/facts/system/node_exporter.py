"""Which folders the node_exporter of this machine reads metrics from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system.sysfs import list_names, read_text
from gpudoctor.facts.system.virtualization import engine_of

# the name that the kernel keeps is cut to 15 bytes. Debian's package renames the program and builds a folder in;
# elsewhere there is none: `node_exporter --help`, --collector.textfile.directory
BUILT_IN_BY_COMM = {"node_exporter": "", "prometheus-node": "/var/lib/prometheus/node-exporter"}
_FOLDER, _OFF, _ON = "--collector.textfile.directory", "--no-collector.textfile", "--collector.textfile"
_ALL_OFF = "--collector.disable-defaults"
_MAX_ARGUMENTS = 1 << 14  # any user may start a program of that name


class NodeExporter(msgspec.Struct, frozen=True):
    """One that runs: the folders whose .prom files it reads; a name may be a pattern (`/var/lib/*/metrics`)."""

    pid: int
    folders: tuple[str, ...]


def read_node_exporters(root: Path) -> tuple[NodeExporter, ...]:
    """Those that see the folders that this process sees: none of a container, none that may not be asked."""
    return tuple(_running(root / "proc"))


def _running(proc: Path) -> Iterator[NodeExporter]:
    names = list_names(proc)
    for pid in () if isinstance(names, Missing) else filter(str.isdecimal, names):
        # never the arguments of just any process: the kernel makes who asks wait while that one hangs in a driver
        comm = _comm(f"{proc}/{pid}/comm")
        if comm not in BUILT_IN_BY_COMM:
            continue
        cgroups, arguments = read_text(proc / pid / "cgroup"), read_text(proc / pid / "cmdline", _MAX_ARGUMENTS)
        if isinstance(arguments, Missing) or (isinstance(cgroups, str) and engine_of(cgroups)):
            continue
        folders = textfile_folders(arguments.split("\0")[1:], BUILT_IN_BY_COMM[comm])
        if all(folder.startswith("/") for folder in folders):  # others begin where it was started
            yield NodeExporter(int(pid), folders)


def _comm(path: str) -> str:
    """The name of a process; "" if it has ended. A node has thousands: nothing is spent on each that can be spared."""
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
    """The folders that node_exporter reads when it is started so; `built_in` is what it reads by itself."""
    folders: list[str] = []
    is_on = _ALL_OFF not in arguments
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == _FOLDER:
            folders.append(value if equals else "".join(arguments[position + 1 : position + 2]))
        elif argument in (_ON, _OFF):
            is_on = argument == _ON
    return tuple(filter(None, folders or [built_in])) if is_on else ()
