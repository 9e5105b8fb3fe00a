"""The three hooks: what each does with a verdict, and without one; and its log lines, last verdict and metrics."""

from __future__ import annotations

import os
import syslog
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from gpudoctor.errors import UserError
from gpudoctor.report.output_files import OutputError, write_file
from gpudoctor.slurm import Hook, kept_verdict
from gpudoctor.slurm.drain import DrainResult, NodeRecord, drain, read_node, undo_drain
from gpudoctor.slurm.quick_check import HookVerdict, check, has_gpus, job_gpus
from gpudoctor.slurm.returns import count_healthy, forget_healthy, note_load, note_return, why_not_yet
from gpudoctor.slurm.settings import HookSettings, read_settings
from gpudoctor.slurm.state_lock import StateInUseError, StateLockError, locked_state
from gpudoctor.text.output import printable, say

# for the driver's answers; the scripts in contrib/slurm end a prolog or epilog after 40 s, a health check after 45 s
_DEADLINE_S = 30.0
_LOAD_DEADLINE_S = 60.0
# slurmd ends a health check after this time
_HEALTH_CHECK_S = 60.0
_LOG_BYTES_MAX = 1 << 20
# why a failure did not drain the node
Withheld = Literal["cap", "log", "checks", "slurmctld"]
_WITHHELD: dict[DrainResult, Withheld | None] = {
    DrainResult.OUT_OF_SERVICE: None,
    DrainResult.REFUSED: "cap",
    DrainResult.NO_ANSWER: "slurmctld",
}
_WHY_NOT: dict[Withheld, str] = {
    "cap": "GPUDOCTOR_DRAIN_CAP is reached",
    "checks": "no failure of GPUDOCTOR_DRAIN_CHECKS",
    "log": "GPUDOCTOR_ACTION=log",
    "slurmctld": "slurmctld does not answer",
}
_SOCKET = "/dev/log"


class HookResult(msgspec.Struct, frozen=True):
    """Whether Slurm may go on (start the job, keep the node), and the reason in one line."""

    go_on: bool
    why: str


def run_hook(hook: Hook, environ: Mapping[str, str]) -> HookResult:
    """Run one hook on this node, as slurmd does. Invalid settings make the verdict unknown, and it is only logged."""
    settings, problem = read_settings(environ)
    wrong = HookVerdict("unknown", problem, misconfigured=True) if problem else None
    run = _Run(hook, _own_name(environ), settings, environ)
    return run.health(wrong) if hook == "health" else run.of_job(wrong)


def run_load(environ: Mapping[str, str]) -> HookResult:
    """Check this node under load, and record the result for its drain.

    Raise UserError if it is not idle and drained by gpudoctor.
    """
    settings, problem = read_settings(environ)
    if problem is not None:
        raise UserError(problem)
    # a health check beside it would judge a node under load, and write its count over this result
    with locked_state(settings.state, _HEALTH_CHECK_S):
        return _load(_own_name(environ), settings)


def _load(name: str, settings: HookSettings) -> HookResult:
    node = read_node(name)
    if node is None or not node.is_ours or node.has_jobs:
        state = "slurmctld does not answer" if node is None else f"its state is {node.state} {node.reason}".rstrip()
        raise UserError(f"{name} is no idle node that gpudoctor drained: {state}")
    verdict = check(settings, None, _LOAD_DEADLINE_S, "standard")
    passed = verdict.verdict in ("pass", "warn")
    if not note_load(settings.state, node, passed=passed):
        raise UserError(f"{settings.state}: the result cannot be saved")
    log_line(name, settings, f"check under load: {verdict.why}")
    return HookResult(passed, verdict.why)


def _own_name(environ: Mapping[str, str]) -> str:
    return environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]


