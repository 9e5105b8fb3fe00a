"""Keeps the user's training safe from the observer: the first error of ours switches it off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Guard:
    """Calls our own code; `off` once any of it has raised, and `why`."""

    def __init__(self) -> None:
        self.off = False
        self.why = ""

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """The result, or -1 and `off` if the function raised."""
        if self.off:
            return -1
        try:
            return function(*args)
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on
            self.off = True
            self.why = f"{type(error).__name__}: {error}"
            return -1
