"""Faults of links, driver, host, network, software and file systems that a list in faults.yaml cannot express."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from gpudoctor.facts.model.gpu import Gpu, GpuPair, NvLink
from gpudoctor.facts.model.missing import UNSUPPORTED, Missing, known
from gpudoctor.facts.model.node import Node, StorageMount
from gpudoctor.facts.simulated.conditions import is_local, is_remote, is_wide
from gpudoctor.facts.simulated.edits import (
    Target,
    change,
    each,
    each_hop,
    each_pair,
    pattern,
    put_all,
    target_gpu,
    without_target,
)
from gpudoctor.facts.simulated.load import put
from gpudoctor.facts.system.sysfs import parse_cpu_list

_NO_ANSWER: dict[str, Any] = dict.fromkeys(
    ("total_bytes", "free_bytes", "inodes", "inodes_free", "error"), Missing("did not answer within 5 s", "failed")
)
# which mounts a pattern changes, and their leaves
_MOUNT_PATTERNS: dict[str, tuple[Callable[[StorageMount], bool], dict[str, Any]]] = {
    "storage-full": (is_local, {"free_bytes": 0}),
    "storage-nearly-full": (is_local, {"free_bytes": 3 << 30}),
    "inodes-used-up": (is_local, {"inodes_free": 0}),
    "stale-nfs": (is_remote, {**_NO_ANSWER, "error": "Stale file handle (ESTALE)"}),
    "storage-hang": (is_remote, _NO_ANSWER),
    "storage-shutdown": (is_local, {"options": ("rw", "relatime", "shutdown")}),
    "storage-read-only": (is_local, {"system_read_only": True}),
}


@pattern("links-down")
def _links_down(node: Node, target: Target) -> Node:
    return _with_links_down(node, target_gpu(node, target), range(99))


@pattern("link-down")
def _link_down(node: Node, target: Target) -> Node:
    return _with_links_down(node, target_gpu(node, target), (target.link or 0,))


def _with_links_down(node: Node, gpu: Gpu, which: Container[int]) -> Node:
    """Links that are inactive on this GPU, and on the remote end if that is a GPU; pairs lose them too."""
    links = known(gpu.nvlinks) or ()
    down = [link for link in links if link.link in which]
    node = change(node, Target(gpu.index), {"nvlinks": _with_inactive(links, down)}) if links else node
    switched = any(link.remote_kind == "switch" for link in down)
    lost: dict[int, int] = {}
    for peer in node.gpus:
        ends = sum(link.remote_bus_id == peer.bus_id for link in down)
        lost[peer.index] = len(down) if switched else ends
        if ends and not isinstance(peer.nvlinks, Missing):
            back = [link for link in peer.nvlinks if link.remote_bus_id == gpu.bus_id][:ends]
            node = change(node, Target(peer.index), {"nvlinks": _with_inactive(peer.nvlinks, back)})

    def fewer(pair: GpuPair) -> GpuPair:
        if gpu.index not in (pair.a, pair.b) or not known(pair.nvlinks):
            return pair
        left = max((known(pair.nvlinks) or 0) - lost[pair.b if pair.a == gpu.index else pair.a], 0)
        pair = replace(pair, nvlinks=left)
        return pair if left else replace(pair, p2p_read="TNS", p2p_write="TNS")

    return each_pair(node, fewer)


def _with_inactive(links: tuple[NvLink, ...], down: Container[NvLink]) -> tuple[NvLink, ...]:
    return tuple(replace(link, state="inactive", speed_gb_s=UNSUPPORTED) if link in down else link for link in links)


@pattern("slow-link")
def _slow_link(node: Node, target: Target) -> Node:
    return _change_link(node, target, lambda link: {"speed_gb_s": (known(link.speed_gb_s) or 25.0) / 2})


@pattern("noisy-link")
def _noisy_link(node: Node, target: Target) -> Node:
    return _change_link(
        node, target, lambda link: {"crc_errors": 481_220, "replay_errors": 9_412, "recovery_errors": 64}
    )


def _change_link(node: Node, target: Target, leaves: Callable[[NvLink], Mapping[str, Any]]) -> Node:
    links = known(target_gpu(node, target).nvlinks) or ()
    changed = tuple(replace(link, **leaves(link)) if link.link == target.link else link for link in links)
    return change(node, target, {"nvlinks": changed})


@pattern("fewer-pair-links")
def _fewer_pair_links(node: Node, target: Target) -> Node:
    """Every link of both GPUs is up, but the driver reports fewer links between them."""

    def thinner(pair: GpuPair) -> GpuPair:
        links = known(pair.nvlinks) or 0
        struck = (pair.a, pair.b) == (target.gpu, target.other)
        return replace(pair, nvlinks=max(links - max(links // 3, 1), 0)) if struck else pair

    return each_pair(node, thinner)


@pattern("slow-uplink")
def _slow_uplink(node: Node, target: Target) -> Node:
    """The switch's link to the root port trained one generation lower, which affects every GPU behind it."""
    upper = (known(target_gpu(node, target).pcie.path) or ())[-2:]
    slow = {hop.bus_id for hop in upper}
    half = min(known(hop.max_speed_gt_s) or 32.0 for hop in upper) / 2
    return each(
        node, lambda gpu: each_hop(gpu, lambda _, hop: replace(hop, speed_gt_s=half) if hop.bus_id in slow else hop)
    )


@pattern("redirected")
def _redirected(node: Node, target: Target) -> Node:
    """Every bridge redirects traffic to the root; the GPU itself is not a bridge."""
    return each(node, lambda gpu: each_hop(gpu, lambda place, hop: replace(hop, acs_redirect=True) if place else hop))


