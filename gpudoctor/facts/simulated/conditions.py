"""The conditions under which a fault can occur on a node, with the message if it cannot."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from operator import attrgetter

from gpudoctor.facts.model.gpu import Gpu, GpuPair, PcieHop
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node, RdmaPort, StorageMount
from gpudoctor.facts.model.storage import StorageDevice
from gpudoctor.facts.simulated.edits import Target, target_gpu

Condition = Callable[[Node, Target], bool]
_GRACE = re.compile("GH200|GB200|GB300|GB10")
# conditions that hold if a leaf of the GPU is known
_KNOWN_LEAVES = {
    "fabric": ("fabric.state", "these GPUs have no fabric"),
    "fabric-health": ("fabric.health_summary", "these GPUs do not tell the health of the fabric"),
    "sram-ecc": ("ecc.sram_uncorrected_volatile", "this GPU does not count SRAM errors"),
    "sram-threshold": ("ecc.sram_threshold_exceeded", "this GPU has no SRAM threshold"),
    "row-remap": ("memory_repair.remap_pending", "this GPU does not remap rows"),
    "retired-pages": ("memory_repair.retirement_pending", "this GPU does not retire pages"),
    "inforom": ("inforom_corrupted", "this GPU has no infoROM that its driver tells of"),
    "repair": ("memory_repair.channel_repair_pending", "this GPU does not repair channels"),
    "recovery": ("recovery_action", "this GPU or driver tells no recovery action"),
    "power": ("power.default_limit_w", "this GPU tells no power limits"),
    "memory-told": ("memory_total_mib", "this GPU tells no memory figures"),
}


def is_local(mount: StorageMount) -> bool:
    return mount.storage_class in ("nvme", "disk", "raid")


def is_remote(mount: StorageMount) -> bool:
    return mount.storage_class in ("network", "parallel")


def has_wide_nvme(mount: StorageMount) -> bool:
    return any(is_wide(disk) for disk in known(mount.devices) or ())


def is_wide(disk: StorageDevice) -> bool:
    widths = [known(width) for width in (disk.width, disk.max_width, disk.slot_max_width)]
    return all(width is not None and width >= 2 for width in widths)


def why_not(needs: Iterable[str], node: Node, target: Target) -> str | None:
    """The message of the first condition that does not hold; None if all hold."""
    return next((reason for need in needs for holds, reason in [CONDITIONS[need]] if not holds(node, target)), None)


def _of_gpu(test: Callable[[Gpu], bool]) -> Condition:
    """The test holds for the target, or for every GPU of the node if there is no target."""

    def holds(node: Node, target: Target) -> bool:
        if target.gpu is None:
            return bool(node.gpus) and all(test(gpu) for gpu in node.gpus)
        return test(target_gpu(node, target))

    return holds


def _knows(leaf: str) -> Condition:
    """The leaf, by its dotted path, is not Missing."""
    value_of = attrgetter(leaf)
    return _of_gpu(lambda gpu: not isinstance(value_of(gpu), Missing))


def _active_links(gpu: Gpu) -> int:
    return sum(link.state == "active" for link in known(gpu.nvlinks) or ())


def _switched(gpu: Gpu) -> bool:
    return any(link.remote_kind == "switch" for link in known(gpu.nvlinks) or ())


def _far_ends(gpu: Gpu) -> set[str | None]:
    return {known(link.remote_bus_id) for link in known(gpu.nvlinks) or ()}


def _hops(gpu: Gpu) -> tuple[PcieHop, ...]:
    return known(gpu.pcie.path) or ()


def _pairs(node: Node) -> tuple[GpuPair, ...]:
    return known(node.pairs) or ()


def _pair(node: Node, target: Target) -> GpuPair | None:
    return next((pair for pair in _pairs(node) if (pair.a, pair.b) == (target.gpu, target.other)), None)


def _ports(node: Node) -> tuple[RdmaPort, ...]:
    return known(node.network.rdma_ports) or ()


def _is_virtual(node: Node) -> bool:
    virtual = any(known(gpu.settings.virtualization) not in ("none", None) for gpu in node.gpus)
    return node.host.is_guest or virtual


def _has_mount(strikes: Callable[[StorageMount], bool]) -> Condition:
    return lambda node, _: any(strikes(mount) for mount in known(node.storage.mounts) or ())


CONDITIONS: dict[str, tuple[Condition, str]] = {
    "driver": (lambda n, t: n.driver.init_code == 0, "its driver is not loaded"),
    "gpus": (lambda n, t: bool(n.gpus), "it shows no GPU"),
    "two-gpus": (lambda n, t: len(n.gpus) >= 2, "it has fewer than two GPUs"),
    "three-alike": (
        lambda n, t: len(n.gpus) >= 3 and len({known(gpu.name) for gpu in n.gpus}) == 1,
        "it takes three GPUs of one model to tell the odd one",
    ),
    "bare-metal": (
        lambda n, t: known(n.host.virtualization) not in ("vm", "container"),
        "it is a virtual machine or a container",
    ),
    "no-vm": (lambda n, t: not _is_virtual(n), "the hypervisor of a virtual machine hides it"),
    "own-firmware": (
        lambda n, t: not n.host.is_guest,
        "in a virtual machine boards of several VBIOSes are no fault",
    ),
    "x16": (_of_gpu(lambda g: (known(g.pcie.width) or 0) >= 16), "the link of this GPU is not x16"),
    "fast-link": (
        _of_gpu(lambda g: (known(g.pcie.generation_max) or 0) >= 3),
        "the link of this GPU is slow by design",
    ),
    "slot": (
        _of_gpu(lambda g: isinstance(g.pcie.path, Missing) or len(_hops(g)) >= 2),
        "the bridges above the GPU are hidden",
    ),
    "pcie-switch": (_of_gpu(lambda g: len(_hops(g)) >= 4), "there is no PCIe switch above the GPU"),
    "acs-known": (
        _of_gpu(lambda g: any(hop.acs_redirect is False for hop in _hops(g))),
        "its bridges hide whether they redirect, or do so by design",
    ),
    "iommu-known": (lambda n, t: n.pci.iommu in ("off", "passthrough"), "its IOMMU is translated by design, or hidden"),
    "pcie-host": (
        _of_gpu(lambda g: not _GRACE.search(known(g.name) or "")),
        "the host link of this GPU is NVLink-C2C, not PCIe",
    ),
    "any-p2p": (
        lambda n, t: any(p.p2p_read == "OK" for p in _pairs(n)),
        "no two of its GPUs reach each other directly anyway",
    ),
    "not-bridged": (
        _of_gpu(lambda g: len(_far_ends(g)) != 1 or None in _far_ends(g) or _switched(g)),
        "without its bridge the card is as it may be bought",
    ),
    "replays": (_of_gpu(lambda g: isinstance(g.pcie.replays, int)), "this GPU does not count replays"),
    "nvlink": (_of_gpu(lambda g: _active_links(g) > 0), "these GPUs have no NVLink"),
    "nvlink-5": (
        _of_gpu(lambda g: _active_links(g) > 0 and known(g.architecture) == "Blackwell"),
        "these GPUs have no NVLink 5",
    ),
    "nvswitch": (_of_gpu(_switched), "these GPUs have no NVSwitch between them"),
    "switch-seen": (
        lambda n, t: any(d.pci_class.startswith("0x0680") for d in known(n.pci.nvidia_devices) or ()),
        "it shows no NVSwitch on its PCI bus",
    ),
    "mesh": (lambda n, t: (p := _pair(n, t)) is not None and bool(known(p.nvlinks)), "no NVLink joins these two GPUs"),
    "p2p": (
        lambda n, t: (p := _pair(n, t)) is not None and p.p2p_read == "OK",
        "these two GPUs have no peer-to-peer access anyway",
    ),
    "ecc": (
        _of_gpu(lambda g: g.ecc.enabled is True and known(g.ecc.uncorrected_volatile) is not None),
        "this GPU has no ECC, or it is off",
    ),
    "clocks": (
        _of_gpu(lambda g: known(g.clocks.sm_max_mhz) is not None and known(g.clocks.event_reasons) is not None),
        "this GPU does not tell its clocks",
    ),
    "thermal": (
        _of_gpu(
            lambda g: (
                known(g.thermal.gpu_c) is not None
                and (known(g.thermal.slowdown_c) is not None or known(g.thermal.slowdown_margin_c) is not None)
            )
        ),
        "this GPU tells no temperature limits",
    ),
    "persistence": (_of_gpu(lambda g: g.settings.persistence is True), "persistence mode is off already, or not told"),
    "mig-off": (_of_gpu(lambda g: g.settings.mig_enabled is False), "MIG is on already, or this model has none"),
    "not-mig": (_of_gpu(lambda g: g.settings.mig_enabled is not True), "MIG is on"),
    "idle": (_of_gpu(lambda g: g.processes == ()), "the GPU is in use already, or processes are not told"),
    "numa": (
        lambda n, t: (
            sum(not numa.is_gpu_memory for numa in known(n.host.numa_nodes) or ()) >= 2
            and known(target_gpu(n, t).numa_node) is not None
        ),
        "it has one NUMA node, or hides them",
    ),
    "log": (
        lambda n, t: not (isinstance(n.kernel_log.events, Missing) and n.kernel_log.events.kind == "denied"),
        "its kernel log may not be read",
    ),
    "efa": (lambda n, t: any(p.is_active and p.is_efa for p in _ports(n)), "it has no EFA adapter"),
    "ib": (
        lambda n, t: bool(_ports(n)) and all(p.is_active and not p.is_efa for p in _ports(n)),
        "it has no active InfiniBand or RoCE ports",
    ),
    "two-ports": (lambda n, t: len(_ports(n)) >= 2, "it has fewer than two InfiniBand or RoCE ports"),
    # NCCL 2.26 and later map 31.5 MiB per rank (checks/host/nccl_shared_memory.py)
    "shm-needed": (
        lambda n, t: len(n.gpus) >= 3 and bool(known(n.software.nccl)),
        "64 MiB are enough for NCCL there, or no NCCL is installed",
    ),
    "local-storage": (_has_mount(is_local), "no local disk of it is told"),
    "remote-storage": (_has_mount(is_remote), "no network file system of it is told"),
    "wide-nvme": (_has_mount(has_wide_nvme), "no NVMe disk of several lanes is told"),
    "torch": (lambda n, t: bool(known(n.software.torch_cuda)), "no torch with CUDA is installed there"),
    **{name: (_knows(leaf), reason) for name, (leaf, reason) in _KNOWN_LEAVES.items()},
}
