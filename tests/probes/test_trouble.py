"""What errors of torch, NCCL and CUDA are told as. The texts are those of the libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gpudoctor.facts.measurements import TorchView  # noqa: E402
from gpudoctor.probes import messages, rank  # noqa: E402
from gpudoctor.probes.board import Board  # noqa: E402
from gpudoctor.probes.messages import Job, Trouble  # noqa: E402
from gpudoctor.probes.trouble import trouble  # noqa: E402

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
            "does not accept another process",
        ),
        ("CUDA error: uncorrectable ECC error encountered\nCUDA kernel", "crash", "uncorrectable ECC error"),
        (
            "[enforce fail at /b/gloo/tcp/device.cc:84] ifa != nullptr. Unable to find address for: lo",
            "error",
            "ifa != nullptr. Unable to find address for: lo",
        ),
        ("", "error", "RuntimeError"),
    ],
)
def test_an_error_is_sorted_and_told_in_its_most_telling_line(text: str, kind: str, words: str) -> None:
    found = trouble(RuntimeError(text), blocked=False)
    assert (found.kind, found.blocked) == (kind, False)
    assert words in found.text
    assert "NCCLUtils" not in found.text
    assert "enforce fail" not in found.text


def test_memory_that_runs_out_is_no_plain_error() -> None:
    assert trouble(torch.cuda.OutOfMemoryError("CUDA out of memory."), blocked=True) == Trouble(
        "out-of-memory", "CUDA out of memory.", True
    )


class _OneGpu(rank.Rank):
    """A rank that believes to be on a GPU and keeps what it would have sent."""

    def __init__(self, folder: Path) -> None:
        job = Job("nccl", 1, ("train",), str(folder), 10.0, gpu_uuids=("GPU-aa",))
        Board(folder / "board", 1).close()
        super().__init__(0, job, fd=-1)
        self.sent: list[messages.Message] = []

    def send(self, message: messages.Message) -> None:
        self.sent.append(message)


_VIEW = TorchView("2.9.1+cu128", "12.8", "2.27.5", True, 1, ("GPU-aa",))


@pytest.fixture
def one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _OneGpu:
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (6, 0))
    return _OneGpu(tmp_path)


def _refuse(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def ones(*_: object, **__: object) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(torch, "ones", ones)


def test_a_torch_without_code_for_the_gpu_is_told_in_the_view_of_torch(
    one_gpu: _OneGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refuse(monkeypatch, "CUDA error: no kernel image is available for execution on the device")
    with pytest.raises(rank.CannotRunError, match=r"no code for a GPU of compute capability 6\.0"):
        rank.require_usable(one_gpu, _VIEW)
    [seen] = one_gpu.sent
    assert isinstance(seen, messages.TorchSeen)
    assert "no code for a GPU" in (seen.view.error or "")


def test_a_gpu_in_exclusive_mode_that_is_taken_is_not_torchs_fault(
    one_gpu: _OneGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refuse(monkeypatch, "CUDA error: CUDA-capable device(s) is/are busy or unavailable")
    with pytest.raises(RuntimeError, match="busy or unavailable"):
        rank.require_usable(one_gpu, _VIEW)
    assert one_gpu.sent == []


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"torch": "2.3.1+cu121"}, rank.CannotRunError, "too old"),
        ({"cuda": None}, rank.CannotRunError, "has no CUDA"),
        ({"error": "The NVIDIA driver on your system is too old"}, RuntimeError, "driver on your system is too old"),
        ({"device_count": 0}, RuntimeError, "sees 0 GPUs"),
        ({"visible_uuids": ("GPU-bb",)}, RuntimeError, "opened GPU-bb where GPU-aa was asked for"),
    ],
)
def test_a_torch_that_does_not_fit_is_found_before_anything_is_run(
    one_gpu: _OneGpu, change: dict[str, object], error: type[Exception], words: str
) -> None:
    view = TorchView(**{f: getattr(_VIEW, f) for f in _VIEW.__struct_fields__} | change)
    with pytest.raises(error, match=words):
        rank.require_usable(one_gpu, view)
