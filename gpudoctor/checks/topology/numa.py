"""topology.numa: can this process use CPUs near every GPU?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.each_gpu import each_gpu
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.runner import NO_GPU
from gpudoctor.checks.core.scope import indices
from gpudoctor.checks.core.subject import NODE, of_gpu
from gpudoctor.checks.core.unread import unread
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known


@check("topology.numa", title="Every GPU has CPUs of this process near it", needs_gpu=False, explains=("link.host",))
def numa(case: Case) -> Iterator[Finding]:
    """Warn if this process may use no CPU on a GPU's NUMA node; never a fail, since distant CPUs still work."""
    bare = [node for node in known(case.node.host.numa_nodes) or () if node.cpus and node.memory_mib == 0]
    if bare:
        names = ", ".join(str(node.node) for node in bare)
        yield warn(
            NODE,
            Found(f"NUMA node {names} has CPUs and no memory", len(bare), "nodes"),
            Expected("memory on each node with CPUs", source="numactl --hardware"),
            *(Evidence(f"NUMA node {node.node}", f"CPUs {node.cpus}, 0 MiB") for node in bare[:4]),
            likely="memory channels without a DIMM, or a BIOS mode (NPS) with more nodes than there are DIMMs for",
            advice=(
                Advice("See which slots hold a DIMM.", "sudo dmidecode -t memory | grep -E 'Locator|Size'"),
                "Fill the channels of each node, or choose fewer nodes a socket (NPS) in the BIOS.",
            ),
        )
    if case.gpus:
        yield from _each(case)
    elif not bare:
        yield skip(NODE, NO_GPU)


@each_gpu
def _each(case: Case, gpu: Gpu) -> Finding:
    subject, host = of_gpu(gpu), case.node.host
    if isinstance(gpu.numa_node, Missing):
        return unread(subject, "NUMA node of the GPU", gpu.numa_node)
    if gpu.numa_node is None or gpu.numa_node < 0:
        return skip(subject, "the kernel names no NUMA node for it: one node, or hidden by a virtual machine")
    if isinstance(host.cpus_usable_list, Missing):
        return unread(subject, "CPUs that this process may use", host.cpus_usable_list)
    if isinstance(host.numa_nodes, Missing):
        return unread(subject, "NUMA nodes of the host", host.numa_nodes)
    home = next((node for node in host.numa_nodes if node.node == gpu.numa_node), None)
    if home is None:
        return skip(subject, f"NUMA node {gpu.numa_node} is not shown by the host")
    local, usable = indices(home.cpus), indices(host.cpus_usable_list)
    if home.is_gpu_memory or not local:
        return skip(subject, f"NUMA node {home.node} is GPU memory and has no CPUs of its own")
    if usable is None:
        return unknown(subject, f"CPUs that this process may use: {host.cpus_usable_list[:40]!r} is no list of CPUs")
    shared = local & usable
    if shared:
        ports = known(case.node.network.rdma_ports) or ()
        nearby = ", ".join(dict.fromkeys(port.device for port in ports if known(port.numa_node) == home.node))
        adapters = f", with {nearby}" if nearby else ""
        return ok(subject, f"{len(shared)} CPUs of this process on its NUMA node {home.node}{adapters}")
    return warn(
        subject,
        f"none of the {len(usable)} CPUs of this process is on its NUMA node {home.node}",
        Expected(f"at least one of {home.cpus}", source="NUMA node of the GPU"),
        Evidence(f"/sys/bus/pci/devices/{gpu.bus_id}/numa_node", str(home.node)),
        Evidence("sched_getaffinity", host.cpus_usable_list),
        likely="the job's cpuset or a taskset binds it to another socket: copies to the GPU cross between sockets",
        advice=(
            Advice(
                "Ask the scheduler for CPUs near the GPUs; in Slurm:", "srun --gpus-per-task=1 --gpu-bind=closest ..."
            ),
            Advice("Or bind by hand:", f"numactl --cpunodebind={home.node} --membind={home.node} ..."),
        ),
    )
