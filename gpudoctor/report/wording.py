"""The words of a report that text, HTML and the TUI share: of domains, problems and the verdict. No layout, no rich."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest

from msgspec.structs import replace

from gpudoctor.checks.core.faults import Fault, headline, lacks_a_fact
from gpudoctor.checks.core.finding import (
    PROBLEMS,
    WORST_FIRST,
    Advice,
    Evidence,
    Expected,
    Finding,
    Status,
    joint_evidence,
)
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.checks.core.subject import NODE, Subject, grouped_label
from gpudoctor.checks.driver.loaded import NO_GPU_NODE
from gpudoctor.checks.driver.responsive import WAKING
from gpudoctor.facts.model.missing import NOT_IN_FILE
from gpudoctor.lazy import lazy_imports
from gpudoctor.report.model import Report, findings_of, is_above
from gpudoctor.text.grouped import grouped
from gpudoctor.text.units import counted

with lazy_imports():
    import shlex

    from gpudoctor.facts import captures

# the command whose output is missing from a capture, by domain; for the kernel log, by check
_COMMANDS = {
    "gpu.xid": "dmesg",
    "gpu": "nvidia-smi -q",
    "pcie": "lspci -vvv (as root)",
    "nvlink": "nvidia-smi nvlink -s",
    "topology": "nvidia-smi topo -m",
    "host": "free -m; df -m /dev/shm",
    "env": "env",
    "network": "ibstat",
}
_MOST_COMMANDS = 3
_MOST_LINES = 20  # of what a block of several subjects says of each
_MOST_LACKING = 3  # checks of which each says in a block of its own that the facts file lacks something
_MOST_EXPLAINED = 3  # checks that the last lines name
_KEPT_OPTIONS = (
    *("--node", "--fault", "--gpu", "--profile", "--config", "--level", "--backend", "--ranks", "--inject", "--data"),
    *("--need",),
)
PARTLY = "PARTLY JUDGED"
BlockPart = str | tuple[Evidence, ...] | tuple[Advice, ...] | tuple[str, ...]


def domain_words(results: list[CheckResult], status: Status, domains: Sequence[str] = ()) -> str:
    """ "7 of 8 GPUs ok   GPU 5: link-width", "3 of 4 checks ok   fabric", "7 checks" or "5 checks: why skipped".

    `domains`: whose results these are, named if there are several: "5 checks (collective, train): why skipped".
    """
    looked = [r for r in results if r.status is not Status.SKIP]
    skipped = len(results) - len(looked)
    if status is Status.SKIP:
        reasons = _different(_reason(r) for r in results)
        others = len(reasons) - 1
        more = f" (and {counted(others, 'more reason')})" if others else ""
        named = f" ({', '.join(domains)})" if len(domains) > 1 else ""
        return f"{counted(len(results), 'check')}{named}: {reasons[0]}{more}"
    bad = [r for r in looked if r.status is not Status.PASS]
    tail = f", {skipped} skipped" if skipped else ""
    if not bad:
        summary = _worth_seeing(results)
        return f"{counted(len(looked), 'check')}{tail}" + (f"   {summary}" if summary else "")
    names = "; ".join(_by_subject(bad))
    if gpus := _gpus_ok(looked):
        tail = f", {counted(skipped, 'check')} skipped" if skipped else ""
        return f"{gpus}{tail}   {names}"
    return f"{len(looked) - len(bad)} of {counted(len(looked), 'check')} ok{tail}   {names}"


def have_one_reason(results: Iterable[CheckResult]) -> bool:
    """Whether skipped checks are skipped for one reason: said once for each domain, it hides what stands above it."""
    return len(_different(_reason(result) for result in results)) == 1


def _gpus_ok(looked: list[CheckResult]) -> str:
    """ "7 of 8 GPUs ok", if every problem is one of a single GPU and others passed: no check is ok, 7 GPUs are."""
    findings = [finding for result in looked for finding in result.findings]
    bad = [finding.subject for finding in findings if finding.status in PROBLEMS]
    if any(subject.kind != "gpu" or subject.gpu is None for subject in bad):
        return ""
    passed = {f.subject.gpu for f in findings if f.status is Status.PASS and f.subject.kind == "gpu"}
    not_ok = {subject.gpu for subject in bad}
    good = len(passed - not_ok - {None})
    return f"{good} of {good + len(not_ok)} GPUs ok" if good else ""


def _different(reasons: Iterable[str]) -> list[str]:
    """The reasons, each once; why several things are not there ("GEMM: no load here") is said without these things."""
    different = list(dict.fromkeys(reasons))
    whys = [reason.partition(": ")[2] or reason for reason in different]
    return list(dict.fromkeys(whys if len(set(whys)) < len(whys) else different))


def _by_subject(bad: list[CheckResult]) -> list[str]:
    """ "GPU 2: lost, xid and 9 more" for each GPU (or set of GPUs) with a problem, worst first."""
    seen = [(r.status, r) for r in bad] + [(Status.WARN, r) for r in bad if r.warns and r.status is not Status.WARN]
    groups = grouped(
        (grouped_label(f.subject for f in result.findings if f.status is status), result.id.partition(".")[2])
        for status, result in sorted(seen, key=lambda pair: WORST_FIRST.index(pair[0]))
    )
    lines = []
    for label, names in groups.items():
        more = f" and {len(names) - 3} more" if len(names) > 4 else ""
        shown = ", ".join(names if not more else names[:3])
        lines.append(f"{shown}{more}" if label == "node" else f"{label}: {shown}{more}")
    return lines


def _worth_seeing(results: list[CheckResult]) -> str:
    """A figure that is shown even if all is well: "144 of 144 links up", or how long the driver took to wake."""
    nodes = (f for r in results for f in r.findings if f.subject.kind == "node" and f.found)
    seen = (f for f in nodes if f.found and (f.found.unit == "links" or any(e.source == WAKING for e in f.evidence)))
    return next((f.found.text for f in seen if f.found), "")


def _reason(result: CheckResult) -> str:
    return next((f.reason for f in result.findings if f.reason), "nothing to judge")


def also_paste(report: Report) -> str:
    """ "To judge nvlink, also paste: nvidia-smi nvlink -s"; "" if the capture has something for every domain."""
    if report.run.source.kind != "capture":
        return ""
    asked = [result for result in report.checks if not is_above(result, report.run.level)]
    parts = []
    for what, command in _COMMANDS.items():
        results = [result for result in asked if what in (result.id, result.domain)]
        skipped = bool(results) and all(result.status is Status.SKIP for result in results)
        named_only = what == "gpu" and bool(results) and not report.gpus and report.host.driver is None  # by a log
        if named_only or (skipped and any(_reason(result).endswith(captures.ABSENT.reason) for result in results)):
            parts.append(f"{what}: {command}")
    if not parts:
        return ""
    if len(parts) == 1:
        name, _, command = parts[0].partition(": ")
        return f"To judge {name}, also paste: {command}"
    return f"To judge more, also paste: {' | '.join(parts[:_MOST_COMMANDS])}"


def verdict_word(report: Report) -> str:
    """The verdict in capital letters; PARTLY JUDGED if a text showed too little of the node for a PASS."""
    return PARTLY if report.verdict == "pass" and report.evaluated.partly else report.verdict.upper()


def is_no_gpu_node(report: Report) -> bool:
    """Whether the machine has neither an NVIDIA GPU nor its driver, so that most checks have nothing to look at."""
    return any(f.found and f.found.text == NO_GPU_NODE for f in findings_of(report, "driver.loaded"))


def verdict_words(report: Report) -> str:
    """What the verdict means; a node is only called fit if its GPUs were put under load."""
    training = report.measurements.training
    if report.verdict == "pass" and training is not None and training.device == "cuda":
        return "fit to train on"
    if report.verdict in ("pass", "warn") and report.evaluated.partly:  # of a text nobody knows that the machine works
        found = "nothing wrong in these" if report.verdict == "pass" else "look at the warnings"
        return f"{report.evaluated.words}; {found}"
    if report.verdict == "fail" and is_no_gpu_node(report):
        return "this is no GPU node"
    passed = counted(report.counts.passed, "check")
    by_verdict = {
        "pass": f"nothing wrong in the {passed} evaluated; no GPU was put under load",
        "warn": "works; look at the warnings",
        "fail": "not fit to train on" + (", by what this text says" if report.evaluated.partly else ""),
    }
    if report.verdict == "unknown" and not report.counts.unknown and report.reason.startswith("UNKNOWN "):
        return f"not known: {report.reason.removeprefix('UNKNOWN ')}"
    return by_verdict.get(report.verdict, "not known: what got no answer is not a pass")


def problem_groups(report: Report) -> Iterator[tuple[CheckResult, list[Finding]]]:
    """Faults, then unknowns, then warnings; findings of one cause with the same steps to take form one group."""
    for status in PROBLEMS:
        for result in report.checks:
            roots = (f for f in result.findings if f.status is status and f.explained_by is None)
            for findings in grouped((_problem(finding), finding) for finding in roots).values():
                yield result, findings


def lacking_rows(report: Report) -> list[tuple[str, str]]:
    """The checks whose facts are not all in a facts file, and which facts those are."""
    rows = []
    for result in report.checks:
        gaps = [f for f in result.findings if lacks_a_fact(f)]
        texts = dict.fromkeys((f.reason or "").rpartition(": ")[0] for f in gaps)
        whose = "" if NODE in (subjects := [f.subject for f in gaps]) else f" ({grouped_label(subjects)})"
        if gaps:
            rows.append((result.id, ", ".join(texts) + whose))
    return rows


def joined_problems(report: Report) -> tuple[list[tuple[CheckResult, list[Finding]]], str, list[tuple[str, str]]]:
    """The `problem_groups`; and what stands in one block, under a title, in place of many that lack a fact."""
    groups, lacking = list(problem_groups(report)), lacking_rows(report)
    if len(lacking) <= _MOST_LACKING:
        return groups, "", []
    title = f"{NOT_IN_FILE.reason}: what {counted(len(lacking), 'check')} judge"
    return [group for group in groups if not lacks_a_fact(group[1][0])], title, lacking


def _problem(finding: Finding) -> object:
    """What makes findings one problem; of those without a cause and steps, their words."""
    steps = tuple(step.text for step in finding.advice)
    return (finding.likely, steps) if finding.likely or steps else (_found(finding), finding.reason)


def alike(findings: Iterable[Finding]) -> Iterator[tuple[Finding, str]]:
    """The first of the findings with the same status and words, and the subjects of all of them."""
    groups = grouped(((finding.status, _found(finding), finding.reason), finding) for finding in findings)
    yield from ((group[0], label_of(group)) for group in groups.values())


def label_of(findings: Sequence[Finding]) -> str:
    """The subjects of findings with the same words; that of a single one in full."""
    return findings[0].subject.label if len(findings) == 1 else grouped_label(f.subject for f in findings)


def block_parts(findings: Sequence[Finding], explains: Iterable[str]) -> Iterator[tuple[str, BlockPart]]:
    """What a block tells of a problem of one or several subjects: (label, part), in reading order.

    What is not the same for all subjects says whose it is.
    """
    first = findings[0]
    parts: tuple[tuple[str, BlockPart | None], ...] = (
        ("found", _of_each(findings, _found)),
        ("reason", _of_each(findings, lambda finding: finding.reason)),
        (
            "expected",
            _of_each(findings, lambda finding: expected_words(finding.expected) if finding.expected else None),
        ),
        ("evidence", _shown_evidence(findings)),
        ("likely", first.likely),
        ("do", tuple(_shown_advice(findings))),
        ("explains", tuple(explains)),
    )
    yield from ((label, part) for label, part in parts if part)


class CommandText(str):
    """A command on a line of its own, which no layout may wrap: it is there to be copied."""


def block_rows(first: Finding, explains: Iterable[str], others: Sequence[Finding] = ()) -> list[tuple[str, str]]:
    """`block_parts` as rows of (label, text); an empty label continues the previous one. Commands are `CommandText`."""
    rows: list[tuple[str, str]] = []
    for label, part in block_parts((first, *others), explains):
        items: list[Evidence | Advice | str] = [part] if isinstance(part, str) else list(part)
        numbered = label == "do" and len(items) > 1
        lines = [line for n, item in enumerate(items, 1) for line in _lines(item, f"{n}. " if numbered else "")]
        rows += [(label if n == 0 else "", line) for n, line in enumerate(lines)]
    return rows


def _lines(item: Evidence | Advice | str, number: str) -> Iterator[str]:
    if isinstance(item, Evidence):
        yield f"{number}{item.source} = {item.value}"
        return
    yield number + (item if isinstance(item, str) else item.text)
    if isinstance(item, Advice) and item.command:
        yield CommandText(" " * len(number) + item.command)


def _found(finding: Finding) -> str | None:
    return finding.found.text if finding.found else None


def _of_each(findings: Sequence[Finding], words_of: Callable[[Finding], str | None]) -> str | tuple[str, ...] | None:
    """The words of all findings, or a line for each of several words with its subjects; a long list is cut."""
    groups = grouped((words_of(finding), finding) for finding in findings)
    if len(groups) == 1:
        return next(iter(groups))
    lines = [f"{label_of(group)}: {text}" for text, group in groups.items() if text]
    more = len(lines) - _MOST_LINES
    return (*lines[:_MOST_LINES], *([f"{more} more (--format json)"] if more > 0 else ()))


def _shown_evidence(findings: Sequence[Finding]) -> tuple[Evidence, ...]:
    """The readings of one or several subjects, as `joint_evidence`; a long list of several is cut."""
    every = joint_evidence(findings)
    if len(findings) == 1 or len(every) <= _MOST_LINES:
        return every
    return (*every[:_MOST_LINES], Evidence("more", f"{len(every) - _MOST_LINES} readings (--format json)"))


def _shown_advice(findings: Sequence[Finding]) -> Iterator[Advice]:
    """The steps of the first; a command that is another one for the others is marked as the first's."""
    first, *others = findings
    for n, step in enumerate(first.advice):
        alike = all(len(other.advice) > n and other.advice[n] == step for other in others)
        if step.command is not None and not alike:
            rest = grouped_label(other.subject for other in others)
            yield replace(step, command=f"{step.command}  # {grouped_label([first.subject])}; alike for {rest}")
        else:
            yield step


