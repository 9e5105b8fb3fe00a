"""The report: everything about one run, as data (`gpudoctor.report/1`), as JSON, and as JSON Schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from gpudoctor import __version__
from gpudoctor.checks.core.faults import Fault
from gpudoctor.checks.core.finding import Finding, Status, worst_verdict
from gpudoctor.checks.core.finding import Verdict as Verdict
from gpudoctor.checks.core.registry import LEVELS, Level
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.facts.model.gpu import UNKNOWN_BUS
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.node import Node, SourceKind
from gpudoctor.text.json_text import json_line
from gpudoctor.text.output import printable

# what passes as soon as it is there says nothing about whether a node is well
PRESENCE = ("driver.loaded", "gpu.count", "host.kernel")
COULD_NOT_REASON = "UNKNOWN gpudoctor could not do its work"


class Tool(msgspec.Struct, frozen=True):
    name: str = "gpudoctor"
    version: str = __version__


class SourceSummary(msgspec.Struct, frozen=True):
    """Where the facts came from; `faults` are the simulated ones."""

    kind: SourceKind
    name: str
    faults: tuple[str, ...] = ()


class Run(msgspec.Struct, frozen=True):
    """This run. `notes` are for the reader: scope, ended suppressions, unrecognised dumps.

    `injected` lists the probe faults of --inject; `interrupted` is the signal that ended the run early.
    """

    id: str
    started_at: str
    duration_s: float
    level: Level
    source: SourceSummary
    argv: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    injected: tuple[str, ...] = ()
    interrupted: str | None = None


class HostSummary(msgspec.Struct, frozen=True):
    """The machine; null is unknown, and the facts contain the reason."""

    name: str | None
    kernel: str | None
    virtualization: str | None
    driver: str | None = None
    cuda: str | None = None
    torch: str | None = None
    nccl: str | None = None


class GpuSummary(msgspec.Struct, frozen=True):
    """A GPU of the report; `bus_id` is `unknown-INDEX` if the text that was read names none."""

    index: int
    uuid: str | None
    bus_id: str
    name: str | None
    in_scope: bool
    vbios: str | None = None

    @property
    def bus_id_read(self) -> str | None:
        """The bus id; None if the text that this GPU was read from does not name it."""
        return None if self.bus_id.startswith(UNKNOWN_BUS) else self.bus_id


class ProfileSummary(msgspec.Struct, frozen=True):
    name: str
    matched_by: str


class Counts(msgspec.Struct, frozen=True):
    """Checks by status; one that warns of one GPU and is unknown for another counts as both."""

    # `pass` is a keyword
    passed: int = msgspec.field(name="pass", default=0)
    warn: int = 0
    fail: int = 0
    skip: int = 0
    unknown: int = 0


class Evaluated(msgspec.Struct, frozen=True):
    """How many of the checks that were asked for had something to look at. `partly`: too few for a PASS of the node."""

    checks: int = 0
    of: int = 0
    partly: bool = False

    @property
    def words(self) -> str:
        return f"{self.checks} of {self.of} checks evaluated"


class Report(msgspec.Struct, frozen=True):
    """The report of one run. If `error` is set, gpudoctor could not do its work (exit 2) and nothing was judged.

    `reason` is one line of at most 100 characters without quotes, usable as a Slurm drain reason. `facts` are included
    only on request.
    """

    schema: Literal["gpudoctor.report/1"]
    tool: Tool
    run: Run
    host: HostSummary
    gpus: tuple[GpuSummary, ...]
    profile: ProfileSummary
    verdict: Verdict
    exit_code: int
    reason: str
    counts: Counts
    checks: tuple[CheckResult, ...]
    faults: tuple[Fault, ...]
    measurements: Measurements
    simulated: bool = False
    error: str | None = None
    facts: Node | msgspec.UnsetType = msgspec.UNSET
    evaluated: Evaluated = Evaluated()

    def to_json(self) -> str:
        """The document that `gpudoctor check --json` writes, on one line without a newline."""
        return json_line(self).rstrip("\n")

    def __str__(self) -> str:
        """For `print` and notebooks: the node, the counts, each fault, and the verdict."""
        lines = [f"{word} {text}" for word, text in alarms(self)]
        lines.append(" | ".join(filter(None, (self.host.name or self.run.source.name, *node_words(self, "x")))))
        n = self.counts
        counts = f"{n.passed} passed, {n.warn} warned, {n.fail} failed, {n.skip} skipped, {n.unknown} unknown"
        lines.append(f"level {self.run.level}: {counts}")
        lines += [f"  {fault.check}: {fault.headline}" for fault in self.faults]
        lines.append(f"UNKNOWN {self.error}" if self.error else self.reason)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        text = str(self).replace("&", "&amp;").replace("<", "&lt;")  # the module html takes 6 ms to import
        return f"<pre>{text}</pre>"


def alarms(report: Report) -> Iterator[tuple[str, str]]:
    """Warnings that the report does not show this machine as it is, each as (loud word, text)."""
    source = report.run.source
    if report.simulated:
        what = f"node {source.name}" + (f" with {', '.join(source.faults)}" if source.faults else "")
        yield "SIMULATED", f"{what}: made up, no verdict on a real machine"
    if report.run.injected:
        yield "INJECTED", f"{', '.join(report.run.injected)}: the probes were made to go wrong"
    if report.run.interrupted:
        yield "INTERRUPTED", f"by {report.run.interrupted}: what was known until then"


def node_words(report: Report, times: str) -> Iterator[str]:
    """ "8 x NVIDIA H100", then the versions of driver and CUDA if known; `times` is the multiplication sign."""
    models = Counter(sorted(gpu.name or "unnamed GPU" for gpu in report.gpus))
    yield ", ".join(f"{count} {times} {name}" for name, count in models.items()) or "no GPU shown"
    yield from (
        f"{what} {version}" for what, version in (("driver", report.host.driver), ("CUDA", report.host.cuda)) if version
    )


def profile_words(profile: ProfileSummary) -> str:
    """The profile that the node was judged against, or why none fitted."""
    return profile.matched_by if profile.name == "none" else f"profile {profile.name} (matched by {profile.matched_by})"


def findings_of(report: Report | None, check_id: str) -> tuple[Finding, ...]:
    """The findings of one check; empty if it did not run."""
    return next((check.findings for check in report.checks if check.id == check_id), ()) if report is not None else ()


def suppressed_in(results: Iterable[CheckResult]) -> int:
    """The number of findings that the configuration suppressed."""
    return sum(finding.suppressed is not None for result in results for finding in result.findings)


def is_above(result: CheckResult, level: Level) -> bool:
    """Whether a check was skipped because its level is above the requested one."""
    return result.status is Status.SKIP and LEVELS.index(result.level) > LEVELS.index(level)


def evaluated_of(results: Iterable[CheckResult], level: Level, *, part: bool) -> Evaluated:
    """How much was evaluated; `part`: of a text, which lacks what it does not show. Below half of it is `partly`."""
    asked = [result for result in results if not is_above(result, level)]
    looked = sum(result.status is not Status.SKIP for result in asked)
    return Evaluated(looked, len(asked), part and 2 * looked < len(asked))


def node_verdict(results: Iterable[CheckResult], *, part: bool = False) -> Verdict:
    """The worst status of all checks; unknown if none has a verdict.

    `part`: of a text, which shows only some of the node: what passes by its presence alone is no pass there.
    """
    judged = [result for result in results if result.status is not Status.SKIP]
    if part and all(result.id in PRESENCE for result in judged):
        judged = [result for result in judged if result.status is not Status.PASS]
    return worst_verdict(result.status for result in judged)


def counts_of(results: tuple[CheckResult, ...]) -> Counts:
    statuses = [result.status for result in results]
    return Counts(
        passed=statuses.count(Status.PASS),
        warn=sum(result.warns for result in results),
        fail=statuses.count(Status.FAIL),
        skip=statuses.count(Status.SKIP),
        unknown=statuses.count(Status.UNKNOWN),
    )


def error_report(
    run: Run, error: str, exit_code: int, *, reason: str = COULD_NOT_REASON, hostname: str | None = None
) -> Report:
    """A report with the verdict unknown and no checks; `error` is one line with the reason."""
    return Report(
        schema="gpudoctor.report/1",
        tool=Tool(),
        run=run,
        host=HostSummary(hostname, None, None),
        gpus=(),
        profile=ProfileSummary("none", "nothing was judged"),
        verdict="unknown",
        exit_code=exit_code,
        reason=reason,
        counts=Counts(),
        checks=(),
        faults=(),
        measurements=Measurements(),
        simulated=run.source.kind == "simulated",
        error=printable(error),
    )


def render_json(report: Report) -> str:
    """One line of JSON, ending in a newline."""
    return json_line(report)
