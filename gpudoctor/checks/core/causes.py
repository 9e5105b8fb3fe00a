"""Which finding explains which, so that people count faults and not findings."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

import msgspec

from gpudoctor.checks.core.explains import PROBES, Explains
from gpudoctor.checks.core.finding import PROBLEMS, WORST_FIRST, Finding, Status, worst
from gpudoctor.checks.core.registry import registry
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.checks.core.subject import NODE, Subject

# Checks of the whole node that add up single GPUs, so that one bad GPU may be all there is to them
SUMS = ("env.*", *PROBES, "pcie.balance", "nvlink.topology")

# The order of depth: what an earlier entry names wins as a cause over what a later one names. Checks of
# one entry come as in the report, those of no entry come last
DEEPEST_FIRST = (
    *("driver.version-match", "driver.*", "gpu.count", "gpu.lost", "nvlink.fabric", "nvlink.*"),
    *("gpu.memory-repair", "gpu.ecc", "gpu.xid", "pcie.upstream", "pcie.*", "gpu.*", "topology.*"),
    *("host.shm", "host.*", "env.*", "collective.*", "link.*", "compute.*", "train.balance", "train.*"),
)


class Rule(msgspec.Struct, frozen=True):
    """One declaration of a check, `cause`, about what it explains."""

    cause: str
    explains: Explains


def rules() -> tuple[Rule, ...]:
    """What the registered checks declare to explain; the rule that wins comes first."""
    checks = sorted(registry(), key=lambda check: _depth(check.id))
    found = [Rule(check.id, each) for check in checks for each in check.explains]
    for rule in [each for each in found if each.explains.after]:
        found.remove(rule)
        last = max((i for i, each in enumerate(found) if each.cause in rule.explains.after), default=-1)
        found.insert(last + 1, rule)
    return tuple(found)


def _depth(check_id: str) -> int:
    fitting = (i for i, entry in enumerate(DEEPEST_FIRST) if fnmatchcase(check_id, entry))
    return min(fitting, default=len(DEEPEST_FIRST))


class Fault(msgspec.Struct, frozen=True):
    """A failed finding that nothing else explains, with the ids of what it explains.

    Where every GPU of the node has the same finding, with one likely cause (a power brake of the
    chassis), they are one fault: `gpus` are all their indices then, and the subject is the node.
    """

    check: str
    subject: Subject
    headline: str
    explains: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()


def explain(results: Iterable[CheckResult]) -> tuple[tuple[CheckResult, ...], tuple[Fault, ...]]:
    """The results with `explained_by` set, and the faults, worst domain first as the checks come.

    A cause explains only what is no worse than itself: a warn never hides a fail.
    """
    results = tuple(results)
    bad = [(r.id, f) for r in results for f in r.findings if f.status in PROBLEMS]
    causes: dict[int, tuple[str, Finding]] = {}
    declared = rules() if len(bad) > 1 else ()
    for check_id, finding in bad:
        cause = _cause(declared, check_id, finding, bad, causes)
        if cause is not None:
            causes[id(finding)] = cause
    explained = tuple(_with_causes(result, causes) for result in results)
    roots = [(each, finding) for each, finding in bad if finding.status is Status.FAIL and id(finding) not in causes]
    everyone = {f.subject.gpu for r in results for f in r.findings if f.subject.kind == "gpu"} - {None}
    groups: dict[object, list[Finding]] = {}
    for check_id, finding in roots:
        groups.setdefault((check_id, _alike(finding)), []).append(finding)
    faults: list[Fault] = []
    for check_id, finding in roots:
        group = groups[check_id, _alike(finding)]
        if len(group) < 2 or {f.subject.gpu for f in group} != everyone:
            faults.append(Fault(check_id, finding.subject, headline(finding), _explains(finding, bad, causes)))
        elif finding is group[0]:
            lines = dict.fromkeys(line for each in group for line in _explains(each, bad, causes))
            gpus = tuple(sorted(f.subject.gpu for f in group if f.subject.gpu is not None))
            text = f"all {len(gpus)} GPUs: {finding.found.text if finding.found else finding.reason}"
            faults.append(Fault(check_id, NODE, text, tuple(lines), gpus))
    return explained, tuple(faults)


def _alike(finding: Finding) -> object:
    """What findings of one check have in common that have one cause; two that are not of a GPU never have."""
    if finding.subject.kind != "gpu":
        return id(finding)
    # a kind of fault (hw-power-brake) is the same, whatever share of the time each GPU had it
    kind = finding.found.value if finding.found else None
    return (kind if isinstance(kind, str) else finding.found, finding.likely)


def headline(finding: Finding) -> str:
    """One line: what was found, and what was expected of it."""
    found = finding.found.text if finding.found else finding.reason or finding.status.value
    return f"{finding.subject.label}: {found}" if finding.subject.kind != "node" else found


def _cause(
    declared: tuple[Rule, ...],
    check_id: str,
    finding: Finding,
    bad: list[tuple[str, Finding]],
    causes: dict[int, tuple[str, Finding]],
) -> tuple[str, Finding] | None:
    for rule in declared:
        if rule.cause == check_id or not rule.explains.fits_effect(check_id, finding):
            continue
        for cause_id, cause in bad:
            if cause_id != rule.cause or not rule.explains.fits_cause(cause):
                continue
            if rule.explains.found and cause.status is Status.UNKNOWN:
                continue  # what was not read explains no certain finding, and no gap that has a cause of its own
            related = rule.explains.anywhere or _concerns(cause_id, cause, check_id, finding)
            severe = WORST_FIRST.index(cause.status) <= WORST_FIRST.index(finding.status)
            if related and severe and not _leads_to(cause, finding, causes):
                return cause_id, cause
    return None


def _leads_to(start: Finding, end: Finding, causes: dict[int, tuple[str, Finding]]) -> bool:
    """Whether `end` already explains `start`, directly or through others (no circles)."""
    while id(start) in causes:
        start = causes[id(start)][1]
        if start is end:
            return True
    return False


def _concerns(cause_id: str, cause: Finding, check_id: str, effect: Finding) -> bool:
    """Whether cause and effect speak of the same thing, so that the one may explain the other.

    Both name the same GPU, or both the node. A cause on the node explains of a single GPU only
    what could not be read there, and how its rank fared. A single GPU explains of the node
    only what adds up GPUs, and by its NVLinks what a switch logged.
    """
    of_node = cause.subject.kind == "node"
    if effect.subject.kind == "node":
        same = of_node and cause.subject.name == effect.subject.name
        links = cause_id.startswith("nvlink.") and check_id == "gpu.xid"
        return same or links or any(fnmatchcase(check_id, each) for each in SUMS)
    if of_node:
        return effect.status is Status.UNKNOWN or effect.subject.kind == "rank"
    return _same_gpu(cause.subject, effect.subject)


def _same_gpu(one: Subject, other: Subject) -> bool:
    """By index; by bus id if one of them is a GPU that the driver does not show, which has no index."""
    ours, theirs = ({*(s.gpus or ()), *(() if s.gpu is None else (s.gpu,))} for s in (one, other))
    if ours and theirs:
        return bool(ours & theirs)
    return one.bus_id is not None and one.bus_id == other.bus_id


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
