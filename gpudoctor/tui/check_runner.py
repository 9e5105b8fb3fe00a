"""Runs `gpudoctor check` as a child process and always ends it; tells before what a run would disturb."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable, Sequence

import msgspec

from gpudoctor.api.load.measure import puts_load as checks_put_load
from gpudoctor.checks.core.gpu_use import UseReadings, readings_of, use_of
from gpudoctor.checks.core.registry import LEVELS, Level, all_checks, select
from gpudoctor.errors import UserError
from gpudoctor.facts.model.gpu import GpuProcess
from gpudoctor.facts.model.missing import NOT_READ, Missing, known
from gpudoctor.process.async_child import AsyncChild
from gpudoctor.process.ending import ending_words
from gpudoctor.process.exit_codes import COULD_NOT
from gpudoctor.process.own_program import own_gpudoctor
from gpudoctor.process.pipes import LineReader
from gpudoctor.report.model import Report
from gpudoctor.report.progress import ProgressLine
from gpudoctor.text.output import printable
from gpudoctor.tui.state import FinishedRun, State

# a full report of 16 GPUs with facts is smaller than 2 MiB
REPORT_BYTES_MAX = 64 << 20
LINE_BYTES_MAX = 1 << 16
# SIGINT requests the partial report; ending ranks may take 13 s if the driver does not release one
CANCEL_GRACE_S, TERM_GRACE_S = 15.0, 3.0
_USERS_MAX = 8

OnProgress = Callable[[ProgressLine], None]


def ssh_prefix(host: str) -> list[str]:
    """The command that starts gpudoctor on another machine through the user's ssh, which must not prompt."""
    # without --, a host that starts with - would be an option
    return ["ssh", "-o", "BatchMode=yes", "--", host, "gpudoctor"]


class Checker:
    """Runs one check at a time.

    `prefix` starts gpudoctor (`own_gpudoctor()` or `ssh_prefix(host)`; arguments for a remote shell are
    quoted). `node` are the options that name what is judged ("--node", "hgx-h100-8", "--fault", ...), empty
    for the machine itself. `options` are added to every run (--config ...). A simulated or captured node
    cannot be put under load: CPU ranks of this machine are measured instead, and labelled as such.
    """

    def __init__(
        self,
        prefix: Sequence[str],
        node: Sequence[str],
        *,
        options: Sequence[str] = (),
        report_bytes_max: int = REPORT_BYTES_MAX,
    ) -> None:
        self._prefix = list(prefix) or own_gpudoctor()
        self._node = list(node)
        self._options = list(options)
        self._report_bytes_max = report_bytes_max
        self._child: _Child | None = None
        self._closed = False

    @property
    def is_remote(self) -> bool:
        return os.path.basename(self._prefix[0]) == "ssh"  # noqa: PTH119

    @property
    def loads_gpus(self) -> bool:
        """Whether a probe of this node runs on its GPUs, and not on CPU ranks."""
        return not self._node

    @property
    def busy(self) -> bool:
        return self._child is not None

    def command(self, only: Sequence[str], level: Level, *, force: bool = False) -> list[str]:
        """The child's argument vector."""
        asked = ["check", *only, "--level", level, "--json", "--include-facts", "--progress"]
        asked += [*self._node, *self._options]
        if not self.loads_gpus and LEVELS.index(level) >= LEVELS.index("standard"):
            asked += ["--backend", "gloo"]
        if force:
            asked.append("--force")
        return self._prefix + ([shlex.quote(word) for word in asked] if self.is_remote else asked)

    async def run(
        self, only: Sequence[str], level: Level, *, force: bool = False, on_progress: OnProgress | None = None
    ) -> FinishedRun:
        """Run these checks (ids or domains; empty: all). A failure is the `error` of the returned run.

        Raise UserError if a check is running already. If the task is cancelled, the child is killed.
        """
        if self.busy:
            raise UserError("a check runs already: cancel it first")
        started_s = time.time()

        def finished(report: Report | None, error: str | None) -> FinishedRun:
            return FinishedRun(started_s, tuple(only), level, report, error)

        if self._closed:
            return finished(None, "gpudoctor is ending")
        try:
            command = self.command(only, level, force=force)
            self._child = child = _Child(command, on_progress, self._report_bytes_max)
            await child.to_its_end()
            return finished(*_outcome(child, self._prefix[0] if self.is_remote else None))
        except OSError as error:
            return finished(None, f"{self._prefix[0]}: {error.strerror or error}")
        finally:
            if self._child is not None:
                self._child.drop()
            self._child = None

    def cancel(self) -> None:
        """Ask the child to end with a partial report; it is terminated, then killed, if it does not."""
        if self._child is not None:
            self._child.cancel()

    def close(self) -> None:
        """Kill the child without waiting, and refuse further runs."""
        self._closed = True
        if self._child is not None:
            self._child.drop()


