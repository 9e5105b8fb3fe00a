"""Keeps a bounded copy of what Python code writes to stdout and stderr; the streams themselves stay as they are.

Only the method `write` of the two text streams is shadowed, so that type, descriptor, buffering and `isatty` are
those of the user. What C code writes to the descriptors is not seen.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from .record_file import RecordFile


def keep_output(record: RecordFile) -> None:
    """Keep what is written from now on."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            _keep(stream, record)


def _keep(stream: Any, record: RecordFile) -> None:
    write = stream.write

    def keeping(text: str) -> Any:
        result = write(text)
        with suppress(Exception):  # the copy is no reason to fail
            record.output(text.encode("utf-8", "backslashreplace"))
        return result

    try:
        stream.write = keeping
    except AttributeError:  # a stream of another kind, without room for it
        return
