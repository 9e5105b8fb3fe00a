"""What the process does that has the hub: lead the examination, and write its report."""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import sys
import time
import uuid
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from gpudoctor.checks.core.registry import Level
from gpudoctor.cluster.check.cluster_run import Examination, Plan
from gpudoctor.cluster.check.hub import Hub
from gpudoctor.cluster.check.inter_node_findings import SLOW_SHARE
from gpudoctor.cluster.check.judge import judge_cluster
from gpudoctor.cluster.check.messages import DEFAULT_SILENCE_S
from gpudoctor.cluster.check.report import SCHEMA, ClusterReport, ClusterRun, render_cluster_json
from gpudoctor.errors import UserError
from gpudoctor.exits import (
    COULD_NOT,
    ClosedStdoutError,
    InterruptedBySignal,
    hold_signals,
    printable,
    say,
    write_stdout,
)
from gpudoctor.facts.deadlines import COLLECTION
from gpudoctor.load_policy import run_limit_s
from gpudoctor.private_folder import make_private_folder, why_not_private
from gpudoctor.report.model import Tool
from gpudoctor.report.output_files import OutputError, write_file

_JOIN_S = 60.0
_NAME_MAX = 50  # letters, each of up to 4 bytes: file systems take 255 bytes
_READ_S = COLLECTION.seconds + 20.0  # Python and torch may come from a cold network disk
_OPEN_S = 60.0  # importing torch on a busy machine, and opening a GPU
_MEET_S = {"nccl": 60.0, "gloo": 20.0}  # NCCL opens connections between all NICs first: seconds, more with many ranks


class Lead:
    """One run as the leader sees it: what was asked, when it began, and where the reports go."""

    def __init__(self, args: argparse.Namespace, launcher: str, *, insecure: bool = False) -> None:
        self.args, self.launcher, self._insecure = args, launcher, insecure
        self.files: dict[str, str] = {}
        self._not_kept = False
        self._began, self._started = time.monotonic(), now()
        if args.reports is not None:
            try:
                make_private_folder(args.reports)
                # a group that may write to a folder was given it, to work there together
                foreign = why_not_private(args.reports, group_may_write=True)
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or error
                raise UserError(f"{args.reports}: cannot keep reports there: {why}") from None
            if foreign is not None:
                raise UserError(f"--reports: {foreign}; a folder that is not there yet is made for you alone")

    def run(
        self,
        hub: Hub,
        count: int | None,
        names: tuple[str, ...],
        given_up: Callable[[], bool],
        launcher_words: Callable[[], str | None],
    ) -> int:
        """Examine, judge, write; give the exit code. Raise UserError where not one node came."""
        args = self.args
        floor_gb_s = args.at_least / 8 if args.at_least is not None else None
        exam = Examination(hub, self._plan(count, names, floor_gb_s), progress_for(args), self._keep)
        interrupted: InterruptedBySignal | None = None
        try:
            exam.run(given_up)
            signals = hold_signals()
        except InterruptedBySignal as stop:
            signals = hold_signals()
            signals.append(stop.number)
        clear_progress(args)
        hub.close()
        if signals:
            interrupted = InterruptedBySignal(signals[0])
        elif not exam.nodes:
            words = launcher_words()
            said = f"; {self.launcher} says: {words}" if words else f" within {exam.plan.join_limit_s:g} s"
            raise UserError(f"no node came{said}")
        run = ClusterRun(
            id=run_id(),
            started_at=self._started,
            duration_s=round(time.monotonic() - self._began, 3),
            level=args.level,
            launcher=self.launcher,
            nodes_expected=count,
            argv=tuple(args.argv),
            interrupted=str(interrupted) if interrupted else None,
            insecure=self._insecure,
        )
        words = launcher_words() if exam.missing else None
        report = judge_cluster(
            exam, run, floor_gb_s=floor_gb_s, fail_on=args.fail_on, files=self.files, launcher_words=words
        )
        if self._not_kept:
            report = msgspec.structs.replace(report, exit_code=COULD_NOT)
        if interrupted is not None:
            report = msgspec.structs.replace(report, exit_code=interrupted.exit_code)
        return write_cluster(report, args)

    def _plan(self, count: int | None, names: tuple[str, ...], floor_gb_s: float | None) -> Plan:
        args = self.args
        level: Level = args.level
        return Plan(
            level=level,
            backend=args.backend,
            count=count,
            names=names,
            join_limit_s=args.deadline or _JOIN_S,
            check_limit_s=_READ_S + run_limit_s(level),
            open_limit_s=_OPEN_S,
            meet_limit_s=args.deadline or _MEET_S["gloo" if args.backend == "gloo" else "nccl"],
            slow_share=SLOW_SHARE,
            floor_gb_s=floor_gb_s,
        )

    def _keep(self, name: str, hostname: str, report: str) -> None:
        """Write the node's own report, under a name that is surely one in that folder, and no other node's."""
        if self.args.reports is None:
            return
        path = Path(self.args.reports) / file_name(name, {Path(kept).name for kept in self.files.values()})
        try:
            write_file(path, report)
        except OutputError as error:  # no reason to leave the nodes unjudged
            say(f"error: {error}; the report of {name} is not kept")
            self._not_kept = True
            return
        self.files[name] = str(path)


