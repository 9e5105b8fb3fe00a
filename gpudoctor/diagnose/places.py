"""Fills in which attempt, host and rank each event of a job belongs to, from file names and from other events."""

from __future__ import annotations

import itertools
import re
from pathlib import PurePath

import msgspec

from gpudoctor.diagnose.events import TROUBLE, Event, only
from gpudoctor.text.grouped import grouped
from gpudoctor.text.hostlist import one_name_each

REQUEUED = ("preempted", "time_limit", "cancelled")  # by a scheduler; no failure if the job went on later
STEPS_OF_WORK = 3
_SIGNALS = (-2, -15)  # codes of processes that were told to end
_ATTEMPT = re.compile(r"attempt_(\d{1,6})/(\d{1,6})/(?:std(?:out|err)\.log|error\.json)$")
_RANK_FILE = re.compile(r"((?:^|.*[._-])(?:rank|worker_?rank|global_rank)[._-]?)(\d{1,6})((?:[._-].*)?)$")
_NUMBERED = re.compile(r"^(.*?)(\d+)$")
_NOT_BY_HOST = re.compile(r"(?i)(?:rank|trace|dump|slurm-|attempt|std(?:out|err))[_-]?$")
_MOST_GPUS_A_NODE = 8  # unless local ranks above are seen
Process = tuple[str | None, int]  # host and process id


class LogFile(msgspec.Struct):
    """One file: how much of it was read, and the host, rank and attempt that it belongs to.

    `kernel_log`: its lines are a kernel's, so that no program of a job can have written them. `cut`: its last line has
    no end, and is no progress bar.
    """

    name: str
    lines: int = 0
    like_a_job: bool = False
    text: bool = True
    kernel_log: bool = False
    cut: bool = False
    host: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    attempt: int | None = None


def fill_in_from_names(files: list[LogFile], events: list[Event]) -> None:
    """Ranks and attempts that the names of files contain."""
    numbered: list[tuple[tuple[PurePath, str, str], tuple[int, LogFile]]] = []
    for file in files:
        path = PurePath(file.name)
        if found := _ATTEMPT.search(file.name):
            file.attempt, file.local_rank = int(found[1]), int(found[2])
        elif found := _RANK_FILE.match(path.stem):
            numbered.append(((path.parent, found[1], found[3]), (int(found[2]), file)))
    for family in grouped(numbered).values():
        numbers = sorted(number for number, _ in family)
        # "lora_rank16_train.log": one file, or two settings, are no set of ranks
        if len(family) > 1 and (numbers[0] == 0 or numbers[-1] - numbers[0] < len(family)):
            for number, file in family:
                file.rank = number
    for event in events:
        file = files[event.file]
        if file.attempt is not None:
            event.attempt = file.attempt
        unplaced = event.rank is None and event.local_rank is None and event.task is None
        if unplaced and event.detail.get("by") != "table":
            event.rank, event.local_rank = file.rank, file.local_rank


def fill_in_attempts(files: list[LogFile], events: list[Event]) -> None:
    """Count the attempts inside each file whose name does not give one."""
    for of_file in grouped((e.file, e) for e in events if files[e.file].attempt is None).values():
        for line in _restarts(of_file):
            for event in of_file:
                event.attempt += event.line > line


def _restarts(events: list[Event]) -> set[int]:
    """The lines of one file after which another attempt begins."""
    lines = [e.line for e in events if e.what == "restart"]
    lines += _restarts_by_agents(events, is_told=bool(lines))
    lines += [e.line for e in events if e.what in REQUEUED and e.role == "ending" and _works_again(events, e.line)]
    signals = [e.line for e in events if e.what == "terminated_signal" or e.number("code") in _SIGNALS]
    if not lines and signals and _resumes_to_its_end(events, signals[-1]):
        lines.append(signals[-1])
    return _last_of_each_end(events, sorted({*lines}))


def _restarts_by_agents(events: list[Event], *, is_told: bool) -> list[int]:
    """The lines of exits after which an agent started its processes again; `is_told`: a line says that one did."""
    of_agents = (e for e in events if e.role == "exit" and e.detail.get("by") == "agent")
    agents = grouped((e.detail.get("agent", 0), e) for e in of_agents)
    pairs = [pair for exits in agents.values() for pair in itertools.pairwise(exits)]
    lines = [one.line for one, other in pairs if _is_of_a_later_attempt(events, one, other)]
    if lines or is_told or len(agents) != 1:
        return lines
    [exits] = agents.values()
    return [exits[-1].line] if _goes_on_well(events, exits[-1].line) else []


def _last_of_each_end(events: list[Event], lines: list[int]) -> set[int]:
    """The lines behind which an attempt stands; a scheduler may end the step of a job, then the job, as one end."""
    shown = ("progress", "done", "exit", *TROUBLE)
    of_attempts = [e.line for e in events if e.role in shown or e.what == "work" or _begins_again(e)]
    parted = {one for one, other in itertools.pairwise(lines) if any(one < line <= other for line in of_attempts)}
    return parted | {*lines[-1:]}


