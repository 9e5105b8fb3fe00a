"""Asks a rank where it stands: by the signal that the observer has registered, else by py-spy if that is installed."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep

from gpudoctor.process.command import CommandLateError, run_command
from gpudoctor.process.ending import send_signal
from gpudoctor.run.rank_process import lives
from gpudoctor.run.record_reader import RankRecord

_PATIENCE_S = 3.0
_PY_SPY_S = 15.0
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$')
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x(?P<ident>[0-9a-f]+)")
_MOST_FRAMES = 60


def request_stacks(records: Sequence[RankRecord]) -> dict[int, str]:
    """The stacks of these processes as faulthandler or py-spy writes them: pid -> text; those without are missing."""
    before = {record.pid: _size(record) for record in records}
    for record in records:
        if record.stack_signal and lives(record.pid, record.started):
            send_signal(record.pid, record.stack_signal)
    waits = {record.pid: record for record in records if record.stack_signal}
    found: dict[int, str] = {}
    give_up_s = monotonic() + _PATIENCE_S
    grown: dict[int, int] = {}
    while waits and monotonic() < give_up_s:
        sleep(0.1)
        for pid, record in list(waits.items()):
            size = _size(record)
            if size > before[pid] and grown.get(pid) == size:  # it writes no more
                found[pid] = _text(record, before[pid])
                del waits[pid]
            grown[pid] = size
    for record in records:
        if record.pid not in found and (text := _by_py_spy(record.pid)):
            found[record.pid] = text
    return found


def training_stack(text: str, ident: int) -> tuple[str, ...]:
    """The frames of the training thread, innermost first; of the last thread if it is not found."""
    threads: dict[int, list[str]] = {}
    frames: list[str] = []
    for line in text.splitlines():
        if thread := _THREAD.match(line):
            frames = threads.setdefault(int(thread["ident"], 16), [])
            frames.clear()
        elif _FRAME.match(line):
            frames.append(line.strip())
    chosen = threads.get(ident) or (list(threads.values())[-1] if threads else [])
    return tuple(chosen[:_MOST_FRAMES])


def own_line(stack: Sequence[str]) -> tuple[str, str]:
    """The innermost line of the user's own code: (place, its source); empty if there is none."""
    foreign = (sys.prefix, sys.base_prefix, str(Path(__file__).parent))
    shown = ("", "")
    for frame in stack:
        match = _FRAME.match("  " + frame)
        if match is None:
            continue
        name = match["file"]
        packaged = any(part in name for part in ("site-packages", "dist-packages", "/lib/python", "<frozen"))
        place = f"{Path(name).name}:{match['line']} in {match['function']}"
        if not shown[0]:
            shown = (place, _source(name, int(match["line"])))
        if not packaged and not name.startswith(foreign):
            return place, _source(name, int(match["line"]))
    return shown


def _source(name: str, line: int) -> str:
    try:
        with Path(name).open(encoding="utf-8", errors="replace") as file:
            for number, text in enumerate(file, 1):
                if number == line:
                    return text.strip()[:160]
    except OSError:
        return ""
    return ""


def _path(record: RankRecord) -> Path:
    return record.path.with_suffix(".stacks")


def _size(record: RankRecord) -> int:
    try:
        return _path(record).stat().st_size
    except OSError:
        return 0


def _text(record: RankRecord, begin: int) -> str:
    with _path(record).open("rb") as file:
        file.seek(begin)
        return file.read(1 << 20).decode("utf-8", "replace")


def _by_py_spy(pid: int) -> str:
    program = shutil.which("py-spy")
    if program is None:
        return ""
    try:
        done = run_command([program, "dump", "--pid", str(pid)], _PY_SPY_S)
    except (OSError, CommandLateError):
        return ""
    # as faulthandler writes it
    frames = re.findall(r"^\s+(\S.*) \((.+):(\d+)\)$", done.stdout, re.MULTILINE)
    return "Thread 0x0 (most recent call first):\n" + "".join(
        f'  File "{f}", line {n} in {fn}\n' for fn, f, n in frames
    )
