"""What ranks do on CUDA, under a stand-in for torch.cuda: one rank on CPU tensors takes the steps of a GPU rank."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn, cast

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpudoctor.facts.model.measured_strategies import FrameworkView, StrategyMemory
from gpudoctor.facts.model.measurements import TorchView
from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.collective import probe as collective
from gpudoctor.probes.frameworks import isolated_child
from gpudoctor.probes.frameworks.isolated_child import view_of
from gpudoctor.probes.inter_node.measure import InterNodeRank
from gpudoctor.probes.inter_node.rank import InterNodeFailure, Opened, Rendezvous
from gpudoctor.probes.plan_verification import run as verification
from gpudoctor.probes.runner import local_workers, messages, rank, rank_starter, torch_device
from gpudoctor.probes.runner.local_workers import LocalWorkers, WorkerHello
from gpudoctor.probes.strategies import bench, data_parallel, deepspeed, pipeline
from gpudoctor.probes.strategies.bench import Bench
from gpudoctor.probes.strategies.checkpointing import run_checkpointing
from gpudoctor.probes.strategies.model import STEPS, batch_of, build_transformer
from gpudoctor.probes.strategies.model import shape_for as strategy_shape
from gpudoctor.probes.strategies.run import _begin, _plain_arithmetic
from gpudoctor.probes.train import probe as train_probe
from gpudoctor.probes.train import steps as train_steps
from gpudoctor.probes.train.sanity_model import Data, build_model, shape_for
from tests.probes.conftest import raising
from tests.probes.fake_gpus import GpuRank, install, opens

_dist: Any = dist  # not annotated everywhere
SMALL = shape_for(cast(Any, SimpleNamespace(on_gpu=False)))  # as on a CPU


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
def gpu(tmp_path: Path) -> GpuRank:
    return GpuRank(tmp_path)


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


@pytest.mark.wide
def test_the_train_on_a_gpu_measures_by_events_and_tells_its_peak(
    gpu: GpuRank, memory: Memory, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_probe, "shape_for", lambda _: SMALL)
    for name, count in (("_WARM_UP_GPU", 2), ("STEPS_PER_BLOCK", 3), ("_STEADY_STEPS", 2), ("_SOLO_STEPS", 2)):
        monkeypatch.setattr(train_probe, name, count)
    gpu.job = msgspec.structs.replace(gpu.job, probes=("train",), level="full")
    monkeypatch.setattr(train_steps, "DistributedDataParallel", ddp_on_gpu_0)
    train_probe.run_training(gpu)
    sample = gpu.one(messages.TrainSample)
    assert sample.memory_peak_mib == 3.0
    assert (sample.rotated, sample.swap) == (False, None)
    assert all(ms > 0 for block in sample.blocks for ms in block.compute_ms)
    assert memory.calls.index("reset_peak_memory_stats") < memory.calls.index("max_memory_allocated")
    assert memory.calls.count("empty_cache") >= len(sample.buckets) == 3


def test_each_strategy_begins_on_the_ranks_own_gpu_and_counts_from_there(gpu: GpuRank, memory: Memory) -> None:
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
    opens(monkeypatch, *uuids)
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


def test_between_repetitions_a_gpu_rank_gives_its_cache_back(gpu: GpuRank, memory: Memory, group: None) -> None:
    gpu.job = msgspec.structs.replace(gpu.job, probes=("compute",), duration_s=0.05)
    ran: list[int] = []
    rank._run_repetitions(gpu, {"compute": lambda _: ran.append(1)})
    assert len(ran) == 2
    assert memory.calls == ["empty_cache"]


@pytest.mark.parametrize("broken", [False, True])
def test_a_gpu_rank_leaves_when_no_other_gpu_reads_its_memory(
    broken: bool, gpu: GpuRank, monkeypatch: pytest.MonkeyPatch
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
    with pytest.raises(SystemExit):
        rank._leave(gpu)
    assert isinstance(gpu.sent[-1], messages.Left)
    assert order == ["waited", "left"]


def test_collectives_fit_the_fullest_gpu_and_give_their_memory_back(
    tmp_path: Path, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, free_bytes=2 << 30)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: memory.calls.append("empty_cache"))
    swept: list[tuple[str, int]] = []
    monkeypatch.setattr(collective, "_run_sweep", lambda _, kind, sweep, largest: swept.append((kind.name, largest)))
    collective.run_collectives(GpuRank(tmp_path, world_size=2))
    assert swept == [("all_reduce", 512 << 20)]
    assert memory.calls == ["empty_cache"]


def test_memory_of_a_strategy_is_what_its_steps_needed_beyond_what_was_there(memory: Memory) -> None:
    """On a GPU by the allocator; on a CPU there is no allocator to ask."""
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    assert (bench._begin_peak(cpu), bench._begin_peak(gpu)) == (0, 1 << 20)
    empty = StrategyMemory(1, 2, 3)
    assert bench._with_peak(empty, cpu, 1 << 20) is empty
    assert bench._with_peak(empty, gpu, 1 << 20).peak_bytes == 2 << 20
    assert memory.calls == ["reset_peak_memory_stats", "memory_allocated", "max_memory_allocated"]


def test_the_step_of_one_gpu_alone_ends_when_the_gpu_is_done(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, build, batch = torch.device("cpu"), build_transformer, batch_of
    monkeypatch.setattr(bench, "build_transformer", lambda shape, _: build(shape, cpu))
    monkeypatch.setattr(bench, "batch_of", lambda shape, step, _: batch(shape, step, cpu))
    waited: list[None] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(None))
    alone = bench.Alone(strategy_shape(1, on_gpu=False), torch.device("cuda", 0), parts=1)
    assert len(waited) == len(alone.losses) == STEPS


@pytest.mark.wide
def test_each_variant_of_a_strategy_has_a_peak_of_its_own(
    gpu: GpuRank, memory: Memory, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_parallel, "DistributedDataParallel", ddp_on_gpu_0)
    strategy = Bench(gpu, strategy_shape(1, on_gpu=False))
    run_checkpointing(gpu, strategy)
    sample = gpu.one(messages.StrategySample)
    assert sample.figures["plain_peak_bytes"] == sample.figures["checkpointed_peak_bytes"] == 2 << 20
    assert memory.calls.count("reset_peak_memory_stats") == 3  # the two passes that are compared, and the steps


def test_a_pipeline_on_gpus_is_paced_by_products_that_events_time(
    tmp_path: Path, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_SIDE", 8)
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *size, device: ones(*size))
    pace = pipeline._Pace(GpuRank(tmp_path))
    assert pace._products >= 1
    pace.forget()
    pace(2)
    assert pace.passed_ms() > 0


@pytest.mark.parametrize(("times_ms", "suspect"), [((10.0, 10.1, 10.2), None), ((10.0, 10.1, 20.0), 2)])
def test_a_slow_rank_computes_on_another_gpu_if_it_sees_that(
    times_ms: tuple[float, ...], suspect: int | None, tmp_path: Path, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, gpus=3)
    gpu = GpuRank(tmp_path, world_size=3, number=2)
    rounds = [[[ms] for ms in times_ms], [[0.0], [19.0], [10.2]]]
    monkeypatch.setattr(GpuRank, "gathered", lambda *_: rounds.pop(0), raising=False)
    placed: list[torch.device] = []
    to = torch.nn.Module.to

    def put(model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        placed.append(device)
        return to(model, "cpu")

    monkeypatch.setattr(torch.nn.Module, "to", put)
    monkeypatch.setattr(
        train_probe, "Data", lambda shape, batch, world_size, device: Data(shape, batch, world_size, gpu.device)
    )
    model = build_model(SMALL, gpu.device)
    placed.clear()
    swap = train_probe.swap_suspect(gpu, SMALL, model, 8, times_ms[2])
    if suspect is None:
        assert (swap, placed) == (None, [])
        return
    assert swap is not None
    assert (swap.suspect, swap.partner) == (2, 1)
    assert (swap.suspect_on_partners_gpu_ms, swap.partner_on_suspects_gpu_ms) == (10.2, 19.0)
    assert torch.device("cuda", 2) in placed  # of rank 1, after its own and that of rank 0


@pytest.mark.parametrize("error", ["CUDA out of memory.", "CUDA-capable device(s) is/are busy or unavailable"])
def test_a_gpu_that_takes_no_second_process_leaves_no_swap(
    error: str, tmp_path: Path, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, gpus=2)
    gpu = GpuRank(tmp_path, world_size=2, number=1)
    rounds = [[[10.0], [20.0]], [[12.0], [0.0]]]
    monkeypatch.setattr(GpuRank, "gathered", lambda *_: rounds.pop(0), raising=False)
    monkeypatch.setattr(train_probe, "_compute_ms", raising(RuntimeError(error)))
    assert train_probe.swap_suspect(gpu, SMALL, torch.nn.Linear(1, 1), 8, 20.0) is None
    assert gpu.barriers == 2  # both ranks have waited for each other all the same


def test_a_rank_that_sees_its_own_gpu_only_swaps_with_nobody(tmp_path: Path, memory: Memory) -> None:
    rank_of_two = GpuRank(tmp_path, world_size=2)
    assert train_probe.swap_suspect(rank_of_two, SMALL, torch.nn.Linear(1, 1), 8, 20.0) is None


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (None, None),
        ("CUDA error: no kernel image is available for execution on the device", "no kernel image"),
        ("The NVIDIA driver on your system is too old (found version 11040).", "too old"),
        ("CUDA-capable device(s) is/are busy or unavailable", "busy or unavailable"),
    ],
)
def test_a_rank_between_nodes_opens_its_gpu_first_and_answers_why_it_cannot(
    error: str | None, meaning: str | None, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ones(*_: object, **__: object) -> torch.Tensor:
        if error is not None:
            raise RuntimeError(error)
        return torch.zeros(1)

    monkeypatch.setattr(torch, "ones", ones)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    joined = InterNodeRank("nccl", "127.0.0.1")
    assert joined._device == torch.device("cuda", 0)
    answer = joined.open()
    assert memory.calls == ["set_device"]
    if meaning is None:
        assert isinstance(answer, Opened)
        waited: list[None] = []
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(None))
        joined._wait()
        assert waited == [None]
    else:
        assert isinstance(answer, InterNodeFailure)
        assert meaning in answer.text


def test_an_nccl_error_between_nodes_is_its_own_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "NCCL error in: ProcessGroupNCCL.cpp:77, unhandled system error\nLast error:\nCall to ibv_modify_qp failed"

    joined = InterNodeRank("gloo", "127.0.0.1")
    monkeypatch.setattr(joined, "_join", raising(RuntimeError(text)))
    answer = joined.measure(Rendezvous("key", 2, "127.0.0.1", 1, 1 << 20, 1.0, 9.0, rank=0))
    assert answer == InterNodeFailure("NCCL: Call to ibv_modify_qp failed")


def test_a_planned_strategy_is_verified_by_the_allocators_peak(
    gpu: GpuRank, memory: Memory, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: Any = SimpleNamespace(steps=2, tensor=1)
    built = SimpleNamespace(inner=torch.nn.Linear(2, 2), optimizer=SimpleNamespace(state={}))
    train = SimpleNamespace(step=lambda: 24, losses=[1.0])
    monkeypatch.setattr(verification, "Built", lambda *_: built)
    monkeypatch.setattr(verification, "_Train", lambda *_: train)
    figures = verification._measured(gpu, order, SimpleNamespace())  # type: ignore[arg-type]
    assert (figures.peak_bytes, figures.gradients_bytes, len(figures.step_s)) == (2 << 20, 24, 2)
    assert memory.calls == ["memory_allocated", "reset_peak_memory_stats", "max_memory_allocated"]


@pytest.mark.parametrize(("initialized", "method"), [(False, "fork-server"), (True, "fresh-interpreters")])
def test_a_starter_that_has_opened_cuda_forks_no_ranks(
    initialized: bool, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialized)
    monkeypatch.setattr(rank_starter, "_import_torch", lambda _: None)
    monkeypatch.setattr(os, "listdir", lambda _: ["1"])
    monkeypatch.setattr(rank_starter, "gc", SimpleNamespace(freeze=lambda: None, enable=lambda: None))
    assert rank_starter._load_torch({"method": "fork-server", "job": {}}, -1) == method


def seen_by_torch() -> FrameworkView:
    found: list[FrameworkView] = []
    answers: Any = SimpleNamespace(doing=str, found=lambda view: found.append(view))
    view_of("torch", answers)
    return found[0]


@pytest.mark.parametrize(
    ("uuids", "init_error", "visible", "opened"),
    [
        (("11", "GPU-22"), None, 2, ("GPU-11", "GPU-22")),
        (("MIG-11",), None, 1, ("MIG-11",)),  # a MIG list in CUDA_VISIBLE_DEVICES
        (("11", None), None, 2, Missing("it does not tell UUIDs", "unsupported")),
        ((), "CUDA driver version is insufficient for CUDA runtime version", 0, None),
    ],
)
def test_torch_in_a_users_process_opens_cuda_before_it_counts(
    uuids: tuple[str | None, ...],
    init_error: str | None,
    visible: int,
    opened: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opens(monkeypatch, *uuids, init=raising(RuntimeError(init_error)) if init_error else lambda: None)
    view = seen_by_torch()
    assert (view.gpus, view.error) == (visible, init_error)
    assert opened is None or view.uuids == opened
    monkeypatch.setattr(torch.version, "cuda", None)
    assert seen_by_torch().gpu_build is False


@pytest.mark.parametrize("where", ["entry point", "folder", "jaxlib", "nowhere"])
def test_jax_has_cuda_as_a_plugin_or_inside_an_older_jaxlib(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = SimpleNamespace(name="xla_cuda12", value="jax_plugins.xla_cuda12")
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point] if where == "entry point" else [])
    (tmp_path / ("xla_cuda12" if where == "folder" else "xla_other")).mkdir()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    jaxlib: Any = ModuleType("jaxlib")
    if where == "jaxlib":
        jaxlib.cuda = ModuleType("jaxlib.cuda")
    monkeypatch.setitem(sys.modules, "jaxlib", jaxlib)
    assert isolated_child._has_cuda_plugin() is (where != "nowhere")


def test_deepspeed_is_told_the_accelerator_and_the_ranks_own_gpu(
    tmp_path: Path, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[str] = []
    played: Any = ModuleType("deepspeed")
    played.ops = SimpleNamespace(__compatible_ops__={"shm_comm": True})
    played.init_distributed = lambda backend, **_: joined.append(backend)
    monkeypatch.setitem(sys.modules, "deepspeed", played)
    for name in ("DS_ACCELERATOR", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "9")
    for name in ("TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "TRITON_HOME"):
        monkeypatch.setenv(name, "")
    deepspeed._imported(GpuRank(tmp_path))
    assert (os.environ["DS_ACCELERATOR"], os.environ["LOCAL_RANK"], joined) == ("cuda", "0", ["nccl"])
    assert played.ops.__compatible_ops__ == {"shm_comm": False}


def test_a_launchers_processes_are_asked_which_gpus_each_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """srun gives each task its own list: indices, UUIDs or MIG instances."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    workers = LocalWorkers.__new__(LocalWorkers)
    workers.ranks = 3
    given = {1: "GPU-aa", 2: "MIG-bb"}
    workers._workers = {rank: (socket.socket(), WorkerHello(rank, visible)) for rank, visible in given.items()}
    assert workers.visible == ["0", "GPU-aa", "MIG-bb"]
    for worker, _ in workers._workers.values():
        worker.close()


def test_a_launchers_process_says_which_gpus_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-11,MIG-22")
    monkeypatch.setattr(local_workers, "leader_of", lambda _: worker)
    leader.shutdown(socket.SHUT_WR)  # it has no rank for this process
    placement: Any = SimpleNamespace(engine="srun", rank=1, ranks=2)
    assert local_workers.run_local_worker(placement) is None
    assert msgspec.json.decode(leader.recv(4096), type=WorkerHello).visible == "MIG-11,MIG-22"
    leader.close()
