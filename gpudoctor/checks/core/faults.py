"""Which finding explains which other, so that a report counts faults instead of findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from gpudoctor.checks.core.explains import PROBES, Explains
from gpudoctor.checks.core.finding import PROBLEMS, WORST_FIRST, Advice, Finding, Status, worst
from gpudoctor.checks.core.registry import registry
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.checks.core.subject import NODE, Subject
from gpudoctor.facts.model.missing import NOT_IN_FILE
from gpudoctor.text.grouped import grouped

# What a finding is about: see `_parts`; None is anything
Part = int | str | None
# by check and part, the findings with their places among all
ByPart = dict[tuple[str, Part], list[tuple[int, Finding]]]
# by id(finding), since two checks may have equal ones: the check that found its cause, and that finding
Causes = dict[int, tuple[str, Finding]]

# Node-wide checks that aggregate single GPUs: one bad GPU may be the whole reason for their finding
SUMS = ("env.*", *PROBES, "pcie.balance", "nvlink.topology")

# Root causes first: a check of an earlier entry wins as the cause over one of a later entry. Checks that match
# the same entry keep the order of the report; checks that match none come last
DEEPEST_FIRST = (
    "driver.version-match", "driver.*", "gpu.count", "gpu.lost", "nvlink.fabric", "nvlink.*",
    "gpu.memory-repair", "gpu.ecc", "gpu.xid", "pcie.upstream", "pcie.*", "gpu.*", "topology.*",
    "host.shm", "host.*", "env.*", "collective.*", "link.*", "compute.*", "train.balance", "train.*",
)  # fmt: skip
_LACKING = f": {NOT_IN_FILE.reason}"


class Rule(msgspec.Struct, frozen=True):
    """One entry of what the check `cause_id` declares to explain."""

    cause_id: str
    explains: Explains


def rules() -> tuple[Rule, ...]:
    """What the registered checks declare to explain; a rule wins over those after it."""
    checks = sorted(registry(), key=lambda check: _depth(check.id))
    found = [Rule(check.id, each) for check in checks for each in check.explains]
    for rule in [each for each in found if each.explains.after]:
        found.remove(rule)
        last = max((i for i, each in enumerate(found) if each.cause_id in rule.explains.after), default=-1)
        found.insert(last + 1, rule)
    return tuple(found)


def _depth(check_id: str) -> int:
    fitting = (i for i, entry in enumerate(DEEPEST_FIRST) if fnmatchcase(check_id, entry))
    return min(fitting, default=len(DEEPEST_FIRST))


class Fault(msgspec.Struct, frozen=True):
    """A failed finding that nothing else explains, with one line for each finding that it explains.

    If every GPU of the node has the same finding with the same likely cause (a power brake of the chassis),
    they form one fault, and the subject is the node. `gpus` are the indices of all GPUs that the fault is about;
    `likely` and `advice` are those of the finding, of the first one if there are several.
    """

    check: str
    subject: Subject
    headline: str
    explains: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()
    status: Literal["fail"] = "fail"
    likely: str | None = None
    advice: tuple[Advice, ...] = ()

    @property
    def is_joint(self) -> bool:
        """Whether several GPUs have it together."""
        return self.subject.kind == "node" and bool(self.gpus)


def explain(results: Iterable[CheckResult]) -> tuple[tuple[CheckResult, ...], tuple[Fault, ...]]:
    """Return the results with `explained_by` set anew, and the faults in the order of the results.

    A cause explains only what is no worse than itself: a warn never hides a fail. What is unknown explains
    only what is unknown, so that it hides nothing that was found. What a facts file lacks has no other cause, and is
    none: somebody left it out.
    """
    results = tuple(results)
    bad = [(r.id, f) for r in results for f in r.findings if f.status in PROBLEMS and not lacks_a_fact(f)]
    causes: Causes = {}
    declared = rules() if len(bad) > 1 else ()
    by_part = _by_part(bad)
    for check_id, finding in bad:
        found = _cause_of(declared, check_id, finding, by_part, causes)
        if found is not None:
            causes[id(finding)] = found
    roots = [(each, finding) for each, finding in bad if finding.status is Status.FAIL and id(finding) not in causes]
    gpus = {f.subject.gpu for r in results for f in r.findings if f.subject.kind == "gpu"} - {None}
    explained = tuple(_with_causes(result, causes) for result in results)
    return explained, tuple(_faults(roots, gpus, _explained_lines(bad, causes)))


def lacks_a_fact(finding: Finding) -> bool:
    """Whether the finding is unknown because the facts file does not have what it judges."""
    return finding.status is Status.UNKNOWN and (finding.reason or "").endswith(_LACKING)


def _faults(
    roots: Sequence[tuple[str, Finding]], every_gpu: set[int | None], lines: Mapping[int, list[str]]
) -> Iterator[Fault]:
    """One fault for each finding, but one for all of a check that every GPU has alike."""
    groups = grouped(((check_id, _joint_key(finding)), finding) for check_id, finding in roots)
    for check_id, finding in roots:
        group = groups[check_id, _joint_key(finding)]
        subject, text, gpus = finding.subject, headline(finding), finding.subject.all_gpus
        explains = lines[id(finding)]
        if len(group) > 1 and {f.subject.gpu for f in group} == every_gpu:
            if finding is not group[0]:
                continue
            gpus = tuple(sorted(f.subject.gpu for f in group if f.subject.gpu is not None))
            subject, text = NODE, f"all {len(gpus)} GPUs: {finding.text}"
            explains = [*dict.fromkeys(line for each in group for line in lines[id(each)])]
        yield Fault(check_id, subject, text, tuple(explains), gpus, likely=finding.likely, advice=finding.advice)


def _joint_key(finding: Finding) -> object:
    """The key that findings of one check share if they have one cause; unique for findings that are not about a GPU."""
    if finding.subject.kind != "gpu":
        return id(finding)
    # the share of time with a hw-power-brake differs between GPUs, the kind of fault does not
    kind = finding.found.value if finding.found else None
    return (kind if isinstance(kind, str) else finding.found, finding.likely)


def headline(finding: Finding) -> str:
    """What was found, in one line, with the subject unless that is the node."""
    return f"{finding.subject.label}: {finding.text}" if finding.subject.kind != "node" else finding.text


def _by_part(bad: list[tuple[str, Finding]]) -> ByPart:
    """The findings of each check by the parts that they are about, in order: 1,000 GPUs must not ask each other."""
    return grouped(
        ((check_id, part), (place, finding))
        for place, (check_id, finding) in enumerate(bad)
        for part in (None, *_parts(finding.subject))
    )


def _parts(subject: Subject) -> set[Part]:
    """GPU indices, a bus id, or "node"."""
    named = (subject.gpu, subject.bus_id, "node" if subject.kind == "node" else None)
    return {*(subject.gpus or ()), *(part for part in named if part is not None)}


def _cause_of(
    declared: tuple[Rule, ...], check_id: str, finding: Finding, by_part: ByPart, causes: Causes
) -> tuple[str, Finding] | None:
    """The check and the finding of the first rule that explains this finding; None if nothing does."""
    for rule in declared:
        if not rule.explains.fits_effect(check_id, finding):
            continue
        for cause in _candidates(rule, finding, by_part):
            # `finding` must not already explain the cause, directly or through others
            if _may_explain(rule, cause, check_id, finding) and _root(cause, causes) is not finding:
                return rule.cause_id, cause
    return None


def _candidates(rule: Rule, effect: Finding, by_part: ByPart) -> list[Finding]:
    """The bad findings of the rule's check about what the effect is about, or about the node, in order."""
    anything = rule.explains.anywhere or effect.subject.kind == "node"
    parts: set[Part] = {None} if anything else {"node", *_parts(effect.subject)}
    found = dict(each for part in parts for each in by_part.get((rule.cause_id, part), ()))
    return [finding for _, finding in sorted(found.items())]


