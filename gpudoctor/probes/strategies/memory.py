"""What a train holds, in bytes: counted from the storages of its tensors, since a CPU has no count of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def held_bytes(tensors: Iterable[torch.Tensor | None]) -> int:
    """Bytes of all storages behind these tensors, each once; of a DTensor those of this rank."""
    storages: dict[int, int] = {}
    for tensor in tensors:
        if tensor is not None:
            storage = local_part(tensor).untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def local_part(tensor: Any) -> torch.Tensor:
    """What this rank holds of a tensor, which may be a DTensor."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


def whole_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Every weight by its name, put together from the parts of all ranks if it is a DTensor."""
    found = {}
    for name, weight in model.named_parameters():
        split: Any = weight
        found[name] = split.full_tensor() if hasattr(split, "full_tensor") else weight
    return found


def optimizer_tensors(optimizer: Any) -> Iterator[torch.Tensor]:
    """All tensors of an optimizer's state; none where there is no optimizer."""
    if optimizer is not None:
        for state in optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))


class KeptForBackward:
    """Counts what autograd keeps for the backward pass; parameters are not counted: they are there anyway.

    `most_bytes`: the most that was kept at any one time.
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
        # what FSDP gathers for a layer is a parameter too, and of its own storage
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
    """Holds a tensor as long as autograd holds this."""

    def __init__(self, tensor: torch.Tensor, when_gone: Callable[[], None]) -> None:
        self.tensor = tensor
        self._when_gone = when_gone

    def __del__(self) -> None:
        self._when_gone()


def _taken_out(kept: Any) -> torch.Tensor:
    tensor: torch.Tensor = kept.tensor if isinstance(kept, _Kept) else kept
    return tensor
