"""GPUs that a device cgroup keeps from this process, as a Slurm job with ConstrainDevices sees them."""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpudoctor.facts.nvml.read_node import is_denied, is_excluded, read_hidden_gpus
from tests.facts.nvml_nodes import make_node, read
from tests.narrowed import missing, present
from tests.sysfs_tree import write

GPUS = "/proc/driver/nvidia/gpus"
BUS_IDS = ("0000:1b:00.0", "0000:2b:00.0", "0000:3b:00.0", "0000:4b:00.0")


def kernel_module_drives(root: Path, minors: dict[str, int]) -> None:
    """The folder of each GPU as the kernel module shows it, to every process, and its device file."""
    for bus_id, minor in minors.items():
        text = f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 311\nDevice Minor: \t {minor}\nGPU Excluded:\t No"
        write(root, {f"{GPUS}/{bus_id}/information": text, f"/dev/nvidia{minor}": ""})


@pytest.fixture
def denied_minors(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Minor numbers whose device files the kernel refuses; the files may not be opened to find out."""
    minors: set[int] = set()
    real = os.access

    def access(path: Any, mode: int, **options: Any) -> bool:
        name = Path(path).name
        if name.startswith("nvidia") and name[6:].isdecimal() and int(name[6:]) in minors:
            return False
        return real(path, mode, **options)

    monkeypatch.setattr(os, "access", access)
    return minors


def denied_gpus(root: Path, shown: Container[str] = ()) -> tuple[str, ...]:
    hidden = present(read_hidden_gpus(root, shown))
    return tuple(bus_id for bus_id, information in hidden.items() if is_denied(root, information))


def test_a_gpu_whose_device_file_is_refused_is_denied_by_its_minor_number(
    tmp_path: Path, denied_minors: set[int]
) -> None:
    # the kernel module does not number its GPUs by bus id
    kernel_module_drives(tmp_path, dict(zip(BUS_IDS, (2, 3, 0, 1), strict=True)))
    denied_minors |= {2, 1}
    assert denied_gpus(tmp_path) == (BUS_IDS[0], BUS_IDS[3])
    assert denied_gpus(tmp_path, shown={BUS_IDS[0]}) == (BUS_IDS[3],)


def test_a_gpu_without_a_device_file_or_a_minor_number_is_not_called_denied(
    tmp_path: Path, denied_minors: set[int]
) -> None:
    kernel_module_drives(tmp_path, dict(zip(BUS_IDS, range(4), strict=True)))
    (tmp_path / "dev/nvidia2").unlink()
    write(tmp_path, {f"{GPUS}/{BUS_IDS[3]}/information": "Device Minor: ?"})
    denied_minors |= {0, 1, 2, 3}
    assert denied_gpus(tmp_path) == BUS_IDS[:2]
    kernel_module_drives(tmp_path, {"not-a-gpu": 0})
    assert denied_gpus(tmp_path) == BUS_IDS[:2]


def test_a_gpu_that_an_option_keeps_from_use_is_excluded(tmp_path: Path) -> None:
    kernel_module_drives(tmp_path, dict(zip(BUS_IDS, range(4), strict=True)))
    file = tmp_path / f"{GPUS}/{BUS_IDS[2]}/information".lstrip("/")
    file.write_text(file.read_text().replace("Excluded:\t No", "Excluded:\t Yes"))
    hidden = present(read_hidden_gpus(tmp_path, shown=BUS_IDS[:2]))
    assert {bus_id: is_excluded(information) for bus_id, information in hidden.items()} == {
        BUS_IDS[2]: True,
        BUS_IDS[3]: False,
    }
    assert read_hidden_gpus(tmp_path, shown=BUS_IDS) == {}


def test_without_the_kernel_modules_folder_nothing_is_known(tmp_path: Path) -> None:
    assert missing(read_hidden_gpus(tmp_path, shown=())).kind == "absent"


def test_device_files_that_may_be_opened_deny_nothing(tmp_path: Path) -> None:
    kernel_module_drives(tmp_path, dict(zip(BUS_IDS, range(4), strict=True)))
    assert denied_gpus(tmp_path) == ()


def test_of_a_job_with_two_of_four_gpus_the_other_two_are_denied(root: Path, denied_minors: set[int]) -> None:
    job = make_node(2)
    kernel_module_drives(root, {**{gpu.bus_id: gpu.index for gpu in job.gpus}, BUS_IDS[2]: 2, BUS_IDS[3]: 3})
    denied_minors |= {2, 3}
    driver, heard, _ = read(root, job)
    assert driver.denied_gpus == (BUS_IDS[2], BUS_IDS[3])
    assert set(heard.gpus) == {0, 1}


def test_a_gpu_that_an_operator_drained_is_told_and_another_hidden_one_is_not(root: Path) -> None:
    node = make_node(2)
    kernel_module_drives(root, {**{gpu.bus_id: gpu.index for gpu in node.gpus}, BUS_IDS[2]: 2, BUS_IDS[3]: 3})
    node = replace(node, driver=replace(node.driver, drained_gpus=(BUS_IDS[3],)))
    driver, _, _ = read(root, node)
    assert driver.drained_gpus == (BUS_IDS[3],)
