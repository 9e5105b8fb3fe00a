"""Leads a run: the check before, the command in our place, what was seen of it, and the report."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from gpudoctor import __version__
from gpudoctor.api import node_check
from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import worst_verdict
from gpudoctor.diagnose import build, gather, sources
from gpudoctor.diagnose.diagnosis import Diagnosis
from gpudoctor.errors import UserError
from gpudoctor.facts.model.measurements import Launch, Measurements, RankInfo
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.model.telemetry import Telemetry
from gpudoctor.facts.nvml.sampler import Sampler
from gpudoctor.process.ending import signal_name
from gpudoctor.process.foreground import CannotStartError, ForegroundCommand
from gpudoctor.report.model import Tool
from gpudoctor.run import report
from gpudoctor.run.findings.progress import of_stall, stood_to_the_end
from gpudoctor.run.findings.rare_steps import rare_steps
from gpudoctor.run.run_folder import NoFolderError, RunFolder, is_of_step, reports_for_node
from gpudoctor.run.settings import failure_settings, observer_settings
from gpudoctor.run.watched import RunStall, Watched
from gpudoctor.run.watching import RunWatch
from gpudoctor.text.units import rfc3339

_TICK_S = 0.1
_SAMPLE_EVERY_S = 2.0
_RESAMPLE_S = 3600.0
_SIGNAL = "terminated_signal"
_OTHER_TASKS_S = 10.0  # of a Slurm step, after our own has ended

Say = Callable[[str], None]


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `gpudoctor run`. `hang_after_s` None: 10 x the median step, at least 120 s."""

    command: tuple[str, ...]
    precheck: Literal["quick", "standard", "none"] = "quick"
    require_fit: bool = False
    no_env: bool = False
    no_observer: bool = False
    hang_after_s: float | None = None
    on_hang: Literal["report", "end"] = "report"
    on_exit: Literal["leave", "end"] = "leave"
    keep: Path | None = None


class NodeNotFitError(UserError):
    """The node is not fit, and the command was not started."""


class ReportedRun(msgspec.Struct, frozen=True):
    """The report, None if another task of the node makes it; and the exit code, or -n for signal n."""

    report: report.RunReport | None
    returncode: int


def run(request: RunRequest, *, ignored: Sequence[int] = (), say: Say) -> ReportedRun:
    """Run the command to its end. Raise NodeNotFitError, or UserError for options that cannot be met."""
    reports = reports_for_node(os.environ)
    if not reports and not request.require_fit:
        request = msgspec.structs.replace(request, precheck="none")
    node, precheck = _check_before(request, say)
    folder, notes = _folder(request)
    settings = dict(failure_settings(folder.path, os.environ)) if folder and not request.no_env else {}
    env = {**os.environ, **settings}
    if folder and not request.no_observer:
        env.update(observer_settings(folder.path, os.environ, settings=not request.no_env))
    if settings and reports:
        say(f"set for the command: {' '.join(settings)} (--no-env sets nothing)")
    began_s, began = time.monotonic(), time.time()
    try:
        started = ForegroundCommand(request.command, env, ignored=ignored, end_with_us=request.on_exit == "end")
    except CannotStartError as error:
        if folder and reports:
            folder.remove()
        say(f"{request.command[0]}: {error}")
        why = f"the command could not be started: {error}"
        watched = Watched(exit_code=error.exit_code, not_observed=why)
        return ReportedRun(_report(request, watched, precheck, {}, None, (why,), None, began), error.exit_code)
    if not reports:
        return ReportedRun(None, _to_its_end(started))
    watch = RunWatch(folder, request.hang_after_s, say) if folder else None
    telemetry = _Telemetry(node)
    try:
        _follow(request, started, watch, telemetry, say)
        seen = watch.watched() if watch else Watched()
        ending = _ending(started, seen, time.monotonic() - began_s)
        watched = msgspec.structs.replace(seen, **ending, case=_case(node, seen, telemetry))
        notes += [*rare_steps(watched), *_not_seen(request, folder, watch, watched)]
        answer = _diagnosis(folder, watch, watched)
        cause = answer.cause if answer is not None else None
        watched = stood_to_the_end(msgspec.structs.replace(watched, cause_in_logs=cause))
        kept = _kept(folder, request, watched)
        made = _report(request, watched, precheck, settings, answer, tuple(notes), kept, began)
        return ReportedRun(made, started.returncode or 0)
    finally:
        telemetry.stop()
        started.close()


