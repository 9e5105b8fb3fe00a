"""What debuggers print of waiting ranks: stacks of py-spy and faulthandler, and tables of NCCL's RAS subsystem.

RAS: ncclras, port 28028; NCCL 2.24 and newer, inside a log or alone.
"""

from __future__ import annotations

import re

import msgspec

from gpudoctor.diagnose.events import Event, Role
from gpudoctor.statements.prefixes import with_short_numbers

_PROCESS = re.compile(r"^Process (?P<pid>\d{1,18}): (?P<command>.*)")
_THREAD = re.compile(r'^Thread (?P<id>0x[0-9a-fA-F]+|\d+)(?: \([\w+ ]+\))?(?:: "(?P<name>[^"]*)"| "(?P<other>[^"]*)")?')
_FRAME = re.compile(r"^\s{2,}(?P<function>[\w.<>]+) \((?P<file>[^:)]{1,300}):(?P<line>\d+)\)")
_FAULT = re.compile(r'^\s+File "(?P<file>[^"]{1,300})", line (?P<line>\d+) in (?P<function>\S+)')
_CURRENT = re.compile(r"^(?:Current thread|Thread) (?P<id>0x[0-9a-fA-F]+)(?: \[[^\]]*\])? \(most recent call first\)")
# what people write above each dump: a title with the rank, or the command
_TITLE = re.compile(r"(?i)^(?!Thread |Process \d)\S.{0,160}$")
_RANK = re.compile(r"(?i)\brank[ _=:#-]{0,3}(\d{1,6})\b")
_DUMP = re.compile(
    r'^(?:Process \d+: |Thread (?:0x[0-9a-fA-F]+|\d+) \([a-z+ ]{4,20}\)(?:: "|$)'
    r"|(?:Current thread|Thread) 0x[0-9a-fA-F]+(?: \[[^\]]*\])? \(most recent call first\):)"
)
_CRASH = "Fatal Python error"  # faulthandler's stacks of a crash belong to a log, which tells more
_MOST_TITLES = 6
# not of a rank: launchers, data loader workers, helpers of multiprocessing
_HELPERS = re.compile(
    r"torchrun|torch[./]distributed[./](?:run|launch)|accelerate(?:\S*commands\S*)? launch|resource_tracker|forkserver|"
    r"_worker_loop \(|_invoke_run \(|compile_worker"
)
# functions in which a rank waits for others
_WAITING = re.compile(
    r"_engine_run_backward|backward$|all_reduce|allreduce|all_gather|reduce_scatter|broadcast|barrier|_wait|synchronize|"
    r"all_to_all|^wait$|\.wait$|recv$|send$|_join_|monitored_barrier"
)


# a wait for another thread or process of the same rank
_LOCAL_WAIT = re.compile(r"\((?:\S*/)?(?:threading|queue|selectors|subprocess|connection|popen_\w+|socket)\.py:")
_SECTION = re.compile(
    r"\s*(?P<word>INCOMPLETE|DEAD|TIMEOUT|MISMATCH)|#\d+-\d+ .*(?P<other>INCOMPLETE|DEAD|TIMEOUT|MISMATCH)"
)
_SILENT = ("INCOMPLETE", "DEAD", "TIMEOUT")
_JOB = re.compile(r"^\s+\d+\s+\d+\s+\d+\s+\d+\s+(\d+)\s*$")
_BEHIND = re.compile(
    r"Rank (?P<rank>\d{1,6}) has launched up to operation (?P<operation>\d+) ?-+ ?GPU (?P<gpu>\d+) "
    r"managed by process (?P<pid>\d+) on node (?P<host>\S+)"
)
_MISSING = re.compile(r"Process (?P<pid>\d+) on node (?P<host>\S+) managing GPU (?P<gpu>\d+)")
_RANK_MISSING = re.compile(
    r"Rank (?P<rank>\d{1,6}) -- GPU (?P<gpu>\d+) managed by process (?P<pid>\d+) on node (?P<host>\S+)"
)


class Stack(msgspec.Struct, frozen=True):
    """The main thread of one process, as `function (file:line)` from the innermost frame outwards.

    `line` is the log line of the first frame; `rank` is known if a title above it names it.
    """

    file: int
    line: int
    pid: int | None
    frames: tuple[str, ...]
    waits: bool
    rank: int | None = None

    @property
    def place(self) -> str:
        """The innermost frame that is no mere wait for a thread or child; `?` without frames."""
        return next((frame for frame in self.frames if not _LOCAL_WAIT.search(frame)), (*self.frames, "?")[0])


