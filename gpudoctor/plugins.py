"""Checks of other packages, found by the entry point group `gpudoctor.checks`."""

from __future__ import annotations

import os
import sys

from gpudoctor.checks.core.registry import Check, DuplicateCheckError, registry
from gpudoctor.errors import UserError

GROUP = "gpudoctor.checks"


def all_checks() -> tuple[Check, ...]:
    """The built-in checks and those of every installed plugin (importing a plugin registers them).

    Raise UserError for a plugin that cannot be loaded: a check that is silently missing would be a false OK.
    """
    if any(_declares_checks(folder) for folder in sys.path):
        from importlib.metadata import entry_points

        for point in entry_points(group=GROUP):
            try:
                point.load()
            except (ImportError, AttributeError, SyntaxError, DuplicateCheckError) as error:
                raise UserError(f"plugin {point.name} ({point.value}) cannot be loaded: {error}") from None
    return registry()


def _declares_checks(folder: str) -> bool:
    """Whether a distribution in this folder of sys.path declares the entry point group.

    importlib.metadata could answer this, but importing it costs a third of a quick check, and few nodes have a plugin.
    """
    try:
        with os.scandir(folder or ".") as entries:
            return any(
                f"[{GROUP}]" in _text(f"{entry.path}/entry_points.txt")
                for entry in entries
                if entry.name.endswith((".dist-info", ".egg-info"))
            )
    except OSError:
        return False


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return ""