def _check_before(request: RunRequest, say: Say) -> tuple[Node, report.Precheck | None]:
    if request.precheck == "none":
        if request.require_fit:
            raise UserError("--require-fit needs a check before the start: not with --precheck none")
        return Node(), None
    prepared = node_check.prepare(node_check.CheckRequest(level=request.precheck, include_facts=True))
    found = node_check.run_prepared(prepared)
    reason = found.reason.removeprefix(f"{found.verdict.upper()} ")
    precheck = report.Precheck(request.precheck, found.verdict, reason)
    summary = ": ".join(filter(None, (found.verdict.upper(), reason)))
    say(f"before the start, level {request.precheck}: {summary}")
    if request.require_fit and found.verdict == "fail":
        raise NodeNotFitError("the node is not fit and --require-fit was given: the command was not started")
    return found.facts or Node(), precheck


def _folder(request: RunRequest) -> tuple[RunFolder | None, list[str]]:
    try:
        return RunFolder(os.environ, request.keep), []
    except NoFolderError as error:
        return None, [f"nothing was observed and no output kept: no place for records ({error})"]


def _to_its_end(started: ForegroundCommand) -> int:
    try:
        while started.step(_TICK_S) is None:
            pass
        return started.returncode or 0
    finally:
        started.close()


def _follow(
    request: RunRequest, started: ForegroundCommand, watch: RunWatch | None, telemetry: _Telemetry, say: Say
) -> None:
    described: RunStall | None = None
    while started.step(_TICK_S) is None:
        if watch is None:
            continue
        watch.step()
        telemetry.step()
        stall = watch.stall
        if stall is None:
            described = None
        elif described is None:
            described = stall
            say(f"no progress for {stall.stood_s:.0f} s")
            for line in of_stall(stall):
                say(f"  {line}")
            if request.on_hang == "end":
                say("ending the command (--on-hang end)")
                watch.ended_by_us()
                if is_of_step(os.environ):
                    watch.end_ranks()
                started.end()
    if watch is not None:
        if is_of_step(os.environ):
            _await_other_tasks(started, watch)
        watch.finish()


def _await_other_tasks(started: ForegroundCommand, watch: RunWatch) -> None:
    """Watch the ranks of the node's other tasks to their end, for a while, or until a signal comes."""
    signals, give_up_s = len(started.signals), time.monotonic() + _OTHER_TASKS_S
    while watch.has_running_ranks and len(started.signals) == signals and time.monotonic() < give_up_s:
        started.step(_TICK_S)
        watch.step()


def _ending(started: ForegroundCommand, watched: Watched, duration_s: float) -> dict[str, object]:
    status = started.returncode or 0
    ended_by_us = any(stall.ended_by_us for stall in watched.stalls)
    return {
        "exit_code": status if status >= 0 else 128 - status,
        "signal": -status if status < 0 else None,
        "sent": () if ended_by_us else tuple(started.signals),
        "duration_s": duration_s,
    }


def _case(node: Node, watched: Watched, telemetry: _Telemetry) -> Case:
    gpus = {gpu.index: gpu for gpu in node.gpus}
    infos = tuple(
        RankInfo(rank.rank, "cuda" if rank.gpu is not None else "cpu", rank.gpu, known(gpus[rank.gpu].uuid))
        if rank.gpu in gpus
        else RankInfo(rank.rank, "cpu")
        for rank in watched.ranks
    )
    on_gpu = any(rank.gpu is not None for rank in watched.ranks)
    launch = Launch("nccl" if on_gpu else "gloo", len(infos), infos)
    return Case(node, Measurements(launch=launch, telemetry=telemetry.readings()))


