"""Every leaf of the facts lost, one at a time: no crash, no failure out of nothing, and no more passes than before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.model.missing import Missing, MissingKind
from gpudoctor.facts.model.node import Node
from gpudoctor.report.judge import judge
from gpudoctor.report.model import Report
from tests.checks.gpu_nodes import put
from tests.checks.simulated_nodes import healthy_report, packaged

KINDS: tuple[MissingKind, ...] = ("failed", "absent", "unsupported", "denied")
NODES = ("hgx-h100-8", "rtx4090-4")
# what excuses a check from judging: without it the check looks, and may see that all is well
EXCUSES = {
    "name": ("pcie.acs", "pcie.upstream", "pcie.balance"),
    "pairs": ("pcie.acs",),
}
# facts without which the check may not pass, if they were read in vain
ESSENTIAL = {
    "clocks.event_reasons": "gpu.throttle",
    "ecc.corrected_volatile": "gpu.ecc",
    "ecc.enabled": "gpu.settings",
    "ecc.sram_threshold_exceeded": "gpu.ecc",
    "ecc.uncorrected_volatile": "gpu.ecc",
    "fabric.health_summary": "nvlink.fabric",
    "fabric.route_unhealthy": "nvlink.fabric",
    "fabric.status": "nvlink.fabric",
    "memory_repair.banks_no_spare": "gpu.memory-repair",
    "memory_repair.remap_failed": "gpu.memory-repair",
    "memory_repair.unrepairable": "gpu.memory-repair",
    "memory_used_mib": "gpu.in-use",
    "nvlinks": "nvlink.links",
    "pcie.generation": "pcie.link-speed",
    "pcie.path": "pcie.upstream",
    "pcie.replays": "pcie.errors",
    "pcie.width": "pcie.link-width",
    "power.limit_w": "gpu.power-limit",
    "processes": "gpu.in-use",
    "recovery_action": "gpu.lost",
    "settings.compute_mode": "gpu.settings",
    "settings.persistence": "gpu.settings",
    "thermal.gpu_c": "gpu.temperature",
    "driver.init_code": "driver.loaded",
    "driver.library_version": "driver.version-match",
    "environment.variables": "env.cuda-visible-devices",
    "host.cpu_quota": "host.cpu-per-gpu",
    "host.cpus_usable": "host.cpu-per-gpu",
    "host.memory_limit_mib": "host.ram-per-gpu",
    "host.ram_mib": "host.ram-per-gpu",
    "host.shm_mib": "host.shm",
    "kernel_log.events": "gpu.xid",
    "network.rdma_ports": "network.infiniband",
    "pairs": "nvlink.topology",
    "pci.iommu": "pcie.acs",
    "pci.nvidia_devices": "gpu.count",
}


def leaves(struct: msgspec.Struct, prefix: str = "") -> Iterator[str]:
    """The paths of all leaves that may be Missing, as `put` takes them."""
    for field in msgspec.structs.fields(type(struct)):
        value = getattr(struct, field.name)
        if isinstance(value, msgspec.Struct) and not isinstance(value, Missing):
            yield from leaves(value, f"{prefix}{field.name}__")
        elif "Missing" in str(field.type):
            yield prefix + field.name


def without(node: Node, leaf: str, kind: MissingKind, gpus: int) -> Node:
    """The node without this leaf of its first GPUs; `gpus` 0: without this leaf of the node itself."""
    lost: dict[str, Any] = {leaf: Missing("lost in this test", kind)}
    if not gpus:
        return put(node, **lost)
    return replace(node, gpus=(*(put(gpu, **lost) for gpu in node.gpus[:gpus]), *node.gpus[gpus:]))


def losses(name: str, kind: MissingKind) -> Iterator[tuple[str, Report]]:
    """(leaf, the report without it), over one GPU, all of them, and the node."""
    node = packaged(name)
    for leaf in leaves(node.gpus[0]):
        yield leaf, judge(without(node, leaf, kind, len(node.gpus)))
        if len(node.gpus) > 1 and kind == "failed":
            yield leaf, judge(without(node, leaf, kind, 1))
    for leaf in leaves(node):
        yield leaf, judge(without(node, leaf, kind, 0))


def said(report: Report, status: Status) -> set[tuple[str, str]]:
    return {(c.id, f.subject.label) for c in report.checks for f in c.findings if f.status is status}


@pytest.mark.wide(but=["failed-rtx4090-4"])
@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("lost", KINDS)
def test_a_lost_fact_crashes_nothing_fails_nothing_and_lets_nothing_more_pass(lost: MissingKind, name: str) -> None:
    before = healthy_report(name)
    wrong = []
    for leaf, report in losses(name, lost):
        crashed = [f.reason for c in report.checks for f in c.findings if "itself failed" in (f.reason or "")]
        failed = said(report, Status.FAIL) - said(before, Status.FAIL)
        passed = said(report, Status.PASS) - said(before, Status.PASS) if lost == "failed" else set()
        passed = {each for each in passed if each[0] not in EXCUSES.get(leaf, ())}
        if crashed or failed or passed:
            wrong.append((leaf, crashed, failed, passed))
    assert wrong == []


@pytest.mark.parametrize("leaf", ESSENTIAL)
def test_a_check_whose_own_fact_was_asked_for_in_vain_is_unknown(leaf: str) -> None:
    node, check = packaged("hgx-h100-8"), ESSENTIAL[leaf]
    path = leaf.replace(".", "__")
    report = judge(without(node, path, "failed", 8 if path in set(leaves(node.gpus[0])) else 0))
    status = next(c.status for c in report.checks if c.id == check)
    assert status is Status.UNKNOWN
    assert (report.verdict, report.exit_code) == ("unknown", 3)
