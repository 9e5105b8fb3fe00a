"""Which GPUs a job has: by bus id, since Slurm and the driver may count otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudoctor.slurm.quick_check import has_gpus, job_gpus


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for minor, bus in ((0, "0000:9b:00.0"), (1, "0000:1b:00.0"), (2, "0000:2b:00.0")):
        folder = tmp_path / "proc/driver/nvidia/gpus" / bus
        folder.mkdir(parents=True)
        text = f"Model: \t NVIDIA H100\nBus Location: \t {bus}\nDevice Minor: \t {minor}\n"
        (folder / "information").write_text(text)
    return tmp_path


def test_slurm_counts_device_files_and_the_driver_otherwise(root: Path) -> None:
    assert job_gpus("0,2", root) == "0000:9b:00.0,0000:2b:00.0"


@pytest.mark.parametrize("numbers", ["0,9", "MIG-1", "0,,1", "gpu0", "0;reboot"])
def test_gpus_that_cannot_be_told_are_none(root: Path, numbers: str) -> None:
    assert job_gpus(numbers, root) is None


def test_where_a_gpu_is_split_a_number_is_no_gpu(root: Path) -> None:
    """Slurm counts the parts: the second one is as like as not a part of GPU 0."""
    capabilities = root / "proc/driver/nvidia/capabilities"
    (capabilities / "mig").mkdir(parents=True)  # is always there
    (capabilities / "gpu2/mig").mkdir(parents=True)
    assert job_gpus("1", root) == "0000:1b:00.0"
    (capabilities / "gpu2/mig/gi3/ci0").mkdir(parents=True)
    assert job_gpus("1", root) is None


def test_without_the_drivers_list_the_numbers_stay(tmp_path: Path) -> None:
    assert job_gpus("0,2", tmp_path) == "0,2"


@pytest.mark.parametrize(
    ("vendor", "device_class", "is_gpu"),
    [("0x10de", "0x030200", True), ("0x10de", "0x040300", False), ("0x15b3", "0x020700", False)],
)
def test_a_gpu_on_the_bus_without_a_driver_is_a_gpu(
    tmp_path: Path, vendor: str, device_class: str, is_gpu: bool
) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:1b:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{device_class}\n")
    assert has_gpus(tmp_path) == is_gpu


def test_a_device_file_is_a_gpu(tmp_path: Path) -> None:
    assert not has_gpus(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    assert has_gpus(tmp_path)
