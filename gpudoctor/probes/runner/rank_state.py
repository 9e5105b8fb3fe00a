"""What the parent knows about each rank, and which ranks keep the others waiting, fail or die."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence

import msgspec

from gpudoctor.facts.model.measurements import ProbeProblem
from gpudoctor.probes.runner.board import BoardEntry
from gpudoctor.probes.runner.errors import Meaning, telling_line
from gpudoctor.probes.runner.messages import RankFailure, Where
from gpudoctor.process.ending import signal_name

# what other processes and the kernel send; neither a GPU nor its driver ends a program by these
_SENT_BY_OTHERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class RankState(msgspec.Struct):
    """What the parent knows about one rank. `status`: exit code or minus the signal number; None while it runs."""

    number: int
    probe: Where = "launch"
    phase: str = "start"
    progress: BoardEntry = BoardEntry()
    failure: RankFailure | None = None
    left: bool = False
    stopped: bool = False
    status: int | None = None
    output: tuple[str, ...] = ()

    @property
    def doing(self) -> str:
        return f"{self.phase} {self.progress.step}" if self.progress.step else self.phase

    @property
    def died(self) -> bool:
        return self.status is not None and not self.left and self.failure is None


def behind(states: Sequence[RankState]) -> list[RankState]:
    """The ranks with the fewest moves, of those that still run if any does: the others wait for them."""
    running = _unfinished(states) or states
    least = min(state.progress.moves for state in running)
    return [state for state in running if state.progress.moves == least]


def _unfinished(states: Sequence[RankState]) -> list[RankState]:
    return [state for state in states if not state.left and state.status is None]


def timeout_problem(states: Sequence[RankState], limit_s: float) -> ProbeProblem:
    """The problem after a timeout: the ranks with the fewest moves hang, those that are further wait for them."""
    running = _unfinished(states)
    if not running:
        return ProbeProblem("launch", "timeout", f"the ranks did not end within {limit_s:g} s")
    halted = [state for state in running if state.stopped]
    if halted:
        return _halted_problem(halted, running)
    late = behind(states)
    waiting = tuple(state.number for state in running if state not in late)
    first, names = late[0], rank_list(state.number for state in late)
    if first.phase == "import torch":
        text = f"importing torch did not end within {limit_s:g} s in {names}"
        return ProbeProblem("launch", "timeout", text, phase=first.phase, output=first.output)
    if len(late) > 1 and not waiting:
        text = f"no rank left {first.doing} within {limit_s:g} s: all of them are in it"
        return ProbeProblem(first.probe, "timeout", text, phase=first.doing, output=first.output)
    text = f"{names} did not leave {first.doing} within {limit_s:g} s"
    if waiting:
        verb, whom = "wait" if len(waiting) > 1 else "waits", "it" if len(late) == 1 else "them"
        text += f"; {rank_list(waiting)} {verb} for {whom}"
    return ProbeProblem(first.probe, "timeout", text, first.number, first.doing, waiting, first.output)


def _halted_problem(halted: Sequence[RankState], running: Sequence[RankState]) -> ProbeProblem:
    """Ranks that a signal from outside stopped: no fault of the node."""
    first, names = halted[0], rank_list(state.number for state in halted)
    text = f"{names} {'is' if len(halted) == 1 else 'are'} stopped (SIGSTOP) in {first.doing}"
    waiting = tuple(state.number for state in running if not state.stopped)
    return ProbeProblem(first.probe, "error", text, first.number, first.doing, waiting)


def slow_problem(states: Sequence[RankState], limit_s: float) -> ProbeProblem:
    """The problem if time ran out but no rank hangs: it names no rank, since a busy machine looks the same."""
    last = behind(states)[0]
    text = f"not done within {limit_s:g} s: no rank hangs, but they are slow (in {last.doing}); a busy machine?"
    return ProbeProblem(last.probe, "error", text, phase=last.doing, output=last.output)


def failure_problems(states: Sequence[RankState]) -> tuple[ProbeProblem, ...]:
    """The failure that explains the others, and each GPU that refused its rank; empty if no rank failed.

    A rank that died, or that failed by itself, breaks everyone's connections: the others then fail
    too, while waiting. They are listed as `waiting`, not as faults. Refusals are reported per GPU: one GPU
    may be in exclusive mode and the next one broken, and a refusal must not hide anything worse.
    """
    dead = [state for state in states if state.died]
    failed = [(state, state.failure) for state in states if state.failure is not None]
    by_itself = [state for state, failure in failed if not failure.blocked]
    culprits = dead or by_itself or [state for state, _ in failed]
    waiting = tuple(state.number for state in states if state not in culprits and not state.left)
    refused = [state for state in culprits if state.failure is not None and state.failure.kind == "refused"]
    others = [state for state in culprits if state not in refused]
    return tuple(_failed(group, waiting) for group in (others, *([state] for state in refused)) if group)


def _failed(culprits: Sequence[RankState], waiting: tuple[int, ...]) -> ProbeProblem:
    first = culprits[0]
    if first.failure is None:
        status = first.status or 0
        # NCCL's watchdog aborts a process whose GPU had an error, and prints that error
        known = telling_line(first.output) if status == -signal.SIGABRT else None
        # a rank that exits by itself before any probe could not start, which says nothing about a GPU
        not_the_gpus_fault = -status in _SENT_BY_OTHERS or (first.probe == "launch" and status >= 0)
        kind = "error" if not_the_gpus_fault else known[1].kind if known else "crash"
        what = f"died in {first.doing}: {_how_it_ended(status, first.output, known)}"
    else:
        kind, what = first.failure.kind, f"failed in {first.doing}: {first.failure.text}"
    text = f"{rank_list(s.number for s in culprits)} {what}"
    return ProbeProblem(first.probe, kind, text, first.number, first.doing, waiting, first.output)


def rank_list(numbers: Iterable[int]) -> str:
    """Rank numbers as text: rank 1; ranks 0, 2, 3."""
    listed = sorted(numbers)
    return f"rank{'s' if len(listed) > 1 else ''} {', '.join(str(n) for n in listed)}"


def _how_it_ended(status: int, output: tuple[str, ...], known: tuple[str, Meaning] | None) -> str:
    if status >= 0:
        last = f" ({output[-1]})" if output else ""
        return f"exit code {status}{last}"
    name = signal_name(-status)
    if status == -signal.SIGKILL:
        return f"ended by {name}, as the kernel does when memory runs out"
    if known is None:
        return f"ended by {name}"
    line, meaning = known
    return f"ended by {name}: {meaning.plain} ({line})" if meaning.plain else f"ended by {name} ({line})"