# Driver, host, network and software.


@pattern("no-gpus")
def _no_gpus(node: Node, target: Target) -> Node:
    missing = Missing("the driver did not start")
    unread = (f"driver.{leaf}" for leaf in ("device_count", "cuda_version", "slowest_call", "slowest_call_s"))
    return put_all(node, {**dict.fromkeys(unread, missing), "driver.calls": 0, "gpus": (), "pairs": missing})


@pattern("no-driver")
def _no_driver(node: Node, target: Target) -> Node:
    driver = "nouveau" if node.driver.nouveau_loaded is True else None
    if devices := known(node.pci.nvidia_devices):
        node = put(node, "pci.nvidia_devices", tuple(replace(device, driver=driver) for device in devices))
    return _no_gpus(node, target)


@pattern("handle-denied")
def _handle_denied(node: Node, target: Target) -> Node:
    """The driver counts the GPU but returns no handle: the device file may not be opened."""
    error = f"GPU {target.gpu}: nvmlDeviceGetHandleByIndex: insufficient permissions (4)"
    return put(without_target(node, target), "driver.handle_errors", (*node.driver.handle_errors, error))


@pattern("far-cpus")
def _far_cpus(node: Node, target: Target) -> Node:
    """The process may only run on the CPUs of the other socket."""
    near = known(target_gpu(node, target).numa_node)
    numa = known(node.host.numa_nodes) or ()
    cpus = [entry.cpus for entry in numa if entry.node != near and not entry.is_gpu_memory][-1]
    count = len(parse_cpu_list(cpus) or ())
    return put_all(node, {"host.cpus_usable_list": cpus, "host.cpus_usable": count})


@pattern("small-ram")
def _small_ram(node: Node, target: Target) -> Node:
    """A quarter of the 16 GiB per GPU that multi-GPU training needs: less than half the memory of any GPU here."""
    ram = 4 * 1024 * max(len(node.gpus), 1)
    return put_all(node, {"host.ram_mib": ram, "host.ram_available_mib": ram - 2_048})


@pattern("small-cgroup")
def _small_cgroup(node: Node, target: Target) -> Node:
    limit = 4 * 1024 * max(len(node.gpus), 1)
    source = "/sys/fs/cgroup/memory.max"
    return put_all(node, {"host.memory_limit_mib": limit, "host.memory_limit_source": source})


def _port(node: Node, **leaves: Any) -> Node:
    """Change the last RDMA port."""
    *others, last = known(node.network.rdma_ports) or ()
    return put(node, "network.rdma_ports", (*others, replace(last, **leaves)))


@pattern("port-down")
def _port_down(node: Node, target: Target) -> Node:
    ports = known(node.network.rdma_ports) or ()
    lost = (known(ports[-1].link_downed) or 0) + 1  # another fault may have counted before
    return _port(node, state="DOWN", physical_state="Polling", rate_gbit_s=10.0, link_downed=lost)


@pattern("port-flaps")
def _port_flaps(node: Node, target: Target) -> Node:
    return _port(node, link_downed=10 * _days_up(node))


@pattern("port-errors")
def _port_errors(node: Node, target: Target) -> Node:
    # a driver that shows these counters shows them of all its ports
    ports = tuple(replace(port, symbol_errors=0, receive_errors=0) for port in known(node.network.rdma_ports) or ())
    node = put(node, "network.rdma_ports", ports)
    return _port(node, symbol_errors=240_000 * _days_up(node), receive_errors=12_000 * _days_up(node))


def _days_up(node: Node) -> int:
    return int((known(node.host.uptime_s) or 0) // 86_400) + 1


@pattern("port-slow")
def _port_slow(node: Node, target: Target) -> Node:
    ports = known(node.network.rdma_ports) or ()
    return _port(node, rate_gbit_s=(known(ports[-1].max_rate_gbit_s) or 400.0) / 4)


@pattern("two-nccl-copies")
def _two_copies(node: Node, target: Target) -> Node:
    copies = (*node.software.nccl_copies, "/usr/lib/x86_64-linux-gnu/libnccl.so.2.19.3")
    return put(node, "software.nccl_copies", copies)


# File systems and their disks.


def _change_mounts(which: Callable[[StorageMount], bool], leaves: Mapping[str, Any], node: Node, _: Target) -> Node:
    mounts = known(node.storage.mounts) or ()
    changed = tuple(replace(mount, **leaves) if which(mount) else mount for mount in mounts)
    return put(node, "storage.mounts", changed)


for name, edit in _MOUNT_PATTERNS.items():
    pattern(name)(partial(_change_mounts, *edit))


@pattern("nvme-narrow")
def _narrow_nvme(node: Node, target: Target) -> Node:
    mounts = []
    for mount in known(node.storage.mounts) or ():
        disks = tuple(replace(disk, width=1) if is_wide(disk) else disk for disk in known(mount.devices) or ())
        mounts.append(replace(mount, devices=disks or mount.devices))
    return put(node, "storage.mounts", tuple(mounts))


@pattern("not-mounted")
def _not_mounted(node: Node, target: Target) -> Node:
    """The remote file systems are not mounted, and their paths are on the root file system."""
    mounts = known(node.storage.mounts) or ()
    lost = tuple(
        replace(path, is_mount=False, not_mounted=mount.point)
        for mount in mounts
        if is_remote(mount)
        for path in mount.paths
    )
    retained = tuple(
        replace(mount, paths=(*mount.paths, *lost)) if mount.point == "/" else mount
        for mount in mounts
        if not is_remote(mount)
    )
    return put(node, "storage.mounts", retained)
