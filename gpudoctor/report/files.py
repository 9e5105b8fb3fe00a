"""Files that are there whole or not at all."""

from __future__ import annotations

import os
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


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