def _may_explain(rule: Rule, cause: Finding, check_id: str, effect: Finding) -> bool:
    """Whether the rule, which fits the effect, holds for this cause: it is as severe, and about the same thing."""
    if not rule.explains.fits_cause(cause) or WORST_FIRST.index(cause.status) > WORST_FIRST.index(effect.status):
        return False
    # what was not read explains nothing that was found, and by a rule for certain values (`found`) no gap either: that
    # has another cause
    if cause.status is Status.UNKNOWN and (rule.explains.found or effect.status is not Status.UNKNOWN):
        return False
    # in one check only a GPU explains something: a pair that it belongs to
    if rule.cause_id == check_id and (cause.subject.kind, effect.subject.kind) != ("gpu", "pair"):
        return False
    return rule.explains.anywhere or _concerns(rule.cause_id, cause, check_id, effect)


def _root(finding: Finding, causes: Causes) -> Finding:
    """The cause of the finding that nothing explains; the finding itself if it has no cause."""
    while id(finding) in causes:
        finding = causes[id(finding)][1]
    return finding


def _concerns(cause_id: str, cause: Finding, check_id: str, effect: Finding) -> bool:
    """Whether cause and effect concern the same thing, so that one may explain the other.

    True if both name the same GPU, or both the node. A cause on the node explains findings of a single GPU only
    if they are unknown, and findings of ranks. A cause on a single GPU explains findings of the node only in
    checks that aggregate GPUs, and a broken NVLink explains what the switch logged as Xid.
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
    """Compare by index, or by bus id if one is a GPU that the driver does not show: that one has no index."""
    own, others = ({*(s.gpus or ()), *(() if s.gpu is None else (s.gpu,))} for s in (one, other))
    if own and others:
        return bool(own & others)
    return one.bus_id is not None and one.bus_id == other.bus_id


def _explained_lines(bad: list[tuple[str, Finding]], causes: Causes) -> dict[int, list[str]]:
    """By the id of each finding, one line for every other that it explains in the end."""
    lines: dict[int, list[str]] = {id(finding): [] for _, finding in bad}
    for check_id, finding in bad:
        if (root := _root(finding, causes)) is not finding:
            lines[id(root)].append(f"{check_id} {finding.status.value}: {headline(finding)}")
    return lines


def _with_causes(result: CheckResult, causes: Causes) -> CheckResult:
    findings = tuple(
        msgspec.structs.replace(f, explained_by=causes[id(f)][0] if id(f) in causes else None) for f in result.findings
    )
    return msgspec.structs.replace(result, findings=findings, status=worst(f.status for f in findings))