class _Child(AsyncChild):
    """The running child and what it has written so far."""

    def __init__(self, command: list[str], on_progress: OnProgress | None, report_bytes_max: int) -> None:
        super().__init__(command)
        self.report = bytearray()
        self.stderr_tail = ""
        self.too_large = False
        self.cancelled = False
        self._on_progress = on_progress
        self._report_bytes_max = report_bytes_max
        self._words = LineReader(self.stderr, LINE_BYTES_MAX, cut=True)
        self._decoder = msgspec.json.Decoder(ProgressLine)

    async def to_its_end(self) -> None:
        """Read all output until the child has ended."""
        await self.hear(self._take_report, self._take_words)
        if self._words.rest:
            self._hear(self._words.rest)

    def cancel(self) -> None:
        if self.cancelled:
            return
        self.cancelled = True
        self.send(signal.SIGINT)
        self.send_later(CANCEL_GRACE_S, signal.SIGTERM)
        self.send_later(CANCEL_GRACE_S + TERM_GRACE_S, signal.SIGKILL, group=True)

    def drop(self) -> None:
        """Kill the process group and stop reading. The ranks end with it, when their pipes close."""
        self.cancel_timers()
        self.kill_now()
        self.stop_reading()

    def _take_report(self, data: bytes) -> None:
        if len(self.report) + len(data) > self._report_bytes_max:
            self.too_large = True
            self.kill_now()
        else:
            self.report += data

    def _take_words(self, data: bytes) -> None:
        for line in self._words.split(data):
            self._hear(line)

    def _hear(self, line: bytes) -> None:
        try:
            reporting = self._decoder.decode(line)
        except msgspec.DecodeError:  # an error message of gpudoctor or ssh
            self.stderr_tail = printable(line.decode("utf-8", "replace").strip()) or self.stderr_tail
            return
        if self._on_progress is not None:
            self._on_progress(reporting)


def _outcome(child: _Child, remote: str | None) -> tuple[Report | None, str | None]:
    """The report, or one line with the reason why there is none."""
    reported = f": {child.stderr_tail}" if child.stderr_tail else ""
    if child.too_large:
        return None, "the report is larger than can be: it was not read"
    try:
        report = msgspec.json.decode(bytes(child.report), type=Report)
    except msgspec.DecodeError as error:
        if child.cancelled:
            return None, "cancelled, without a report"
        if not child.report.strip():
            return None, f"gpudoctor check gave no report ({ending_words(child.returncode)}){reported}"
        # another version of gpudoctor, or another program
        where = "the gpudoctor over there" if remote else "gpudoctor check"
        return None, f"{where} gave a report that cannot be read ({printable(str(error))}){reported}"
    if report.error is not None or report.exit_code == COULD_NOT:
        return None, report.error or f"gpudoctor check could not do its work{reported}"
    return report, None


def puts_load(only: Sequence[str], level: Level) -> bool:
    """Whether a run of these checks (empty: all) at this level starts ranks."""
    if LEVELS.index(level) < LEVELS.index("standard"):
        return False
    try:
        return checks_put_load(select(all_checks(), only), level)
    except UserError:  # a check of a plugin that only the remote machine has
        return True


def users_of_gpus(state: State) -> tuple[str, ...]:
    """One line for each current use of a GPU that load would disturb, by the same rule as on the command line."""
    lines = []
    for index in _gpus(state):
        use = use_of(_processes(state, index), _readings(state, index))
        for process in use.others:
            by = f" of {printable(user)}" if (user := known(process.user)) else ""
            lines.append(f"GPU {index}: {printable(known(process.name) or 'a process')}{by} (pid {process.pid})")
        if use.unseen is not None:
            lines.append(f"GPU {index}: {use.unseen}")
    more = len(lines) - _USERS_MAX
    return (*lines[:_USERS_MAX], f"and {more} more") if more > 0 else tuple(lines)


def _readings(state: State, index: int) -> UseReadings:
    """The newest tick's readings of this GPU; the limits and the driver's way of counting are in the facts."""
    latest = state.latest[index].readings if index in state.latest else {}
    gpus = state.node.gpus if state.node is not None else ()
    facts = next((readings_of(gpu) for gpu in gpus if gpu.index == index), UseReadings())
    return msgspec.structs.replace(
        facts,
        used_mib=latest.get("memory_used_mib"),
        busy_pct=latest.get("utilization_pct"),
        power_w=latest.get("power_w"),
    )


def _gpus(state: State) -> list[int]:
    of_facts = {gpu.index for gpu in state.node.gpus} if state.node is not None else set()
    return sorted({*state.latest, *of_facts, *(p.gpu for p in state.processes or ())})


def _processes(state: State, index: int) -> tuple[GpuProcess, ...] | Missing:
    """The processes on this GPU: from the newest tick, else from the facts."""
    if state.processes is not None:
        return tuple(
            GpuProcess(
                pid=p.pid,
                name=NOT_READ if p.name is None else p.name,
                kind=p.kind,
                memory_mib=NOT_READ if p.memory_mib is None else round(p.memory_mib),
                user=NOT_READ if p.user is None else p.user,
            )
            for p in state.processes
            if p.gpu == index
        )
    gpus = state.node.gpus if state.node is not None else ()
    return next((gpu.processes for gpu in gpus if gpu.index == index), ())
