"""How errors of torch, NCCL and CUDA are reported. The texts are those of the libraries."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.needs import module

torch = module("torch")

from gpudoctor.facts.model.measurements import TorchView  # noqa: E402
from gpudoctor.probes.runner import messages, torch_device  # noqa: E402
from gpudoctor.probes.runner.messages import RankFailure  # noqa: E402
from gpudoctor.probes.runner.torch_device import rank_failure  # noqa: E402
from tests.probes.conftest import raising  # noqa: E402
from tests.probes.fake_gpus import GpuRank, opens  # noqa: E402

_NCCL_SHM = """NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled system error
ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
Last error:
Error while creating shared memory segment /dev/shm/nccl-A1b2C3 (size 9637888), error: No space left on device (28)
"""


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (_NCCL_SHM, "error", "NCCL: Error while creating shared memory segment /dev/shm/nccl-A1b2C3"),
        (
            "NCCL error in: /x/NCCLUtils.cpp:77, unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'",
            "out-of-memory",
            "NCCL: Cuda failure 2 'out of memory'",
        ),
        (
            "CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCUDA kernel errors might be",
            "refused",
            "does not accept a process",
        ),
        ("CUDA error: uncorrectable ECC error encountered\nCUDA kernel", "crash", "uncorrectable ECC error"),
        (
            "[enforce fail at /b/gloo/tcp/device.cc:84] ifa != nullptr. Unable to find address for: lo",
            "error",
            "ifa != nullptr. Unable to find address for: lo",
        ),
        ("", "error", "RuntimeError"),
        ("CUDA error: uncorrectable NVLink error detected during the execution", "crash", "an NVLink of the GPU"),
        ("CUDA error: an illegal memory access was encountered\nCUDA kernel", "crash", "memory that is not its own"),
        ("CUDA error: unspecified launch failure", "crash", "stopped in the middle"),
        ("CUDA error: misaligned address", "crash", "an address that cannot be"),
        ("CUDA error: an illegal instruction was encountered", "crash", "does not exist"),
        ("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", "crash", "fabricmanager"),
        ("CUDA error: device-side assert triggered", "error", "refused its input"),
        ("CUDA error: the launch timed out and was terminated", "error", "drives a screen"),
        ("CUDA error: all CUDA-capable devices are busy or unavailable", "refused", "not accept a process"),
        ("CUDA driver version is insufficient for CUDA runtime version", "error", "the driver is too old"),
        (
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "out-of-memory",
            "no memory left",
        ),
        (
            "NCCL error in: /x/NCCLUtils.cpp:77, invalid usage\nLast error:\n"
            "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 10",
            "error",
            "two ranks were given the same GPU (NCCL: Duplicate GPU detected",
        ),
        (
            "NCCL error in: /x/NCCLUtils.cpp:77, unhandled cuda error\nLast error:\n"
            "Cuda failure 214 'uncorrectable ECC error encountered'",
            "crash",
            "an error in its memory that ECC cannot correct (NCCL: Cuda failure 214",
        ),
    ],
)
def test_an_error_is_sorted_and_told_in_its_most_telling_line(text: str, kind: str, words: str) -> None:
    found = rank_failure(RuntimeError(text), blocked=True)
    assert found.kind == kind
    assert words in found.text
    assert "NCCLUtils" not in found.text
    assert "enforce fail" not in found.text
    assert found.blocked is (kind == "error"), "what a GPU did shows where its rank waits, and is not the others' doing"
    assert not rank_failure(RuntimeError(text), blocked=False).blocked


_FULL = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.02 GiB "
    "is free. {who}Of the allocated memory 9.08 GiB is allocated by PyTorch, and 9.35 GiB is reserved by PyTorch."
)
_SELF = "Including non-PyTorch memory, this process has {gib} GiB memory in use. "


def _gpu_with_1_gib_free(monkeypatch: pytest.MonkeyPatch, *, reserved_gib: float = 0.0) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 30, 79 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: int(reserved_gib * 2**30))


def test_memory_that_a_rank_used_up_by_itself_is_its_own_doing(monkeypatch: pytest.MonkeyPatch) -> None:
    _gpu_with_1_gib_free(monkeypatch)
    error = torch.cuda.OutOfMemoryError(_FULL.format(who=_SELF.format(gib=77.4)))
    assert rank_failure(error, blocked=True) == RankFailure(
        "out-of-memory",
        "CUDA out of memory. Tried to allocate 2.00 GiB. It has a total capacity of 79.11 GiB of which 1.02 GiB "
        "is free.",
        blocked=False,
    )


def test_memory_that_others_hold_is_not_the_nodes_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    _gpu_with_1_gib_free(monkeypatch)
    stranger = "Process 4711 has 70.00 GiB memory in use. "
    found = rank_failure(torch.cuda.OutOfMemoryError(_FULL.format(who=stranger + _SELF.format(gib=7.5))), blocked=False)
    assert found.kind == "error"
    assert found.text.startswith("70.5 GiB of the GPU's memory are held by others (CUDA out of memory.")


@pytest.mark.parametrize(("reserved_gib", "kind"), [(74.0, "out-of-memory"), (7.0, "error")])
def test_where_torch_does_not_say_what_it_holds_its_allocator_does(
    reserved_gib: float, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _gpu_with_1_gib_free(monkeypatch, reserved_gib=reserved_gib)
    assert rank_failure(RuntimeError("NCCL error: x\nLast error:\nCuda failure 2 'out of memory'"), False).kind == kind


def test_a_host_without_memory_is_told_as_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    _gpu_with_1_gib_free(monkeypatch)
    assert rank_failure(MemoryError(), blocked=True).text == "the host has no memory left (MemoryError)"
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50, dtype=torch.uint8)
    found = rank_failure(caught.value, blocked=False)
    assert found.kind == "out-of-memory"
    assert found.text.startswith("the host has no memory left (err == 0. DefaultCPUAllocator: can't allocate")


_VIEW = TorchView("2.9.1+cu128", "12.8", "2.27.5", True, 1, ("GPU-0",))


@pytest.fixture
def one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuRank:
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (6, 0))
    return GpuRank(tmp_path)


def test_a_torch_without_code_for_the_gpu_is_told_in_the_view_of_torch(
    one_gpu: GpuRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = RuntimeError("CUDA error: no kernel image is available for execution on the device")
    monkeypatch.setattr(torch, "ones", raising(error))
    with pytest.raises(torch_device.UnusableTorchError, match=r"no code for a GPU of compute capability 6\.0"):
        torch_device.require_usable(one_gpu, _VIEW)
    assert "no code for a GPU" in one_gpu.one(messages.TorchSeen).view.error


def test_a_gpu_in_exclusive_mode_that_is_taken_is_not_torchs_fault(
    one_gpu: GpuRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable")
    monkeypatch.setattr(torch, "ones", raising(error))
    with pytest.raises(RuntimeError, match="busy or unavailable"):
        torch_device.require_usable(one_gpu, _VIEW)
    assert one_gpu.sent == []


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"torch": "2.3.1+cu121"}, torch_device.UnusableTorchError, "too old"),
        ({"cuda": None}, torch_device.UnusableTorchError, "has no CUDA"),
        ({"error": "The NVIDIA driver on your system is too old"}, RuntimeError, "driver on your system is too old"),
        ({"device_count": 0}, RuntimeError, "sees 0 GPUs"),
        ({"visible_uuids": ("GPU-bb",)}, RuntimeError, "opened GPU-bb where GPU-0 was asked for"),
    ],
)
def test_a_torch_that_does_not_fit_is_found_before_anything_is_run(
    one_gpu: GpuRank, change: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        torch_device.require_usable(one_gpu, msgspec.structs.replace(_VIEW, **change))


def test_why_cuda_does_not_start_is_told_and_not_only_that_it_counts_no_gpu(
    one_gpu: GpuRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An 8-GPU H100 node without its fabric manager: cudaGetDeviceCount answers 802, and torch counts 0 GPUs."""
    text = "Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"
    opens(monkeypatch, init=raising(RuntimeError(text)))
    with pytest.raises(RuntimeError, match="802") as caught:
        torch_device.require_usable(one_gpu, torch_device.torch_view(one_gpu))
    assert rank_failure(caught.value, blocked=False).kind == "crash"