def _not_seen(request: RunRequest, folder: RunFolder | None, watch: RunWatch | None, watched: Watched) -> list[str]:
    notes = []
    full = folder is not None and folder.is_full()
    if full and folder is not None:
        notes.append(
            f"the disk of {folder.path} is full: processes that started since then were not observed, and the logs and "
            "stacks that were kept end there"
        )
    if watch is not None:
        notes += [f"the observer switched itself off in a rank: {reason}" for reason in watch.off_reasons()]
    if watch is None or request.no_observer:
        return notes
    if not watched.ranks and not full:
        notes.append(
            "no Python process that imports torch was seen: no Python or torch in it, python -I or -E, or it left the "
            "environment behind; only the command as a whole is judged"
        )
    elif watched.ranks and not any(rank.finished for rank in watched.ranks):
        notes.append("no optimizer step of torch was seen, so steps, waits and causes are not known")
    return notes


def _diagnosis(folder: RunFolder | None, watch: RunWatch | None, watched: Watched) -> Diagnosis | None:
    """What the kept logs and dumps say, if the command failed."""
    if folder is None or watch is None or (not watched.exit_code and not watched.stalls):
        return None
    watch.output_files()
    names = {str(rank.pid): f"rank-{rank.rank}.stacks.txt" for rank in watched.ranks}
    for path in folder.ranks.glob("*.stacks"):
        if path.stat().st_size:
            path.replace(folder.logs / names.get(path.stem, f"stacks-{path.stem}.txt"))
    found, _ = sources.find_sources([str(folder.logs), str(folder.path / "dumps")])
    if not found:
        return None
    answer = build.diagnose(gather.gather(found))
    if not any(stall.ended_by_us for stall in watched.stalls):
        return answer
    # the signal that we sent is no cause
    causes = [cause for cause in (answer.cause, *answer.others) if cause is not None and cause.what != _SIGNAL]
    return msgspec.structs.replace(answer, cause=causes[0], others=tuple(causes[1:])) if causes else None


def _kept(folder: RunFolder | None, request: RunRequest, watched: Watched) -> str | None:
    """Keep the logs of a failed run, or of any if a folder was named; return where they are."""
    if folder is None:
        return None
    folder.remove_records()
    failed = bool(watched.exit_code or watched.stalls)
    if request.keep is None and not (failed and folder.has_logs()):
        folder.remove()
        return None
    return str(folder.path)


def _report(
    request: RunRequest,
    watched: Watched,
    precheck: report.Precheck | None,
    settings: Mapping[str, str],
    diagnosis: Diagnosis | None,
    notes: tuple[str, ...],
    kept: str | None,
    began: float,
) -> report.RunReport:
    findings = report.judged(watched)
    host = os.environ.get("GPUDOCTOR_NODE_NAME") or platform.node()
    return report.RunReport(
        tool=Tool(version=__version__),
        command=request.command,
        host=host,
        started_at=rfc3339(began),
        duration_s=round(watched.duration_s, 3),
        exit_code=watched.exit_code,
        signal=signal_name(watched.signal) if watched.signal else None,
        verdict=worst_verdict(finding.status for finding in findings),
        reason=report.reason_of(findings),
        world_size=watched.world_size,
        precheck=precheck,
        settings=dict(settings),
        throughput=report.throughput(watched),
        ranks=tuple(report.rank_report(rank, host) for rank in watched.ranks),
        findings=findings,
        stalls=watched.stalls,
        diagnosis=diagnosis,
        notes=notes,
        kept=kept,
    )


class _Telemetry:
    """The sampler of the node's GPUs; begun anew each hour, so that a long run fills no memory."""

    def __init__(self, node: Node) -> None:
        self._gpus = [(gpu.index, uuid) for gpu in node.gpus if (uuid := known(gpu.uuid))]
        self._sampler: Sampler | None = None
        self._last: tuple[Telemetry, ...] = ()
        self._start()

    def step(self) -> None:
        if self._sampler is not None and time.monotonic() - self._began_s > _RESAMPLE_S:
            self._last = self.readings()
            self.stop()
            self._start()

    def readings(self) -> tuple[Telemetry, ...]:
        if self._sampler is None:
            return ()
        now_s = time.monotonic()
        if now_s - self._began_s < 60 and self._last:
            return self._last
        return (self._sampler.recording().telemetry("train", self._began_s, now_s),)

    def stop(self) -> None:
        if self._sampler is not None:
            self._sampler.stop(1.0)
            self._sampler = None

    def _start(self) -> None:
        self._began_s = time.monotonic()
        if self._gpus:
            with suppress(OSError):
                self._sampler = Sampler(self._gpus, _SAMPLE_EVERY_S)
