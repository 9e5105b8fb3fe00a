"""Collects the messages of a run and turns them into measurements and problems."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpudoctor.facts.model.measurements import Launch, Measurements, Probe, ProbeProblem, RankInfo, TorchView
from gpudoctor.facts.model.missing import NOT_READ, Missing
from gpudoctor.probes.runner import messages
from gpudoctor.probes.runner.board import ProgressBoard
from gpudoctor.probes.runner.merge import merged_torch_view
from gpudoctor.probes.runner.plan import ProbePlan, Stage
from gpudoctor.probes.runner.rank_state import (
    RankState,
    behind,
    failure_problems,
    rank_list,
    slow_problem,
    timeout_problem,
)
from gpudoctor.probes.runner.run_progress import RunProgress
from gpudoctor.process.ending import RunningProcess, process_state
from gpudoctor.process.pipes import tail

FIGURES_OF_PROBE: dict[Probe, str] = {  # the field of Measurements that is empty if the probe brought nothing
    "collective": "collectives",
    "link": "host_links",
    "compute": "compute",
    "train": "training",
    "strategy": "strategies",
    "data": "data_loading",
}
INSTALL_TORCH = "PyTorch is not installed: pip install 'torch>=2.4' 'numpy>=1.26'"

_TAIL_BYTES = 1 << 20  # if the user set NCCL_DEBUG=INFO, warnings may be far from the end
_LAST_LINES = 5
_WARNINGS = 10
_STILL_S = 1.0  # after a timeout, a rank that makes no move for this long hangs; one that moves is only slow


class RunCollector:
    """Collects the messages of one run; `measurements()` may be called at any time, finished or not."""

    def __init__(
        self,
        plan: ProbePlan,
        folder: Path,
        board: ProgressBoard,
        progress: Callable[[str], None] | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._board = board
        self._progress = progress
        self._began = time.monotonic()
        self._states = [RankState(number) for number in range(plan.ranks)]
        self._views: dict[int, TorchView] = {}
        self._run_progress = RunProgress(plan, clock)
        self._left_out: dict[str, Missing] = {}
        self._joined: set[int] = set()
        self._start_s: float | Missing = NOT_READ
        self._import_s: float | Missing = NOT_READ
        self._phases: set[tuple[int, str]] = set()
        self._method: str | None = None
        self._lack_of_torch: Missing | None = None
        self._cannot_run: str | None = None
        self._cannot_start: str | None = None
        self._pids: dict[int, int] = {}
        self._starter_ended = False
        self._starter_stopped = False
        self._problems: list[ProbeProblem] = []

    @property
    def running(self) -> list[str]:
        """Probes that some rank has begun and not all have finished; from the second repetition on with its number."""
        return self._run_progress.running

    @property
    def stage(self) -> Stage:
        """The stage that not all ranks have completed yet: importing torch, the rendezvous, or the probes."""
        if self._method is None or any(state.phase in ("start", "import torch") for state in self._states):
            return "import"
        return "join" if isinstance(self._start_s, Missing) else "run"

    def waited_for(self) -> str:
        """What the run is waiting for, as text for the user: the ranks that are behind, and the time elapsed."""
        self._look()
        passed = f"{time.monotonic() - self._began:.0f} s"
        if self._method is None:
            return f"waits for torch to be imported: {passed}"
        late = behind(self._states)
        return f"waits for {rank_list(state.number for state in late)} in {late[0].doing}: {passed}"

    @property
    def broken(self) -> bool:
        """Whether the run can no longer complete, or has completed."""
        return (
            self._starter_ended
            or self._cannot_start is not None
            or self._lack_of_torch is not None
            or self._cannot_run is not None
            or all(state.left for state in self._states)
            or any(state.died or state.failure is not None for state in self._states)
        )

    def take(self, rank: int, message: messages.RankMessage) -> None:
        """Process one message of a rank, or of the starter of rank n (-1 - n)."""
        match message:
            case messages.Phase(probe=probe, text=text):
                self._enter(self._states[rank], probe, text)
            case messages.TorchSeen(view=view):
                self._views[rank] = view
            case messages.ProbeSample():
                self._run_progress.take(rank, message)
            case messages.LeftOut(part=part, why=why):
                self._left_out[part] = why
            case messages.Finished(probe=finished):
                self._run_progress.finish(rank, finished)
            case messages.Left():
                self._states[rank].left = True
            case messages.RankFailure():
                self._states[rank].failure = message
            case messages.UnusableTorch(text=text):
                self._cannot_run = text
            case messages.Exited(rank=ended, status=status):
                self._states[ended].status = status
            case messages.StartFailure(text=text):
                self._cannot_start = text
            case messages.Started(method=method, pids=pids):
                self._method = self._plan.engine or method
                self._pids.update(zip(self._started_by(rank), pids, strict=False))
                if method == "fresh-interpreters":
                    for state in self._states:
                        state.phase = "import torch" if state.phase == "start" else state.phase
            case messages.NoTorch(text=text, kind=kind):
                text = INSTALL_TORCH if kind == "absent" else text
                # CPU ranks run only for who asks for them
                self._lack_of_torch = Missing(text, "failed" if self._plan.backend == "gloo" else kind)

    def garbled(self, rank: int) -> None:
        """Note that a line could not be parsed: this process's figures are lost, whatever it does next."""
        if rank < 0:
            self._starter_ended = True
        elif self._states[rank].failure is None:
            self._states[rank].failure = messages.RankFailure("error", "its report could not be read", blocked=False)

    def pipe_ended(self, rank: int) -> None:
        """Note that a process closed its pipe: it has ended, or is about to."""
        lost = [state for state in map(self._states.__getitem__, self._started_by(rank)) if state.status is None]
        if rank < 0 and lost:
            self._starter_ended = True
            for state in lost if self._plan.engine else ():
                text = f"the process that {self._plan.engine} started for it is gone"
                state.failure = state.failure or messages.RankFailure("error", text, blocked=False)

    def _started_by(self, source: int) -> list[int]:
        """The ranks of a starter: all of them, or one if a launch engine started one process per rank."""
        if source >= 0:
            return []
        return [-1 - source] if self._plan.engine else list(range(self._plan.ranks))

    def starter_is_stopped(self, starter: RunningProcess) -> bool:
        """Whether the process that starts the ranks is stopped before it has started them: nothing would follow."""
        self._starter_stopped = self._method is None and process_state(starter.pid) == "T"
        return self._starter_stopped

    def time_out(self, limit_s: float) -> None:
        """Note which ranks hang; to be called before any of them is ended."""
        self._look()
        if self._method is None:
            text = f"importing torch did not end within {limit_s:g} s"
            self._problems.append(ProbeProblem("launch", "timeout", text, phase="import torch"))
            return
        before = [state.progress.moves for state in self._states]
        time.sleep(_STILL_S)
        self._look()
        moving = [state.progress.moves for state in self._states] != before
        problem = slow_problem(self._states, limit_s) if moving else timeout_problem(self._states, limit_s)
        self._problems += failure_problems(self._states) or (problem,)

    def conclude(self) -> None:
        """Note why the run ended early, if it did; to be called before any rank is ended."""
        self._look()
        if self._problems or self._lack_of_torch is not None or self._cannot_run is not None:
            return
        failures = failure_problems(self._states)
        if self._cannot_start is not None:
            self._cannot_launch(f"the ranks could not be started: {self._cannot_start}")
        elif failures:
            self._problems += failures
        elif self._starter_stopped:
            # from outside: no fault of the node
            self._cannot_launch("the process that starts the ranks is stopped (SIGSTOP)")
        elif self._method is None or not all(state.left for state in self._states):
            output = _evidence(self._folder / "starter.stderr")
            last = f": {output[-1]}" if output else ""
            # it opens no GPU: no crash of one
            self._cannot_launch(f"the process that starts the ranks died{last}", output)

    def _cannot_launch(self, text: str, output: tuple[str, ...] = ()) -> None:
        self._problems.append(ProbeProblem("launch", "error", text, phase="start", output=output))

    def note_stuck(self, stuck: bool) -> None:
        """Report processes that have not ended; a driver is convicted only by those that the kernel holds (state D)."""
        if not stuck:
            return
        held = [rank for rank, pid in self._pids.items() if process_state(pid) == "D"]
        if held:
            verb = "is" if len(held) == 1 else "are"
            text = f"{rank_list(held)} {verb} stuck in the kernel after SIGKILL, most likely in the GPU driver"
            self._problems.append(ProbeProblem("launch", "timeout", text, held[0], "end"))
        else:
            text = "the processes of this run took longer to end than a driver may take; none is stuck in the kernel"
            self._problems.append(ProbeProblem("launch", "error", text, phase="end"))

    def measurements(self) -> Measurements:
        """All measurements so far, with the problems and the reasons for what is missing."""
        found = self._run_progress.measured()
        return msgspec.structs.replace(
            found,
            launch=self._launch(),
            torch_view=merged_torch_view(self._views, self._plan.backend),
            problems=tuple(self._problems),
            not_run=self._not_run(found) | found.not_run | self._left_out,
            injected=self._plan.inject,
        )

    def _enter(self, state: RankState, probe: messages.Where, text: str) -> None:
        state.probe, state.phase = probe, text
        if isinstance(self._import_s, Missing) and self.stage != "import":
            self._import_s = time.monotonic() - self._began
        if probe != "launch":
            self._run_progress.begin(state.number, probe)
        if text == "joined":
            self._joined.add(state.number)
            if len(self._joined) == self._plan.ranks:
                self._start_s = time.monotonic() - self._began
                self._run_progress.mark_rendezvous()
        seen = (self._run_progress.repetition_of[state.number], text)
        if self._progress is not None and seen not in self._phases:
            self._phases.add(seen)
            where = self._run_progress.where(state.number) if probe != "launch" else None
            self._progress(text if where is None else f"{where}: {text}")

    def _look(self) -> None:
        for state in self._states:
            state.stopped = (
                state.status is None
                and state.number in self._pids
                and process_state(self._pids[state.number]) in ("T", "t")
            )
            state.progress = self._board.entry(state.number)
            state.output = _evidence(self._folder / f"rank-{state.number}.stderr")

    def _launch(self) -> Launch | None:
        if self._method is None:
            return None
        gpus = self._plan.gpus
        ranks = tuple(
            RankInfo(rank, "cuda", *gpus[rank]) if gpus and self._plan.backend == "nccl" else RankInfo(rank, "cpu")
            for rank in range(self._plan.ranks)
        )
        total_s = time.monotonic() - self._began
        return Launch(self._plan.backend, self._plan.ranks, ranks, self._method, self._start_s, total_s, self._import_s)

    def _not_run(self, found: Measurements) -> dict[str, Missing]:
        lacking = [probe for probe, field in FIGURES_OF_PROBE.items() if not getattr(found, field)]
        reasons: dict[str, Missing] = {probe: self._reason(probe) for probe in lacking}
        if self._lack_of_torch is not None:
            return {"torch": self._lack_of_torch, **reasons}
        return reasons if self._views else {"torch": Missing(self._why(None), "failed"), **reasons}

    def _reason(self, probe: Probe) -> Missing:
        if probe not in self._plan.probes:
            return Missing("not asked for")
        if self._lack_of_torch is not None:
            return self._lack_of_torch
        if self._cannot_run is not None:
            return Missing(self._cannot_run)
        if probe == "collective" and self._plan.ranks == 1 and not self._problems:
            return Missing("one rank has nobody to reduce with")
        if probe == "strategy" and self._plan.ranks == 1 and not self._problems:
            return Missing("one rank has nobody to divide the work with")
        if probe == "link" and self._plan.backend == "gloo" and not self._problems:
            return Missing("CPU ranks have no link to a GPU")
        return Missing(self._why(probe), "failed")

    def _why(self, probe: Probe | None) -> str:
        if not self._problems:
            return "the ranks brought no figures"
        text = self._problems[0].text
        return text if probe is None or self._run_progress.began(probe) else f"not reached: {text}"


def _evidence(path: Path) -> tuple[str, ...]:
    """NCCL's warnings, CUDA errors and the last lines of a process's output; empty if it wrote nothing."""
    try:
        with path.open("rb") as file:
            text = tail(file.fileno(), _TAIL_BYTES)
    except OSError:
        return ()
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    warnings = [line for line in lines[:-_LAST_LINES] if "NCCL WARN" in line or "CUDA error: " in line][-_WARNINGS:]
    return (*warnings, *lines[-_LAST_LINES:])
