"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from gpudoctor.errors import UserError


class OutputError(UserError):
    """The file asked for with -o cannot be written."""


def write_file(path: Path, text: str) -> None:
    """Write beside the file and rename over it; raise OutputError and leave nothing behind.

    A device or pipe (/dev/stderr, a FIFO) is written to as it is. Mode follows the umask, as
    for any file a command writes; node_exporter must be able to read it.
    """
    import tempfile  # not at the top: it costs start-up time

    try:
        if path.exists() and not path.is_file():
            if path.is_dir():
                raise IsADirectoryError(21, "is a directory")
            with path.open("w", encoding="utf-8") as file:
                file.write(text)
            return
        target = path.resolve()
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o666 & ~_umask())  # noqa: PTH101
            os.replace(temporary, target)  # noqa: PTH105
        except BaseException:
            os.unlink(temporary)  # noqa: PTH108
            raise
    except RuntimeError:  # what Path.resolve says of links that lead in a circle
        raise OutputError(f"{path}: cannot write: too many levels of symbolic links") from None
    except OSError as error:
        raise OutputError(f"{path}: cannot write: {error.strerror or error}") from None


def write_new_file(path: Path, data: bytes) -> None:
    """Write a file that is not there yet: whole, or not at all. Raise OutputError; nothing is ever replaced."""
    import tempfile

    try:
        # a link counts as there, wherever it leads
        if os.path.lexists(path):
            raise FileExistsError(17, "there is one already, and it is not replaced")
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o666 & ~_umask())  # noqa: PTH101
            _take_name(temporary, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)  # noqa: PTH108
    except ValueError:
        raise OutputError(f"{path}: cannot write: not the name of a file") from None
    except OSError as error:
        said = "there is one already, and it is not replaced" if error.errno == 17 else error.strerror or error
        raise OutputError(f"{path}: cannot write: {said}") from None


def _take_name(temporary: str, path: Path) -> None:
    """Give the file its name, which must be free."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: hold the name, then replace what holds it
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        os.replace(temporary, path)  # noqa: PTH105


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
