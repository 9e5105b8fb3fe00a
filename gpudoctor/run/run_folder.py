"""The folder of one run: records and logs of its ranks, in a temporary place."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gpudoctor.run.observer import layout

_LEAST_FREE_BYTES = 64 << 20
FOLDERS = "gpudoctor-run-*"
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_ID")


class NoFolderError(Exception):
    """There is no place to keep records in; the text says why."""


class RunFolder:
    """Makes the folder. Raise NoFolderError if no place has room.

    Tasks of one Slurm step on a node share it, those of another node do not: nodes may share the temporary place. The
    first to come makes it, and the one that reports removes it.
    """

    def __init__(self, environ: Mapping[str, str], within: Path | None = None) -> None:
        reasons = []
        for folder in [within] if within else temporary_folders():
            try:
                free = shutil.disk_usage(folder).free
                if free < _LEAST_FREE_BYTES:
                    raise OSError(f"only {free >> 20} MiB free")
                self.path = _made(folder, environ)
                for name in ("ranks", "logs", "dumps"):
                    (self.path / name).mkdir(mode=0o700, exist_ok=True)
                return
            except OSError as error:
                reasons.append(f"{folder}: {error.strerror or error}")
        raise NoFolderError("; ".join(reasons) or "no temporary folder")

    @property
    def ranks(self) -> Path:
        return self.path / "ranks"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def is_full(self) -> bool:
        """Whether its disk has no room left for the record of another process."""
        try:
            return shutil.disk_usage(self.path).free < layout.FILE_BYTES
        except OSError:
            return True

    def has_logs(self) -> bool:
        """Whether anything was kept in it."""
        return any(path.is_file() for path in self.path.rglob("*"))

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def remove_records(self) -> None:
        """Remove what only this program reads; logs, stacks and dumps stay."""
        for path in self.ranks.glob("*"):
            if path.suffix in (layout.SUFFIX, ".json", ".new") or not path.stat().st_size:
                path.unlink(missing_ok=True)


def is_of_step(environ: Mapping[str, str]) -> bool:
    """Whether this is a task of a Slurm step, so that all tasks on the node share a folder."""
    return all(environ.get(name, "").isdecimal() for name in _SLURM)


def reports_for_node(environ: Mapping[str, str]) -> bool:
    """Whether this process reports: of the tasks of a Slurm step on a node, the first one does, for all."""
    return not is_of_step(environ) or environ.get("SLURM_LOCALID", "0") == "0"


def temporary_folders() -> list[Path]:
    """Where runs keep their records, unless the user names a folder."""
    folders = [os.environ.get("TMPDIR"), "/tmp", "/dev/shm"]
    return [Path(folder) for folder in dict.fromkeys(folders) if folder and Path(folder).is_dir()]


def _made(folder: Path, environ: Mapping[str, str]) -> Path:
    if not is_of_step(environ):
        return Path(tempfile.mkdtemp(prefix="gpudoctor-run-", dir=folder))
    step = ".".join((*(environ[name] for name in _SLURM), environ.get("SLURM_NODEID", "0")))
    path = folder / f"gpudoctor-run-{os.geteuid()}-{step}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.stat().st_uid != os.geteuid():
        raise OSError("another user made the folder of this step")
    return path
