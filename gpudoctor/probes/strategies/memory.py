"""Counts the bytes a training holds and communicates, since torch has no such counters for a CPU."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from gpudoctor.facts.model.measured_strategies import StrategyMemory
from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.runner.messages import CPU_MEMORY
from gpudoctor.probes.runner.torch_device import torch_version

_Storage: Any = torch.UntypedStorage
_NAMESPACES = ("c10d", "_c10d_functional")
_NO_TRAFFIC = {"wait_tensor", "_wrap_tensor_autograd", "recv_", "recv_any_source_", "barrier", "monitored_barrier_"}
# DTensor communicates inside its own dispatch, which sees the mode only if that dispatch runs first.
_HANDLED_FIRST = ("DTensor", "AsyncCollectiveTensor")


def held_bytes(tensors: Iterable[torch.Tensor | None]) -> int:
    """Bytes of all storages behind these tensors, each counted once; of a DTensor its local part."""
    storages: dict[int, int] = {}
    for tensor in tensors:
        if tensor is not None:
            storage = local_part(tensor).untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def local_part(tensor: Any) -> torch.Tensor:
    """This rank's part of a tensor, which may be a DTensor."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


def whole_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Every weight by name, gathered from all ranks if it is a DTensor."""
    found = {}
    for name, weight in model.named_parameters():
        split: Any = weight
        found[name] = split.full_tensor() if hasattr(split, "full_tensor") else weight
    return found


def optimizer_tensors(optimizer: Any) -> Iterator[torch.Tensor]:
    """All tensors of an optimizer's state; none without an optimizer."""
    if optimizer is not None:
        for state in optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def memory_of(parameters: Any, optimizer: Any, activations_bytes: int | Missing) -> StrategyMemory:
    """The memory of a training while its gradients exist; `optimizer`: anything with a `state`, or None."""
    parameters = list(parameters)
    return StrategyMemory(
        parameters_bytes=held_bytes(parameters),
        gradients_bytes=held_bytes(parameter.grad for parameter in parameters),
        optimizer_bytes=held_bytes(optimizer_tensors(optimizer)),
        activations_bytes=activations_bytes,
        peak_bytes=CPU_MEMORY,
    )


class KeptForBackward:
    """Counts the bytes that autograd keeps for the backward pass, without parameters, which exist anyway.

    `most_bytes`: the maximum kept at one time.
    """

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self.most_bytes = 0
        self._parameters = {local_part(p).untyped_storage().data_ptr() for p in parameters}
        self._users: dict[int, int] = {}
        self._bytes = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Around a forward and backward pass."""
        pack: Callable[[torch.Tensor], Any] = self._keep
        with torch.autograd.graph.saved_tensors_hooks(pack, _taken_out):
            yield

    def _keep(self, tensor: torch.Tensor) -> Any:
        storage = local_part(tensor).untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        # the weights that FSDP gathers for a layer are a parameter too, with separate storage
        base = tensor if tensor._base is None else tensor._base
        if place in self._parameters or isinstance(base, torch.nn.Parameter):
            return tensor
        if not self._users.get(place):
            self._bytes += size
            self.most_bytes = max(self.most_bytes, self._bytes)
        self._users[place] = self._users.get(place, 0) + 1
        return _Kept(tensor, lambda: self._let_go(place, size))

    def _let_go(self, place: int, size: int) -> None:
        self._users[place] -= 1
        if not self._users[place]:
            self._bytes -= size


class _Kept:
    """Holds a tensor as long as autograd holds this object."""

    def __init__(self, tensor: torch.Tensor, when_gone: Callable[[], None]) -> None:
        self.tensor = tensor
        self._when_gone = when_gone

    def __del__(self) -> None:
        self._when_gone()


def _taken_out(retained: Any) -> torch.Tensor:
    tensor: torch.Tensor = retained.tensor if isinstance(retained, _Kept) else retained
    return tensor


class TrafficCounter(TorchDispatchMode):
    """While active, adds the size of each collective and send to `sent_bytes`.

    The size is that of the larger of input and output, as in nccl-tests; a receive is counted at its sender.
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
        if func.namespace in _NAMESPACES and str(func).split(".")[1] not in _NO_TRAFFIC:
            self.sent_bytes += max(_bytes_in(args), _bytes_in(found))
        return found


def _bytes_in(values: Any) -> int:
    """Bytes of the largest tensor or list of tensors in `values`."""
    if isinstance(values, torch.Tensor):
        return values.numel() * values.element_size()
    if isinstance(values, (list, tuple)):
        if values and all(isinstance(value, torch.Tensor) for value in values):
            return sum(_bytes_in(value) for value in values)
        return max((_bytes_in(value) for value in values), default=0)
    return 0


def dtensor_module() -> Any:
    """torch's module of DTensors, which torch 2.4 has under a private name."""
    return importlib.import_module(f"torch.distributed.{'_tensor' if torch_version() < (2, 5) else 'tensor'}")


class LiveBytes(TorchDispatchMode):
    """Inside `with`, counts every storage that an operation of this thread creates, until it is freed or resized.

    Memory that a kernel allocates and frees within one operation is not seen, nor are buffers internal to C++.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._live: dict[int, tuple[weakref.ref[Any], int]] = {}
        self.now_bytes = self.peak_bytes = 0
        self._resize = _Storage.resize_
        self._wrapper = dtensor_module().DTensor

    def __enter__(self) -> LiveBytes:
        def resize(storage: Any, size: int) -> Any:  # FSDP frees gathered weights by it, and it is not an operation
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
        if self._wrapper in types:  # it has no storage; its unwrapped local tensors are dispatched here later
            return NotImplemented
        made = func(*args, **(kwargs or {}))
        for value in tree_iter(made):
            if type(value) in (torch.Tensor, torch.nn.Parameter):  # neither fake tensors nor wrappers
                self._note(value.untyped_storage())
        return made

    def _note(self, storage: Any) -> None:
        """Count a storage, or correct its size if it was resized."""
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
