"""Faults in the driver, host, network, software and file systems that a list in faults.yaml cannot express."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node, StorageDevice, StorageMount
from gpudoctor.facts.simulated.edits import Pattern, Target, struck_gpu
from gpudoctor.facts.simulated.wiring import put


def _no_gpus(node: Node, target: Target) -> Node:
    gone = Missing("the driver did not start")
    driver = replace(node.driver, device_count=gone, cuda_version=gone, slowest_call=gone, slowest_call_s=gone)
    return replace(node, gpus=(), pairs=gone, driver=replace(driver, calls=0))


def _no_driver(node: Node, target: Target) -> Node:
    devices = node.pci.nvidia_devices
    if not isinstance(devices, Missing):
        driver = "nouveau" if node.driver.nouveau_loaded is True else None
        devices = tuple(replace(device, driver=driver) for device in devices)
        node = put(node, "pci.nvidia_devices", devices)
    return _no_gpus(node, target)


def _handle_denied(node: Node, target: Target) -> Node:
    """The driver counts the GPU but returns no handle: the device file may not be opened."""
    error = f"GPU {target.gpu}: nvmlDeviceGetHandleByIndex: insufficient permissions (4)"
    node = replace(node, gpus=tuple(gpu for gpu in node.gpus if gpu.index != target.gpu))
    if not isinstance(node.pairs, Missing):
        node = replace(node, pairs=tuple(pair for pair in node.pairs if target.gpu not in (pair.a, pair.b)))
    return replace(node, driver=replace(node.driver, handle_errors=(*node.driver.handle_errors, error)))


def _far_cpus(node: Node, target: Target) -> Node:
    """The process may only run on the CPUs of the other socket."""
    numa = node.host.numa_nodes
    near = known(struck_gpu(node, target).numa_node)
    if isinstance(numa, Missing):
        return node
    far = [entry for entry in numa if entry.node != near and not entry.is_gpu_memory][-1]
    count = sum(_span(part) for part in far.cpus.split(","))
    return replace(node, host=replace(node.host, cpus_usable_list=far.cpus, cpus_usable=count))


def _span(part: str) -> int:
    first, _, last = part.partition("-")
    return int(last or first) - int(first) + 1


def _small_ram(node: Node, target: Target) -> Node:
    """A quarter of the 16 GiB per GPU that multi-GPU training needs: less than half the memory of any GPU here."""
    ram = 4 * 1024 * max(len(node.gpus), 1)
    return replace(node, host=replace(node.host, ram_mib=ram, ram_available_mib=ram - 2_048))


def _small_cgroup(node: Node, target: Target) -> Node:
    limit = 4 * 1024 * max(len(node.gpus), 1)
    source = "/sys/fs/cgroup/memory.max"
    return replace(node, host=replace(node.host, memory_limit_mib=limit, memory_limit_source=source))


def _port(node: Node, **leaves: Any) -> Node:
    """Change the last RDMA port."""
    ports = node.network.rdma_ports
    if isinstance(ports, Missing):
        return node
    changed = (*ports[:-1], replace(ports[-1], **leaves))
    return replace(node, network=replace(node.network, rdma_ports=changed))


def _port_down(node: Node, target: Target) -> Node:
    return _port(node, state="DOWN", physical_state="Polling", rate_gbit_s=10.0, link_downed=1)


def _port_flaps(node: Node, target: Target) -> Node:
    return _port(node, link_downed=10 * _days_up(node))


def _port_errors(node: Node, target: Target) -> Node:
    return _port(node, symbol_errors=240_000 * _days_up(node), receive_errors=12_000 * _days_up(node))


def _days_up(node: Node) -> int:
    return int((known(node.host.uptime_s) or 0) // 86_400) + 1


def _port_slow(node: Node, target: Target) -> Node:
    ports = node.network.rdma_ports
    full = 400.0 if isinstance(ports, Missing) else known(ports[-1].max_rate_gbit_s) or 400.0
    return _port(node, rate_gbit_s=full / 4)


def _two_copies(node: Node, target: Target) -> Node:
    copies = (*node.software.nccl_copies, "/usr/lib/x86_64-linux-gnu/libnccl.so.2.19.3")
    return replace(node, software=replace(node.software, nccl_copies=copies))


HOST_PATTERNS: dict[str, Pattern] = {
    "no-gpus": _no_gpus,
    "no-driver": _no_driver,
    "handle-denied": _handle_denied,
    "far-cpus": _far_cpus,
    "small-ram": _small_ram,
    "small-cgroup": _small_cgroup,
    "port-down": _port_down,
    "port-slow": _port_slow,
    "port-flaps": _port_flaps,
    "port-errors": _port_errors,
    "two-nccl-copies": _two_copies,
}


# File systems and their disks.


def is_local(mount: StorageMount) -> bool:
    return mount.storage_class in ("nvme", "disk", "raid")


def is_remote(mount: StorageMount) -> bool:
    return mount.storage_class in ("network", "parallel")


def has_wide_nvme(mount: StorageMount) -> bool:
    return any(_is_wide(disk) for disk in known(mount.devices) or ())


def _is_wide(disk: StorageDevice) -> bool:
    widths = [known(width) for width in (disk.width, disk.max_width, disk.slot_max_width)]
    return all(width is not None and width >= 2 for width in widths)


def _of_mounts(strikes: Callable[[StorageMount], bool], **leaves: Any) -> Pattern:
    def struck(node: Node, target: Target) -> Node:
        mounts = known(node.storage.mounts) or ()
        made = tuple(replace(mount, **leaves) if strikes(mount) else mount for mount in mounts)
        return replace(node, storage=replace(node.storage, mounts=made))

    return struck


def _narrow_nvme(node: Node, target: Target) -> Node:
    mounts = []
    for mount in known(node.storage.mounts) or ():
        disks = tuple(replace(disk, width=1) if _is_wide(disk) else disk for disk in known(mount.devices) or ())
        mounts.append(replace(mount, devices=disks or mount.devices))
    return replace(node, storage=replace(node.storage, mounts=tuple(mounts)))


def _no_answer(**leaves: Any) -> dict[str, Any]:
    why = Missing("did not answer within 5 s", "failed")
    return {**dict.fromkeys(("total_bytes", "free_bytes", "inodes", "inodes_free"), why), "error": why, **leaves}


def _not_mounted(node: Node, target: Target) -> Node:
    """The remote file systems are not mounted, and their paths are on the root file system."""
    mounts = known(node.storage.mounts) or ()
    lost = tuple(
        replace(path, is_mount=False, not_mounted=mount.point)
        for mount in mounts
        if is_remote(mount)
        for path in mount.paths
    )
    kept = tuple(
        replace(mount, paths=(*mount.paths, *lost)) if mount.point == "/" else mount
        for mount in mounts
        if not is_remote(mount)
    )
    return replace(node, storage=replace(node.storage, mounts=kept))


STORAGE_PATTERNS: dict[str, Pattern] = {
    "storage-full": _of_mounts(is_local, free_bytes=0),
    "storage-nearly-full": _of_mounts(is_local, free_bytes=3 << 30),
    "inodes-used-up": _of_mounts(is_local, inodes_free=0),
    "nvme-narrow": _narrow_nvme,
    "stale-nfs": _of_mounts(is_remote, **_no_answer(error="Stale file handle (ESTALE)")),
    "storage-hang": _of_mounts(is_remote, **_no_answer()),
    "storage-shutdown": _of_mounts(is_local, options=("rw", "relatime", "shutdown")),
    "storage-read-only": _of_mounts(is_local, system_read_only=True),
    "not-mounted": _not_mounted,
}