def _resumes_to_its_end(events: list[Event], line: int) -> bool:
    """Whether a checkpoint is loaded after this line, and the work goes on from it to the end of the job."""
    resumed = next((e.line for e in events if e.what == "resumed" and e.line > line), None)
    done = resumed is not None and any(e.role == "done" and e.line > resumed for e in events)
    steps = [e for e in events if e.role == "progress" and e.number("step")]
    before = max((e.number("step") or 0 for e in steps if e.line < line), default=0)
    further = any((e.number("step") or 0) > before for e in steps if e.line > line)
    return done and further and _goes_on_well(events, line)


def _is_of_a_later_attempt(events: list[Event], one: Event, other: Event) -> bool:
    """Whether an agent reported the second of two exits after it had started its processes again."""
    if one.pid == other.pid:
        return False
    later = "agent" in one.detail and (other.time_s or 0) - (one.time_s or 0) > 0.5
    return later or any(_begins_again(e) for e in events if one.line < e.line < other.line)


def steps_of(events: list[Event]) -> list[int]:
    """The numbers of the steps that these lines of progress tell of, in their order."""
    return [e.number("step") or 0 for e in events if e.role == "progress"]


def _works_again(events: list[Event], line: int) -> bool:
    """Whether a job that a scheduler ended made progress later: it was requeued and writes to the same file."""
    after = [e for e in events if e.line > line]
    steps, before = steps_of(after), steps_of([e for e in events if e.line < line])
    if len(steps) < STEPS_OF_WORK or not before or max(steps) <= max(before):
        return False
    # standard output that was written behind standard error begins at the first step, a resumed job near the last
    resumed = any(e.what == "resumed" for e in after) and min(steps) > max(before) / 2
    return resumed or any(e.role == "done" or _begins_again(e) for e in after)


def _begins_again(event: Event) -> bool:
    return event.what in ("member", "connect_stale", "comm", "world")


def _goes_on_well(events: list[Event], line: int) -> bool:
    """Whether new work is done after this line, and nothing fails."""
    after = [e for e in events if e.line > line]
    if any(e.role in ("wrapper", "exit", "closed", *TROUBLE) for e in after):
        return False
    steps, before = steps_of(after), steps_of([e for e in events if e.line <= line])
    finished = any(e.role == "done" for e in after)
    return bool(before) and len(steps) >= 2 and (max(steps) > max(before) or finished)


def fill_in_hosts(files: list[LogFile], events: list[Event]) -> set[str]:
    """The host of each file and event; returns all hosts."""
    same = one_name_each(event.host for event in events if event.host)
    for event in events:
        event.host = same.get(event.host or "", event.host)
    _hosts_by_events(files, events)
    _hosts_by_file_names(files, events)
    for event in events:
        if event.host is None:
            event.host = files[event.file].host
    hosts = {event.host for event in events if event.host}
    for event in events:
        if event.host is None and event.role != "ending":
            event.host = only(hosts)
        event.host = event.host or None
    return hosts


def _hosts_by_events(files: list[LogFile], events: list[Event]) -> None:
    """A file whose events name one host belongs to it; those of a launcher or scheduler name the hosts of others."""
    own = (e for e in events if (e.detail.get("by") == "table" or e.role != "exit") and e.role != "ending")
    for number, names in grouped((e.file, e.host) for e in own if e.host).items():
        files[number].host = only(names) or files[number].host


def _hosts_by_file_names(files: list[LogFile], events: list[Event]) -> None:
    """Files whose names differ only in a number belong to one host each: `dgx01.log`, `pod-3.log`."""
    paths = [PurePath(file.name) for file in files]
    families = grouped(
        ((paths[number].parent, found[1]), number)
        for number, file in enumerate(files)
        if file.attempt is None and file.rank is None and file.text and (found := _NUMBERED.match(paths[number].stem))
    )
    for (_, stem), numbers in families.items():
        if len(numbers) < 2 or _NOT_BY_HOST.search(stem):
            continue
        same_host = only(files[number].host for number in numbers)
        for number in numbers:
            if files[number].host is None or same_host:
                files[number].host = paths[number].stem
        for event in events:
            if same_host and event.file in numbers and event.host == same_host:
                event.host = files[event.file].host


