"""Errors that the user can fix; `cli/guarded.py` catches them in one place."""

from __future__ import annotations

from collections.abc import Iterable


class UserError(Exception):
    """One clear line: what is wrong, where (file, key, device), and how to fix it.

    Raised for bad arguments, unreadable sources and bad configuration. The command line exits with code 2 and without
    a traceback.
    """


def nearest_names(word: str, names: Iterable[str], most: int, cutoff: float) -> list[str]:
    """Up to `most` names similar to the word, best first; `cutoff` is difflib's, from 0 to 1."""
    from difflib import get_close_matches  # start-up time: only a wrong name needs it

    return get_close_matches(word, list(names), n=most, cutoff=cutoff)


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """`; did you mean ...?` for a wrong word, or nothing if no name is like it."""
    close = nearest_names(word[:100], names, 1, 0.6)
    return f"; did you mean {close[0]}?" if close else ""
