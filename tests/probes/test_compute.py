"""The compute probe: real on CPU ranks, its steps on a played GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.needs import module

torch = module("torch")

from gpudoctor.facts.model.measured_hardware import ComputeRank  # noqa: E402
from gpudoctor.facts.model.measurements import Measurements  # noqa: E402
from gpudoctor.facts.model.missing import Missing  # noqa: E402
from gpudoctor.probes.compute import correctness  # noqa: E402
from gpudoctor.probes.compute import probe as compute  # noqa: E402
from gpudoctor.probes.runner import messages, torch_device  # noqa: E402
from gpudoctor.probes.runner.launch import ProbePlan  # noqa: E402
from tests.probes.conftest import Played, measure, raising  # noqa: E402
from tests.probes.fake_gpus import cpu_rank  # noqa: E402

pytestmark = pytest.mark.usefixtures("forked_starters")

MIB = 1 << 20


@pytest.fixture(scope="module")
def run() -> Measurements:
    plan = ProbePlan("gloo", ranks=2, probes=("link", "compute"), level="full", inject=("wrong-bits=1",))
    return measure(plan)


def test_cpu_ranks_deliver_every_figure(run: Measurements) -> None:
    assert run.problems == ()
    assert [each.rank for each in run.compute] == [0, 1]
    for each in run.compute:
        [gemm] = each.gemms
        assert (gemm.dtype, gemm.size) == ("fp32", 256)
        assert gemm.tflops > gemm.tflops_mad >= 0
        assert isinstance(each.copy_gb_s, float)
        assert isinstance(each.triad_gb_s, float)
        assert (each.pattern_bytes, each.pattern_wrong_bytes, each.pattern_passes) == (64 * MIB, 0, 3)
        assert each.multiprocessors == Missing("a CPU rank")


def test_equal_work_gave_equal_bits_but_for_the_rank_that_was_told_to_err(run: Measurements) -> None:
    first, second = (each.fingerprints for each in run.compute)
    assert (len(first), len(set(first)), len(second), len(set(second))) == (5, 1, 5, 1)
    assert first[0] != second[0]
    assert run.injected == ("wrong-bits=1",)


def test_without_an_injection_a_repeat_gives_the_same_bits_and_one_flipped_bit_others(tmp_path: Path) -> None:
    one = cpu_rank(tmp_path)
    first, *others = correctness.fingerprints(one)
    assert set(others) == {first}
    task = correctness._task(one)
    shape = (task.inputs, task.width)
    start = [torch.ones(shape) / 9, torch.ones(task.width, task.width) / 99, torch.ones(shape[::-1]) / 99]
    data = torch.ones(task.batch, task.inputs)
    honest = correctness._train_once(one, task, start, data)
    assert correctness._train_once(one, task, start, data) == honest, "the weights it starts from stay as they are"
    data[3, 3] += 0.01
    assert correctness._train_once(one, task, start, data) != honest


def test_the_deterministic_mode_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []

    def train(*_: object) -> str:
        modes.append(torch.get_deterministic_debug_mode())
        return "x"

    monkeypatch.setattr(correctness, "_train_once", train)
    assert correctness.fingerprints(cpu_rank(tmp_path)) == ("x",) * 5
    assert (set(modes), torch.get_deterministic_debug_mode()) == ({2}, 0)


@pytest.mark.parametrize(("word", "wrong"), [(0, 1), (-1, 1)])
def test_a_byte_that_memory_loses_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: int, wrong: int
) -> None:
    one = cpu_rank(tmp_path)
    spoilt: list[Any] = []
    chunks = correctness._chunks(one)
    monkeypatch.setattr(correctness, "_chunks", lambda _rank: chunks)

    def synchronize() -> None:
        if not spoilt:  # after the first pattern was written
            chunks[word][7] ^= 0xFF
            spoilt.append(True)

    monkeypatch.setattr(one, "synchronize", synchronize)
    found = correctness.check_memory(one)
    assert (found.wrong_bytes, found.passes, found.covered_bytes) == (wrong, 3, 64 * MIB)


def test_a_cell_that_two_addresses_write_to_shows_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = cpu_rank(tmp_path)
    shared = torch.empty(MIB, dtype=torch.int64)
    monkeypatch.setattr(correctness, "_chunks", lambda _rank: [shared, shared])
    assert correctness.check_memory(one).wrong_bytes >= MIB, "constants look right, numbers do not"


def test_after_the_time_box_no_further_pattern_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correctness, "_TIME_BOX_S", -1.0)
    assert correctness.check_memory(cpu_rank(tmp_path)).passes == 1


def test_most_of_a_gpus_free_memory_is_covered_and_less_where_another_takes_it(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = played(free_bytes=256 * MIB)
    found = correctness.check_memory(one)
    assert 0.8 * 256 * MIB <= found.covered_bytes <= 0.85 * 256 * MIB
    honest, given = torch.empty, iter(range(99))

    def scarce(*args: Any, **options: Any) -> Any:
        if next(given) == 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return honest(*args, **options)

    monkeypatch.setattr(torch, "empty", scarce)
    assert correctness.check_memory(one).covered_bytes == 2 * 8 * MIB
    monkeypatch.setattr(torch, "empty", raising(torch.cuda.OutOfMemoryError("CUDA out of memory.")))
    with pytest.raises(torch.cuda.OutOfMemoryError):
        correctness.check_memory(one)


def test_a_gpu_that_shares_the_hosts_memory_leaves_half_of_it(played: Played) -> None:
    assert correctness.check_memory(played(free_bytes=256 * MIB, integrated=True)).covered_bytes == 128 * MIB


@pytest.mark.parametrize(
    ("capability", "names"),
    [
        ((9, 0), ["bf16", "fp16", "tf32"]),
        ((8, 0), ["bf16", "fp16", "tf32"]),
        ((7, 5), ["fp16"]),
        ((6, 1), ["fp16", "fp32"]),
    ],
)
def test_what_a_gpu_multiplies_follows_from_its_compute_capability(
    played: Played, capability: tuple[int, int], names: list[str]
) -> None:
    kinds = compute._kinds(played(capability=capability))
    assert [kind.name for kind in kinds] == names
    assert kinds[0].seconds == max(kind.seconds for kind in kinds) == 2.0


def test_matrices_shrink_until_they_fit(played: Played) -> None:
    for free, size in ((80 << 30, 8192), (2 << 30, 8192), (1 << 30, 4096), (0, 1024)):
        one = played(free_bytes=free)
        assert compute._gemm_size(one, compute._kinds(one)[0]) == size


class _Lap:
    """A stopwatch for which every piece of work takes a thousandth of a second."""

    pieces = 0

    def __init__(self, _rank: object) -> None:
        self._from = _Lap.pieces

    def stop(self) -> Any:
        return SimpleNamespace(worked_ms=float(_Lap.pieces - self._from))


def test_rates_follow_from_the_time_of_one_piece(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    one = played(free_bytes=64 * MIB)
    monkeypatch.setattr(compute, "_SMALLEST_BUFFER", MIB)
    monkeypatch.setattr(compute, "Stopwatch", _Lap)
    monkeypatch.setattr(torch.Tensor, "copy_", lambda target, _source: _count(target))
    monkeypatch.setattr(torch, "add", lambda *_, alpha, out: _count(out))
    copy_gb_s, triad_gb_s = compute._memory_rates(one)
    buffer = 8 * MIB  # a fifth of what is free, as a power of two
    assert copy_gb_s == pytest.approx(2 * buffer / 1e-3 / 1e9)
    assert triad_gb_s == pytest.approx(3 * buffer / 1e-3 / 1e9)
    monkeypatch.setattr(torch, "mm", lambda *_, out: _count(out))
    monkeypatch.setattr(compute, "_gemm_size", lambda *_: 64)
    before = torch.get_float32_matmul_precision()
    gemm = compute._gemm(one, compute._Kind("tf32", torch.float32, "high", 0.5))
    assert gemm.tflops == pytest.approx(2 * 64**3 / 1e-3 / 1e12)
    assert gemm.tflops_mad == 0
    assert torch.get_float32_matmul_precision() == before


def _count(result: Any) -> Any:
    _Lap.pieces += 1
    return result


def test_a_gpu_that_is_nearly_full_has_no_rate_of_its_cache_for_one_of_its_memory(played: Played) -> None:
    one = played(free_bytes=200 * MIB)
    why = Missing("200 MiB of memory are free: buffers that fit would stay in its cache", "failed")
    assert (compute._memory_rates(one), one.barriers) == ((why, why), 0)


def test_no_room_for_three_buffers_costs_the_two_rates_only(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    one = played()
    monkeypatch.setattr(compute, "_SMALLEST_BUFFER", MIB)
    monkeypatch.setattr(torch, "empty", raising(torch.cuda.OutOfMemoryError("CUDA out of memory.\nmore")))
    rates = compute._memory_rates(one)
    why = Missing("no memory for three buffers of 8 MiB: CUDA out of memory.", "failed")
    assert (rates, one.barriers) == ((why, why), 2)


def test_on_a_played_gpu_the_whole_probe_runs_and_gives_all_memory_back(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = played(free_bytes=32 * MIB)
    given_back: list[None] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given_back.append(None))
    monkeypatch.setattr(compute, "_SMALLEST_BUFFER", MIB)
    monkeypatch.setattr(compute, "_gemm_size", lambda *_: 16)
    monkeypatch.setattr(compute, "_laps_ms", lambda _rank, work, _seconds: [float(bool(work() is not None))])
    monkeypatch.setattr(correctness, "_task", lambda _rank: correctness._Task(4, 4, 4, torch.bfloat16))
    compute.run_compute(one)
    found: ComputeRank = one.one(messages.ComputeSample).compute
    assert [gemm.dtype for gemm in found.gemms] == ["bf16", "fp16", "tf32"]
    assert len(set(found.fingerprints)) == 1
    assert (found.multiprocessors, found.pattern_wrong_bytes) == (132, 0)
    assert given_back


@pytest.mark.parametrize(("free", "width"), [(80 << 30, 4096), (1 << 30, 1024)])
def test_the_step_that_is_compared_fits_the_smallest_gpu(played: Played, free: int, width: int) -> None:
    assert correctness._task(played(free_bytes=free)).width == width
    assert correctness._task(played(free_bytes=free, capability=(7, 0))).dtype is torch.float16


def test_memory_that_runs_out_is_known_by_its_class_or_words() -> None:
    assert torch_device.out_of_memory(torch.cuda.OutOfMemoryError("x"))
    assert torch_device.out_of_memory(RuntimeError("CUDA error: out of memory"))
    assert not torch_device.out_of_memory(RuntimeError("CUDA error: launch failure"))