class _Ranks:
    """The ranks of processes, local ranks and tasks, as some events give them together."""

    def __init__(self, events: list[Event], hosts: set[str], world: int) -> None:
        self.by_process: dict[Process, int] = {}
        self.by_local_rank: dict[tuple[int, int], int] = {}  # of a file
        self.first_of_host: dict[str | None, int] = {}
        self.bus_ids: dict[Process, str] = {}
        for event in events:
            if event.rank is not None and event.local_rank is not None:
                self.by_local_rank[event.file, event.local_rank] = event.rank
                if event.detail.get("by") == "table":
                    self.first_of_host[event.host] = event.rank - event.local_rank
            if event.pid is not None:
                self._of_process(event, (event.host, event.pid), world)
        for process in _processes_of_several_ranks(events):
            self.by_process.pop(process, None)
        self.by_process = _ranks_of_connections(events) | self.by_process
        of_pids = grouped((pid, rank) for (_, pid), rank in self.by_process.items())
        self._by_pid = {pid: ranks[0] for pid, ranks in of_pids.items() if len(ranks) == 1}  # pids of one host
        firsts = grouped((file, rank - local) for (file, local), rank in self.by_local_rank.items())
        self._first_of_file = {file: first for file, each in firsts.items() if (first := only(each)) is not None}
        self._one_node = _is_one_node(events, hosts, world)
        self._tasks_are_ranks = _tasks_are_ranks(events)

    def _of_process(self, event: Event, process: Process, world: int) -> None:
        if event.rank is not None and not event.detail.get("repeated"):
            self.by_process[process] = event.rank
        if event.what == "comm":
            self.bus_ids[process] = event.word("bus") or ""
            rank = event.number("comm_rank")
            if event.number("world") == world and rank is not None:
                self.by_process.setdefault(process, rank)

    def of(self, event: Event) -> int | None:
        rank = None
        if event.pid is not None:
            rank = self.by_process.get((event.host, event.pid), self._by_pid.get(event.pid))
        if rank is None and event.local_rank is not None:
            rank = self._of_local_rank(event, event.local_rank)
        return event.task if rank is None and self._tasks_are_ranks else rank

    def _of_local_rank(self, event: Event, local_rank: int) -> int | None:
        rank = self.by_local_rank.get((event.file, local_rank))
        if rank is not None:
            return rank
        if event.file in self._first_of_file:
            return local_rank + self._first_of_file[event.file]
        if event.host in self.first_of_host and (self._one_node or event.host is not None):
            return local_rank + self.first_of_host[event.host]
        return local_rank if self._one_node and not self.first_of_host else None


def fill_in_ranks(events: list[Event], hosts: set[str], *, one_file: bool) -> dict[str, int | None]:
    """The rank of each event, and the bus id of its GPU; returns the rank of each bus id."""
    ranks = _Ranks(events, hosts, max((e.number("world") or 0 for e in events), default=0))
    for event in events:
        if event.rank is None:
            event.rank = ranks.of(event)
        if event.gpu is not None and event.gpu.isdecimal() and event.pid is not None:
            event.detail["gpu_bus_id"] = ranks.bus_ids.get((event.host, event.pid), "")
    if one_file:
        _fill_in_only_rank(events)
    return {bus_id: ranks.by_process.get(process) for process, bus_id in ranks.bus_ids.items()}


def _processes_of_several_ranks(events: list[Event]) -> set[Process]:
    """Processes that drive several GPUs, each of which is a rank of its own, as those of nccl-tests do."""
    of_processes = [(e, (e.host, e.pid)) for e in events if e.pid is not None]
    ranks = grouped((place, e.rank) for e, place in of_processes if e.what == "process" and e.rank is not None)
    devices = grouped((place, e.number("dev")) for e, place in of_processes if e.what == "comm")
    return {place for found in (ranks, devices) for place, each in found.items() if len({*each}) > 1}


def _ranks_of_connections(events: list[Event]) -> dict[Process, int]:
    """The ranks in NCCL's messages on connections, of processes with one GPU whose messages all agree."""
    shown = [e for e in events if e.what == "comm_rank"]
    ranks = grouped(((e.pid, e.gpu), e.number("comm_rank")) for e in shown)
    gpus = grouped(((e.host, e.pid), e.gpu) for e in events if e.gpu)
    found: dict[Process, int] = {}
    for event in shown:
        rank = only(ranks[event.pid, event.gpu])
        if event.pid is not None and rank is not None and len({*gpus.get((event.host, event.pid), ())}) <= 1:
            found.setdefault((event.host, event.pid), rank)
    return found


def _is_one_node(events: list[Event], hosts: set[str], world: int) -> bool:
    """Whether local ranks are the ranks: one host, one task, and no more nodes or ranks than one node may have."""
    if any(e.what == "several_nodes" for e in events):
        return False
    local = [e for e in events if e.local_rank is not None]
    if len(hosts) > 1 or len({e.task for e in local}) > 1 or any((e.rank or 0) >= 64 for e in local):
        return False
    return world <= max([_MOST_GPUS_A_NODE, *((e.local_rank or 0) + 1 for e in local)])


def _tasks_are_ranks(events: list[Event]) -> bool:
    """Whether srun's tasks are the ranks: lines show both as equal, or a host has more than one task."""
    of_tasks = [e for e in events if e.task is not None]
    both = [e for e in of_tasks if e.rank is not None]
    if both:
        return all(e.task == e.rank for e in both)
    tasks = grouped((e.host, e.task) for e in of_tasks if e.host and e.detail.get("by") == "srun")
    return any(len({*each}) > 1 for each in tasks.values())


def _fill_in_only_rank(events: list[Event]) -> None:
    """If an excerpt has one NCCL process and one rank, they belong together."""
    of_nccl = [e for e in events if e.pid is not None and e.gpu is not None]
    rank = only(e.rank for e in events if e.rank is not None)
    if only((e.host, e.pid) for e in of_nccl) and rank is not None:
        for event in of_nccl:
            event.rank = rank
