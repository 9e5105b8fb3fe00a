"""What each fault means for a node, written by hand: the verdicts of `make soak` do not come from the fault kit.

The kit's own file says which check a fault trips; it is read by the code under test, and a change of a check changes it
there too. This table was made from what is known of the faults in the field (a GPU that fell off the bus is not fit to
train on, a user's own crash is no reason to drain a node), and must be changed by hand.
"""

from __future__ import annotations

from gpudoctor.checks.core.finding import Status

_TABLE = """
driver.loaded fail: driver-not-loaded nouveau-loaded nvml-library-missing nvml-library-truncated
driver.version-match fail: driver-mismatch
driver.responsive fail: driver-hang
driver.responsive warn: driver-slow driver-stall
driver.fabric-manager fail: fabric-manager-failed fabric-manager-other-version
gpu.lost fail: gpu-lost gpu-reset-required node-reboot-required drain-and-reset
gpu.lost warn: drain-p2p recovery-unknown
gpu.count fail: gpu-missing gpu-off-pci
gpu.count pass: gpu-handle-denied
gpu.count warn: gpu-drained
gpu.inforom warn: inforom-corrupted
gpu.xid fail: gsp-timeout xid-79 xid-48 xid-95 xid-74 xid-149 nvswitch-fatal
gpu.xid warn: xid-unknown
gpu.xid pass: xid-application nvswitch-nonfatal
gpu.ecc fail: ecc-uncorrected ecc-uncontained ecc-double-bit sram-uncorrected sram-threshold
gpu.ecc warn: ecc-pending-change
gpu.memory-repair fail: row-remap-failed retired-pages unrepairable-memory
gpu.memory-repair warn: row-remap-pending no-spare-rows many-remapped-rows retirement-pending channel-repair-pending
gpu.throttle fail: thermal hw-power-brake
gpu.temperature warn: hot-gpu
gpu.power-limit warn: power-cap
gpu.clocks fail: clocks-locked
gpu.settings fail: compute-mode-prohibited mig-mixed
gpu.settings warn: ecc-off-one persistence-off
gpu.in-use warn: leaked-memory foreign-process
gpu.in-use pass: scrubbing latched-utilisation
gpu.identical warn: mixed-model mixed-vbios
pcie.link-width fail: pcie-width-x8 pcie-width-x4 pcie-width-x1
pcie.link-speed fail: pcie-gen1-busy
pcie.upstream fail: pcie-upstream-downgraded
pcie.errors fail: pcie-aer-fatal
pcie.errors warn: pcie-replays pcie-aer
pcie.acs warn: acs-redirect iommu-translated
nvlink.links fail: nvlink-link-down nvlink-all-down nvlink-slow
nvlink.errors warn: nvlink-errors
nvlink.topology fail: nvlink-asymmetric p2p-off
nvlink.fabric fail: fabric-not-started fabric-in-progress fabric-no-resources fabric-unhealthy
nvlink.fabric warn: fabric-degraded
host.ram-per-gpu fail: ram-small cgroup-memory
host.cpu-per-gpu fail: cpu-quota-1 cpu-affinity-1
host.shm fail: shm-64m
host.shm warn: shm-small
host.limits warn: memlock-64k nofile-small nproc-small
host.swap warn: swap-in-use
host.kernel fail: memory-uncorrectable
host.kernel warn: nfs-silent oom-kill
topology.numa warn: numa-far
env.cuda-visible-devices fail: cuda-visible-devices-out-of-range cuda-visible-devices-duplicate
env.cuda-visible-devices fail: cuda-visible-devices-empty
env.nccl fail: nccl-p2p-disable nccl-ifname-missing nccl-master-localhost
env.nccl warn: nccl-shm-disable nccl-ib-disable nccl-topo-file-missing nccl-debug-on cuda-launch-blocking
env.nccl warn: nccl-efa-no-plugin nccl-efa-tcp
storage.space fail: storage-full storage-inodes
storage.space warn: storage-nearly-full
storage.mount fail: stale-nfs storage-shutdown
storage.mount warn: nvme-width-x1 storage-read-only storage-not-mounted
storage.mount unknown: storage-hang
network.infiniband warn: ib-port-down ib-rate-low no-gpudirect peermem-not-registered
network.adapters warn: ib-slot-power ib-link-flaps ib-symbol-errors
env.torch fail: torch-cuda-too-new
env.torch warn: nccl-two-copies
"""


def _read() -> dict[str, tuple[str, Status]]:
    expected = {}
    for line in _TABLE.strip().splitlines():
        head, _, names = line.partition(": ")
        check, status = head.split()
        for name in names.split():
            assert name not in expected, f"{name} stands there twice"
            expected[name] = check, Status(status)
    return expected


# fault -> the check that must find it, and with what
EXPECTED = _read()

# the nodes that are no healthy node for training as they are; all others pass every check that can look
NODES = {
    "cpu-only": {"driver.loaded": Status.FAIL},  # no driver, no GPU
    "workstation-mixed": {"gpu.identical": Status.WARN},  # one GPU is another model
    "t4-cloud-4": {"pcie.link-width": Status.WARN},  # x8 by the host's wiring, which the guest cannot see
    "a10g-cloud-1": {"pcie.link-width": Status.WARN},
    "lifetime-counters": {"gpu.in-use": Status.WARN},  # a training job runs there now
}
