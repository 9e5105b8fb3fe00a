"""Messages from the panes to the App, which alone acts on them."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from gpudoctor.checks.core.registry import Level


@dataclass
class RunWanted(Message):
    """Run these checks (ids or domains; empty: all) at a level."""

    words: tuple[str, ...]
    level: Level


class CancelWanted(Message):
    """Cancel the running check."""


@dataclass
class GpuChosen(Message):
    """The user selected this GPU (NVML index)."""

    index: int


@dataclass
class PageWanted(Message):
    """Show the page of this check."""

    check_id: str


class ComparedReportWanted(Message):
    """Prompt for a saved report to compare with."""


class SaveWanted(Message):
    """Prompt for a path and save the newest report."""
