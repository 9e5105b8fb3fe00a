"""What is loaded when it is first used, to keep every start fast: modules, and compiled regular expressions.

`lazy_imports` is like `lazy import` of PEP 810 (Python 3.15), for modules that would slow every start but only some
runs need: the work of a command while its options are parsed, the writers of formats that were not requested. All
imports of a file stay at its top, once each, and type checkers and import-linter see them like any other:

    with lazy_imports():
        from gpudoctor.report import html

Compiling a pattern takes 0.1 to 1 ms, and a run uses few of those in the modules that it imports. Every pattern that is
a constant of a module is made by `lazy_pattern`; a test compiles them all.
"""

from __future__ import annotations

import builtins
import re
import sys
from _thread import RLock
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any, AnyStr, cast

_METHODS = ("search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn")
# a second thread that entered while the first is inside would restore the wrong function on leaving
_one_at_a_time = RLock()


class _LazyModule:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        # not from sys.modules: a module that another thread is importing is there before its names are
        return getattr(import_module(self._name), attribute)


class lazy_imports:  # noqa: N801 - used as a statement, as contextlib.suppress is
    """Inside the block, imports of the calling module load nothing until an attribute of the module is read.

    Only for whole modules: `import yaml` or `from package import module`. A missing module raises ImportError when an
    attribute is read; `import package.module` and relative imports raise it at once.
    """

    def __enter__(self) -> None:
        _one_at_a_time.acquire()
        self._eager = builtins.__import__
        self._importer = sys._getframe(1).f_globals
        builtins.__import__ = self._import  # type: ignore[assignment]

    def __exit__(self, *exc: object) -> None:
        builtins.__import__ = self._eager
        _one_at_a_time.release()

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> object:
        if globals is not self._importer:  # an import by another thread
            return self._eager(name, globals, locals, fromlist, level)
        if level or (not fromlist and "." in name):
            raise ImportError(f"lazy_imports: from package import module, not {'.' * level}{name}")
        if not fromlist:
            return _LazyModule(name)
        return SimpleNamespace(**{each: _LazyModule(f"{name}.{each}") for each in fromlist})


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
