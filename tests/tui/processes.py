"""Processes that a test has started, found by a folder of its own that they inherit as TMPDIR."""

from __future__ import annotations

from pathlib import Path

import psutil


def of_folder(folder: Path) -> list[psutil.Process]:
    """Every living process whose TMPDIR is this folder, or lies in it."""
    found = []
    for process in psutil.process_iter():
        try:
            # ranks have a folder of their own in it
            if process.environ().get("TMPDIR", "").startswith(str(folder)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def all_end(processes: list[psutil.Process], within_s: float = 20.0) -> bool:
    """Whether all of them are gone, or zombies that only their parent keeps, in time."""
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return not [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
