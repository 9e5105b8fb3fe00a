"""Runs `gpudoctor check` as a child process and always ends it; tells before what a run would disturb."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable, Sequence

import msgspec

from gpudoctor.api.check_child import CheckChild
from gpudoctor.api.load.measure import puts_load as checks_put_load
from gpudoctor.checks.core.gpu_use import UseReadings, readings_of, use_of
from gpudoctor.checks.core.registry import LEVELS, Level, all_checks, select
from gpudoctor.errors import UserError
from gpudoctor.facts.model.gpu import GpuProcess
from gpudoctor.facts.model.missing import NOT_READ, Missing, known
from gpudoctor.process.exit_codes import COULD_NOT
from gpudoctor.process.own_program import own_gpudoctor
from gpudoctor.report.model import Report
from gpudoctor.report.progress import ProgressLine
from gpudoctor.text.output import printable
from gpudoctor.tui.state import FinishedRun, State

# a full report of 16 GPUs with facts is smaller than 2 MiB
REPORT_BYTES_MAX = 64 << 20
# SIGINT requests the partial report; ending ranks may take 13 s if the driver does not release one
CANCEL_GRACE_S, TERM_GRACE_S = 15.0, 3.0
_USERS_MAX = 8

OnProgress = Callable[[ProgressLine], None]


def ssh_prefix(host: str, *options: str) -> list[str]:
    """The command that starts gpudoctor on another machine through the user's ssh, which must not prompt."""
    # without --, a host that starts with - would be an option
    return ["ssh", "-o", "BatchMode=yes", *options, "--", host, "gpudoctor"]


class Checker:
    """Runs one check at a time.

    `prefix` starts gpudoctor (`own_gpudoctor()` or `ssh_prefix(host)`; arguments for a remote shell are
    quoted). `node` are the options that name what is judged ("--node", "hgx-h100-8", "--fault", ...), empty
    for the machine itself. `options` are added to every run (--config ...). A simulated or captured node
    cannot be put under load: CPU ranks of this machine are measured instead, and labelled as such.
    """

    def __init__(self, prefix: Sequence[str], node: Sequence[str], *, options: Sequence[str] = ()) -> None:
        self._prefix = list(prefix) or own_gpudoctor()
        self._node = list(node)
        self._options = list(options)
        self._child: CheckChild | None = None
        self._cancelled = False
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
            self._cancelled = False
            self._child = child = CheckChild(command, REPORT_BYTES_MAX, is_message=_progress_to(on_progress))
            await child.to_its_end()
            return finished(*_outcome(child, cancelled=self._cancelled, remote=self.is_remote))
        except OSError as error:
            return finished(None, f"{self._prefix[0]}: {error.strerror or error}")
        finally:
            if self._child is not None:
                self._child.drop()
            self._child = None

    def cancel(self) -> None:
        """Ask the child to end with a partial report; it is terminated, then killed, if it does not."""
        if self._child is not None and not self._cancelled:
            self._cancelled = True
            self._child.send(signal.SIGINT)
            self._child.send_later(CANCEL_GRACE_S, signal.SIGTERM)
            self._child.send_later(CANCEL_GRACE_S + TERM_GRACE_S, signal.SIGKILL, group=True)

    def close(self) -> None:
        """Kill the child without waiting, and refuse further runs."""
        self._closed = True
        if self._child is not None:
            self._child.drop()


def _progress_to(on_progress: OnProgress | None) -> Callable[[bytes], bool]:
    """Takes a line of stderr; whether it was no progress, but an error message of gpudoctor or ssh."""
    decoder = msgspec.json.Decoder(ProgressLine)

    def is_message(line: bytes) -> bool:
        try:
            progress = decoder.decode(line)
        except msgspec.DecodeError:
            return True
        if on_progress is not None:
            on_progress(progress)
        return False

    return is_message


def _outcome(child: CheckChild, *, cancelled: bool, remote: bool) -> tuple[Report | None, str | None]:
    """The report, or one line with the reason why there is none."""
    if child.too_large:
        return None, "the report is larger than can be: it was not read"
    # another version of gpudoctor, or another program
    found = child.outcome("gpudoctor check", "the gpudoctor over there" if remote else None)
    if isinstance(found, str):
        return None, "cancelled, without a report" if cancelled else found
    if found.error is not None or found.exit_code == COULD_NOT:
        return None, found.error or f"gpudoctor check could not do its work{child.said}"
    return found, None


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
    latest, gpu = state.latest[index].readings if index in state.latest else {}, state.gpu(index)
    return msgspec.structs.replace(
        readings_of(gpu) if gpu is not None else UseReadings(),
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
    return gpu.processes if (gpu := state.gpu(index)) is not None else ()
