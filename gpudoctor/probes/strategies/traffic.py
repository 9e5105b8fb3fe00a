"""How many bytes a step gives to collectives and sends: every operation of torch.distributed passes the dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_NAMESPACES = ("c10d", "_c10d_functional")
_NO_TRAFFIC = (
    *("wait_tensor", "_wrap_tensor_autograd", "recv_", "recv_any_source_"),
    *("barrier", "monitored_barrier_"),
)
# What DTensor sends, it sends inside its own handling, which sees the mode only if that handling comes first.
_HANDLED_FIRST = ("DTensor", "AsyncCollectiveTensor")


class TrafficCounter(TorchDispatchMode):
    """While it is active, `sent_bytes` grows by the size of each collective and send.

    The size is that of the larger of input and output, as nccl-tests count it; what is received was counted where
    it was sent.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sent_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(kind.__name__ in _HANDLED_FIRST for kind in types):
            return NotImplemented
        found = func(*args, **(kwargs or {}))
        if func.namespace in _NAMESPACES and _name_of(func) not in _NO_TRAFFIC:
            self.sent_bytes += max(_bytes_in(args), _bytes_in(found))
        return found


def _name_of(func: Callable[..., Any]) -> str:
    return str(func).split(".")[1]


def _bytes_in(values: Any) -> int:
    """Bytes of the largest of the tensors and lists of tensors among these."""
    if isinstance(values, torch.Tensor):
        return values.numel() * values.element_size()
    if isinstance(values, (list, tuple)):
        if values and all(isinstance(value, torch.Tensor) for value in values):
            return sum(_bytes_in(value) for value in values)
        return max((_bytes_in(value) for value in values), default=0)
    return 0
