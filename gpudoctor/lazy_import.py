"""Modules that are imported when a name of theirs is first used, as `lazy import` will do it (PEP 810, Python 3.15).

For what would cost every start and only some runs need: a command's work while its options are parsed, the writers of
the formats that were not asked for. All of a file's imports then stand at its top, and type checkers and import-linter
see them:

    if TYPE_CHECKING:
        from gpudoctor.report import html
    else:
        html = lazy("gpudoctor.report.html")
"""

from __future__ import annotations

import sys
from importlib import import_module


class _LazyModule:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        return getattr(sys.modules.get(self._name) or import_module(self._name), attribute)


def lazy(name: str) -> _LazyModule:
    """The module of that full name, imported when an attribute is first read. Raise ImportError then."""
    return _LazyModule(name)
