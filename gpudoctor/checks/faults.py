"""Which finding explains which, so that people count faults and not findings."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

import msgspec

from gpudoctor.checks.finding import WORST_FIRST, Finding, Status, Subject, worst
from gpudoctor.checks.run import CheckResult


class Rule(msgspec.Struct, frozen=True):
    """A bad finding of `cause` explains findings of `effects` (ids or globs).

    `anywhere`: whatever the subject; else only where both concern the same GPU, or one of them
    the whole node. `found`: only effects whose found value is one of these.
    """

    cause: str
    effects: tuple[str, ...]
    anywhere: bool = False
    found: tuple[str, ...] = ()

    def explains(self, check_id: str, finding: Finding) -> bool:
        value = finding.found.value if finding.found else None
        return any(fnmatchcase(check_id, effect) for effect in self.effects) and (not self.found or value in self.found)


# what gpu.lost finds where the GPU answers and asks for a reset: the error that came first explains that
RECOVERY_ACTIONS = ("gpu-reset", "node-reboot", "drain-p2p", "drain-and-reset")


# In the order of depth: an earlier cause wins over a later one.
RULES = (
    Rule("driver.version-match", ("driver.loaded", "driver.responsive", "gpu.*", "env.torch"), anywhere=True),
    Rule("driver.loaded", ("driver.*", "gpu.*", "nvlink.*", "env.*", "collective.*", "train.*"), anywhere=True),
    Rule("driver.responsive", ("driver.loaded", "gpu.*", "pcie.*", "nvlink.*", "topology.*", "env.torch")),
    Rule("gpu.count", ("driver.responsive", "gpu.xid", "gpu.lost", "env.torch", "env.cuda-visible-devices")),
    Rule("gpu.memory-repair", ("gpu.lost",), found=RECOVERY_ACTIONS),
    Rule("gpu.ecc", ("gpu.lost",), found=RECOVERY_ACTIONS),
    Rule("gpu.xid", ("gpu.lost",), found=RECOVERY_ACTIONS),
    Rule("gpu.lost", ("gpu.*", "pcie.*", "nvlink.*", "topology.*", "env.torch", "collective.*", "train.*")),
    Rule("nvlink.fabric", ("nvlink.links", "nvlink.topology", "nvlink.errors", "gpu.xid", "collective.*", "train.*")),
    Rule("nvlink.links", ("nvlink.topology", "nvlink.errors", "gpu.xid", "collective.bandwidth", "train.scaling")),
    Rule("nvlink.errors", ("gpu.xid", "collective.bandwidth")),
    Rule("nvlink.topology", ("collective.bandwidth", "collective.correct")),
    Rule("gpu.memory-repair", ("gpu.ecc", "gpu.xid")),
    Rule("gpu.ecc", ("gpu.xid", "gpu.memory-repair", "train.sync", "collective.correct")),
    Rule("gpu.xid", ("gpu.throttle", "nvlink.errors", "collective.correct", "train.sync")),
    Rule("pcie.upstream", ("pcie.link-width", "pcie.link-speed", "pcie.balance", "collective.bandwidth")),
    Rule("pcie.link-width", ("pcie.balance", "pcie.upstream", "gpu.xid", "collective.bandwidth", "train.*")),
    Rule("pcie.link-speed", ("pcie.balance", "collective.bandwidth", "train.*")),
    Rule("pcie.errors", ("gpu.xid",)),
    Rule("pcie.acs", ("collective.*",), anywhere=True),
    Rule("gpu.temperature", ("gpu.throttle", "gpu.clocks", "gpu.xid", "train.balance")),
    Rule("gpu.throttle", ("gpu.clocks", "gpu.temperature", "train.balance")),
    Rule("gpu.power-limit", ("gpu.identical", "gpu.clocks", "gpu.throttle", "train.balance")),
    Rule("gpu.clocks", ("gpu.throttle", "gpu.identical", "train.balance")),
    Rule("gpu.identical", ("gpu.power-limit", "gpu.settings", "pcie.*", "nvlink.topology", "train.*")),
    Rule("gpu.settings", ("gpu.identical", "nvlink.*", "topology.*", "env.torch", "collective.*", "train.*")),
    Rule("gpu.in-use", ("train.*", "collective.bandwidth")),
    Rule("host.shm", ("collective.*", "train.*"), anywhere=True),
    Rule("host.cpu-per-gpu", ("train.balance", "train.scaling"), anywhere=True),
    Rule("env.cuda-visible-devices", ("env.torch", "collective.*", "train.*"), anywhere=True),
    Rule("env.nccl", ("collective.*", "train.*"), anywhere=True),
    Rule("env.torch", ("collective.*", "train.*"), anywhere=True),
    Rule("collective.correct", ("collective.bandwidth", "train.*"), anywhere=True),
    Rule("train.sync", ("train.*",), anywhere=True),
)


class Fault(msgspec.Struct, frozen=True):
    """A failed finding that nothing else explains, with the ids of what it explains."""

    check: str
    subject: Subject
    headline: str
    explains: tuple[str, ...] = ()


def explain(results: Iterable[CheckResult]) -> tuple[tuple[CheckResult, ...], tuple[Fault, ...]]:
    """The results with `explained_by` set, and the faults, worst domain first as the checks come.

    A cause explains only what is no worse than itself: a warn never hides a fail.
    """
    results = tuple(results)
    bad = [(r.id, f) for r in results for f in r.findings if f.status in (Status.FAIL, Status.UNKNOWN, Status.WARN)]
    causes: dict[int, tuple[str, Finding]] = {}
    for check_id, finding in bad:
        cause = _cause(check_id, finding, bad, causes)
        if cause is not None:
            causes[id(finding)] = cause
    explained = tuple(_with_causes(result, causes) for result in results)
    faults = tuple(
        Fault(check_id, finding.subject, headline(finding), _explains(finding, bad, causes))
        for check_id, finding in bad
        if finding.status is Status.FAIL and id(finding) not in causes
    )
    return explained, faults


def headline(finding: Finding) -> str:
    """One line: what was found, and what was expected of it."""
    found = finding.found.text if finding.found else finding.reason or finding.status.value
    return f"{finding.subject.label}: {found}" if finding.subject.kind != "node" else found


def _cause(
    check_id: str, finding: Finding, bad: list[tuple[str, Finding]], causes: dict[int, tuple[str, Finding]]
) -> tuple[str, Finding] | None:
    for rule in RULES:
        if rule.cause == check_id or not rule.explains(check_id, finding):
            continue
        for cause_id, cause in bad:
            if cause_id != rule.cause or not (rule.anywhere or _same_gpu(cause, finding)):
                continue
            severe = WORST_FIRST.index(cause.status) <= WORST_FIRST.index(finding.status)
            if severe and not _leads_to(cause, finding, causes):
                return cause_id, cause
    return None


def _leads_to(start: Finding, end: Finding, causes: dict[int, tuple[str, Finding]]) -> bool:
    """Whether `end` already explains `start`, directly or through others (no circles)."""
    while id(start) in causes:
        start = causes[id(start)][1]
        if start is end:
            return True
    return False


def _same_gpu(cause: Finding, effect: Finding) -> bool:
    mine, theirs = _gpus(cause.subject), _gpus(effect.subject)
    if cause.subject.kind == "node":
        return True
    if effect.subject.kind == "node":
        return bool(mine)
    return bool(mine & theirs)


def _gpus(subject: Subject) -> set[int | str]:
    """Names of the GPUs concerned: index and bus id, since a GPU the driver does not show has only the latter."""
    return {name for name in (*(subject.gpus or ()), subject.gpu, subject.bus_id) if name is not None}


def _explains(
    finding: Finding, bad: list[tuple[str, Finding]], causes: dict[int, tuple[str, Finding]]
) -> tuple[str, ...]:
    lines = []
    for check_id, other in bad:
        root = other
        while id(root) in causes:
            root = causes[id(root)][1]
        if root is finding and other is not finding:
            lines.append(f"{check_id} {other.status.value}: {headline(other)}")
    return tuple(lines)


def _with_causes(result: CheckResult, causes: dict[int, tuple[str, Finding]]) -> CheckResult:
    findings = tuple(
        msgspec.structs.replace(f, explained_by=causes[id(f)][0]) if id(f) in causes else f for f in result.findings
    )
    return msgspec.structs.replace(result, findings=findings, status=worst(f.status for f in findings))
