"""Runs isolated processes besides the ranks, reads their answers, and always ends them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence

import msgspec

from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.frameworks.isolated_child import IsolatedAnswer, IsolatedOrder, Task
from gpudoctor.probes.runner.rank_starter_client import teardown_s
from gpudoctor.process.die_with_parent import dependent_python
from gpudoctor.process.ending import kill_all, send_signal, signal_name
from gpudoctor.process.pipes import TURN_S, LineReader, anonymous_file, pipe_with_child, ready, tail
from gpudoctor.process.spawn import Child

_GRACE_S = 1.0  # after one of several failed: time for the others to report why
ENDED_WITH_OTHERS = "was ended with the others"
_CONTEXTS = 8  # each process may open every GPU of a node


class IsolatedProcess(msgspec.Struct, frozen=True):
    """One process to start: its name in messages, its task, and changes to the environment (None removes)."""

    name: str
    task: Task
    environ: Mapping[str, str | None] = {}


class IsolatedResult(msgspec.Struct):
    """The last answer of one process; `failure` is None if it completed.

    `output`: its last lines on stderr. `loaded`: it was not in the middle of an import when it ended.
    """

    answer: IsolatedAnswer = IsolatedAnswer()
    failure: Missing | None = None
    output: tuple[str, ...] = ()
    loaded: bool = True


class _Process:
    def __init__(self, start: IsolatedProcess) -> None:
        self.start = start
        self.answer = IsolatedAnswer()
        self.ended = self.killed = self.late = False
        self.errors = anonymous_file()
        environ = {**os.environ, **start.environ}
        try:
            with pipe_with_child("writes") as (pipe, writer):
                order = msgspec.json.encode(IsolatedOrder(writer, start.task)).decode()
                self.process = Child(
                    dependent_python("gpudoctor.probes.frameworks.isolated_child", "begin", order),
                    stdout=self.errors,
                    stderr=self.errors,
                    env={name: value for name, value in environ.items() if value is not None},
                    pass_fds=[writer],
                )
        except BaseException:
            os.close(self.errors)
            raise
        self.pipe = LineReader(pipe)

    @property
    def loading(self) -> bool:
        return self.answer.doing.startswith("import ")

    def read(self) -> None:
        lines = self.pipe.read()
        self.ended = lines is None
        for line in lines or ():
            try:
                self.answer = msgspec.json.decode(line, type=IsolatedAnswer)
            except msgspec.DecodeError:
                why = Missing("its answer could not be read", "failed")
                self.answer = msgspec.structs.replace(self.answer, failure=why)
                return

    def kill(self) -> None:
        """Kill its process group, once."""
        if not self.killed:
            self.killed = True
            send_signal(self.process.pid, signal.SIGKILL, group=True)

    def result(self, limit_s: float) -> IsolatedResult:
        """The result; valid after the process has ended."""
        output, answer = _last_lines(self.errors), self.answer
        failure = answer.failure
        if failure is not None:
            failure = Missing(f"{self.start.name}: {failure.reason}", failure.kind)
        elif not answer.done:
            last = f": {output[-1]}" if output else ""
            status = self.process.returncode
            if not (self.ended or self.late):
                what = f"{ENDED_WITH_OTHERS}, in {answer.doing!r}"
            elif not self.ended:
                what = f"did not leave {answer.doing!r} within {limit_s:g} s"
            elif status is not None and status < 0:
                what = f"was ended by {signal_name(-status)} in {answer.doing!r}{last}"
            else:
                what = f"ended with {status} in {answer.doing!r}{last}"
            failure = Missing(f"{self.start.name} {what}", "failed")
        return IsolatedResult(answer, failure, output, loaded=not self.loading)

    def close(self) -> None:
        os.close(self.pipe.descriptor)
        os.close(self.errors)


def run_isolated(
    starts: Sequence[IsolatedProcess],
    *,
    deadline_s: float,
    import_deadline_s: float | None = None,
    together: bool,
) -> list[IsolatedResult]:
    """Start all processes and read their answers until all are done; returns their results in the same order.

    `import_deadline_s`: a shorter deadline while a process reports "import ..."; one that hangs there ends the run.
    `together`: the processes wait for each other, so a failure of one ends the run.
    Never raises for what a process does or if none can be started: that is the `failure` of its result. When this
    returns or raises, for example from a signal handler, every process and its group has been killed.
    """
    processes: list[_Process] = []
    try:
        for start in starts:
            try:
                processes.append(_Process(start))
            except OSError as error:
                why = Missing(f"{start.name} could not be started: {error.strerror or error}", "failed")
                return [IsolatedResult(failure=why) for _ in starts]
        import_s = min(deadline_s, import_deadline_s or deadline_s)
        _listen(processes, deadline_s, import_s, together)
        for process in processes:
            # a process that closed its pipe is about to exit by itself, and its exit status is wanted
            if process.ended:
                process.process.ends_within(_GRACE_S)
        _end(processes)
        return [process.result(import_s if process.loading else deadline_s) for process in processes]
    finally:
        _end(processes)
        for process in processes:
            process.close()


def _listen(processes: Sequence[_Process], deadline_s: float, import_s: float, together: bool) -> None:
    began_s = time.monotonic()
    give_up_s, failed = began_s + deadline_s, False
    open_pipes = {process.pipe.descriptor: process for process in processes}
    while open_pipes:
        loading = any(process.loading for process in open_pipes.values())
        left_s = min(give_up_s, began_s + import_s if loading else give_up_s) - time.monotonic()
        if left_s <= 0:
            if not failed:
                for process in open_pipes.values():
                    process.late = process.loading or not loading
            return
        for descriptor in ready(open_pipes, min(left_s, TURN_S)):
            process = open_pipes[descriptor]
            process.read()
            done, broken = process.answer.done, process.answer.failure is not None
            if process.ended or done or broken:
                del open_pipes[descriptor]
            if together and (broken or (process.ended and not done)):
                give_up_s, failed = min(give_up_s, time.monotonic() + _GRACE_S), True


def _end(processes: Sequence[_Process]) -> None:
    for process in processes:
        process.kill()
    # a process stuck in the driver is left behind: it ends when the kernel releases it
    kill_all([process.process for process in processes], teardown_s(_CONTEXTS * len(processes)))


def _last_lines(errors: int, count: int = 20) -> tuple[str, ...]:
    return tuple(line.strip()[:300] for line in tail(errors).splitlines() if line.strip())[-count:]