class _Run:
    def __init__(self, hook: Hook, node: str, settings: HookSettings, environ: Mapping[str, str]) -> None:
        self._hook = hook
        self._node = node
        self._settings = settings
        self._environ = environ
        self._say = partial(log_line, node, settings)

    def of_job(self, wrong: HookVerdict | None) -> HookResult:
        """Prolog and epilog: check the job's GPUs, or the whole node if they cannot be told apart."""
        numbers = self._environ.get("SLURM_JOB_GPUS", "")
        if not numbers and not self._settings.simulated and not has_gpus():
            return HookResult(True, self._of_no_gpu(wrong))
        retained = kept_verdict.fresh(self._settings) if self._hook == "prolog" and wrong is None else None
        if retained is not None:
            verdict = retained
        else:
            gpus = job_gpus(numbers) if numbers and self._settings.scope == "job" else None
            verdict = wrong or check(self._settings, gpus, _DEADLINE_S)
            if verdict.verdict not in ("pass", "warn"):
                kept_verdict.forget(self._settings)
        job = f"job {self._environ.get('SLURM_JOB_ID', '?')}"
        verdict = self._without_verdict(verdict, job)
        result, withheld = self._drained(verdict, job)
        self._record(verdict, withheld, None if result is None else result is DrainResult.OUT_OF_SERVICE)
        # if an epilog fails, Slurm drains the node; if a prolog fails, Slurm also keeps the job off it
        is_drained = self._hook == "epilog" and result is DrainResult.OUT_OF_SERVICE
        if result is None or result is DrainResult.REFUSED or is_drained:
            return HookResult(True, _what_was_done(verdict, withheld))
        return HookResult(False, verdict.why)

    def health(self, wrong: HookVerdict | None) -> HookResult:
        """Check the node; drain it, or undrain it if gpudoctor drained it.

        `go_on` is always True: slurmd might not register after a health check that failed.
        """
        try:
            with locked_state(self._settings.state):
                return HookResult(True, self._health(wrong))
        except StateInUseError:
            return HookResult(True, "another one runs, and will give the answer")
        except StateLockError as error:
            self._say(f"health check: no verdict: {error}")
            write_metrics(self._settings, self._hook, HookVerdict("unknown", str(error)), None, None)
            return HookResult(True, str(error))

    def _health(self, wrong: HookVerdict | None) -> str:
        node = read_node(self._node)
        # a node that Slurm says has GPUs and that shows none has a failure; a node without GPUs is left alone
        wants_gpus = node is not None and "gpu" in node.gres
        if not wants_gpus and not self._settings.simulated and not has_gpus():
            return self._of_no_gpu(wrong)
        before = kept_verdict.node_before(self._settings)
        verdict = wrong or check(self._settings, None, _DEADLINE_S)
        kept_verdict.keep(self._settings, before, verdict)
        judged = self._without_verdict(verdict, "health check")
        result, withheld = self._drained(judged, "health check")
        out = None if node is None else node.out_of_service
        self._record(verdict, withheld, out or result is DrainResult.OUT_OF_SERVICE if out is not None else None)
        if verdict.verdict != "unknown" and judged.drains is None:
            self._take_back(node)
        elif self._settings.state.is_dir():
            forget_healthy(self._settings.state)
        return _what_was_done(judged, withheld)

    def _of_no_gpu(self, wrong: HookVerdict | None) -> str:
        """Leave a node without GPUs alone, but log invalid settings."""
        if wrong is not None:
            self._say(wrong.why)
        return "no GPU"

    def _drained(self, verdict: HookVerdict, of: str) -> tuple[DrainResult | None, Withheld | None]:
        """Drain the node if the verdict asks for it.

        Return the outcome (None if no drain was wanted), and why a failure did not drain the node.
        """
        settings = self._settings
        if verdict.drains is None:
            if verdict.verdict == "fail":
                self._say(f"{of}: not drained, no failure of GPUDOCTOR_DRAIN_CHECKS: {verdict.why}")
            return None, "checks" if verdict.verdict == "fail" else None
        if settings.action == "log":
            self._say(f"{of}: not drained, GPUDOCTOR_ACTION=log: {verdict.drains}")
            return None, "log"
        result = drain(self._node, verdict.drains, settings.drain_cap_percent, self._say)
        if result is DrainResult.NO_ANSWER and settings.drain_cap_percent and self._hook != "health":
            # if a hook fails, Slurm drains the node; without the cap that could happen on every node at once
            self._say(f"{of}: not drained, GPUDOCTOR_DRAIN_CAP is set and slurmctld does not answer: {verdict.drains}")
            return DrainResult.REFUSED, "slurmctld"
        if result is DrainResult.NO_ANSWER:
            by_slurm = "" if self._hook == "health" else "; Slurm drains it in its own words"
            self._say(f"{of}: slurmctld does not answer, not drained by gpudoctor{by_slurm}: {verdict.drains}")
        return result, _WITHHELD[result]

    def _without_verdict(self, verdict: HookVerdict, of: str) -> HookVerdict:
        """Log an unknown verdict, and make it drain the node if GPUDOCTOR_ON_ERROR=hold."""
        if verdict.verdict != "unknown":
            return verdict
        self._say(f"{of}: no verdict: {verdict.why}")
        # whoever mistyped a setting did not ask for this: a typo in a file of all nodes must not drain them
        if self._settings.on_error == "hold" and not verdict.misconfigured:
            return HookVerdict("unknown", verdict.why, f"no verdict: {verdict.why}")
        return verdict

    def _take_back(self, before: NodeRecord | None) -> None:
        """Undrain the node once it has been healthy for long enough, if gpudoctor drained it.

        `before` is the node before the check: a drain since then is for a reason that the check may not have seen.
        """
        if before is not None and not before.is_ours:
            return
        node = read_node(self._node) if before is not None else None
        if before is None or node is None:
            self._say("slurmctld does not answer: state of the node not changed")
            return
        # an administrator or our own epilog may have drained the node during the check
        if not node.is_ours or "DRAIN" not in node.state or (node.reason, node.since) != (before.reason, before.since):
            return
        if self._settings.action == "log":
            self._say(f"healthy, and left drained, GPUDOCTOR_ACTION=log (reason: {node.reason})")
            return
        healthy, needed = count_healthy(self._settings.state, node), self._settings.undrain_after
        reason = f"(reason: {node.reason})"
        if needed is None:
            self._say(f"healthy, and left drained, GPUDOCTOR_UNDRAIN_AFTER=never {reason}")
        elif healthy < needed:
            self._say(f"healthy {healthy} of {needed} times in a row, still drained {reason}")
        elif (why_not := why_not_yet(self._settings, node)) is not None:
            self._say(f"healthy {healthy} times in a row, still drained, {why_not} {reason}")
        elif not undo_drain(self._node):
            self._say("scontrol could not undrain the node")
        else:
            note_return(self._settings.state)
            self._say(f"healthy {healthy} times in a row, back in service (was: {node.reason})")

    def _record(self, verdict: HookVerdict, withheld: Withheld | None, out_of_service: bool | None) -> None:
        """Write the last verdict and the metric; log what cannot be written."""
        settings, name = self._settings, "healthcheck" if self._hook == "health" else self._hook
        try:
            settings.state.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_last(settings, name, verdict.verdict, verdict.why)
        except (OSError, UserError) as error:
            self._say(f"{settings.state}: {getattr(error, 'strerror', None) or error}")
        problem = write_metrics(settings, self._hook, verdict, withheld, out_of_service)
        if problem is not None:
            self._say(problem)


