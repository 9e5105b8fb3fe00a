"""What panes ask of the App; only the App acts on it."""

from __future__ import annotations

from textual.message import Message

from gpudoctor.checks.core.registry import Level


class RunWanted(Message):
    """Run these checks (ids or domains; none: all) at a level."""

    def __init__(self, words: tuple[str, ...], level: Level) -> None:
        super().__init__()
        self.words = words
        self.level = level


class CancelWanted(Message):
    """End the check that runs now."""


class GpuChosen(Message):
    """The user turned to this GPU (NVML index)."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index


class PageWanted(Message):
    """Show the page of this check."""

    def __init__(self, check_id: str) -> None:
        super().__init__()
        self.check_id = check_id


class ComparedReportWanted(Message):
    """Ask for the file of a saved report, to compare with."""


class SaveWanted(Message):
    """Ask where the newest report is to be saved, and save it."""
