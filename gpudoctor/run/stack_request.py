"""Asks a rank, and the workers of its loader, where they stand: by the observer's signal, else by py-spy if there."""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep

from gpudoctor.process.command import CommandLateError, run_command
from gpudoctor.process.ending import send_signal
from gpudoctor.run.rank_process import children, handles, kernel_place, lives
from gpudoctor.run.record_reader import RankRecord

_PATIENCE_S = 3.0
_PY_SPY_S = 15.0
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$')
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x(?P<ident>[0-9a-f]+)")
_MOST_FRAMES = 60
_MOST_CALLERS = 4
_MOST_WORKERS = 16


def request_stacks(records: Sequence[RankRecord]) -> dict[int, str]:
    """The stacks of these processes as faulthandler or py-spy writes them: pid -> text; those without are missing."""
    before = {record.pid: _size(_path(record)) for record in records}
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
            size = _size(_path(record))
            if size > before[pid] and grown.get(pid) == size:  # it writes no more
                found[pid] = _text(_path(record), before[pid])
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
    """The innermost line of the user's own code: (place, its source); that of others if there is none, else empty."""
    frames = _frames(stack)
    users = next(filter(_is_own, frames), frames[0] if frames else None)
    return ("", "") if users is None else (_place(users), _source(users["file"], int(users["line"])))


def own_callers(stack: Sequence[str]) -> tuple[str, ...]:
    """From where the innermost line of the user's own code was called: places in the user's own code."""
    users = [_place(frame) for frame in _frames(stack) if _is_own(frame)]
    return tuple(users[1 : 1 + _MOST_CALLERS])


def loader_workers(record: RankRecord) -> tuple[str, ...]:
    """Where the processes stand that a rank's DataLoader has started, in words; empty if it has none.

    A worker that was forked has the rank's handler and writes into the rank's file, one that was spawned has its own:
    they are asked one after another, all together for no longer than a rank is. Of the rest only the kernel is asked.
    """
    found: Counter[str] = Counter()
    pids = children(record.pid)
    give_up_s = monotonic() + _PATIENCE_S
    for pid in pids[:_MOST_WORKERS]:
        stack = training_stack(_stacks_of_child(record, pid, give_up_s), 0)
        place, code = own_line(stack)
        has_work = any(_is_own(frame) for frame in _frames(stack))
        where = f"in {place}{f': {code}' if code else ''}" if has_work else "without work" if stack else ""
        if where or (kernel := kernel_place(pid)):
            found[where or f"in the kernel: {kernel}"] += 1
    return tuple(f"{count} of {len(pids)} {where}" for where, count in found.most_common())


def _stacks_of_child(record: RankRecord, pid: int, give_up_s: float) -> str:
    """What this process writes on the signal; empty if it does not, or would be ended by it, or if it is too late."""
    if not record.stack_signal or not handles(pid, record.stack_signal) or monotonic() >= give_up_s:
        return ""
    paths = (_path(record), record.path.with_name(f"{pid}.stacks"))
    before = [_size(path) for path in paths]
    send_signal(pid, record.stack_signal)
    give_up_s, grown = min(give_up_s, monotonic() + _PATIENCE_S / 2), before
    while monotonic() < give_up_s:
        sleep(0.05)
        sizes = [_size(path) for path in paths]
        if sizes != before and sizes == grown:  # it writes no more
            break
        grown = sizes
    texts = [_text(path, begin) for path, begin, end in zip(paths, before, grown, strict=True) if end > begin]
    return texts[-1] if texts else ""


def _frames(stack: Sequence[str]) -> list[re.Match[str]]:
    return [match for frame in stack if (match := _FRAME.match("  " + frame))]


def _place(frame: re.Match[str]) -> str:
    return f"{Path(frame['file']).name}:{frame['line']} in {frame['function']}"


def _is_own(frame: re.Match[str]) -> bool:
    """Whether it is code of the user: neither the standard library nor an installed package, nor ours."""
    name = frame["file"]
    packaged = any(part in name for part in ("site-packages", "dist-packages", "/lib/python", "<frozen"))
    return not packaged and not name.startswith((sys.prefix, sys.base_prefix, str(Path(__file__).parent)))


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


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _text(path: Path, begin: int) -> str:
    with path.open("rb") as file:
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