def _what_was_done(verdict: HookVerdict, withheld: Withheld | None) -> str:
    """The reason, for an answer that lets Slurm go on: behind a failure, why, and what has become of the node."""
    if verdict.verdict != "fail":
        return verdict.why
    return f"{'out of service' if withheld is None else f'not drained, {_WHY_NOT[withheld]}'}: {verdict.why}"


def log_line(node: str, settings: HookSettings, message: str) -> None:
    """Log a line about this node to stderr, to syslog, and to the file in GPUDOCTOR_LOG; each even if another fails.

    slurmd drops what a prolog or epilog prints. Without syslog and GPUDOCTOR_LOG, and if the latter cannot be written,
    lines go to `log` in the state folder, which is renamed to `log.1` at 1 MiB.
    """
    line = printable(f"{node}: {message}")
    say(line)
    has_syslog = os.path.exists(_SOCKET)  # noqa: PTH110
    if has_syslog:
        syslog.openlog("gpudoctor", 0, syslog.LOG_DAEMON)
        syslog.syslog(syslog.LOG_WARNING, line)
    taken = has_syslog if settings.log is None else _appended(settings.log, line, bounded=False)
    if not taken:
        _appended(settings.state / "log", line, bounded=True)


def _appended(file: Path, line: str, *, bounded: bool) -> bool:
    """Whether the line was appended; if not, stderr says why. `bounded`: the file is ours, and its size limited."""
    try:
        if bounded:
            file.parent.mkdir(parents=True, exist_ok=True)
            if file.is_file() and file.stat().st_size > _LOG_BYTES_MAX:
                file.replace(file.with_name("log.1"))
        # unbuffered and in append mode: slurmd may write to the same file
        number = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        with os.fdopen(number, "wb", buffering=0) as log:
            text = f"[{time.strftime('%Y-%m-%dT%H:%M:%S')}] gpudoctor: {line}\n"
            log.write(text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        say(f"{file}: {error.strerror or error}")
        return False
    return True


def write_last(settings: HookSettings, hook: str, verdict: str, why: str) -> None:
    """Write the hook's last verdict as one line: time, pass, warn, fail or unknown, reason. Raise OutputError."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    write_file(settings.state / hook, f"{at} {verdict} {printable(why)}\n")


def write_metrics(
    settings: HookSettings, hook: str, verdict: HookVerdict, withheld: Withheld | None, out_of_service: bool | None
) -> str | None:
    """Write the hook's metrics for node_exporter's textfile collector; return the error message, None if it worked.

    What its folder does not take goes to the state folder: a metric in the wrong place can be found.
    """
    text = metrics(settings, hook, verdict, withheld, out_of_service, time.time())
    problems = []
    for folder in dict.fromkeys((settings.textfile or settings.state, settings.state)):
        try:
            write_file(folder / f"gpudoctor_slurm_{hook}.prom", text)
            break
        except OutputError as error:
            problems.append(str(error))
    return "; ".join(problems) or None


def metrics(
    settings: HookSettings,
    hook: str,
    verdict: HookVerdict,
    withheld: Withheld | None,
    out_of_service: bool | None,
    time_s: float,
) -> str:
    """The gauges of one hook, with the label `hook`, and simulated="true" in a trial."""
    mark = {"hook": hook, "simulated": "true"} if settings.simulated else {"hook": hook}
    lines: list[str] = []

    def gauge(name: str, text: str, value: int, **labels: str) -> None:
        name = f"gpudoctor_slurm_{name}"
        shown = ",".join(f'{key}="{label}"' for key, label in {**mark, **labels}.items())
        lines.extend((f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name}{{{shown}}} {value}"))

    found = "What a Slurm hook found last: pass, warn, fail or unknown, which is 1."
    gauge("verdict", found, 1, verdict=verdict.verdict)
    gauge("timestamp_seconds", "When that Slurm hook ran last, Unix time.", round(time_s))
    failed = "Whether it found a failure and did not drain: only logged, no check that drains, cap."
    gauge("withheld", failed, int(withheld is not None))
    if withheld is not None:
        gauge("withheld_reason", "Why it did not drain, which is 1: cap, log, checks, slurmctld.", 1, reason=withheld)
    if verdict.verdict == "fail" and verdict.check is not None:
        gauge("failure", "The check of the first fault, which is 1.", 1, check=verdict.check)
    if out_of_service is not None:
        taken = "Whether the node took no jobs after the hook: drained, by whomever, or down."
        gauge("out_of_service", taken, int(out_of_service))
    return "\n".join(lines) + "\n"
