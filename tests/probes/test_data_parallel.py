"""strategy.dp's probe without a GPU: its moves, and its train on the one device that torch falls back to."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch

from gpudoctor.probes.runner.messages import StrategyLeftOut, StrategySample
from gpudoctor.probes.strategies import data_parallel
from gpudoctor.probes.strategies.bench import Bench
from gpudoctor.probes.strategies.model import shape_for, train_step
from tests.narrowed import present
from tests.probes.fake_gpus import GpuRank, cpu_rank


class Moves(GpuRank):
    """A rank whose barriers stand among its phases: on the board each of these is a move."""

    def barrier(self) -> None:
        self.phase("barrier")


@pytest.mark.parametrize("visible", [2, 1])
def test_a_rank_that_waits_for_data_parallel_makes_the_moves_of_the_one_that_trains(
    visible: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(data_parallel, "_train_dp", lambda rank, bench, devices: rank.phase("dp step"))
    ranks = [Moves(tmp_path, 2, number) for number in range(2)]
    for rank in ranks:
        data_parallel.run_dp(rank, cast(Any, None))
    # the rank with the fewest moves would be reported as the one that hangs
    assert ranks[0].phases == ranks[1].phases == ["barrier", "dp step"]
    reasons = [message.why.reason for message in ranks[0].sent if isinstance(message, StrategyLeftOut)]
    assert reasons == ([] if visible == 2 else ["it wants all 2 GPUs in one process, and this one was given 1"])


def trained_by_dp(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Bench, StrategySample]:
    """The real train under torch.nn.DataParallel, which without a GPU calls the model itself; only peaks are played."""
    peaks = (1000, 300)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peaks[device])
    rank = cpu_rank(folder, 2)
    bench = Bench(rank, shape_for(2, on_gpu=False))
    bench.at_first_bytes = 100
    data_parallel.run_dp(rank, bench)
    return bench, rank.one(StrategySample)


@pytest.mark.wide
def test_data_parallel_takes_the_whole_batch_in_one_process_and_trains_what_one_device_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, sample = trained_by_dp(tmp_path, monkeypatch)
    reference = bench.reference()
    assert sample.result.losses == pytest.approx(reference.losses, rel=1e-6)
    assert sample.result.weights_error == pytest.approx(0.0, abs=1e-6)
    assert sample.result.compared == reference.parameters
    assert sample.missing_weights == ()
    assert sample.figures == {"first_gpu_extra_bytes": 600.0}, "less what was there before it began"
    assert not isinstance(sample.result.communicated_bytes, int), "one process has nobody to send to"


def test_weights_that_data_parallel_leaves_wrong_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = train_step

    def changed(model: Any, optimizer: Any, batch: Any) -> torch.Tensor:
        loss = step(model, optimizer, batch)
        with torch.no_grad():
            next(model.parameters()).view(-1)[0] += 1e-2
        return loss

    monkeypatch.setattr(data_parallel, "train_step", changed)
    _, sample = trained_by_dp(tmp_path, monkeypatch)
    assert present(sample.result.weights_error) > 1e-3