def file_name(node: str, taken: Collection[str]) -> str:
    """The name of a node's report: the node's own where that can be a file's, else with a digest of it.

    Two nodes never share one (`a/b` and `a_b`), and without nodes that mean to the same node has the same in each run.
    """
    name = "".join(c if c.isalnum() or c in "-._#" else "_" for c in node).lstrip(".")[:_NAME_MAX] or "node"
    digest = hashlib.sha256(node.encode("utf-8", "surrogatepass")).hexdigest()
    if name != node:
        name += f"-{digest[:8]}"
    while f"{name}.json" in taken:
        name += f"-{digest[:8]}"
    return f"{name}.json"


def silence_s(args: argparse.Namespace) -> float:
    """After how long a host that does not answer at all is taken for gone."""
    return min(DEFAULT_SILENCE_S, args.deadline or DEFAULT_SILENCE_S)


def could_not(args: argparse.Namespace, launcher: str, message: str) -> int:
    """Write what could not be done in the format asked for; give exit code 2."""
    say(f"error: {message}")
    if args.format != "json":
        return COULD_NOT
    run = ClusterRun(run_id(), now(), 0.0, args.level, launcher, args.nodes, tuple(args.argv))
    reason = "UNKNOWN gpudoctor could not do its work"
    report = ClusterReport(SCHEMA, Tool(), run, "unknown", COULD_NOT, reason, error=printable(message))
    return write_cluster(report, args)


def write_cluster(report: ClusterReport, args: argparse.Namespace) -> int:
    """Write the report where it was asked for, else to stdout; give its exit code."""
    if args.output is not None and str(args.output) != "-":
        try:
            write_file(args.output, _render(report, args, to_file=True))
            return report.exit_code
        except OutputError as error:
            say(f"error: {error}; the report goes to stdout instead")
            report = msgspec.structs.replace(report, exit_code=COULD_NOT)
    try:
        write_stdout(_render(report, args, to_file=False))
    except ClosedStdoutError as error:
        say(f"error: {error}")
        return COULD_NOT
    return report.exit_code


def _render(report: ClusterReport, args: argparse.Namespace, *, to_file: bool) -> str:
    if args.format == "json":
        return render_cluster_json(report)
    # every rank imports this module, and only one of them draws
    from gpudoctor.cluster.check.text import render_cluster_text
    from gpudoctor.report.text import output_color, terminal_width

    color = output_color(args.color, to_file=to_file)
    return render_cluster_text(report, width=terminal_width(), color=color, verbose=args.verbose)


def progress_for(args: argparse.Namespace) -> Callable[[str], None]:
    """Says what goes on: JSON lines on stderr where asked for, one line of a terminal, else nothing."""
    if args.progress:
        return lambda text: _to_stderr(json.dumps({"progress": text}) + "\n")
    if sys.stderr is not None and sys.stderr.isatty():
        return lambda text: _to_stderr(f"\r\x1b[2K{printable(text)[:76]}")
    return lambda text: None


def clear_progress(args: argparse.Namespace) -> None:
    """Take the line of progress off a terminal."""
    if not args.progress and sys.stderr is not None and sys.stderr.isatty():
        _to_stderr("\r\x1b[2K")


def _to_stderr(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        return  # nobody reads it


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def run_id() -> str:
    return str(uuid.uuid4())
