"""The errors that are the user's to mend; caught once, in `exits.py`."""

from __future__ import annotations

from collections.abc import Iterable


class UserError(Exception):
    """One clear line: what is wrong, where (file, key, device), and the way out.

    Raised anywhere below the command line for bad arguments, unreadable sources and bad
    configuration. It ends the run with exit code 2 and never shows a traceback.
    """


def nearest_names(word: str, names: Iterable[str], most: int, cutoff: float) -> list[str]:
    """Up to `most` of the names that look like the word, the best first; `cutoff` is difflib's, from 0 to 1."""
    from difflib import get_close_matches  # only a wrong name needs it

    return get_close_matches(word, list(names), n=most, cutoff=cutoff)
