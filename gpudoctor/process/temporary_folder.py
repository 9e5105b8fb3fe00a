"""Temporary folders and files that no signal leaves behind."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from gpudoctor.process.signals import signals_postponed


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A new private folder, which is removed at the end of the block with all that is in it. Raise OSError."""
    with ExitStack() as life:
        with signals_postponed():
            folder = Path(tempfile.mkdtemp(prefix=prefix))
            life.callback(_remove, folder)
        yield folder


def temporary_file() -> BinaryIO:
    """A new file without a name, which goes when it is closed. Raise OSError."""
    with signals_postponed():  # the first call makes a file with a name, to find a folder that can be written
        tempfile.gettempdir()
    return tempfile.TemporaryFile()


def _remove(folder: Path) -> None:
    with signals_postponed():
        shutil.rmtree(folder, ignore_errors=True)
