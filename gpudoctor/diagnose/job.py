"""Joins all events of one job: which rank, host, GPU and attempt each belongs to, and which ranks are silent.

Also how much the clocks of its hosts differ, estimated from events that two hosts saw at the same moment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from itertools import combinations
from statistics import median

from gpudoctor.diagnose.diagnosis import ClockSkew
from gpudoctor.diagnose.events import MOST_RANKS, TROUBLE, Event
from gpudoctor.diagnose.flight_recorder import Dump
from gpudoctor.diagnose.places import (
    STEPS_OF_WORK,
    LogFile,
    fill_in_attempts,
    fill_in_from_names,
    fill_in_hosts,
    fill_in_ranks,
)
from gpudoctor.diagnose.stacks import Stack
from gpudoctor.text.grouped import grouped

_POD = re.compile(r"\bpod/(\S{1,253})")
_BEGINNINGS = ("comm", "member", "world")
# of a server's exceptions, those that one request may raise; CUDA's others end the process
_OF_REQUESTS = ("user_exception", "cuda_oom", "service_failed", "failed_saying")
_DEAD = re.compile(r"(?i)\b(?:dead|died|dying|fatal|terminat(?:ed|ing)|EngineCore)\b")
_TRUST_IN_LAUNCHERS = {"spawn": 1, "mpirun": 2, "srun": 3, "agent": 4, "table": 5}  # 0 for the others
_LEAST_SKEW_S = 3.0  # launchers poll, and processes end one after the other: a smaller difference proves nothing
_ZONE_S = 1800.0
_NEAR_ZONE_S = 120.0
_MOST_CLOCKS = 64


class Job:
    """The events of a job, with ranks, hosts and attempts filled in; `bus_ids` has the rank of each GPU."""

    def __init__(
        self, events: Iterable[Event], files: list[LogFile], dumps: Iterable[Dump] = (), stacks: Iterable[Stack] = ()
    ) -> None:
        self.files, self.dumps, self.stacks = files, list(dumps), list(stacks)
        self.events = list(events)
        fill_in_from_names(files, self.events)
        fill_in_attempts(files, self.events)
        self.hosts = fill_in_hosts(files, self.events)
        self.bus_ids = fill_in_ranks(self.events, self.hosts, one_file=len(files) == 1)
        self._work = grouped((e.place, e) for e in self.events if is_work(e))
        self._assign_early_exception()
        self._excuse_pods()
        self._excuse_requests()
        self._excuse_ssh()
        self._forget_ends_of_helpers()
        self.finished = any(e.role == "done" for e in self.events)
        self.worked = bool(self._work)
        self.world = self._world()
        self.attempts = max((e.attempt for e in self.events), default=0) + 1

    def of(
        self, *roles: str, attempt: int | None = None, what: str | None = None, by: str | None = None
    ) -> list[Event]:
        """The events of these roles, in order; `by`: the launcher that reported them."""
        return [
            e
            for e in self.events
            if e.role in roles
            and (attempt is None or e.attempt == attempt)
            and (what is None or e.what == what)
            and (by is None or e.detail.get("by") == by)
        ]

    def worked_after(self, event: Event) -> bool:
        """Whether the work went on after this line; a single further step may be another rank's."""
        work = [e for e in self._work.get(event.place, ()) if e.line > event.line]
        return len(work) >= STEPS_OF_WORK or any(e.role == "done" for e in work)

    def outlived(self, event: Event) -> bool:
        """Whether the job went on after the failure of something unknown: an option, a helper.

        NCCL went on if the process that warned has its communicator; a helper may fail after the work is done.
        """
        if not event.detail.get("vague"):
            return False
        helper = bool(event.detail.get("helper"))
        if any(e.role == "done" and (helper or e.line >= event.line) for e in self._work.get(event.place, ())):
            return True
        after = [e for e in self.events if e.place == event.place and e.line > event.line]
        if event.what == "nccl_unknown":
            begun = any(e.what == "comm" and e.number("complete") and e.pid == event.pid for e in after)
        else:
            begun = any(e.what in _BEGINNINGS for e in after)
        return begun or self.worked_after(event)

    def _forget_ends_of_helpers(self) -> None:
        """What ended by the word of a shell, Horovod or a handler of signals was a helper if work goes on behind it.

        A later "done" alone may be the script's. Slurm ends the whole job, whose text may come late. If others lost a
        peer after it, that peer had died.
        """
        lost = {e.place: e.line for e in self.of("victim") if not e.detail.get("warning")}
        causes = {e.place: e.line for e in self.of("cause")}
        steps = {place: [e.line for e in each if e.role != "done"] for place, each in self._work.items()}
        for event in self.of("exit", "ending"):
            if event.role == "exit":
                reported = event.word("by")
                weak = reported == "horovod" or (reported in ("shell", "own") and event.rank is None)
                weak = weak and lost.get(event.place, -1) < event.line
            else:
                weak = event.strength <= 2 and " CANCELLED AT " not in event.text
            last = steps.get(event.place, [])[-STEPS_OF_WORK:]
            worked_on = len(last) == STEPS_OF_WORK and last[0] > event.line
            failed_later = event.what == "time_limit" and causes.get(event.place, -1) > event.line
            if weak and (worked_on or failed_later):
                event.role = "fact"

    def ranks_heard(self) -> set[int]:
        """Ranks that any line, file or dump names."""
        return {e.rank for e in self.events if e.rank is not None and e.rank < MOST_RANKS}

    def head_missing(self) -> bool:
        """Whether some text begins inside a traceback or a launcher's table, so that what came before is missing."""
        return any(e.what == "begins_inside" or e.detail.get("cut") for e in self.events)

    def _world(self) -> int | None:
        sizes = [e.number("world") or 0 for e in self.events]
        size = max((size for size in sizes if size <= MOST_RANKS), default=0)
        return size if size > max(self.ranks_heard(), default=0) else None

    @property
    def members(self) -> set[int]:
        """All ranks if the world size is known, else all up to the highest one that is named."""
        reporting = self.ranks_heard()
        return set(range(self.world or max(reporting, default=-1) + 1))

    def _excuse_pods(self) -> None:
        """A pod that came later still lists what held it up: a fact if the job's output shows that it ran.

        An `unstuck` event is a pod's status "Running", not the job's work.
        """
        done = {e.file for e in self.of("done")}
        running = {e.file for e in self.of("progress", what="unstuck")}
        worked = {e.file for each in self._work.values() for e in each if e.what != "unstuck"}
        scheduled = {(e.file, *_POD.findall(e.text)): e.line for e in self.of("fact", what="scheduled")}
        came: set[tuple[int, int]] = set()
        for event in self.events:
            here = {event.file}
            late = event.what == "pod_not_scheduled" and event.line < scheduled.get(
                (event.file, *_POD.findall(event.text)), 0
            )
            if "pod" in event.detail and (late or done - here or (event.file in running and worked - here)):
                came.add((event.file, event.line))
        for event in self.events:
            if (event.file, event.line) in came and ("pod" in event.detail or event.role == "said"):
                event.role, event.what = "fact", "came_later"

    def _excuse_requests(self) -> None:
        """What a server raised is a fact if it answered a later request, or was stopped in order: it was a request's.

        A server whose engine died fails at what comes next, says so, and may then be stopped in order as well.
        """
        served = grouped((e.place, e) for e in self.of("fact") if e.what in ("answered", "not_answered", "served_out"))
        trainings = {e.place for e in self.of("progress") if e.what == "progress"}  # beside a server in one text
        for place in served.keys() - trainings:
            own = [e for e in self.events if e.place == place]
            raised = [e for e in own if _may_be_of_a_request(e)]
            bad = [e for e in own if e.role in ("wrapper", *TROUBLE) or (e.role == "said" and _DEAD.search(e.text))]
            of_the_server = [e.line for e in bad if e not in raised]
            for event in raised:
                if _is_answered_after(event, served[place], of_the_server):
                    event.role, event.what = "fact", "of_a_request"

    def _excuse_ssh(self) -> None:
        """A failed ssh is a fact if work began before it or a rank failed after it: no ssh that starts ranks."""
        last_raised = {e.place: e.line for e in self.of("cause") if e.rank is not None and e.names_rank}
        for event in self.of("cause", "echo", what="ssh_failed"):
            begun = next((e.line for e in self._work.get(event.place, ())), event.line)
            if begun < event.line or last_raised.get(event.place, 0) > event.line:
                event.role, event.what = "said", "network"
                event.detail["severity"], event.detail["form"] = "error", "sentence"

    def _assign_early_exception(self) -> None:
        """An early exception has no label: it belongs to the one rank that failed without reporting an error."""
        for attempt in {e.attempt for e in self.events}:
            own = Attempt(self, attempt)
            nameless = [e for e in own.of("cause") if e.rank is None and e.detail.get("traceback")]
            failed = [r for r, e in own.exits.items() if e.number("code") == 1 and r not in own.in_trouble]
            agents = {e.detail.get("agent", e.host) for e in own.of("exit", by="agent")}
            if len(nameless) == 1 and len(failed) == 1 and len(agents) <= 1:
                nameless[0].rank = failed[0]