def looks_like_stacks(head: bytes) -> bool:
    """Whether a text begins like a py-spy dump, after a few lines of titles."""
    lines = head.lstrip().decode("utf-8", "replace").split("\n")
    titles = 0
    for line in lines[:-1]:
        if _DUMP.match(line) or (not titles and _FAULT.match(f" {line}")):  # or the head is cut off
            return True
        titles += bool(line.strip())
        if line.startswith(_CRASH) or titles > _MOST_TITLES or (line.strip() and not _TITLE.match(line)):
            return False
    return False


class _Thread(msgspec.Struct):
    """A thread's frames. `name`: "" if the dump has none; `newest_first`: of faulthandler, which dumps so."""

    line: int
    name: str
    newest_first: bool
    frames: list[str] = []


class _Section(msgspec.Struct):
    """What stands below one heading: the threads of a process, which a title above may give a rank."""

    rank: int | None = None
    pid: int | None = None
    command: str = ""
    threads: list[_Thread] = []

    def stack(self, file: int) -> Stack | None:
        """That of the main thread; None for a helper, which is no rank."""
        if not self.threads or _HELPERS.search("\n".join([self.command, *(f for t in self.threads for f in t.frames)])):
            return None
        unnamed = self.threads[-1 if self.threads[0].newest_first else 0]
        main = next((thread for thread in self.threads if thread.name == "MainThread"), unnamed)
        waits = any(
            _WAITING.search(frame.split(" (")[0]) and not _LOCAL_WAIT.search(frame) for frame in main.frames[:8]
        )
        return Stack(file, main.line + 1, self.pid, tuple(main.frames[:60]), waits, self.rank)


def read_stacks(lines: list[str], file: int) -> list[Stack]:
    """The main thread of each process of a rank; the first thread if none has that name."""
    sections = [_Section()]
    for number, line in enumerate(lines, 1):
        threads = sections[-1].threads
        if process := _PROCESS.match(line):
            sections.append(_Section(sections[-1].rank, int(process["pid"]), process["command"]))
        elif _CURRENT.match(line):
            threads.append(_Thread(number, "", newest_first=True))
        elif thread := _THREAD.match(line):
            threads.append(_Thread(number, thread["name"] or thread["other"] or "", newest_first=False))
        elif threads and (frame := _FRAME.match(line) or _FAULT.match(line)):
            threads[-1].frames.append(f"{frame['function']} ({frame['file']}:{frame['line']})")
        elif _TITLE.match(line) and not line.startswith(("Python v", "(")):
            title = _RANK.search(line)
            if title or "rank" in line:
                sections.append(_Section(int(title[1]) if title else None))
    return [stack for section in sections if (stack := section.stack(file))]


def read_ras(lines: list[str], file: int) -> list[Event]:
    """The world size, ranks that launched fewer operations than others, and processes that do not answer."""
    if not any("Communicators" in line or "Job summary" in line for line in lines):
        return []
    events: list[Event] = []
    section = ""
    for number, line in enumerate(map(with_short_numbers, lines), 1):
        if heading := _SECTION.match(line):
            section = heading["word"] or heading["other"]
        if job := _JOB.match(line):
            event = Event(role="fact", what="world", detail={"world": int(job[1])})
        elif behind := _BEHIND.search(line):
            event = _of_process("fact", "operations", behind)
            event.detail = {"operation": int(behind["operation"])}
        elif section in _SILENT and (found := _RANK_MISSING.search(line) or _MISSING.search(line)):
            event = _of_process("cause", "process_died_unknown", found)
        else:
            continue
        event.file, event.line, event.text = file, number, line.strip()
        events.append(event)
    return _without_the_foremost(events)


def _without_the_foremost(events: list[Event]) -> list[Event]:
    """The events without the ranks that launched as many operations as any; the others are behind."""
    most = max((e.number("operation") or 0 for e in events), default=0)
    for event in events:
        if event.what == "operations" and (event.number("operation") or 0) < most:
            event.role, event.what = "cause", "rank_behind"
    return [e for e in events if e.what != "operations"]


def _of_process(role: Role, what: str, found: re.Match[str]) -> Event:
    rank = found.groupdict().get("rank")
    return Event(
        role=role,
        what=what,
        host=found["host"].rstrip(",:;"),
        gpu=found["gpu"],
        pid=int(found["pid"]),
        rank=int(rank) if rank is not None else None,
    )
