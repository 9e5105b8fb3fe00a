"""Joins all events of one job: which rank, host, GPU and attempt each belongs to, and which ranks are silent."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePath

import msgspec

from gpudoctor.diagnose.attempts import STEPS_OF_WORK, restarts
from gpudoctor.diagnose.events import TROUBLE, Event

_ATTEMPT = re.compile(r"attempt_(\d+)/(\d+)/(?:std(?:out|err)\.log|error\.json)$")
_RANK_FILE = re.compile(r"(?:^|[._-])(?:rank|worker_?rank|global_rank)[._-]?(\d{1,6})(?:\D|$)")
_NUMBERED = re.compile(r"^(.*?)(\d+)$")
_NO_HOST = {"bogon", "localhost", "ubuntu", "0.0.0.0", "::1", "127.0.0.1", "?UNKNOWN?"}
_ADDRESS = re.compile(r"[0-9.:]+|.*:.*:.*")


_BEGINNINGS = ("comm", "member", "world")


class LogFile(msgspec.Struct):
    """One file: how much of it was read, and the host, rank and attempt that it belongs to."""

    name: str
    lines: int = 0
    like_a_job: bool = False
    text: bool = True
    host: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    attempt: int | None = None


class Job:
    """The events of a job, with ranks, hosts and attempts filled in."""

    def __init__(self, events: Iterable[Event], files: list[LogFile]) -> None:
        self.files = files
        self.events = list(events)
        self._places_of_files()
        self._attempts()
        self.hosts: set[str] = set()
        self._hosts()
        self._ranks()
        self.world = self._world()
        self.attempts = max((e.attempt for e in self.events), default=0) + 1

    # -- what the rules ask ------------------------------------------------------------------

    def of(self, *roles: str, attempt: int | None = None) -> list[Event]:
        """The events of these roles, in order."""
        return [e for e in self.events if e.role in roles and (attempt is None or e.attempt == attempt)]

    def worked_behind(self, event: Event) -> bool:
        """Whether the work went on after this line; a single further step may be another rank's."""
        work = [e for e in self.of("progress", "done", attempt=event.attempt) if e.file == event.file]
        work = [e for e in work if e.line > event.line]
        return len(work) >= STEPS_OF_WORK or any(e.role == "done" for e in work)

    def outlived(self, event: Event) -> bool:
        """Whether the job went on after the failure of something unknown: an option, a helper.

        NCCL went on if the process that warned has its communicator; a helper may fail after the work is done.
        """
        if not event.detail.get("vague"):
            return False
        for other in self.events:
            if (other.file, other.attempt) != (event.file, event.attempt) or (
                other.line < event.line and not event.detail.get("helper")
            ):
                continue
            begun = other.what == "comm" and other.number("complete") and other.pid == event.pid
            if other.line > event.line and (begun if event.what == "nccl_unknown" else other.what in _BEGINNINGS):
                return True
            if other.role == "done":
                return True
        return self.worked_behind(event)

    def ranks_heard(self) -> set[int]:
        """Ranks that any line, file or dump names."""
        return {e.rank for e in self.events if e.rank is not None and e.rank < 1 << 20}

    def head_missing(self) -> bool:
        """Whether some text begins inside a traceback or a launcher's table, so that what came before is missing."""
        return any(e.what == "begins_inside" or e.detail.get("cut") for e in self.events)

    def ranks_in_trouble(self, attempt: int) -> set[int]:
        """Ranks that reported an error, a wait or a lost peer themselves."""
        return {e.rank for e in self.of(*TROUBLE, attempt=attempt) if e.rank is not None}

    def exits(self, attempt: int) -> dict[int, Event]:
        """How each rank ended; torchrun's table takes precedence over its agent, the agent over srun."""
        order = {"own": 0, "container": 0, "shell": 0, "spawn": 1, "mpirun": 2, "srun": 3, "agent": 4, "table": 5}
        found: dict[int, Event] = {}
        for event in sorted(self.of("exit", attempt=attempt), key=lambda e: order.get(e.word("by") or "", 0)):
            if event.rank is not None:
                found[event.rank] = event
        return found

    def store_host(self) -> str | None:
        """The host of the key-value store (that of rank 0), as named by the ranks that lost it."""
        named = {e.word("store") for e in self.of("victim") if e.word("store")}
        names = {name for name in named if name and is_host(name)}
        return names.pop() if len(names) == 1 else None

    # -- joins ----------------------------------------------------------------------------------

    def _places_of_files(self) -> None:
        for file in self.files:
            if found := _ATTEMPT.search(file.name):
                file.attempt, file.local_rank = int(found[1]), int(found[2])
            elif found := _RANK_FILE.search(PurePath(file.name).stem):
                file.rank = int(found[1])
        for event in self.events:
            place = self._file(event)
            if place is None:
                continue
            if place.attempt is not None:
                event.attempt = place.attempt
            if (
                event.rank is None
                and event.local_rank is None
                and event.task is None
                and event.detail.get("by") != "table"
            ):
                event.rank, event.local_rank = place.rank, place.local_rank

    def _file(self, event: Event) -> LogFile | None:
        return self.files[event.file] if event.file < len(self.files) else None

    def _attempts(self) -> None:
        """Count the attempts inside each file by the exits that one agent reports."""
        by_file: dict[int, list[Event]] = {}
        for event in self.events:
            by_file.setdefault(event.file, []).append(event)
        for number, events in by_file.items():
            file = self.files[number] if number < len(self.files) else None
            if file is not None and file.attempt is not None:
                continue
            for line in restarts(events):
                for event in events:
                    if event.line > line:
                        event.attempt += 1

    def _hosts(self) -> None:
        named: dict[int, Counter[str]] = {}
        for event in self.events:
            if event.host and (event.detail.get("by") == "table" or event.role != "exit") and event.role != "ending":
                weight = 3 if event.detail.get("by") == "table" else 1
                named.setdefault(event.file, Counter())[event.host] += weight
        for number, counts in named.items():
            if len(counts) == 1 and number < len(self.files):
                self.files[number].host = next(iter(counts))
        self._hosts_by_names()
        for event in self.events:
            place = self._file(event)
            if event.host is None and place is not None:
                event.host = place.host
            if event.host:
                self.hosts.add(event.host)
        self.hosts = {host for host in self.hosts if host}
        alone = next(iter(self.hosts)) if len(self.hosts) == 1 else None
        for event in self.events:
            if event.host is None and event.role != "ending":
                event.host = alone
            event.host = event.host or None

    def _hosts_by_names(self) -> None:
        """Files whose names differ only in a number belong to one host each: `dgx01.log`, `pod-3.log`."""
        families: dict[tuple[str, str], list[LogFile]] = {}
        for file in self.files:
            path = PurePath(file.name)
            if file.attempt is None and file.rank is None and file.text and (found := _NUMBERED.match(path.stem)):
                families.setdefault((str(path.parent), found[1]), []).append(file)
        for (_, stem), files in families.items():
            if len(files) < 2 or re.search(r"(?i)(?:rank|trace|dump|slurm-|attempt|std(?:out|err))[_-]?$", stem):
                continue
            hosts = [file.host for file in files]
            same_host = len(set(hosts)) == 1 and hosts[0] is not None
            for file in files:
                if file.host is None or same_host:
                    file.host = PurePath(file.name).stem
            if same_host:
                for event in self.events:
                    place = self._file(event)
                    if place in files and event.host == hosts[0]:
                        event.host = place.host if place else None

    def _ranks(self) -> None:
        world = max((e.number("world") or 0 for e in self.events), default=0)
        by_pid: dict[tuple[str | None, int], int] = {}
        offsets: dict[str | None, int] = {}
        local: dict[tuple[int, int], int] = {}
        bus_ids: dict[tuple[str | None, int], str] = {}
        tasks: dict[int, set[int]] = {}
        for event in self.events:
            if event.rank is not None and event.pid is not None and not event.detail.get("repeated"):
                by_pid[event.host, event.pid] = event.rank
            if event.rank is not None and event.local_rank is not None:
                local[event.file, event.local_rank] = event.rank
                if event.detail.get("by") == "table":
                    offsets[event.host] = event.rank - event.local_rank
            if event.rank is not None and event.task is not None:
                tasks.setdefault(event.task, set()).add(event.rank)
            if event.what == "comm" and event.pid is not None:
                bus_ids[event.host, event.pid] = event.word("bus") or ""
                if event.number("world") == world and (comm_rank := event.number("comm_rank")) is not None:
                    by_pid.setdefault((event.host, event.pid), comm_rank)
        for event in self.events:  # the ranks in NCCL's connection messages, only if nothing better is known
            if event.what == "comm_rank" and event.pid is not None:
                self._comm_rank(event, by_pid)
        single = len(self.hosts) <= 1 and len({e.task for e in self.events if e.local_rank is not None}) <= 1
        single = single and not any((e.rank or 0) >= 64 and e.local_rank is not None for e in self.events)
        seen = {e.local_rank for e in self.events if e.local_rank is not None}
        single = single and world <= max([8, *(number + 1 for number in seen)])
        shifts: dict[int, set[int]] = {}
        for (file, number), rank in local.items():
            shifts.setdefault(file, set()).add(rank - number)
        tasks_are_ranks = _tasks_are_ranks(tasks, self.events)
        for event in self.events:
            if event.rank is None and event.pid is not None:
                event.rank = by_pid.get((event.host, event.pid))
                if event.rank is None and len({key for key in by_pid if key[1] == event.pid}) == 1:
                    event.rank = next(rank for key, rank in by_pid.items() if key[1] == event.pid)
            if event.rank is None and event.local_rank is not None:
                event.rank = local.get((event.file, event.local_rank))
                shift = shifts.get(event.file, set())
                if event.rank is None and len(shift) == 1:
                    event.rank = event.local_rank + next(iter(shift))
                if event.rank is None and event.host in offsets and (single or event.host is not None):
                    event.rank = event.local_rank + offsets[event.host]
                if event.rank is None and single and not offsets:
                    event.rank = event.local_rank
            if event.rank is None and event.task is not None and tasks_are_ranks:
                event.rank = event.task
            if event.gpu is not None and event.gpu.isdecimal() and event.pid is not None:
                event.detail["gpu_bus_id"] = bus_ids.get((event.host, event.pid), "")
        self._only_rank()
        self._orphan()
        self.bus_ids = {bus: by_pid.get(key) for key, bus in bus_ids.items()}
        self.pids = {pid for _, pid in by_pid}

    def _only_rank(self) -> None:
        """If an excerpt has one NCCL process and one rank, they belong together."""
        pids = {(e.host, e.pid) for e in self.events if e.pid is not None and e.gpu is not None}
        ranks = {e.rank for e in self.events if e.rank is not None}
        if len(pids) == 1 and len(ranks) == 1 and len(self.files) == 1:
            for event in self.events:
                if event.rank is None and event.pid is not None and event.gpu is not None:
                    event.rank = next(iter(ranks))

    def _orphan(self) -> None:
        """An early exception has no label: it belongs to the one rank that failed without reporting an error."""
        for attempt in {e.attempt for e in self.events}:
            nameless = [e for e in self.of("cause", attempt=attempt) if e.rank is None and e.detail.get("traceback")]
            told = self.ranks_in_trouble(attempt)
            failed = [r for r, e in self.exits(attempt).items() if e.number("code") == 1 and r not in told]
            agents = {
                e.detail.get("agent", e.host) for e in self.of("exit", attempt=attempt) if e.detail.get("by") == "agent"
            }
            if len(nameless) == 1 and len(failed) == 1 and len(agents) <= 1:
                nameless[0].rank = failed[0]

    def _comm_rank(self, event: Event, by_pid: dict[tuple[str | None, int], int]) -> None:
        key = (event.host, event.pid or 0)
        rank = event.number("comm_rank")
        others = {
            e.number("comm_rank")
            for e in self.events
            if e.what == "comm_rank" and e.pid == event.pid and e.gpu == event.gpu
        }
        one_gpu = len({e.gpu for e in self.events if e.pid == event.pid and e.host == event.host and e.gpu}) <= 1
        if key not in by_pid and rank is not None and len(others) == 1 and one_gpu:
            by_pid[key] = rank

    def _world(self) -> int | None:
        said = [e.number("world") for e in self.events if e.number("world")]
        most = max((size for size in said if size), default=0)
        highest = max((r for r in self.ranks_heard()), default=-1) + 1
        return most if most >= highest and most > 0 else None

    @property
    def members(self) -> set[int]:
        """All ranks if the world size is known, else all up to the highest one that is named."""
        heard = self.ranks_heard()
        return set(range(self.world or max(heard, default=-1) + 1))


def is_host(name: str) -> bool:
    """Whether the name identifies a machine: no loopback, no address, no name that many machines have."""
    return name not in _NO_HOST and not _ADDRESS.fullmatch(name)


def _tasks_are_ranks(tasks: dict[int, set[int]], events: list[Event]) -> bool:
    """Whether srun's tasks are the ranks: lines show both as equal, or a host has more than one task."""
    if tasks:
        return all(ranks == {task} for task, ranks in tasks.items())
    by_host: dict[str, set[int]] = {}
    for event in events:
        if event.task is not None and event.host and event.detail.get("by") == "srun":
            by_host.setdefault(event.host, set()).add(event.task)
    return any(len(found) > 1 for found in by_host.values())