class Attempt:
    """One attempt of a job: what rules are asked about."""

    def __init__(self, job: Job, number: int) -> None:
        self.job, self.number = job, number

    def of(self, *roles: str, what: str | None = None, by: str | None = None) -> list[Event]:
        """The events of these roles, in order; `by`: the launcher that reported them."""
        return self.job.of(*roles, attempt=self.number, what=what, by=by)

    @cached_property
    def in_trouble(self) -> set[int]:
        """Ranks that reported an error, a wait or a lost peer themselves."""
        return {e.rank for e in self.of(*TROUBLE) if e.rank is not None}

    @cached_property
    def closed(self) -> set[tuple[str | None, int | None]]:
        """Host and process id of each process that a launcher ended."""
        return {(e.host, e.pid) for e in self.of("closed")}

    @cached_property
    def exits(self) -> dict[int, Event]:
        """How each rank ended; torchrun's table takes precedence over its agent, the agent over srun."""
        exits = sorted(self.of("exit"), key=lambda e: _TRUST_IN_LAUNCHERS.get(e.word("by") or "", 0))
        return {e.rank: e for e in exits if e.rank is not None}


def _may_be_of_a_request(event: Event) -> bool:
    """Whether a server may raise or say this over one request and go on."""
    raised = event.role in ("cause", "echo") and event.word("type") is not None and event.what in _OF_REQUESTS
    told = event.role == "said" and event.what != "death"
    return (raised or told) and event.rank is None and _DEAD.search(event.text) is None