class Explained:
    """What the problems of a report explain; made once for all of them, as 1,000 GPUs may have one each."""

    def __init__(self, report: Report) -> None:
        self._faults: dict[tuple[str, Subject | None], dict[int, Fault]] = {}
        for order, fault in enumerate(report.faults):
            self._faults.setdefault((fault.check, None if fault.is_joint else fault.subject), {})[order] = fault
        self._others: dict[str, dict[int, str]] = {}
        self._near: dict[tuple[str, int | None], dict[int, str]] = {}
        found = [(result.id, f) for result in report.checks for f in result.findings if f.status is not Status.FAIL]
        for order, (check_id, f) in enumerate(found):
            if f.explained_by is not None:
                line = f"{check_id} {f.status.value}: {headline(f)}"
                self._others.setdefault(f.explained_by, {})[order] = line
                for gpu in f.subject.all_gpus or (None,):
                    self._near.setdefault((f.explained_by, gpu), {})[order] = line

    def by(self, check_id: str, findings: Sequence[Finding]) -> list[str]:
        """By the findings of a block: failures and warnings line by line, three or more unknowns in one line."""
        subjects = {finding.subject for finding in findings}
        if findings[0].status is Status.FAIL:
            joint, gpus = self._faults.get((check_id, None), {}), {subject.gpu for subject in subjects}
            own = {order: fault for order, fault in joint.items() if gpus.issuperset(fault.gpus)}
            for subject in subjects:
                own |= self._faults.get((check_id, subject), {})
            lines = list(dict.fromkeys(line for _, fault in sorted(own.items()) for line in fault.explains))
        else:
            gpus = {gpu for subject in subjects for gpu in subject.all_gpus}
            others = {} if gpus else self._others.get(check_id, {})
            for gpu in (*gpus, None):
                others = others | self._near.get((check_id, gpu), {})
            lines = [line for _, line in sorted(others.items())]
        blind = list(dict.fromkeys(line.split()[0] for line in lines if line.split()[1] == "unknown:"))
        if len(blind) < 3:
            return lines
        seen = [line for line in lines if line.split()[1] != "unknown:"]
        return [*seen, f"{len(blind)} checks that got no answer: {', '.join(blind)}"]


