"""Simulated nodes with leaves changed, judged as a run would judge them: profile matched, limits filled in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from gpudoctor.checks.core.finding import Finding, Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.facts.model.gpu import CallError, Gpu, GpuPair, PcieHop
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.simulated.fault_kit import apply_faults
from gpudoctor.facts.simulated.load import load_node
from gpudoctor.profiles.load import profile_for
from tests.checks.gpu_nodes import put
from tests.checks.one_check import judge, text_of
from tests.narrowed import present

FAILED = Missing("the call answered with an error", "failed")
ABSENT = Missing("not in this capture", "absent")


def simulated(name: str, *faults: str, **leaves: Any) -> Node:
    """A packaged node with faults, and leaves of the node changed (`a__b` for a.b)."""
    return put(apply_faults(load_node(name, {}), faults), **leaves)


def on_gpus(node: Node, where: int | None = None, **leaves: Any) -> Node:
    """Leaves changed on one GPU, or on all; a callable gets the GPU."""

    def changed(gpu: Gpu) -> Gpu:
        return put(gpu, **{path: value(gpu) if callable(value) else value for path, value in leaves.items()})

    return replace(node, gpus=tuple(changed(g) if where in (None, g.index) else g for g in node.gpus))


def hops(change: Mapping[int, Mapping[str, Any]]) -> Callable[[Gpu], tuple[PcieHop, ...]]:
    """For `on_gpus(pcie__path=...)`: leaves changed on the hops at these places."""

    def made(gpu: Gpu) -> tuple[PcieHop, ...]:
        path = present(gpu.pcie.path)
        return tuple(replace(hop, **change.get(place, {})) for place, hop in enumerate(path))

    return made


def on_pairs(node: Node, change: Callable[[GpuPair], GpuPair]) -> Node:
    return replace(node, pairs=tuple(change(pair) for pair in present(node.pairs)))


def lost(node: Node, gpu: int) -> Node:
    return on_gpus(node, gpu, errors=(CallError("nvmlDeviceGetUtilizationRates", 15, "GPU is lost"),))


def judged(check_id: str, node: Node, **case: Any) -> CheckResult:
    case.setdefault("profile", profile_for(node))
    return judge(check_id, node, **case)


def of_gpu(result: CheckResult, gpu: int) -> Finding:
    [finding] = [f for f in result.findings if f.subject.kind == "gpu" and f.subject.gpu == gpu]
    return finding


def bad(result: CheckResult) -> list[Finding]:
    return [f for f in result.findings if f.status in (Status.FAIL, Status.WARN, Status.UNKNOWN)]


def only(result: CheckResult) -> Finding:
    [finding] = result.findings
    return finding


def found(finding: Finding) -> str:
    return present(finding.found).text


def expected(finding: Finding) -> str:
    return present(finding.expected).text


def says(finding: Finding, *words: str) -> bool:
    text = text_of(finding)
    return all(word in text for word in words)
