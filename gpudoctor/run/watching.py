"""Watches a running command: takes over the steps of its ranks, and notices that nothing moves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from signal import SIGTERM
from statistics import median
from time import monotonic, monotonic_ns

import msgspec

from gpudoctor.process.ending import send_signal
from gpudoctor.run import rank_process
from gpudoctor.run.observer.layout import BACKWARD, DATA, END_OF_BACKWARD, WAIT
from gpudoctor.run.record_reader import RankRecord, find_records
from gpudoctor.run.run_folder import RunFolder
from gpudoctor.run.stack_request import loader_workers, own_callers, own_line, request_stacks, training_stack
from gpudoctor.run.step_series import aligned, warm_up, without_stalls
from gpudoctor.run.watched import Ending, RunStall, StoppedRank, Watched, WatchedRank

_RECORDS_EVERY_S = 0.5
_KERNEL_EVERY_S = 1.0
_BEFORE_FIRST_STEP_S = 1800.0
_LEAST_HANG_S = 120.0
_HANG_STEPS = 10
_STILL_NS = 20_000_000  # while stacks are requested, which takes 0.2 s
_IN_ENGINE = " in _engine_run_backward"
_LAUNCHERS = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
)


class _Seen(msgspec.Struct):
    """What this process remembers of one rank."""

    record: RankRecord
    cgroup_read: bool = False
    ended_s: float | None = None
    lived_s: float | None = None
    cpus: tuple[int, ...] = ()
    neighbours: dict[str, int] = {}


class RunWatch:
    """Follows all ranks in the folder. `say` takes lines for people while it runs."""

    def __init__(self, folder: RunFolder, hang_after_s: float | None, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._hang_after_s = hang_after_s
        self._say = say
        self._seen: dict[Path, _Seen] = {}
        self._began_s = monotonic()
        self._records_due_s = self._kernel_due_s = 0.0
        self._oom_before: dict[Path, int] = {}
        self._stall: RunStall | None = None
        self._stood_ns: list[tuple[float, float]] = []  # when stalls began and ended
        self.stalls: list[RunStall] = []

    def step(self) -> None:
        """Look once; called several times a second."""
        now_s = monotonic()
        self._notice_ends(now_s)
        if now_s >= self._records_due_s:
            self._records_due_s = now_s + _RECORDS_EVERY_S
            for record in find_records(self._folder.ranks, set(self._seen)):
                self._seen[record.path] = _Seen(record, neighbours={})
            for seen in self._seen.values():
                seen.record.read_new_steps()
            self._look_for_stall()
        if now_s >= self._kernel_due_s:
            self._kernel_due_s = now_s + _KERNEL_EVERY_S
            for seen in self._ranks():
                if seen.ended_s is None:
                    self._read_kernel(seen)

    def ended_by_us(self) -> None:
        """The caller ends the command because of the stall."""
        if self._stall is not None:
            self._stall = msgspec.structs.replace(self._stall, ended_by_us=True)

    def end_ranks(self) -> None:
        """Ask all ranks on the node to end."""
        for seen in self._ranks():
            if rank_process.lives(seen.record.pid, seen.record.started):
                send_signal(seen.record.pid, SIGTERM)

    @property
    def has_running_ranks(self) -> bool:
        return any(seen.ended_s is None for seen in self._ranks())

    def finish(self) -> None:
        """Look a last time, once the command has ended."""
        self._records_due_s = 0.0
        self.step()
        if self._stall is not None:
            self.stalls.append(self._stall)
            self._stall = None

    def watched(self) -> Watched:
        """Everything that was seen of the ranks; the rest of `Watched` is the caller's."""
        ranks = sorted(self._ranks(), key=lambda seen: seen.record.identity[0])
        trained = [seen for seen in ranks if seen.record.read_steps]
        moved = without_stalls(aligned(seen.record.series for seen in trained), self._stood_ns)
        steps = dict(zip((seen.record.pid for seen in trained), moved, strict=True))
        warm = max((warm_up(each) for each in steps.values()), default=0)
        worlds = [seen.record.identity[2] for seen in ranks if seen.record.identity[2] > 0]
        return Watched(
            ranks=tuple(self._watched_rank(n, s, steps.get(s.record.pid, []), warm) for n, s in enumerate(ranks)),
            stalls=tuple(self.stalls),
            oom_kills=sum(rank_process.oom_kills(path) - before for path, before in self._oom_before.items()),
            world_size=max(worlds, default=len(trained) or None),
        )

    def output_files(self) -> None:
        """Write the kept output of each process where `diagnose` reads it."""
        for number, seen in enumerate(sorted(self._seen.values(), key=lambda s: s.record.identity[0])):
            rank = seen.record.identity[0]
            name = f"launcher-{seen.record.pid}" if self._is_launcher(seen) else f"rank-{rank if rank >= 0 else number}"
            data = seen.record.output()
            with suppress(OSError):
                if data:
                    (self._folder.logs / f"{name}.log").write_bytes(data)

    def off_reasons(self) -> list[str]:
        """Why the observer switched itself off, once for each reason."""
        reasons = [str(seen.record.details().get("observer_off") or "") for seen in self._seen.values()]
        return [reason for reason in dict.fromkeys(reasons) if reason]

    def stopped_ranks(self) -> tuple[StoppedRank, ...]:
        """Where each rank stands now."""
        ranks = sorted(self._ranks(), key=lambda seen: seen.record.identity[0])
        living = [s.record for s in ranks if rank_process.lives(s.record.pid, s.record.started)]
        before = [_on_cpu_ns(record) for record in living]
        stacks = request_stacks(living)
        still = {each.pid for each, ns in zip(living, before, strict=True) if _on_cpu_ns(each) - ns < _STILL_NS}
        return tuple(self._stopped(n, seen, stacks, still) for n, seen in enumerate(ranks))

    def _ranks(self) -> list[_Seen]:
        """The processes that train: those with steps; before the first step all that are no launcher."""
        found = [seen for seen in self._seen.values() if not self._is_launcher(seen)]
        started = [seen for seen in found if seen.record.now.steps]
        if not started:
            return found
        places = {seen.record.identity[0] for seen in started}
        # a rank that has made no step yet, or never will, is one of them
        return started + [
            s for s in found if s not in started and s.record.identity[0] not in places and s.record.identity[0] >= 0
        ]

    def _is_launcher(self, seen: _Seen) -> bool:
        if seen.record.now.steps:
            return False
        details = seen.record.details()
        argv = details.get("argv") or [""]
        name = str(details.get("main") or "").removesuffix(".__main__")
        return name in _LAUNCHERS or Path(str(argv[0])).name in ("torchrun", "accelerate", "deepspeed")

    def _notice_ends(self, now_s: float) -> None:
        for seen in self._seen.values():
            if seen.ended_s is not None:
                continue
            how, at_ns = seen.record.ended
            if how:
                seen.ended_s = at_ns / 1e9 - self._began_s
            elif not rank_process.lives(seen.record.pid, seen.record.started):
                how, at_ns = seen.record.ended  # it may have ended in between
                seen.ended_s = (at_ns / 1e9 if how else now_s) - self._began_s
            else:
                seen.lived_s = now_s - self._began_s

    def _read_kernel(self, seen: _Seen) -> None:
        record = seen.record
        if not seen.cgroup_read:
            seen.cgroup_read = True
            if (events := rank_process.memory_events(record.pid)) is not None:
                self._oom_before.setdefault(events, rank_process.oom_kills(events))
        seen.cpus = rank_process.allowed_cpus(record.pid) or seen.cpus
        if 0 < len(seen.cpus) < (len(rank_process.allowed_cpus(1)) or 2):
            our_pids = {each.record.pid for each in self._seen.values()}
            if neighbour := rank_process.busiest_on(seen.cpus, our_pids):
                seen.neighbours[neighbour] = seen.neighbours.get(neighbour, 0) + 1

    def _look_for_stall(self) -> None:
        ranks = [seen for seen in self._ranks() if seen.record.now.marks or seen.ended_s is None]
        living = [seen for seen in ranks if seen.ended_s is None]
        if not living:
            return
        newest_ns = max((seen.record.now.since_ns for seen in ranks), default=0)
        still_s = (monotonic_ns() - newest_ns) / 1e9 if newest_ns else monotonic() - self._began_s
        if self._stall is not None:
            if still_s < self._stall.after_s:
                stood_s = max(self._stall.stood_s, self._stall.after_s)
                resumed = not self._stall.ended_by_us
                self.stalls.append(msgspec.structs.replace(self._stall, resumed=resumed, stood_s=stood_s))
                self._stood_ns[-1] = (self._stood_ns[-1][0], newest_ns)
                self._say("a rank moves again")
                self._stall = None
            else:
                self._stall = msgspec.structs.replace(self._stall, stood_s=still_s)
        elif still_s >= (self._hang_after_s or _LEAST_HANG_S) and still_s >= (limit_s := self._limit_s(ranks)):
            self._stall = RunStall(after_s=limit_s, stood_s=still_s, ranks=self.stopped_ranks())
            self._stood_ns.append((newest_ns, inf))

    def _limit_s(self, ranks: list[_Seen]) -> float:
        if not any(seen.record.now.steps for seen in ranks):
            return max(self._hang_after_s or 0.0, _BEFORE_FIRST_STEP_S)
        if self._hang_after_s is not None:
            return self._hang_after_s
        times = [step.step_ms for seen in ranks for step in list(seen.record.series.steps().values())[-200:]]
        return max(_LEAST_HANG_S, _HANG_STEPS * (median(times) if times else 0.0) / 1000)

    @property
    def stall(self) -> RunStall | None:
        return self._stall

    def _stopped(self, number: int, seen: _Seen, stacks: dict[int, str], still: set[int]) -> StoppedRank:
        record, now = seen.record, seen.record.now
        rank = record.identity[0] if record.identity[0] >= 0 else number
        if not rank_process.lives(record.pid, record.started):
            return StoppedRank(rank=rank, finished=now.steps, gone=True)
        details = record.details()
        stack = training_stack(stacks.get(record.pid, ""), int(details.get("thread") or 0))
        place, code = own_line(stack)
        waits, collective = now.phase == WAIT, record.collective
        if now.phase == BACKWARD and record.pid in still and stack and stack[0].endswith(_IN_ENGINE):
            # not timed, so not marked: DDP's wait is C++ code that uses no CPU, and no Python code runs within backward
            waits, collective = record.identity[2] > 1, END_OF_BACKWARD
        kernel = "" if stack else rank_process.kernel_place(record.pid)
        return StoppedRank(
            rank=rank, finished=now.steps, waits=waits, phase=now.phase_name,
            collective=collective if waits else "", place=place, code=code, callers=own_callers(stack),
            workers=loader_workers(record) if now.phase == DATA else (), stack=stack, kernel=kernel,
        )  # fmt: skip

    def _watched_rank(self, number: int, seen: _Seen, steps: list, warm: int) -> WatchedRank:  # type: ignore[type-arg]
        record = seen.record
        rank, _, _, on_gpu, gpu = record.identity
        details = record.details()
        how, _ = record.ended
        ending: Ending = "runs"
        if seen.ended_s is not None:
            ending = {0: "abrupt", 1: "normal", 2: "exception"}[how]  # type: ignore[assignment]
        neighbour = max(seen.neighbours, key=lambda name: seen.neighbours[name], default=None)
        return WatchedRank(
            rank=rank if rank >= 0 else number, pid=record.pid, gpu=gpu if on_gpu else None,
            finished=record.now.steps, steps=tuple(steps[warm:]), warm_up=tuple(steps[:warm]), ending=ending,
            ended_s=seen.ended_s, lived_s=seen.lived_s, error=details.get("error"), places=record.places(),
            bad_loss=record.bad_loss, bad_gradient=record.bad_gradient, cpus=seen.cpus, cpu_neighbour=neighbour,
            loader=bool(details.get("loader")), loader_workers=int(details.get("loader_workers") or 0),
        )  # fmt: skip


def _on_cpu_ns(record: RankRecord) -> float:
    """CPU time of its training thread so far."""
    return rank_process.on_cpu_ns(record.pid, int(record.details().get("native_id") or record.pid))
