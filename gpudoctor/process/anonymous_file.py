"""Memory that processes share by a file descriptor: it has no name, so nothing is left behind, and needs no reader."""

from __future__ import annotations

import os


def anonymous_file(size_bytes: int = 0) -> int:
    """The descriptor of a file of zeroes. Raise OSError."""
    try:
        descriptor = os.memfd_create("gpudoctor", 0)
    except (AttributeError, OSError):  # not Linux; or an old kernel, or a sandbox that forbids it
        import tempfile

        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, size_bytes)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def content(descriptor: int, max_bytes: int | None = None) -> bytes:
    """What was written, from its beginning; where the writer stands does not change."""
    size_bytes = os.fstat(descriptor).st_size
    return os.pread(descriptor, size_bytes if max_bytes is None else min(size_bytes, max_bytes), 0)


def tail(descriptor: int, max_bytes: int = 1 << 16) -> str:
    """The end of what was written, as text."""
    begin = max(0, os.fstat(descriptor).st_size - max_bytes)
    return os.pread(descriptor, max_bytes, begin).decode("utf-8", "replace")
