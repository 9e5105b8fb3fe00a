"""What ranks do on CUDA, under a stand-in for torch.cuda: one rank on CPU tensors takes the steps of a GPU rank."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpudoctor.facts.model.measurements import TorchView
from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.runner import messages, rank, rank_starter, torch_device
from gpudoctor.probes.strategies.bench import Bench
from gpudoctor.probes.strategies.model import shape_for as strategy_shape
from gpudoctor.probes.strategies.run import _begin, _plain_arithmetic
from gpudoctor.probes.train import probe as train_probe
from gpudoctor.probes.train import steps as train_steps
from gpudoctor.probes.train.sanity_model import shape_for
from tests.probes.fake_gpus import GpuRank, install

_dist: Any = dist  # not annotated everywhere


class RealEvent:
    """An event at the time of its recording: what was enqueued before it is done on a CPU."""

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at_s = time.perf_counter()

    def synchronize(self) -> None:
        assert self.at_s

    def elapsed_time(self, end: RealEvent) -> float:
        return (end.at_s - self.at_s) * 1e3


class Memory:
    """The allocator's calls, in order, and the figures it answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        answers = {"reset_peak_memory_stats": None, "max_memory_allocated": 3 << 20, "memory_allocated": 1 << 20}
        for name in (*answers, "set_device", "empty_cache"):
            monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: self._called(name, answers.get(name)))

    def _called(self, name: str, answer: int | None) -> int | None:
        self.calls.append(name)
        return answer


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "Event", RealEvent)
    return Memory(monkeypatch)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=_dist.FileStore(f"{tmp_path}/store", 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def ddp_on_gpu_0(model: torch.nn.Module, device_ids: list[int], **options: Any) -> DistributedDataParallel:
    assert device_ids == [0], "the rank's own GPU, of those that CUDA shows it"
    return DistributedDataParallel(model, **options)


def test_the_train_on_a_gpu_measures_by_events_and_tells_its_peak(
    tmp_path: Path, memory: Memory, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = GpuRank(tmp_path)
    on_cpu: Any = SimpleNamespace(on_gpu=False, world_size=1)
    monkeypatch.setattr(train_probe, "shape_for", lambda _: shape_for(on_cpu))
    for name, count in (("_WARM_UP_GPU", 2), ("STEPS_PER_BLOCK", 3), ("_STEADY_STEPS", 2), ("_SOLO_STEPS", 2)):
        monkeypatch.setattr(train_probe, name, count)
    gpu.job = messages.RankJob(
        "nccl", 1, gpu.job.gpus, ("train",), folder=str(tmp_path), group_timeout_s=9.0, level="full"
    )
    monkeypatch.setattr(train_steps, "DistributedDataParallel", ddp_on_gpu_0)
    train_probe.run_training(gpu)
    sample = gpu.one(messages.TrainSample)
    assert sample.memory_peak_mib == 3.0
    assert (sample.rotated, sample.swap) == (False, None)
    assert all(ms > 0 for block in sample.blocks for ms in block.compute_ms)
    assert memory.calls.index("reset_peak_memory_stats") < memory.calls.index("max_memory_allocated")
    assert memory.calls.count("empty_cache") >= len(sample.buckets) == 3


def test_each_strategy_begins_on_the_ranks_own_gpu_and_counts_from_there(tmp_path: Path, memory: Memory) -> None:
    gpu = GpuRank(tmp_path)
    with _plain_arithmetic(gpu):
        bench = Bench(gpu, strategy_shape(1, on_gpu=False))
        _begin(gpu, bench, "ddp")
    assert memory.calls[:3] == ["set_device", "empty_cache", "memory_allocated"]
    assert bench.at_first_bytes == 1 << 20


@pytest.mark.parametrize(
    ("uuids", "expected"),
    [
        (("GPU-aa", "bb"), ("GPU-aa", "GPU-bb")),
        (("MIG-aa",), ("MIG-aa",)),
        (("GPU-aa", None), Missing("this torch does not tell UUIDs", "unsupported")),
    ],
)
def test_the_gpus_that_cuda_opened_are_known_by_uuid(
    uuids: tuple[str | None, ...], expected: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(uuids))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda place: SimpleNamespace(uuid=uuids[place]))
    monkeypatch.setattr(torch.cuda, "nccl", SimpleNamespace(version=lambda: (2, 27, 5)), raising=False)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    view = torch_device.torch_view(GpuRank(tmp_path))
    assert (view.visible_uuids, view.nccl, view.error) == (expected, "2.27.5", None)


def test_a_torch_without_nccl_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    view = TorchView("2.9.1+cu128", "12.8", None, True, 1, ("GPU-0",))
    with pytest.raises(torch_device.UnusableTorchError, match="was built without NCCL"):
        torch_device.require_usable(GpuRank(tmp_path), view)


@pytest.mark.parametrize(
    ("rank_number", "probes", "visible"),
    [
        (1, ["train"], "GPU-1"),
        (1, ["link"], "GPU-1,GPU-0,GPU-2"),
        (0, ["strategy"], "GPU-0,GPU-1,GPU-2"),
        (2, ["strategy"], "GPU-2"),
    ],
)
def test_a_rank_is_started_with_its_own_gpu_first(
    rank_number: int, probes: list[str], visible: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: dict[str, Any] = {}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")  # of the user's shell: the scope was taken from it before
    monkeypatch.setattr(rank_starter, "Child", lambda command, **options: started.update(options))
    gpus = [[number, f"GPU-{number}", f"bus-{number}"] for number in range(3)]
    rank_starter._spawn_rank({"rank": rank_number, "fd": 5, "job": {"gpus": gpus, "probes": probes}}, [])
    assert started["env"]["CUDA_VISIBLE_DEVICES"] == visible


def test_between_repetitions_a_gpu_rank_gives_its_cache_back(tmp_path: Path, memory: Memory, group: None) -> None:
    gpu = GpuRank(tmp_path)
    gpu.job = messages.RankJob(
        "nccl", 1, gpu.job.gpus, ("compute",), folder=str(tmp_path), group_timeout_s=9.0, duration_s=0.05
    )
    ran: list[int] = []
    rank._run_repetitions(gpu, {"compute": lambda _: ran.append(1)})
    assert len(ran) == 2
    assert memory.calls == ["empty_cache"]


@pytest.mark.parametrize("broken", [False, True])
def test_a_gpu_rank_leaves_when_no_other_gpu_reads_its_memory(
    broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def leave(status: int = 0) -> NoReturn:
        order.append("left")
        raise SystemExit(status)

    def barrier(_: GpuRank) -> None:
        order.append("waited")
        if broken:
            raise RuntimeError("a peer has ended")

    monkeypatch.setattr(GpuRank, "barrier", barrier)
    monkeypatch.setattr(rank, "leave", leave)
    gpu = GpuRank(tmp_path)
    with pytest.raises(SystemExit):
        rank._leave(gpu)
    assert isinstance(gpu.sent[-1], messages.Left)
    assert order == ["waited", "left"]