def expected_words(expected: Expected) -> str:
    """The expectation and its source, unless the text already contains the source."""
    text, source = expected.text, expected.source
    if not source or all(word in text.lower() for word in source.lower().split()):
        return text
    return f"{text} ({source})"


def explained_next(report: Report) -> list[str]:
    """The checks whose pages help next: those of the first faults, else the worst check that did not pass."""
    faults = list(dict.fromkeys(fault.check for fault in report.faults))[:_MOST_EXPLAINED]
    # no page helps if a fact more in the file would end it
    return faults or [result.id for result, found in problem_groups(report) if not all(map(lacks_a_fact, found))][:1]


def same_run(argv: tuple[str, ...]) -> str:
    """The options of this run that select the node and its load, quoted for a shell, for the command to run next.

    What was read from stdin is gone: the next command wants it as a file.
    """
    retained = []
    for word, value in zip_longest(argv, argv[1:], fillvalue=""):
        if word in _KEPT_OPTIONS:
            retained.append(f"{word} {'FILE' if (word, value) == ('--node', '-') else shlex.quote(value)}")
        elif word == "--node=-":
            retained.append("--node=FILE")
        elif word.partition("=")[0] in _KEPT_OPTIONS:
            retained.append(shlex.quote(word))
    return "".join(f" {option}" for option in retained)
