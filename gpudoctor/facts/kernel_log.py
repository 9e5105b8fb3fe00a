"""The kernel log since boot: /dev/kmsg, else the journal."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gpudoctor.facts.kernel_lines import MAX_EVENTS, parse_kernel_lines, read_kernel_text
from gpudoctor.facts.missing import Missing
from gpudoctor.facts.node import KernelLog
from gpudoctor.facts.sysfs import missing_from

__all__ = ["MAX_EVENTS", "parse_kernel_lines", "read_kernel_log", "read_kernel_text"]

_RECORD = re.compile(r"^\d+,(\d+),\d+,", re.MULTILINE)
_JOURNAL_LINE = re.compile(r"^\[ *\d+\.\d+\] \S+ kernel: ", re.MULTILINE)
_MAX_BYTES = 64 << 20
_JOURNAL_DEADLINE_S = 5.0
_JOURNAL_LINES = 100_000  # the newest: the journal of a machine that floods its log goes to gigabytes
_JOURNAL_BYTES = 16 << 20
_JOURNAL = ("journalctl", "-k", "-b", "-o", "short-monotonic", "--no-pager", "-q", "-n", str(_JOURNAL_LINES))


def read_kernel_log(root: Path, deadline_s: float = _JOURNAL_DEADLINE_S) -> KernelLog:
    """The events since boot; Missing where neither /dev/kmsg nor the journal may be read.

    A journalctl that hangs (longer than 5 s, or `deadline_s` where that is less) or dies by a signal
    is a reading that failed, and not one that was refused.

    `truncated` where the ring buffer no longer reaches back to boot, or a flood was cut. A source
    that holds no kernel line at all (/dev/kmsg that a container engine points elsewhere, a journal
    of another user) counts as unread: silence there says nothing about the GPUs.
    """
    text = _read_ring_buffer(root / "dev/kmsg")
    if isinstance(text, str):
        first = _RECORD.search(text)
        if first is not None:
            log = read_kernel_text(text, "/dev/kmsg")
            lost = int(first[1]) > 0
            return KernelLog(events=log.events, source=log.source, truncated=log.truncated or lost)
        text = Missing("/dev/kmsg holds no kernel messages", "absent")
    if root == Path("/"):
        journal = _read_journal(min(deadline_s, _JOURNAL_DEADLINE_S))
        if journal is not None:
            return journal
    return KernelLog(events=text, source=text)


def _read_ring_buffer(path: Path) -> str | Missing:
    """Every record in the buffer; the device gives one a read, and says EAGAIN after the last."""
    try:
        device = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return missing_from(error, "/dev/kmsg")
    parts: list[bytes] = []
    size = 0
    try:
        while size < _MAX_BYTES:
            try:
                part = os.read(device, 1 << 16)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # the kernel overwrote what was to be read next; go on with what is left
            if not part:
                break
            parts.append(part)
            size += len(part)
    except OSError as error:
        return missing_from(error, "/dev/kmsg")
    finally:
        os.close(device)
    return b"".join(parts).decode("utf-8", "replace")


def _read_journal(deadline_s: float) -> KernelLog | None:
    """The journal's newest kernel lines since boot, or None where it gave none."""
    from gpudoctor.facts.subprocesses import run_command, signal_name

    answer = run_command(list(_JOURNAL), deadline_s=deadline_s, max_bytes=_JOURNAL_BYTES)
    if isinstance(answer, Missing):
        return KernelLog(events=answer, source=answer) if answer.kind == "failed" else None
    if answer.returncode is not None and answer.returncode < 0:
        died = Missing(f"journalctl was ended by {signal_name(-answer.returncode)}", "failed")
        return KernelLog(events=died, source=died)
    if not (answer.returncode == 0 or answer.truncated) or not _JOURNAL_LINE.search(answer.stdout):
        return None
    log = read_kernel_text(answer.stdout, " ".join(_JOURNAL[:3]))
    cut = answer.truncated or answer.stdout.count("\n") >= _JOURNAL_LINES
    return KernelLog(events=log.events, source=log.source, truncated=log.truncated or cut)
