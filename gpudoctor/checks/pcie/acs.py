"""pcie.acs: does ACS or the IOMMU redirect peer-to-peer traffic through the root complex?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.driver_messages import log_lines
from gpudoctor.checks.core.each_gpu import in_virtual_machine, untrusted
from gpudoctor.checks.core.explains import Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.runner import NO_GPU
from gpudoctor.checks.core.subject import NODE, Subject, of_gpu
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.pcie.link_state import bridges_not_judged
from gpudoctor.facts.model.driver import KernelEvent
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.text.units import counted

_NO_TRANSLATION = (
    Advice("Add to the kernel command line and reboot:", "iommu=pt"),
    "Or turn VT-d / AMD-Vi off in the BIOS where no virtual machine needs it.",
)


@check(
    "pcie.acs",
    title="Nothing sends peer-to-peer traffic through the root complex",
    impact="costs",
    needs_gpu=False,
    events=("iommu-fault",),
    explains=(Explains(("collective.*", "link.peer"), anywhere=True),),
)
def acs(case: Case) -> Iterator[Finding]:
    """Warn of DMA that the IOMMU refused; on bare metal with several GPUs, of ACS redirect and a translating IOMMU."""
    refused = tuple(_refused(case))
    yield from refused
    reason = _acs_does_not_matter(case)
    if reason is not None:
        if not refused:
            yield skip(NODE, reason)
        return
    for gpu in case.gpus:
        yield _redirect_above(case, gpu)
    yield _iommu(case)


def _acs_does_not_matter(case: Case) -> str | None:
    node, gpus = case.node, case.gpus
    if not gpus:
        return NO_GPU
    if len(gpus) < 2:
        return "one GPU: no peer-to-peer traffic to redirect"
    if in_virtual_machine(node, gpus):
        return "in a virtual machine the host decides; isolation is there by design"
    if any(known(g.settings.virtualization) in ("host-vgpu", "host-vsga") for g in gpus):
        return "this host runs virtual machines: isolation is there by design"
    if any(known(g.settings.confidential_compute) for g in gpus):
        return "confidential computing isolates the GPUs by design"
    if known(node.host.machine) == "aarch64" or any(g.on_c2c for g in gpus):
        return "on Arm and Grace the IOMMU is always on, by design"
    # on other GPUs, ACS or the IOMMU may be the reason for the same status
    geforce = all("geforce" in (known(g.name) or "").lower() for g in gpus)
    reads = [known(pair.p2p_read) for pair in case.pairs]
    if geforce and reads and all(status in ("CNS", "GNS", "NS") for status in reads):
        return "these GPUs have no peer-to-peer over PCIe, so there is nothing to redirect"
    return None


def _refused(case: Case) -> Iterator[Finding]:
    """One warning for each GPU whose memory accesses the IOMMU refused, by the kernel log."""
    in_scope = {gpu.bus_id: gpu for gpu in case.gpus}
    out_of_scope = {gpu.bus_id for gpu in case.node.gpus} - in_scope.keys()
    nvidia = {device.bus_id for device in known(case.node.pci.nvidia_devices) or ()} | in_scope.keys()
    by_bus: dict[str, list[KernelEvent]] = {}
    for event in known(case.node.kernel_log.events) or ():
        if event.kind != "iommu-fault" or event.bus_id is None or event.bus_id in out_of_scope:
            continue
        if event.bus_id in nvidia or f"nvidia {event.bus_id}: " in event.text:
            by_bus.setdefault(event.bus_id, []).append(event)
    for bus_id, events in by_bus.items():
        text = f"the IOMMU refused memory accesses of it ({counted(len(events), 'line')} in the kernel log)"
        yield warn(
            of_gpu(in_scope[bus_id]) if bus_id in in_scope else Subject(kind="gpu", bus_id=bus_id),
            Found(text, len(events), "lines"),
            Expected("none", source="drivers/iommu; cuda-samples#48"),
            *log_lines(events[-2:]),
            likely="peer-to-peer or RDMA traffic goes through a translating IOMMU: collectives hang or give wrong data",
            advice=_NO_TRANSLATION,
        )


def _redirect_above(case: Case, gpu: Gpu) -> Finding:
    subject = of_gpu(gpu)
    if reason := untrusted(gpu):
        return unknown(subject, reason)
    if (finding := bridges_not_judged(case, gpu)) is not None:
        return finding
    bridges = (known(gpu.pcie.path) or ())[1:]
    on = [hop for hop in bridges if known(hop.acs_redirect) is True]
    if on:
        names = " ".join(hop.bus_id for hop in on)
        off = f"for bridge in {names}; do sudo setpci -s $bridge ECAP_ACS+0x6.w=0000; done"
        return warn(
            subject,
            f"ACS redirect is on in {len(on)} bridge{'s' * (len(on) > 1)} above it",
            Expected("off, so that GPUs under one switch reach each other directly", source="nccl#2079, NCCL docs"),
            Evidence("ACS control with request or completion redirect set", names),
            likely="the BIOS or kernel turned Access Control Services on, as for virtual machines",
            advice=(
                "Turn ACS (or VT-d / AMD-Vi, where no VM needs it) off in the BIOS.",
                Advice("Until the next boot:", off),
                Advice("Then see that peer-to-peer works:", "gpudoctor check link.peer --level full"),
            ),
        )
    unseen = next((hop.acs_redirect for hop in bridges if isinstance(hop.acs_redirect, Missing)), None)
    if unseen is not None and (unseen.kind == "failed" or all(isinstance(h.acs_redirect, Missing) for h in bridges)):
        return unread(subject, "ACS of the bridges above it", unseen)
    return ok(subject, "no ACS redirect above it" + (" where it could be read" if unseen else ""))


def _iommu(case: Case) -> Finding:
    iommu = case.node.pci.iommu
    if isinstance(iommu, Missing):
        return unread(NODE, "IOMMU", iommu)
    if iommu != "translated":
        return ok(NODE, Found(f"IOMMU {iommu}", iommu), Expected("off or passthrough", "in", "off, passthrough"))
    return warn(
        NODE,
        Found("IOMMU translates", "translated"),
        Expected("off or passthrough", "in", "off, passthrough", source="NCCL docs, PCI access control services"),
        Evidence("/sys/kernel/iommu_groups/*/type", "DMA"),
        likely="peer-to-peer over PCIe goes through address translation: slow, and hangs are known (nccl-tests#117)",
        advice=_NO_TRANSLATION,
    )
