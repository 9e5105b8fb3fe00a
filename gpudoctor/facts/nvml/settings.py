"""Identity, settings, processes and CPU affinity of a GPU, read from NVML."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from contextlib import suppress
from ctypes import byref, c_uint
from functools import lru_cache
from threading import Thread
from typing import Any

from gpudoctor.facts.model.gpu import GpuProcess, MigInstance, Settings
from gpudoctor.facts.model.missing import UNSUPPORTED, Missing, if_known, known
from gpudoctor.facts.nvml import codes
from gpudoctor.facts.nvml.client import DriverError, NvmlClient, in_range
from gpudoctor.facts.nvml.memory_health import flag
from gpudoctor.facts.system.sysfs import AnyPath, format_cpu_list, key_values, read_int, read_text

_MASK_BITS = 64
_MASK_WORDS = 64  # 4096 CPUs
_NODE_SCOPE = 0
_MAX_MIG_INSTANCES = 16
_NO_INSTANCE = (2, 6)  # invalid argument, not found: this slot is empty
_LARGE_PROCESS_SINCE, _LARGE_PROCESS_UNTIL = (535, 43), (535, 87)
_NAME_LOOKUP_S = 0.5
# comm is cut at 15 characters
_COMM_LENGTH = 15


def read_identity(client: NvmlClient, root: AnyPath, bus_id: str) -> dict[str, Any]:
    """The leaves of `Gpu` that identify the board, by name."""
    capability = client.ask("nvmlDeviceGetCudaComputeCapability")
    return {
        "uuid": client.ask("nvmlDeviceGetUUID"),
        "name": client.ask("nvmlDeviceGetName"),
        "brand": codes.word(client.ask("nvmlDeviceGetBrand"), codes.BRANDS),
        "architecture": codes.word(client.ask("nvmlDeviceGetArchitecture"), codes.ARCHITECTURES),
        "compute_capability": capability if isinstance(capability, Missing) else "{}.{}".format(*capability),
        "serial": client.ask("nvmlDeviceGetSerial"),
        "vbios": client.ask("nvmlDeviceGetVbiosVersion"),
        "board_part_number": client.ask("nvmlDeviceGetBoardPartNumber"),
        "module_id": _module_id(client),
        "minor_number": _minor_number(client, root, bus_id),
    }


def _module_id(client: NvmlClient) -> int | Missing:
    """Passes its own number by reference, because pynvml's default argument is shared between threads.

    With a reference every pynvml returns NVML's return code; before 12.570 it requires one.
    """
    call, reported = "nvmlDeviceGetModuleId", c_uint()
    code = client.ask(call, byref(reported))
    if isinstance(code, Missing):
        return code
    if code:
        error = DriverError(call, int(code), codes.error_word(int(code)))
        client.note(error)
        return error.missing
    return in_range(reported.value, 0, 4096, call)


def _minor_number(client: NvmlClient, root: AnyPath, bus_id: str) -> int | Missing:
    """From /proc if possible, which costs no driver call: "Device Minor: 	 0"."""
    text = read_text(root / "proc/driver/nvidia/gpus" / bus_id / "information")
    minor = "" if isinstance(text, Missing) else key_values(text).get("Device Minor", "")
    return int(minor) if minor.isdecimal() else client.number(0, 4096, "nvmlDeviceGetMinorNumber")


def read_settings(client: NvmlClient, confidential: bool | Missing) -> Settings:
    """Modes of the GPU; MIG instances cost five calls each and are read only if MIG is on."""
    mig = client.ask("nvmlDeviceGetMigMode")
    now, later = (mig, mig) if isinstance(mig, Missing) else mig
    enabled = flag(now, "nvmlDeviceGetMigMode")
    instances: tuple[MigInstance, ...] | Missing = enabled if isinstance(enabled, Missing) else ()
    if enabled is True:
        instances = _mig_instances(client)

    def mode(call: str, labels: Mapping[int, str]) -> Any:
        return codes.known_word(client.ask(call), labels, call)

    def is_on(call: str) -> bool | Missing:
        return flag(client.ask(call), call)

    return Settings(
        persistence=is_on("nvmlDeviceGetPersistenceMode"),
        compute_mode=mode("nvmlDeviceGetComputeMode", codes.COMPUTE_MODES),
        mig_enabled=enabled,
        mig_pending=flag(later, "nvmlDeviceGetMigMode"),
        mig_instances=instances,
        display_attached=is_on("nvmlDeviceGetDisplayMode"),
        display_active=is_on("nvmlDeviceGetDisplayActive"),
        addressing_mode=codes.word(client.ask("nvmlDeviceGetAddressingMode"), codes.ADDRESSING),
        virtualization=mode("nvmlDeviceGetVirtualizationMode", codes.VIRTUALIZATION),
        confidential_compute=confidential,
    )


def _mig_instances(client: NvmlClient) -> tuple[MigInstance, ...] | Missing:
    count = client.number(0, _MAX_MIG_INSTANCES, "nvmlDeviceGetMaxMigDeviceCount")
    if isinstance(count, Missing):
        return count
    found = []
    refused: Missing | None = None
    for place in range(count):
        try:
            handle = client.call("nvmlDeviceGetMigDeviceHandleByIndex", client.handle, place)
        except DriverError as error:
            if error.code not in _NO_INSTANCE:
                client.note(error)
                refused = error.missing
            continue
        found.append(_mig_instance(client, handle))
    return refused if refused is not None and not found else tuple(found)


def _mig_instance(client: NvmlClient, handle: Any) -> MigInstance:
    name = client.ask_of(handle, "nvmlDeviceGetName")
    attributes = client.ask_of(handle, "nvmlDeviceGetAttributes_v2")
    return MigInstance(
        uuid=client.ask_of(handle, "nvmlDeviceGetUUID"),
        # "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
        profile=if_known(name, lambda text: str(text.rpartition("MIG ")[2])),
        gpu_instance=client.ask_of(handle, "nvmlDeviceGetGpuInstanceId"),
        compute_instance=client.ask_of(handle, "nvmlDeviceGetComputeInstanceId"),
        memory_mib=if_known(attributes, lambda read: int(read.memorySizeMB)),
    )


def read_processes(
    client: NvmlClient, root: AnyPath, own_pid: int, driver: tuple[int, ...]
) -> tuple[GpuProcess, ...] | Missing:
    """Processes by pid; names and users from /proc. MPS clients are read only if an MPS server is seen."""
    compute = running(client, "Compute", driver)
    if isinstance(compute, Missing):
        return compute
    graphics = running(client, "Graphics", driver)
    lists = {"C": compute, "G": {} if isinstance(graphics, Missing) else graphics}
    names = {pid: process_name(root, pid) for pids in lists.values() for pid in pids}
    if any(map(is_mps_server, names.values())):
        clients = running(client, "MPSCompute", driver)
        lists["M"] = {} if isinstance(clients, Missing) else clients
        names |= {pid: process_name(root, pid) for pid in lists["M"]}
    return tuple(
        GpuProcess(pid, names[pid], kind, memory_mib, _user(root, pid), own_pid in _ancestors(root, pid))
        for pid, kind, memory_mib in joined_kinds(lists)
    )


def joined_kinds(lists: Mapping[str, Mapping[int, int | Missing]]) -> list[tuple[int, str, int | Missing]]:
    """Each pid of the lists by kind (C, G, M), in numeric order, with its kinds ("C+G") and its memory in MiB."""
    found = []
    for pid in sorted({pid for pids in lists.values() for pid in pids}):
        own = {kind: pids[pid] for kind, pids in lists.items() if pid in pids}
        found.append((pid, "+".join(own), next(iter(own.values()))))
    return found


def is_mps_server(name: str | Missing) -> bool:
    """Whether a process of this name is the MPS server, which shares the GPU among its clients."""
    return isinstance(name, str) and name.startswith("nvidia-cuda-mps")


def running(client: NvmlClient, kind: str, driver: tuple[int, ...]) -> dict[int, int | Missing] | Missing:
    """Memory in MiB of each process (pid) of a kind: Compute, Graphics, MPSCompute."""
    # never the name without a version: pynvml raises another kind of error for it
    call = f"nvmlDeviceGet{kind}RunningProcesses"
    # these drivers fill 32 bytes a process where all others, and the binding, have 24; _v2 has 24 everywhere
    # (nvitop, libnvml.py, finds them by their functions)
    newest = () if _LARGE_PROCESS_SINCE <= driver < _LARGE_PROCESS_UNTIL else (f"{call}_v3",)
    answer = client.first(*newest, f"{call}_v2")
    if isinstance(answer, Missing):
        return answer
    found: dict[int, int | Missing] = {}
    for process in answer:
        used = UNSUPPORTED if process.usedGpuMemory is None else in_range(process.usedGpuMemory, 0, 1 << 62, call)
        found[int(process.pid)] = if_known(used, lambda used_bytes: int(used_bytes) >> 20)
    return found


def process_name(root: AnyPath, pid: int) -> str | Missing:
    """The name of the process's program, from its command line if the kernel truncated it."""
    folder = root / "proc" / str(pid)
    comm = known(read_text(folder / "comm"))
    if comm is None:
        return _no_process(pid)
    if len(comm) < _COMM_LENGTH:
        return comm
    command = known(read_text(folder / "cmdline"))
    if command is None:
        return _no_process(pid)
    full = os.path.basename(command.split("\0", 1)[0])
    return full if full.startswith(comm) else comm


