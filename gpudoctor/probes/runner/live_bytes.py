"""How many bytes the tensors of this process hold, and the most they ever held: torch counts that for GPUs only."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

_Storage: Any = torch.UntypedStorage


def _dtensor() -> type:
    try:
        from torch.distributed.tensor import DTensor
    except ImportError:  # torch 2.4
        return importlib.import_module("torch.distributed._tensor").DTensor  # type: ignore[no-any-return]
    return DTensor


class LiveBytes(TorchDispatchMode):
    """Inside `with`: counts every storage that an operation of this thread makes, until it is freed or made smaller.

    What a kernel takes and gives back within one operation is not seen; nor is what C++ holds aside.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._live: dict[int, tuple[weakref.ref[Any], int]] = {}
        self.now_bytes = self.peak_bytes = 0
        self._resize = _Storage.resize_
        self._wrapper = _dtensor()

    def __enter__(self) -> LiveBytes:
        def resize(storage: Any, size: int) -> Any:  # FSDP frees what it gathered by this, which is no operation
            resized = self._resize(storage, size)
            self._note(storage)
            return resized

        _Storage.resize_ = resize
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        _Storage.resize_ = self._resize
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._wrapper in types:  # it holds nothing itself: when it is unwrapped, what is within comes by here
            return NotImplemented
        made = func(*args, **(kwargs or {}))
        for value in tree_iter(made):
            if type(value) in (torch.Tensor, torch.nn.Parameter):  # no fake ones, and no wrappers
                self._note(value.untyped_storage())
        return made

    def _note(self, storage: Any) -> None:
        """Count a storage; again where its size has changed."""
        key, size = storage._cdata, storage.nbytes()
        before = self._live.get(key)
        if before is None or before[0]() is None:
            self._live[key] = (weakref.ref(storage, partial(self._gone, key)), size)
        else:
            self._live[key] = (before[0], size)
        self.now_bytes += size - (before[1] if before else 0)
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)

    def _gone(self, key: int, _: object) -> None:
        _, size = self._live.pop(key)
        self.now_bytes -= size
