"""strategy.dp's probe without a GPU: its moves, and its train on the one device that torch falls back to."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import pytest
import torch

from gpudoctor.probes.runner.messages import StrategySample
from gpudoctor.probes.strategies import data_parallel
from gpudoctor.probes.strategies.bench import Bench
from gpudoctor.probes.strategies.model import shape_for, train_step


class Moves:
    """What a rank reports and waits for, in place of a Rank; on the board each of these is a move."""

    world_size = 2

    def __init__(self, number: int) -> None:
        self.number = number
        self.made: list[str] = []
        self.left_out: list[Any] = []

    def phase(self, text: str, probe: str = "strategy") -> None:
        self.made.append(text)

    def barrier(self) -> None:
        self.made.append("barrier")

    def send(self, message: Any) -> None:
        self.left_out.append(message)


@pytest.mark.parametrize("visible", [2, 1])
def test_a_rank_that_waits_for_data_parallel_makes_the_moves_of_the_one_that_trains(
    visible: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(data_parallel, "_train_dp", lambda rank, bench, devices: rank.phase("dp step"))
    ranks = [Moves(0), Moves(1)]
    for rank in ranks:
        data_parallel.run_dp(cast(Any, rank), cast(Any, None))
    # the rank with the fewest moves would be reported as the one that hangs
    assert ranks[0].made == ranks[1].made == ["barrier", "dp step"]
    reasons = [message.why.reason for message in ranks[0].left_out]
    assert reasons == ([] if visible == 2 else ["it wants all 2 GPUs in one process, and this one was given 1"])


class CpuRank(Moves):
    """What the bench needs of a rank, on a CPU: no device to wait for."""

    on_gpu = False
    device = torch.device("cpu")

    def step(self, number: int) -> None:
        self.made.append(f"step {number}")

    def fail_if_injected(self, phase: str) -> None:
        assert phase == "strategy"

    def synchronize(self) -> None: ...

    def blocked(self) -> Any:
        return nullcontext()


def trained_by_dp(monkeypatch: pytest.MonkeyPatch, peaks: list[int]) -> tuple[Bench, StrategySample]:
    """The real train under torch.nn.DataParallel, which without a GPU calls the model itself; only peaks are played."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peaks[device])
    rank = CpuRank(0)
    bench = Bench(cast(Any, rank), shape_for(2, on_gpu=False))
    bench.at_first_bytes = 100
    data_parallel.run_dp(cast(Any, rank), bench)
    [sample] = [message for message in rank.left_out if isinstance(message, StrategySample)]
    return bench, sample


@pytest.mark.wide
def test_data_parallel_takes_the_whole_batch_in_one_process_and_trains_what_one_device_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, sample = trained_by_dp(monkeypatch, [1000, 300])
    reference = bench.reference()
    assert sample.result.losses == pytest.approx(reference.losses, rel=1e-6)
    assert sample.result.weights_error == pytest.approx(0.0, abs=1e-6)
    assert sample.result.compared == reference.parameters
    assert sample.missing_weights == ()
    assert sample.figures == {"first_gpu_extra_bytes": 600.0}, "less what was there before it began"
    assert not isinstance(sample.result.communicated_bytes, int), "one process has nobody to send to"


def test_weights_that_data_parallel_leaves_wrong_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    step = train_step

    def changed(model: Any, optimizer: Any, batch: Any) -> torch.Tensor:
        loss = step(model, optimizer, batch)
        with torch.no_grad():
            next(model.parameters()).view(-1)[0] += 1e-2
        return loss

    monkeypatch.setattr(data_parallel, "train_step", changed)
    _, sample = trained_by_dp(monkeypatch, [1000, 300])
    assert sample.result.weights_error is not None
    assert sample.result.weights_error > 1e-3