def _no_process(pid: int) -> Missing:
    return Missing(f"no process {pid} is seen here: it ended, or lives in another PID namespace")


def _user(root: AnyPath, pid: int) -> str | Missing:
    try:
        uid = os.stat(root / "proc" / str(pid)).st_uid
    except OSError:
        return _no_process(pid)
    return _user_name(uid)


@lru_cache(maxsize=256)
def _user_name(uid: int) -> str:
    """The user's name, or the number if it has none, or if the directory that knows it (LDAP) is slow to answer."""
    found: list[str] = []

    def look_up() -> None:
        with suppress(KeyError):
            found.append(pwd.getpwuid(uid).pw_name.encode("utf-8", "replace").decode())

    # a daemon: it may never return, and must not keep the collector from answering
    thread = Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(_NAME_LOOKUP_S)
    return found[0] if found else str(uid)


def _ancestors(root: AnyPath, pid: int) -> set[int]:
    line: set[int] = set()
    while pid > 0 and pid not in line:
        line.add(pid)
        status = known(read_text(root / "proc" / str(pid) / "status"))
        if status is None:
            break
        parent = re.search(r"^PPid:\s+(\d+)", status, re.MULTILINE)
        pid = int(parent.group(1)) if parent else 0
    return line


def read_numa_node(client: NvmlClient, device: AnyPath) -> int | Missing | None:
    """The NUMA node nearest to the GPU; None if neither the firmware nor the driver has one.

    From the GPU's folder in /sys, else from the driver. Not nvmlDeviceGetNumaNodeId, which on
    Grace is the node of the GPU's own memory.
    """
    node = read_int(device / "numa_node")
    if not isinstance(node, Missing):
        return node if node >= 0 else None
    nodes = _set_bits(client.ask("nvmlDeviceGetMemoryAffinity", _MASK_WORDS, _NODE_SCOPE))
    return if_known(nodes, lambda numbers: min(numbers, default=None))


def read_cpu_affinity(client: NvmlClient, device: AnyPath) -> str | Missing:
    """The CPUs near the GPU as a kernel list (0-55,112-167), from /sys, else from the driver."""
    local = read_text(device / "local_cpulist")
    if isinstance(local, str) and local:
        return local
    return if_known(_set_bits(client.ask("nvmlDeviceGetCpuAffinity", _MASK_WORDS)), format_cpu_list)


def _set_bits(masks: Any) -> frozenset[int] | Missing:
    if isinstance(masks, Missing):
        return masks
    # most words are 0: the masks have room for thousands of CPUs
    some = [(place * _MASK_BITS, mask) for place, mask in enumerate(masks) if mask]
    return frozenset(first + bit for first, mask in some for bit in range(_MASK_BITS) if mask >> bit & 1)
