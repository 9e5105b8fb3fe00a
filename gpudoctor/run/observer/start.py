"""Waits, in every Python process of a watched command, until torch is imported; then loads the rest of the observer.

Executed at the start of each interpreter, so it imports only what that has loaded already. A rank may run any
version of Python from 3.8 on.
"""

from __future__ import annotations

import sys

PACKAGE = "_gpudoctor_observer"


class _TorchFinder:
    """On sys.meta_path until torch is found: wraps its loader, so that we act right after it was executed."""

    def __init__(self, observer: str, folder: str) -> None:
        self._observer = observer
        self._folder = folder

    def find_spec(self, name: str, path: object = None, target: object = None):  # type: ignore[no-untyped-def]
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self._observer, self._folder)
                return spec
        sys.meta_path.insert(0, self)
        return None


class _Loader:
    """Torch's own loader, and then the observer; torch sees only its own."""

    def __init__(self, loader: object, observer: str, folder: str) -> None:
        self._loader = loader
        self._observer = observer
        self._folder = folder

    def create_module(self, spec):  # type: ignore[no-untyped-def]
        return self._loader.create_module(spec)  # type: ignore[attr-defined]

    def exec_module(self, module) -> None:  # type: ignore[no-untyped-def]
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)  # type: ignore[attr-defined]
        try:
            _package(self._observer).begin(self._folder)
        except Exception:  # noqa: BLE001 - torch works, whatever happens to us
            sys.modules.pop(PACKAGE, None)


def watch_for_torch(observer: str, folder: str) -> None:
    """Begin to observe in `folder` once this process imports torch; `observer` is the folder of our code."""
    sys.meta_path.insert(0, _TorchFinder(observer, folder))


def _package(observer: str):  # type: ignore[no-untyped-def]
    """Our package, loaded from its folder: the rank's Python may have no gpudoctor, or another one."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(
        PACKAGE, f"{observer}/__init__.py", submodule_search_locations=[observer]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = module
    spec.loader.exec_module(module)
    return importlib.import_module(f"{PACKAGE}.rank_process")
