"""What the sanity train runs on: batches that are there before the clock starts, as many as the memory takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gpudoctor.probes.train import sanity_model
from gpudoctor.probes.train import steps as train_steps
from gpudoctor.probes.train.sanity_model import Data, Shape, build_model, shape_for
from tests.probes import fake_gpus
from tests.probes.fake_gpus import GpuRank

SMALL = Shape(8, 16, 1, target_ms=1.0, batch_max=64, learning_rate=1e-3, bfloat16=False)
CPU = torch.device("cpu")


class Told(GpuRank):
    """A rank that notes when its clock may begin: it waits for its GPU only then, and at the end."""

    def __init__(self, folder: Path, events: list[str]) -> None:
        super().__init__(folder)
        self.events = events

    def synchronize(self) -> None:
        self.events.append("clock")


class Alone(nn.Module):
    """DDP of one rank, without a process group."""

    def __init__(self, module: nn.Module, **_: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.module(inputs)
        return found


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each time that a batch is fetched by the sampler's indices, and that the clock starts or stops."""
    told: list[str] = []

    class Loader(torch.utils.data.DataLoader[Any]):
        def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
            for batch in super().__iter__():
                told.append("fetch")
                yield batch

    monkeypatch.setattr(sanity_model, "DataLoader", Loader)
    monkeypatch.setattr(train_steps, "DistributedDataParallel", Alone)
    return told


def test_no_batch_is_fetched_while_plain_steps_are_timed(events: list[str], tmp_path: Path) -> None:
    """8 x H100, whose host takes 10 ms to index a batch: a stall alone and together, which hid the exchange."""
    rank, data = Told(tmp_path, events), Data(SMALL, 64, 1, CPU)
    model = build_model(SMALL, CPU)
    train = train_steps.Train(rank, SMALL, model, data)
    events.clear()
    assert train.steady_step_ms(9) > 0
    assert "fetch" in events
    assert "fetch" not in events[events.index("clock") :]
    events.clear()
    assert train_steps.solo_step_ms(rank, SMALL, model, data, 9) > 0
    assert "fetch" not in events[events.index("clock") :]


def test_ready_batches_are_those_of_the_shard_and_never_end() -> None:
    data = Data(SMALL, 64, 2, CPU)
    ready = data.ready(1)
    first = [next(ready) for _ in range(4)]
    assert torch.equal(first[0][0], data.first_batch_of(1)[0])
    assert not torch.equal(first[0][0], first[1][0])
    assert torch.equal(next(ready)[0], first[0][0])


@pytest.mark.parametrize(
    ("card", "free_gib", "batch_max"),
    [
        ("H100 80 GB", 78, 32768),
        ("B200", 178, 32768),
        ("RTX 4090", 23, 16384),
        ("T4", 14, 16384),
        ("RTX 3080", 9, 2048),
    ],
)
def test_the_largest_batch_is_one_that_the_memory_takes(
    card: str, free_gib: int, batch_max: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpus.install(monkeypatch, free_bytes=free_gib << 30)
    shape = shape_for(GpuRank(tmp_path))
    assert shape.batch_max == batch_max, card
    # inputs of 8 ranks' pool and of a batch, what four layers keep of it in bf16, and as much again for its gradients
    a_sample = 4 * 8 * 4 * (shape.inputs + 16) + 4 * shape.inputs + 2 * 2 * shape.width * (shape.hidden_layers + 1)
    weights = 7 * 4 * (shape.inputs + shape.width * shape.hidden_layers) * shape.width
    assert a_sample * shape.batch_max + weights < (free_gib << 30) * 0.6
