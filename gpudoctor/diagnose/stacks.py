"""What debuggers print of waiting ranks: stacks of py-spy and faulthandler, and tables of NCCL's RAS subsystem.

RAS: ncclras, port 28028; NCCL 2.24 and newer, inside a log or alone.
"""

from __future__ import annotations

import re

import msgspec

from gpudoctor.diagnose.events import Event
from gpudoctor.statements.prefixes import with_short_numbers

_PROCESS = re.compile(r"^Process (?P<pid>\d{1,18}): (?P<command>.*)")
_THREAD = re.compile(
    r'^Thread (?P<id>0x[0-9a-fA-F]+|\d+)(?: \((?P<state>[\w+ ]+)\))?(?:: "(?P<name>[^"]*)"| "(?P<other>[^"]*)")?'
)
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
_UNNAMED = "most recent call first"
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


def read_stacks(lines: list[str], file: int) -> list[Stack]:
    """The main thread of each process of a rank; the first thread if none has that name."""
    found: list[Stack] = []
    pid: int | None = None
    rank: int | None = None
    command = ""
    threads: list[tuple[int, str, str, list[str]]] = []

    def close() -> None:
        if threads and not _HELPERS.search("\n".join([command, *(frame for t in threads for frame in t[3])])):
            # faulthandler names no thread and dumps the newest first
            main = next((t for t in threads if t[1] == "MainThread"), threads[-1 if threads[0][2] == _UNNAMED else 0])
            frames = tuple(main[3][:60])
            waits = any(_WAITING.search(frame.split(" (")[0]) and not _LOCAL_WAIT.search(frame) for frame in frames[:8])
            found.append(Stack(file, main[0] + 1, pid, frames, waits, rank))
        threads.clear()

    for number, line in enumerate(lines, 1):
        if process := _PROCESS.match(line):
            close()
            pid, command = int(process["pid"]), process["command"]
        elif _CURRENT.match(line):
            threads.append((number, "", _UNNAMED, []))
        elif thread := _THREAD.match(line):
            groups = thread.groupdict()
            threads.append((number, groups.get("name") or groups.get("other") or "", groups.get("state") or "", []))
        elif threads and ((frame := _FRAME.match(line)) or (frame := _FAULT.match(line))):
            threads[-1][3].append(f"{frame['function']} ({frame['file']}:{frame['line']})")
        elif (
            _TITLE.match(line)
            and not line.startswith(("Python v", "("))
            and (title := _RANK.search(line) or "rank" in line)
        ):
            close()
            pid, command = None, ""
            rank = int(title[1]) if isinstance(title, re.Match) else None
    close()
    return found


def read_ras(lines: list[str], file: int) -> list[Event]:
    """The world size, ranks that launched fewer operations than others, and processes that do not answer."""
    if not any("Communicators" in line or "Job summary" in line for line in lines):
        return []
    events: list[Event] = []
    counts: list[Event] = []
    section = ""
    for number, line in enumerate(map(with_short_numbers, lines), 1):
        for word in ("INCOMPLETE", "DEAD", "TIMEOUT", "MISMATCH"):
            if line.strip().startswith(word) or re.match(rf"#\d+-\d+ .*{word}", line):
                section = word
        if job := _JOB.match(line):
            world: dict[str, str | int] = {"world": int(job[1])}
            events.append(Event(role="fact", what="world", file=file, line=number, text=line.strip(), detail=world))
        elif behind := _BEHIND.search(line):
            counts.append(_event("operations", behind, file, number, line))
            counts[-1].detail["operation"] = int(behind["operation"])
        elif section in ("DEAD", "INCOMPLETE", "TIMEOUT") and (
            missing := _RANK_MISSING.search(line) or _MISSING.search(line)
        ):
            event = _event("process_died_unknown", missing, file, number, line)
            event.role = "cause"
            events.append(event)
    most = max((e.number("operation") or 0 for e in counts), default=0)
    for event in counts:
        if (event.number("operation") or 0) < most:
            event.role, event.what = "cause", "rank_behind"
            events.append(event)
    return events


def _event(what: str, found: re.Match[str], file: int, number: int, line: str) -> Event:
    rank = found.groupdict().get("rank")
    return Event(
        role="fact",
        what=what,
        file=file,
        line=number,
        text=line.strip(),
        host=found["host"].rstrip(",:;"),
        gpu=found["gpu"],
        pid=int(found["pid"]),
        rank=int(rank) if rank is not None else None,
    )
