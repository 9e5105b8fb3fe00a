"""From facts and measurements to a report."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Mapping

import msgspec

from gpudoctor.checks.core.case import Case, Expect
from gpudoctor.checks.core.faults import Fault, explain, headline
from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.registry import Check, Level, matches, registry
from gpudoctor.checks.core.runner import CheckResult, run_checks
from gpudoctor.checks.core.scope import scope_of, shown_count
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.core.suppressions import Suppression, apply_suppressions
from gpudoctor.checks.core.visibility import hidden_gpus
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import Node
from gpudoctor.lazy import lazy_imports
from gpudoctor.process.exit_codes import FAILED, OK, UNKNOWN, FailOn
from gpudoctor.profiles.load import profile_for
from gpudoctor.report.model import (
    Evaluated,
    GpuSummary,
    HostSummary,
    ProfileSummary,
    Report,
    Run,
    SourceSummary,
    Tool,
    Verdict,
    counts_of,
    evaluated_of,
    is_above,
    node_verdict,
    suppressed_in,
)

with lazy_imports():
    from gpudoctor.checks.core import read_from_text  # of texts only

REASON_LENGTH = 100
_NOTE_LENGTH = 200
_MOST_SET_ASIDE = 3


class Question(msgspec.Struct, frozen=True):
    """How to judge a node: with which checks, at which level, against which profile, and what counts as failure."""

    checks: tuple[Check, ...] | None = None
    left_out: tuple[Check, ...] = ()
    required: tuple[str, ...] = ()
    level: Level = "quick"
    gpu: str | None = None
    profile: str | None = None
    fail_on: FailOn = "fail"
    expect: Expect = Expect()
    limit_overrides: Mapping[tuple[str, str, str], float] = {}
    suppress: tuple[Suppression, ...] = ()
    today: datetime.date | None = None


def judge(
    node: Node,
    measurements: Measurements | None = None,
    question: Question | None = None,
    *,
    run: Run | None = None,
    include_facts: bool = False,
) -> Report:
    """Judge a node; the same facts and question always give the same findings.

    `run` holds what only the caller knows (id, start, duration, argv). Raise UserError for an unknown GPU or profile.
    """
    question = question or Question()
    measurements = measurements or Measurements()
    run = run or Run("", "", 0.0, question.level, SourceSummary(node.source.kind, node.source.name))
    scope, scope_reason = scope_of(node, question.gpu)
    profile = profile_for(node, question.profile)
    case = Case(
        node=node,
        measurements=measurements,
        profile=profile,
        scope=scope,
        scope_reason=scope_reason,
        expect=question.expect,
        limit_overrides=question.limit_overrides,
    )
    checks = registry() if question.checks is None else question.checks
    if node.source.kind not in ("capture", "facts") and not node.reported:
        # of a machine that was read itself there is no text
        checks = tuple(check for check in checks if check.domain != "reported")
    results = run_checks(case, checks, level=question.level, clock=time.perf_counter, left_out=question.left_out)
    suppressed: tuple[str, ...] = ()
    if question.suppress:
        today = question.today or datetime.datetime.now(datetime.timezone.utc).date()
        results, suppressed = apply_suppressions(results, question.suppress, today)
    results, faults = explain(results)
    lacking = without_verdict(results, question.required)
    # a capture may lack what most checks need; other sources do not
    part = node.source.may_be_part
    if part:
        results = read_from_text.named_as_in_text(results)
    verdict = node_verdict(results, part=part)
    if lacking and verdict != "fail":
        verdict = "unknown"
    evaluated = evaluated_of(results, question.level, part=part)
    code = exit_code(results, verdict, question.fail_on, bool(lacking))
    unmet = tuple(f"required, and without a verdict: {result.id}" for result in lacking)
    notes = (*node.source.notes, *suppressed, *unmet, *_scope_note(case), *set_aside(results))
    return Report(
        schema="gpudoctor.report/1",
        tool=Tool(),
        run=msgspec.structs.replace(run, notes=(*run.notes, *notes), injected=measurements.injected),
        host=_host(node),
        gpus=tuple(_gpu(case, gpu) for gpu in node.gpus),
        profile=ProfileSummary(profile.name, profile.matched_by),
        verdict=verdict,
        exit_code=code,
        reason=reason_line(results, faults, verdict, lacking, evaluated=evaluated, level=question.level),
        counts=counts_of(results),
        checks=results,
        faults=faults,
        measurements=measurements,
        simulated=node.source.kind == "simulated",
        facts=node if include_facts else msgspec.UNSET,
        evaluated=evaluated,
    )


def without_verdict(results: Iterable[CheckResult], required: Iterable[str]) -> tuple[CheckResult, ...]:
    """The required checks (ids, domains, globs) that were skipped, are unknown, or have a suppressed finding.

    A check with a suppressed finding that fails anyway does have a verdict.
    """
    parts = tuple(required)
    silent = (
        r
        for r in results
        if r.status in (Status.SKIP, Status.UNKNOWN) or (r.status is not Status.FAIL and suppressed_in((r,)))
    )
    return tuple(r for r in silent if any(matches(r, word) for word in parts))


def set_aside(results: Iterable[CheckResult]) -> tuple[str, ...]:
    """What the kernel log tells and a check judged as harmless, a line each: the reader may have seen it too.

    Of a GPU that fails nothing is called harmless.
    """
    results = tuple(results)
    failed = {finding.subject for result in results for finding in result.findings if finding.status is Status.FAIL}
    harmless = [
        finding.found.text if finding.subject == NODE else f"{finding.subject.label}: {finding.found.text}"
        for result in results
        for finding in result.findings
        if finding.status is Status.PASS and finding.found and finding.found.value is not None
        if finding.subject not in failed
        if any(evidence.source == "kernel log" for evidence in finding.evidence)
    ]
    more = len(harmless) - _MOST_SET_ASIDE
    retained = [_cut(text, _NOTE_LENGTH) for text in harmless[:_MOST_SET_ASIDE]]
    return tuple(
        f"set aside in the kernel log: {text}" for text in (*retained, *([f"{more} more, see -v"] if more > 0 else ()))
    )


def exit_code(results: Iterable[CheckResult], verdict: Verdict, fail_on: FailOn, lacking: bool) -> int:
    """OK, FAILED or UNKNOWN, as in docs/exit-codes.md; `lacking`: a required check has no verdict."""
    if verdict == "fail" and fail_on != "never":
        return FAILED
    if fail_on == "warn" and any(result.warns for result in results):
        return FAILED
    if lacking:
        return UNKNOWN
    return UNKNOWN if verdict == "unknown" and fail_on != "never" else OK


def reason_line(
    results: Iterable[CheckResult],
    faults: tuple[Fault, ...],
    verdict: Verdict,
    lacking: tuple[CheckResult, ...] = (),
    *,
    evaluated: Evaluated | None = None,
    level: Level | None = None,
) -> str:
    """One line that can be a drain reason in Slurm: no quotes or control characters, at most 100 characters.

    `evaluated`: how much could be judged; if only a part, a pass of it is not a pass of the machine. `level`: the one
    that was asked for, whose checks a pass counts.
    """
    results = tuple(results)
    suppressed = suppressed_in(results)
    others = len(faults) - 1
    if verdict == "warn" and not faults:
        others = sum(1 for r in results if r.status is Status.WARN) - 1
    more = f" (+{others} more)" if others > 0 else ""
    more += f", {suppressed} suppressed" if suppressed else ""
    text = (
        f"FAIL {faults[0].check} {faults[0].headline}"
        if faults
        else _quiet_reason(results, verdict, lacking, evaluated, level)
    )
    text = _cut(text, REASON_LENGTH - len(more)) + more
    return "".join(c for c in text if c.isprintable() and c not in "\"'`\\")


def _cut(text: str, length: int) -> str:
    """The text, cut between words if one ends in the second half; a line without blanks is cut anywhere."""
    if len(text) <= length:
        return text
    whole = text[: length - 2].rpartition(" ")[0].rstrip(" ,;:")
    return f"{whole if 2 * len(whole) > length else text[: length - 3]}..."


def _quiet_reason(
    results: tuple[CheckResult, ...],
    verdict: Verdict,
    lacking: tuple[CheckResult, ...],
    evaluated: Evaluated | None,
    level: Level | None,
) -> str:
    """The reason line of a run without a fault."""
    passed = [r.id for r in results if r.status is Status.PASS]
    if lacking:
        return f"UNKNOWN required but without a verdict: {', '.join(r.id for r in lacking)}"
    if verdict == "unknown":
        unknown = ", ".join(r.id for r in results if r.status is Status.UNKNOWN)
        alone = f"only {', '.join(passed)} passed" if passed else "nothing could be judged"
        return f"UNKNOWN {_common_reason(results) or unknown or alone}"
    if verdict == "warn":
        first = next(r for r in results if r.status is Status.WARN)
        return f"WARN {first.id} {headline(next(f for f in first.findings if f.status is Status.WARN))}"
    if evaluated is not None and evaluated.partly:
        return f"PARTLY JUDGED, {evaluated.words}: nothing wrong in these"
    return f"PASS {_share_passed(results, len(passed), level)}"


def _share_passed(results: tuple[CheckResult, ...], passed: int, level: Level | None) -> str:
    asked = [r for r in results if level is None or not is_above(r, level)]
    at_level = f" of level {level}" if level is not None else ""
    rest = f", {len(asked) - passed} not judged" if passed < len(asked) else ""
    return f"{passed} of {len(asked)} checks{at_level}{rest}"


def _common_reason(results: Iterable[CheckResult]) -> str | None:
    """What several checks are unknown for, if it is one and the same; None otherwise."""
    silent = [[f for f in r.findings if f.status is Status.UNKNOWN] for r in results if r.status is Status.UNKNOWN]
    reasons = {(finding.reason or "").partition(": ")[2] for findings in silent for finding in findings}
    return next(iter(reasons)) if len(silent) > 1 and len(reasons) == 1 and "" not in reasons else None


def _scope_note(case: Case) -> tuple[str, ...]:
    hidden = hidden_gpus(case.node)
    why = f"{hidden.outside} out of scope: {hidden.why}"
    if case.scope is not None and len(case.scope) < len(case.node.gpus):
        which = ", ".join(str(index) for index in case.scope)
        also = f"; {why}" if hidden.outside else ""
        return (f"judged GPU {which} of {len(case.node.gpus)}: {case.scope_reason}{also}",)
    total = shown_count(case.node) + hidden.outside + len(hidden.missing)
    return (f"{len(case.node.gpus)} of {total} GPUs judged, {why}",) if hidden.outside else ()


def _host(node: Node) -> HostSummary:
    host, driver = node.host, node.driver
    return HostSummary(
        known(host.hostname),
        known(host.kernel),
        known(host.virtualization),
        known(driver.library_version) or known(driver.module_version),
        known(driver.cuda_version),
        known(node.software.torch),
        known(node.software.nccl),
    )


def _gpu(case: Case, gpu: Gpu) -> GpuSummary:
    in_scope = case.scope is None or gpu.index in case.scope
    return GpuSummary(gpu.index, known(gpu.uuid), gpu.bus_id, known(gpu.name), in_scope, known(gpu.vbios))
