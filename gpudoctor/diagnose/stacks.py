"""Stacks of Python processes as py-spy and faulthandler dump them, one or many in a file."""

from __future__ import annotations

import re

import msgspec

_PROCESS = re.compile(r"^Process (?P<pid>\d{1,18}): (?P<command>.*)")
_THREAD = re.compile(
    r'^Thread (?P<id>0x[0-9a-f]+|\d+)(?: \((?P<state>[\w+ ]+)\))?(?:: "(?P<name>[^"]*)"| "(?P<other>[^"]*)")?'
)
_FRAME = re.compile(r"^\s{2,}(?P<function>[\w.<>]+) \((?P<file>[^:)]{1,300}):(?P<line>\d+)\)")
_FAULT = re.compile(r'^\s+File "(?P<file>[^"]{1,300})", line (?P<line>\d+) in (?P<function>\S+)')
_CURRENT = re.compile(r"^(?:Current thread|Thread) (?P<id>0x[0-9a-f]+)(?: \[[^\]]*\])? \(most recent call first\)")
# functions in which a rank waits for others
_WAITING = re.compile(
    r"_engine_run_backward|backward$|all_reduce|allreduce|all_gather|reduce_scatter|broadcast|barrier|_wait|synchronize|"
    r"all_to_all|^wait$|\.wait$|recv$|send$|_join_|monitored_barrier"
)


class Stack(msgspec.Struct, frozen=True):
    """The main thread of one process, as `function (file:line)` from the innermost frame outwards.

    `line` is the log line of the first frame.
    """

    file: int
    line: int
    pid: int | None
    frames: tuple[str, ...]
    waits: bool
    gil: bool


def looks_like_stacks(head: bytes) -> bool:
    """Whether a text begins like a py-spy dump."""
    start = head.lstrip()[:200]
    return bool(re.match(rb"Process \d+: ", start)) and b"\n" in head


def read_stacks(lines: list[str], file: int) -> list[Stack]:
    """The main thread of each process; the first thread if none has that name."""
    found: list[Stack] = []
    pid: int | None = None
    threads: list[tuple[int, str, str, list[str]]] = []

    def close() -> None:
        if threads:
            main = next((t for t in threads if t[1] == "MainThread"), threads[0])
            frames = tuple(main[3][:60])
            waits = any(_WAITING.search(frame.split(" (")[0]) for frame in frames[:8])
            found.append(
                Stack(
                    file, main[0] + 1, pid, frames, waits, any("gil" in t[2] for t in threads if t[1] != "MainThread")
                )
            )
        threads.clear()

    for number, line in enumerate(lines, 1):
        if process := _PROCESS.match(line):
            close()
            pid = int(process["pid"])
        elif (thread := _CURRENT.match(line)) or (thread := _THREAD.match(line)):
            groups = thread.groupdict()
            threads.append((number, groups.get("name") or groups.get("other") or "", groups.get("state") or "", []))
        elif threads and ((frame := _FRAME.match(line)) or (frame := _FAULT.match(line))):
            threads[-1][3].append(f"{frame['function']} ({frame['file']}:{frame['line']})")
    close()
    return found
