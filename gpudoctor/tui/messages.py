"""What panes ask of the App; only the App acts on it."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from gpudoctor.checks.core.registry import Level


@dataclass
class RunWanted(Message):
    """Run these checks (ids or domains; none: all) at a level."""

    words: tuple[str, ...]
    level: Level


class CancelWanted(Message):
    """End the check that runs now."""


@dataclass
class GpuChosen(Message):
    """The user turned to this GPU (NVML index)."""

    index: int


@dataclass
class PageWanted(Message):
    """Show the page of this check."""

    check_id: str


class ComparedReportWanted(Message):
    """Ask for the file of a saved report, to compare with."""


class SaveWanted(Message):
    """Ask where the newest report is to be saved, and save it."""
