"""Which finding explains which, so that people count faults and not findings."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

import msgspec

from gpudoctor.checks.core.finding import NODE, WORST_FIRST, Finding, Status, Subject, worst
from gpudoctor.checks.core.recovery_actions import RECOVERY_ACTIONS
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.checks.core.xid_codes import BUS_CODES, LINK_CODES, MEMORY_CODES


class Rule(msgspec.Struct, frozen=True):
    """A bad finding of `cause` explains findings of `effects` (ids or globs).

    `anywhere`: whatever the subject; else only where both concern the same GPU, see `_concerns`.
    `found` and `because`: only effects, and only causes, whose found value is one of these.
    `gaps`: only effects that are unknown, since what could not be measured has no cause of its own.
    """

    cause: str
    effects: tuple[str, ...]
    anywhere: bool = False
    found: tuple[str | int, ...] = ()
    because: tuple[str, ...] = ()
    gaps: bool = False

    def explains(self, check_id: str, finding: Finding) -> bool:
        if self.gaps and finding.status is not Status.UNKNOWN:
            return False
        of_this_kind = not self.found or finding.status is Status.UNKNOWN or _value(finding) in self.found
        return of_this_kind and any(fnmatchcase(check_id, effect) for effect in self.effects)

    def begins_with(self, check_id: str, finding: Finding) -> bool:
        """Whether a bad finding is a cause in the sense of this rule."""
        return check_id == self.cause and (not self.because or _value(finding) in self.because)


def _value(finding: Finding) -> float | str | None:
    return finding.found.value if finding.found else None


# what gpu.lost finds where the GPU answers and asks for a reset: the error that came first explains that
RESETS = tuple(name for name, action in RECOVERY_ACTIONS.items() if action.after_error)
# how a probe ends whose ranks cannot start or meet: never by a wrong result
ENDS = ("timeout", "crash")
# checks of the whole node that add up single GPUs, so that one bad GPU may be all there is to them
SUMS = (
    "env.*",
    "collective.*",
    "link.*",
    "compute.*",
    "train.*",
    "strategy.*",
    "burn.*",
    "pcie.balance",
    "nvlink.topology",
)

# what torch, TensorFlow and JAX see of the GPUs
VIEWS = ("env.torch", "env.frameworks")

# speeds of one GPU; what a hot or slow one computes must still be right
SPEEDS = ("compute.gemm", "compute.memory", "burn.drift")

# In the order of depth: an earlier cause wins over a later one.
RULES = (
    Rule("driver.version-match", ("driver.*", "gpu.count", "gpu.lost", *VIEWS), anywhere=True),
    Rule("driver.version-match", ("gpu.*",), anywhere=True, gaps=True),
    Rule("driver.loaded", ("driver.*", "gpu.count", "gpu.lost", *VIEWS), anywhere=True),
    Rule("driver.loaded", ("env.cuda-visible-devices", "collective.*", "train.*"), anywhere=True),
    Rule("driver.loaded", ("link.*", "compute.*", "burn.*"), anywhere=True),
    Rule("driver.loaded", ("gpu.*", "nvlink.*"), anywhere=True, gaps=True),
    Rule("driver.responsive", ("driver.loaded", "gpu.*", "pcie.*", "nvlink.*", "topology.*", *VIEWS)),
    Rule("driver.fabric-manager", ("nvlink.*", "collective.*", "train.*", "link.peer", *VIEWS), anywhere=True),
    Rule("gpu.count", ("driver.responsive", "gpu.xid", "gpu.lost", *VIEWS)),
    # a list made for all GPUs is cut short where one is gone; one that shows none is a slip of its own
    Rule("gpu.count", ("env.cuda-visible-devices",), found=tuple(range(1, 64))),
    Rule("gpu.memory-repair", ("gpu.lost",), found=RESETS),
    Rule("gpu.ecc", ("gpu.lost",), found=RESETS),
    Rule("gpu.xid", ("gpu.lost",), found=RESETS),
    Rule("gpu.lost", ("gpu.*", "pcie.*", "nvlink.*", "topology.*", *VIEWS, "collective.*", "train.*")),
    Rule("gpu.lost", ("link.*", "compute.*", "burn.*")),
    Rule("nvlink.fabric", ("nvlink.links", "nvlink.topology", "nvlink.errors", "collective.*", "train.scaling")),
    Rule("nvlink.fabric", ("train.sync",), found=ENDS),
    Rule("nvlink.fabric", ("link.peer",)),
    Rule("nvlink.links", ("nvlink.topology", "nvlink.errors", "collective.bandwidth", "train.scaling")),
    Rule("nvlink.links", ("collective.pairs", "link.peer")),
    Rule("nvlink.fabric", ("gpu.xid",), found=LINK_CODES),
    Rule("nvlink.links", ("gpu.xid",), found=LINK_CODES),
    Rule("nvlink.errors", ("gpu.xid",), found=LINK_CODES),
    Rule("nvlink.errors", ("collective.bandwidth", "collective.pairs", "link.peer")),
    Rule("nvlink.topology", ("collective.bandwidth", "collective.correct", "collective.pairs", "link.peer")),
    Rule("gpu.memory-repair", ("gpu.ecc",)),
    Rule("gpu.memory-repair", ("gpu.xid",), found=MEMORY_CODES),
    Rule("gpu.ecc", ("gpu.xid",), found=MEMORY_CODES),
    Rule("gpu.ecc", ("gpu.memory-repair", "train.sync", "collective.correct")),
    Rule("gpu.ecc", ("compute.exact", "compute.pattern", "burn.counters")),
    Rule("gpu.memory-repair", ("compute.exact", "compute.pattern", "compute.memory")),
    Rule("gpu.xid", ("nvlink.errors", "collective.correct", "train.sync")),
    Rule("pcie.upstream", ("collective.bandwidth", "collective.pairs", "link.*")),
    Rule("pcie.link-width", ("pcie.balance", "collective.bandwidth", "train.balance", "train.scaling")),
    Rule("pcie.link-width", ("collective.pairs", "link.*")),
    Rule("pcie.link-speed", ("pcie.balance", "collective.bandwidth", "train.balance", "train.scaling")),
    Rule("pcie.link-speed", ("collective.pairs", "link.*")),
    Rule("pcie.errors", ("gpu.xid",), found=BUS_CODES),
    Rule("pcie.acs", ("collective.*", "link.peer"), anywhere=True),
    Rule("gpu.temperature", ("gpu.throttle", "gpu.clocks", "train.balance", *SPEEDS)),
    Rule("gpu.throttle", ("gpu.clocks", "gpu.temperature", "train.balance", *SPEEDS)),
    Rule("gpu.power-limit", ("gpu.identical", "gpu.clocks", "gpu.throttle", "train.balance", "compute.gemm")),
    Rule("gpu.clocks", ("gpu.throttle", "gpu.identical", "train.balance", *SPEEDS)),
    Rule("gpu.identical", ("pcie.balance", "nvlink.topology", "train.memory", "train.scaling")),
    Rule("gpu.settings", (*VIEWS, "collective.*", "train.*"), because=("prohibited", "MIG")),
    Rule("gpu.settings", ("gpu.identical",), because=("ECC", "MIG")),
    Rule("gpu.in-use", ("train.*", "collective.bandwidth", "collective.pairs", "link.*", *SPEEDS)),
    Rule("topology.numa", ("link.host",)),
    Rule("host.shm", ("collective.bandwidth", "train.scaling"), anywhere=True),
    Rule("host.shm", ("collective.*", "train.*"), anywhere=True, found=ENDS),
    Rule("host.cpu-per-gpu", ("train.balance", "train.scaling"), anywhere=True),
    Rule("env.cuda-visible-devices", VIEWS, anywhere=True),
    Rule("env.cuda-visible-devices", ("collective.*", "train.*"), anywhere=True, found=ENDS),
    Rule("env.nccl", ("collective.bandwidth", "collective.pairs", "train.scaling"), anywhere=True),
    Rule("env.nccl", ("collective.*", "train.*"), anywhere=True, found=ENDS),
    Rule("env.torch", ("env.frameworks",), anywhere=True),
    Rule("env.torch", ("collective.*", "train.*"), anywhere=True, found=ENDS),
    Rule("collective.correct", ("collective.bandwidth", "train.sync", "train.scaling"), anywhere=True),
    Rule("collective.correct", ("collective.*", "link.*", "compute.*", "train.*", "burn.*"), anywhere=True, gaps=True),
    Rule("link.host", ("link.*", "compute.*", "train.*", "burn.*"), anywhere=True, gaps=True),
    Rule("link.host", ("link.peer",)),
    Rule("link.peer", ("collective.pairs", "collective.bandwidth")),
    Rule("compute.exact", ("compute.*", "train.*", "burn.*"), anywhere=True, gaps=True),
    Rule("compute.exact", ("compute.pattern", "train.sync", "collective.correct")),
    Rule("compute.gemm", ("train.balance", "burn.drift")),
    Rule("train.balance", ("train.scaling", "train.utilization")),
    Rule("train.sync", ("train.*", "burn.*"), anywhere=True, gaps=True),
    Rule("driver.loaded", ("strategy.*",), anywhere=True),
    Rule("gpu.lost", ("strategy.*",)),
    Rule("gpu.ecc", ("strategy.*",)),
    Rule("gpu.xid", ("strategy.*",)),
    Rule("nvlink.fabric", ("strategy.*",), found=ENDS),
    Rule("gpu.settings", ("strategy.*",), because=("prohibited", "MIG")),
    Rule("host.shm", ("strategy.*",), anywhere=True, found=ENDS),
    Rule("env.cuda-visible-devices", ("strategy.*",), anywhere=True, found=ENDS),
    Rule("env.nccl", ("strategy.*",), anywhere=True, found=ENDS),
    Rule("env.torch", ("strategy.*",), anywhere=True, found=ENDS),
    Rule("compute.exact", ("strategy.*",)),
    Rule("collective.correct", ("strategy.*",), anywhere=True),
    Rule("collective.correct", ("strategy.*",), anywhere=True, gaps=True),
    Rule("train.sync", ("strategy.*",), anywhere=True),
    Rule("train.sync", ("strategy.*",), anywhere=True, gaps=True),
    Rule("strategy.ddp", ("strategy.*",), anywhere=True, gaps=True),
)


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
    bad = [(r.id, f) for r in results for f in r.findings if f.status in (Status.FAIL, Status.UNKNOWN, Status.WARN)]
    causes: dict[int, tuple[str, Finding]] = {}
    for check_id, finding in bad:
        cause = _cause(check_id, finding, bad, causes)
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
    kind = _value(finding)
    return (kind if isinstance(kind, str) else finding.found, finding.likely)


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
            if not rule.begins_with(cause_id, cause) or not (
                rule.anywhere or _concerns(rule, cause, check_id, finding)
            ):
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


def _concerns(rule: Rule, cause: Finding, check_id: str, effect: Finding) -> bool:
    """Whether cause and effect speak of the same thing, so that the one may explain the other.

    Both name the same GPU, or both the node. A cause on the node explains of a single GPU only
    what could not be read there, and how its rank fared. A single GPU explains of the node
    only what adds up GPUs, and by its NVLinks what a switch logged.
    """
    of_node = cause.subject.kind == "node"
    if effect.subject.kind == "node":
        same = of_node and cause.subject.name == effect.subject.name
        links = rule.cause.startswith("nvlink.") and check_id == "gpu.xid"
        return same or links or any(fnmatchcase(check_id, each) for each in SUMS)
    if of_node:
        return effect.status is Status.UNKNOWN or effect.subject.kind == "rank"
    return _same_gpu(cause.subject, effect.subject)


def _same_gpu(one: Subject, other: Subject) -> bool:
    """By index; by bus id where one of them is a GPU that the driver does not show, which has no index."""
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
