"""The PCI bus, read from fake sysfs trees."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from gpudoctor.facts.model.gpu import PcieHop
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import PciDevice
from gpudoctor.facts.system.pci import read_path, read_pci
from tests.narrowed import missing, present
from tests.sysfs_tree import config_space, iommu_group, link, pci_device

ROOT_PORT = "pci0000:15/0000:15:01.0"
UPLINK = f"{ROOT_PORT}/0000:16:00.0"
DOWNLINK = f"{UPLINK}/0000:17:01.0"
GPU = f"{DOWNLINK}/0000:18:00.0"
BRIDGE: dict[str, Any] = {"vendor": "0x1000", "device": "0xc030", "pci_class": "0x060400", "driver": "pcieport"}


def switch_tree(root: Path, **gpu: Any) -> Path:
    """GPU, switch port, switch uplink (trained at half speed), root port."""
    pci_device(root, ROOT_PORT, **{**BRIDGE, "vendor": "0x8086", "device": "0x352a"}, config=config_space(0x1D))
    pci_device(root, UPLINK, **BRIDGE, link_now=("16.0 GT/s PCIe", "16"), config=config_space(None))
    pci_device(root, DOWNLINK, **BRIDGE, config=config_space(0x11))
    pci_device(root, GPU, **gpu)
    return root


def path_of(root: Path, bus_id: str = "0000:18:00.0") -> tuple[PcieHop, ...]:
    return present(read_path(root, bus_id))


def test_the_path_runs_from_the_gpu_to_the_root_port_and_shows_the_slow_uplink(tmp_path: Path) -> None:
    path = path_of(switch_tree(tmp_path), "00000000:18:00.0")
    assert [hop.bus_id for hop in path] == ["0000:18:00.0", "0000:17:01.0", "0000:16:00.0", "0000:15:01.0"]
    assert [hop.speed_gt_s for hop in path] == [32.0, 32.0, 16.0, 32.0]
    assert [hop.max_speed_gt_s for hop in path] == [32.0] * 4
    assert {(hop.width, hop.max_width) for hop in path} == {(16, 16)}
    assert (path[2].vendor_id, path[2].device_id, path[2].pci_class) == ("0x1000", "0xc030", "0x060400")


def test_acs_redirect_is_read_from_the_extended_capability_of_bridges(tmp_path: Path) -> None:
    gpu, downlink, uplink, root_port = path_of(switch_tree(tmp_path))
    assert gpu.acs_redirect == Missing("not a bridge", "unsupported")
    assert downlink.acs_redirect is False  # source validation and upstream forwarding redirect nothing
    assert uplink.acs_redirect is False  # no ACS capability at all
    assert root_port.acs_redirect is True


@pytest.mark.parametrize(("control", "redirects"), [(0x0, False), (0x4, True), (0x8, True), (0x53, False)])
def test_only_request_and_completion_redirect_count(tmp_path: Path, control: int, redirects: bool) -> None:
    pci_device(tmp_path, ROOT_PORT, **BRIDGE, config=config_space(control))
    pci_device(tmp_path, f"{ROOT_PORT}/0000:18:00.0")
    assert path_of(tmp_path)[1].acs_redirect is redirects


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (config_space(0x1D, size=64), "denied"),
        (config_space(0x1D, size=256), "absent"),
        (b"\xff" * 4096, "failed"),
        (config_space(None)[:0x100] + b"\x01\x00\x01\x10" + bytes(4096 - 0x104), "failed"),
    ],
    ids=["not root", "no extended space", "off the bus", "endless list"],
)
def test_acs_that_cannot_be_read_is_missing_with_its_kind(tmp_path: Path, config: bytes, kind: str) -> None:
    pci_device(tmp_path, ROOT_PORT, **BRIDGE, config=config)
    pci_device(tmp_path, f"{ROOT_PORT}/0000:18:00.0")
    assert missing(path_of(tmp_path)[1].acs_redirect).kind == kind


def test_a_bridge_without_config_file_or_with_a_broken_one_costs_only_acs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch_tree(tmp_path)
    (tmp_path / "sys/devices" / UPLINK / "config").unlink()

    def broken(file: int, count: int, offset: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", broken)
    _, downlink, uplink, _ = path_of(tmp_path)
    assert uplink.acs_redirect == Missing("config: not there", "absent")
    assert downlink.acs_redirect == Missing("config: Input/output error", "failed")
    assert downlink.width == 16


def test_bridges_hidden_by_the_hypervisor_leave_the_gpu_alone_and_its_link_unsupported(tmp_path: Path) -> None:
    pci_device(tmp_path, "pci0000:00/0000:00:1e.0", link_now=("Unknown", "0"), link_max=("Unknown", "255"))
    (gpu,) = path_of(tmp_path, "0000:00:1e.0")
    assert gpu.bus_id == "0000:00:1e.0"
    for leaf in (gpu.speed_gt_s, gpu.max_speed_gt_s, gpu.width, gpu.max_width):
        assert missing(leaf).kind == "unsupported"
    assert "255" in missing(gpu.max_width).reason


def test_a_gpu_that_left_the_bus_has_a_failed_link_and_keeps_its_path(tmp_path: Path) -> None:
    gpu = path_of(switch_tree(tmp_path, link_now=("Unknown", "63"), link_max=("Unknown speed", "255")))[0]
    assert gpu.speed_gt_s == Missing("current_link_speed reads 'Unknown'", "failed")
    assert gpu.width == Missing("current_link_width reads '63'", "failed")
    assert gpu.max_width == Missing("max_link_width reads '255'", "failed")


def test_a_bridge_without_link_files_is_absent_not_failed(tmp_path: Path) -> None:
    pci_device(tmp_path, ROOT_PORT, **BRIDGE, link_now=None, link_max=None)
    pci_device(tmp_path, f"{ROOT_PORT}/0000:18:00.0")
    assert missing(path_of(tmp_path)[1].width).kind == "absent"


def test_old_kernels_write_the_speed_without_fraction(tmp_path: Path) -> None:
    pci_device(tmp_path, "pci0000:00/0000:00:01.0", link_now=("8 GT/s", "8"), link_max=("2.5 GT/s PCIe", "1"))
    (gpu,) = path_of(tmp_path, "0000:00:01.0")
    assert (gpu.speed_gt_s, gpu.width, gpu.max_speed_gt_s, gpu.max_width) == (8.0, 8, 2.5, 1)


def test_aer_counts_are_the_kernels_total_or_else_the_sum(tmp_path: Path) -> None:
    correctable = "RxErr 3\nBadTLP 4\nBadDLLP 0\nTOTAL_ERR_COR 7"
    gpu = path_of(
        switch_tree(
            tmp_path,
            files={
                "aer_dev_correctable": correctable,
                "aer_dev_nonfatal": "Undefined 1\nCmpltTO 2",
                "aer_dev_fatal": "what is this",
            },
        )
    )[0]
    assert (gpu.aer_correctable, gpu.aer_nonfatal) == (7, 3)
    assert gpu.aer_fatal == Missing("aer_dev_fatal reads 'what is this'", "failed")


def test_an_empty_aer_file_is_failed_and_none_at_all_is_absent(tmp_path: Path) -> None:
    gpu = path_of(switch_tree(tmp_path, files={"aer_dev_correctable": ""}))[0]
    assert gpu.aer_correctable == Missing("aer_dev_correctable is empty", "failed")
    assert missing(gpu.aer_fatal).kind == "absent"


@pytest.mark.parametrize(("bus_id", "kind"), [("0000:99:00.0", "absent"), ("../../etc", "failed"), ("", "failed")])
def test_a_device_that_sysfs_does_not_have_is_missing(tmp_path: Path, bus_id: str, kind: str) -> None:
    assert missing(read_path(switch_tree(tmp_path), bus_id)).kind == kind


def test_only_nvidias_gpus_and_switches_are_listed_by_bus_id(tmp_path: Path) -> None:
    pci_device(tmp_path, "pci0000:00/0000:05:00.0", pci_class="0x068000", device="0x22a3", numa_node="-1")
    pci_device(tmp_path, "pci0000:00/0000:01:00.1", pci_class="0x040300", driver="snd_hda_intel")
    pci_device(tmp_path, "pci0000:00/0000:01:00.0", pci_class="0x030000", device="0x2684", driver=None)
    pci_device(tmp_path, "pci0000:00/0000:03:00.0", vendor="0x1a03", pci_class="0x030000", driver="ast")
    pci_device(tmp_path, "pci0000:00/0000:04:00.0", numa_node="1")
    pci_device(tmp_path, "pci0000:00/0000:04:00.4", numa_node="1")
    link(tmp_path, "/sys/devices/pci0000:00/0000:04:00.4/physfn", "/sys/devices/pci0000:00/0000:04:00.0")
    assert read_pci(tmp_path).nvidia_devices == (
        PciDevice("0000:01:00.0", "0x030000", "0x2684", driver=None, numa_node=0),
        PciDevice("0000:04:00.0", "0x030200", "0x2330", driver="nvidia", numa_node=1),
        PciDevice("0000:04:00.4", "0x030200", "0x2330", driver="nvidia", numa_node=1, virtual_function=True),
        PciDevice("0000:05:00.0", "0x068000", "0x22a3", driver="nvidia", numa_node=None),
    )


def test_without_a_pci_bus_nothing_is_said_of_devices_or_iommu(tmp_path: Path) -> None:
    bus = read_pci(tmp_path)
    assert isinstance(bus.nvidia_devices, Missing)
    assert missing(bus.iommu).kind == "absent"


def test_a_bus_without_nvidia_devices_is_empty_not_missing(tmp_path: Path) -> None:
    pci_device(tmp_path, "pci0000:00/0000:03:00.0", vendor="0x1a03", pci_class="0x030000", driver="ast")
    assert read_pci(tmp_path).nvidia_devices == ()


def gpu_and_nic(root: Path) -> None:
    pci_device(root, "pci0000:00/0000:01:00.0")
    pci_device(root, "pci0000:00/0000:02:00.0", vendor="0x15b3", pci_class="0x020000", driver="mlx5_core")


def test_no_groups_means_the_iommu_is_off(tmp_path: Path) -> None:
    gpu_and_nic(tmp_path)
    assert read_pci(tmp_path).iommu == "off"
    (tmp_path / "sys/kernel/iommu_groups").mkdir(parents=True)
    assert read_pci(tmp_path).iommu == "off"


@pytest.mark.parametrize(
    ("gpu_group", "expected"),
    [("identity", "passthrough"), ("DMA", "translated"), ("DMA-FQ", "translated"), ("unmanaged", "passthrough")],
)
def test_the_group_of_the_gpu_decides_and_not_that_of_the_network_card(
    tmp_path: Path, gpu_group: str, expected: str
) -> None:
    gpu_and_nic(tmp_path)
    iommu_group(tmp_path, 7, gpu_group, ["0000:01:00.0"])
    iommu_group(tmp_path, 8, "DMA" if expected == "passthrough" else "identity", ["0000:02:00.0"])
    assert read_pci(tmp_path).iommu == expected


def test_a_gpu_outside_of_every_group_has_no_iommu_before_it(tmp_path: Path) -> None:
    gpu_and_nic(tmp_path)
    iommu_group(tmp_path, 8, "DMA", ["0000:02:00.0"])
    assert read_pci(tmp_path).iommu == "off"


def test_without_gpus_all_groups_are_asked(tmp_path: Path) -> None:
    pci_device(tmp_path, "pci0000:00/0000:02:00.0", vendor="0x15b3", pci_class="0x020000")
    iommu_group(tmp_path, 1, "identity")
    assert read_pci(tmp_path).iommu == "passthrough"
    iommu_group(tmp_path, 2, "DMA-FQ")
    assert read_pci(tmp_path).iommu == "translated"


def test_an_iommu_whose_type_cannot_be_told_is_missing_never_passthrough(tmp_path: Path) -> None:
    gpu_and_nic(tmp_path)
    iommu_group(tmp_path, 7, "unknown", ["0000:01:00.0"])
    assert read_pci(tmp_path).iommu == Missing("IOMMU group 7 has the type 'unknown'", "failed")
    (tmp_path / "sys/kernel/iommu_groups/7/type").unlink()  # kernels before 5.3
    assert missing(read_pci(tmp_path).iommu).kind == "absent"


def test_groups_that_may_not_be_listed_are_missing(tmp_path: Path) -> None:
    gpu_and_nic(tmp_path)
    folder = tmp_path / "sys/kernel/iommu_groups"
    folder.parent.mkdir()
    folder.symlink_to(folder.name)  # ELOOP: neither absent nor readable
    assert missing(read_pci(tmp_path).iommu).kind == "failed"
