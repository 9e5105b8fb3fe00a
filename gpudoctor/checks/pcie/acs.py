"""pcie.acs: does ACS or the IOMMU redirect peer-to-peer traffic through the root complex?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.each_gpu import in_virtual_machine
from gpudoctor.checks.core.explains import Explains
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, ok, skip, unknown, unread, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE, of_gpu
from gpudoctor.checks.core.trust import untrusted
from gpudoctor.checks.pcie.link_state import bridges_not_judged, on_c2c
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known


@check(
    "pcie.acs",
    title="Nothing sends peer-to-peer traffic through the root complex",
    impact="costs",
    explains=(Explains(("collective.*", "link.peer"), anywhere=True),),
)
def acs(case: Case) -> Iterator[Finding]:
    """Warn of ACS redirect above a GPU and of a translating IOMMU, on bare metal with several GPUs."""
    reason = _acs_does_not_matter(case)
    if reason is not None:
        yield skip(NODE, reason)
        return
    for gpu in case.gpus:
        yield _redirect_above(case, gpu)
    yield _iommu(case)


def _acs_does_not_matter(case: Case) -> str | None:
    node, gpus = case.node, case.gpus
    if len(gpus) < 2:
        return "one GPU: no peer-to-peer traffic to redirect"
    if in_virtual_machine(node, gpus):
        return "in a virtual machine the host decides; isolation is there by design"
    if any(known(g.settings.virtualization) in ("host-vgpu", "host-vsga") for g in gpus):
        return "this host runs virtual machines: isolation is there by design"
    if any(known(g.settings.confidential_compute) for g in gpus):
        return "confidential computing isolates the GPUs by design"
    if known(node.host.machine) == "aarch64" or any(on_c2c(g) for g in gpus):
        return "on Arm and Grace the IOMMU is always on, by design"
    # on other GPUs, ACS or the IOMMU may be the reason for the same status
    geforce = all("geforce" in (known(g.name) or "").lower() for g in gpus)
    reads = [known(pair.p2p_read) for pair in case.pairs]
    if geforce and reads and all(status in ("CNS", "GNS", "NS") for status in reads):
        return "these GPUs have no peer-to-peer over PCIe, so there is nothing to redirect"
    return None


def _redirect_above(case: Case, gpu: Gpu) -> Finding:
    subject = of_gpu(gpu)
    if reason := untrusted(gpu):
        return unknown(subject, reason)
    if (finding := bridges_not_judged(case, gpu)) is not None:
        return finding
    bridges = (known(gpu.pcie.path) or ())[1:]
    on = [hop for hop in bridges if known(hop.acs_redirect) is True]
    if on:
        names = ", ".join(hop.bus_id for hop in on)
        return warn(
            subject,
            f"ACS redirect is on above it ({names})",
            Expected("off, so that GPUs under one switch reach each other directly", source="nccl#2079, NCCL docs"),
            *(Evidence(f"ACS control of {hop.bus_id}", "request or completion redirect set") for hop in on),
            likely="the BIOS or kernel turned Access Control Services on, as for virtual machines",
            advice=(
                "Turn ACS (or VT-d / AMD-Vi, where no VM needs it) off in the BIOS.",
                Advice("Until the next boot:", f"sudo setpci -s {on[0].bus_id} ECAP_ACS+0x6.w=0000"),
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
        advice=(
            Advice("Add to the kernel command line and reboot:", "iommu=pt"),
            "Or turn VT-d / AMD-Vi off in the BIOS where no virtual machine needs it.",
        ),
    )