def _is_answered_after(event: Event, served: list[Event], troubles: list[int]) -> bool:
    """Whether the server went on after it: with several answers, if a line of the server's own troubles follows."""
    end = next((line for line in troubles if line > event.line), None)
    later = [e.what for e in served if event.line < e.line and (end is None or e.line < end)]
    answers = [what for what in later if what != "served_out"] or later
    return bool(answers) and answers[-1] != "not_answered" and (end is None or len(answers) >= STEPS_OF_WORK)


def is_work(event: Event) -> bool:
    """Whether the job did some work, with or without the number of a step, or reported its end."""
    return event.role in ("progress", "done") or event.what == "work"


def clock_skews(job: Job, attempt: int) -> tuple[ClockSkew, ...]:
    """Each host against the first one, if they differ by more than simultaneous events can.

    Pairs of events: the timeout of the same number in the same process group; and the ends of two hosts of which one
    lost its connection to the other, which it notices at once. The end of a host that waited for a timeout is not used.
    """
    ends, timeouts = _ends(job, attempt), _timeouts(job, attempt)
    hosts = sorted({host for moments in (ends, *timeouts.values()) for host in moments})[:_MOST_CLOCKS]
    found: dict[str, ClockSkew] = {}
    for first, other in combinations(hosts, 2):
        pairs = [moments for moments in (ends, *timeouts.values()) if first in moments and other in moments]
        if not pairs or other in found:
            continue
        seconds = median(moments[other] - moments[first] for moments in pairs)
        if abs(seconds) >= _LEAST_SKEW_S:
            found[other] = ClockSkew(other, first, round(seconds, 1), _is_zone(seconds), len(pairs))
    return tuple(found.values())


def _is_zone(seconds: float) -> bool:
    """Whether this may be a difference of time zones: nearly a multiple of half an hour."""
    rest = abs(seconds) % _ZONE_S
    return abs(seconds) > _ZONE_S / 2 and min(rest, _ZONE_S - rest) <= _NEAR_ZONE_S


def _ends(job: Job, attempt: int) -> dict[str, float]:
    """When each host's launcher noticed the end; empty unless a connection was lost and no rank was timing out."""
    if job.of("wait", "stuck", attempt=attempt) or not job.of("victim", attempt=attempt):
        return {}
    reported = [e for e in job.of("exit", "closed", attempt=attempt) if e.detail.get("by") != "table"]
    return _first_times(reported)


def _timeouts(job: Job, attempt: int) -> dict[object, dict[str, float]]:
    """When the first rank of each host timed out, by group and sequence number."""
    numbered = [e for e in job.of("wait", attempt=attempt, what="nccl_timeout") if e.number("seq") is not None]
    groups = grouped(((e.word("guid"), e.word("desc"), e.number("seq")), e) for e in numbered)
    return {key: _first_times(events) for key, events in groups.items()}


def _first_times(events: list[Event]) -> dict[str, float]:
    times = grouped((e.host, e.time_s) for e in events if e.host and e.time_s is not None)
    return {host: min(each) for host, each in times.items()}
