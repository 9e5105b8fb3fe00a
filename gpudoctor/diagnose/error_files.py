"""Torchelastic's error.json, which a rank under @record writes before it ends."""

from __future__ import annotations

import json

from gpudoctor.diagnose.events import Event
from gpudoctor.diagnose.tracebacks import Tracebacks, exception_event


def looks_like_error_file(head: bytes, name: str) -> bool:
    """Whether name and first bytes are those of an error.json."""
    return name.endswith("error.json") and head.lstrip()[:1] == b"{"


def read_error_file(data: bytes, file: int) -> Event | None:
    """The exception in the file; None if it contains none. The folder gives the rank."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    message = content.get("message") if isinstance(content, dict) else None
    stack = ""
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        stack = str(extra.get("py_callstack", "")) if isinstance(extra, dict) else ""
        message = message.get("message")
    if not isinstance(message, str) or not message.strip():
        return None
    traces = Tracebacks()
    event: Event | None = None
    for number, line in enumerate(stack.split("\n")[:2000]):
        _, told = traces.read(None, number, line)
        event = told or event
    if event is None:
        event = exception_event(message.split("\n")[0])
    event.file, event.line, event.text = file, 1, message.split("\n")[0]
    return event
