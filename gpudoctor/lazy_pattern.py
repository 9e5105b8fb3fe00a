"""Regular expressions that are compiled when they are first used.

Compiling one takes 0.1 to 1 ms, and a run uses few of those in the modules that it imports. Every pattern that is a
constant of a module is made by `lazy_pattern`; a test compiles them all.
"""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast

_METHODS = ("search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn")


class LazyPattern:
    """Looks like the compiled pattern. `re.search(pattern, text)` is not possible, `pattern.search(text)` is."""

    def __init__(self, pattern: Any, flags: int) -> None:
        self._given = pattern, flags

    def __getattr__(self, name: str) -> object:
        compiled = re.compile(*self._given)
        # from now on no call comes here
        self.__dict__.update({method: getattr(compiled, method) for method in _METHODS})
        return getattr(compiled, name)


def lazy_pattern(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """What `re.compile` returns, compiled when one of its methods is first used."""
    return cast("re.Pattern[AnyStr]", LazyPattern(pattern, flags))
