"""torch.cuda as far as the link and compute probes use it, played by the CPU.

Every tensor lives on the CPU; a device is a name. What this cannot show is whether CUDA behaves so; it
shows that the probes take their steps in order, on the right devices, and come to the right figures.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpudoctor.probes.runner import messages, rank
from gpudoctor.probes.runner.board import ProgressBoard
from gpudoctor.probes.runner.messages import RankJob

COPY_MS = 1.0


class FakeEvent:
    """An event every copy advances; each millisecond is one copy."""

    clock_ms = 0.0

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at_ms: float | None = None

    def record(self) -> None:
        self.at_ms = FakeEvent.clock_ms

    def synchronize(self) -> None:
        assert self.at_ms is not None, "waits for an event that nobody recorded"

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.at_ms is not None
        assert end.at_ms is not None
        return end.at_ms - self.at_ms


class FakeContext:
    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class GpuRank(rank.Rank):
    """A rank that believes it is on one of several GPUs, alone in its process; it keeps what it would send."""

    def __init__(self, folder: Path, world_size: int = 1, number: int = 0) -> None:
        gpus = tuple((n, f"GPU-{n}", f"GPU-{n}") for n in range(world_size))
        job = RankJob("nccl", world_size, gpus, ("link", "compute"), folder=str(folder), group_timeout_s=10.0)
        ProgressBoard(folder / "board", world_size).close()
        super().__init__(number, job, fd=-1)
        self.device = torch.device("cpu")
        self.sent: list[messages.RankMessage] = []
        self.barriers = 0

    def send(self, message: messages.RankMessage) -> None:
        self.sent.append(message)

    def barrier(self) -> None:
        self.barriers += 1

    def smallest(self, value: int) -> int:
        return value

    def from_rank_zero(self, value: int) -> int:
        return value

    def one(self, kind: type[Any]) -> Any:
        """The only message of that kind."""
        [found] = [message for message in self.sent if isinstance(message, kind)]
        return found

    @property
    def phases(self) -> list[str]:
        return [message.text for message in self.sent if isinstance(message, messages.Phase)]


def cpu_rank(folder: Path, world_size: int = 1) -> GpuRank:
    """The same on a CPU."""
    one = GpuRank(folder, world_size)
    one.on_gpu = False
    return one


def install(
    monkeypatch: pytest.MonkeyPatch,
    *,
    gpus: int = 1,
    free_bytes: int = 64 << 20,
    capability: Any = (9, 0),
    integrated: bool = False,
) -> None:
    """Put the played torch.cuda in the place of the real one, and let pinned and GPU tensors be plain ones."""
    assert threading.current_thread() is threading.main_thread()
    gc.freeze()  # before they ask how much memory is free, probes collect garbage: not what earlier tests keep
    FakeEvent.clock_ms = 0.0
    cuda = torch.cuda
    played: dict[str, Any] = {
        "Event": FakeEvent,
        "Stream": FakeContext,
        "stream": FakeContext,
        "device": FakeContext,
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "mem_get_info": lambda *_: (free_bytes, free_bytes),
        "device_count": lambda: gpus,
        "can_device_access_peer": lambda *_: True,
        "get_device_capability": lambda *_: capability,
        "get_device_properties": lambda *_: SimpleNamespace(multi_processor_count=132, is_integrated=int(integrated)),
    }
    for name, value in played.items():
        monkeypatch.setattr(cuda, name, value)
    for name in ("empty", "zeros", "arange", "randn"):
        monkeypatch.setattr(torch, name, _on_the_cpu(getattr(torch, name)))
    copy = torch.Tensor.copy_

    def timed(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        FakeEvent.clock_ms += COPY_MS
        return copy(target, source)

    monkeypatch.setattr(torch.Tensor, "copy_", timed)


def opens(monkeypatch: pytest.MonkeyPatch, *uuids: str | None, init: Callable[[], None] = lambda: None) -> None:
    """A CUDA build of torch that opens GPUs with these UUIDs; None: it does not tell them."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(uuids))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda place: SimpleNamespace(uuid=uuids[place]))
    monkeypatch.setattr(torch.cuda, "nccl", SimpleNamespace(version=lambda: (2, 27, 5)), raising=False)


def _on_the_cpu(make: Any) -> Any:
    def plain(*args: Any, **options: Any) -> Any:
        options.pop("pin_memory", None)
        options.pop("device", None)
        return make(*args, **options)

    return plain
