"""Modules that are imported when a name of theirs is first used, as `lazy import` will do it (PEP 810, Python 3.15).

For what would cost every start and only some runs need: a command's work while its options are parsed, the writers of
the formats that were not asked for. All of a file's imports then stand at its top, each once, and type checkers and
import-linter read them as they read any other:

    with lazy_imports():
        from gpudoctor.report import html
"""

from __future__ import annotations

import builtins
import sys
from _thread import RLock
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import SimpleNamespace

# a second thread that enters while the first is inside would put back the wrong function when it leaves
_one_at_a_time = RLock()


class _LazyModule:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        # not from sys.modules: what another thread is importing is there already, without its names
        return getattr(import_module(self._name), attribute)


class lazy_imports:  # noqa: N801 - used as a statement, as contextlib.suppress is
    """Within it, imports of the module that says `with` name modules, and load none until a name of theirs is read.

    For whole modules, by `import yaml` or `from package import module`; ImportError comes when the name is read, and
    at once for `import package.module` and relative imports, which would name something else.
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
        if globals is not self._importer:  # of another thread
            return self._eager(name, globals, locals, fromlist, level)
        if level or (not fromlist and "." in name):
            raise ImportError(f"lazy_imports: from package import module, not {'.' * level}{name}")
        if not fromlist:
            return _LazyModule(name)
        return SimpleNamespace(**{each: _LazyModule(f"{name}.{each}") for each in fromlist})
