"""The fabric manager's service, read without systemd from fake trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system.services import UNIT, read_fabric_manager
from tests.narrowed import missing, present
from tests.sysfs_tree import write

SLICE = "/sys/fs/cgroup/system.slice"
UNIT_FILE = f"/lib/systemd/system/{UNIT}"
LOG = """[Jan 07 2025 10:11:12] [INFO] [tid 9] Fabric Manager version 535.129.03 is running with
[Jan 07 2025 10:11:14] [ERROR] [tid 9] an error of the start before
[Jan 09 2025 10:11:12] [INFO] [tid 11] Fabric Manager version 570.172.08 is running with
[Jan 09 2025 10:11:13] [INFO] [tid 11] Successfully configured all the available NVSwitches
[Jan 09 2025 12:00:00] [ERROR] [tid 12] detected NVSwitch fatal error 12028 on NVSwitch pci 00000000:05:00.0
"""


@pytest.mark.parametrize("mount", ["", "unified/", "systemd/"])
def test_a_control_group_with_processes_is_a_service_that_runs(tmp_path: Path, mount: str) -> None:
    write(tmp_path, {f"/sys/fs/cgroup/{mount}system.slice/{UNIT}/cgroup.procs": "4711"})
    assert read_fabric_manager(tmp_path).service == "active"


def test_without_processes_it_does_not_run_and_without_a_unit_it_is_not_there(tmp_path: Path) -> None:
    write(tmp_path, {f"{SLICE}/ssh.service/cgroup.procs": "1"})
    assert read_fabric_manager(tmp_path).service == "not-found"
    write(tmp_path, {UNIT_FILE: "[Unit]", f"{SLICE}/{UNIT}/cgroup.procs": b""})
    assert read_fabric_manager(tmp_path).service == "inactive"


def test_in_a_container_nothing_tells_of_the_hosts_services(tmp_path: Path) -> None:
    write(tmp_path, {"/sys/fs/cgroup/cgroup.procs": "1", UNIT_FILE: "[Unit]"})
    facts = read_fabric_manager(tmp_path)
    assert missing(facts.service).kind == "absent"
    assert isinstance(facts.version, Missing)


def test_the_services_of_a_container_are_not_the_machines(tmp_path: Path) -> None:
    """As in LXC, which starts a systemd of its own."""
    write(tmp_path, {f"{SLICE}/ssh.service/cgroup.procs": "1", "/proc/1/environ": b"container=lxc\0"})
    assert isinstance(read_fabric_manager(tmp_path).service, Missing)


def test_one_that_runs_in_the_container_of_the_driver_is_active_with_a_log_of_its_own(tmp_path: Path) -> None:
    """As GPU Operator starts it; what lies in /var/log is of an older installation."""
    write(tmp_path, {f"{SLICE}/ssh.service/cgroup.procs": "1", "/proc/4711/comm": "nv-fabricmanage\n"})
    write(tmp_path, {"/proc/4712/comm": "python3\n", "/proc/uptime": "1 1", "/var/log/fabricmanager.log": LOG})
    assert read_fabric_manager(tmp_path).service == "not-found"
    (tmp_path / "proc/driver/nvidia-nvswitch").mkdir(parents=True)
    facts = read_fabric_manager(tmp_path)
    assert facts.service == "active"
    assert isinstance(facts.version, Missing)
    assert isinstance(facts.errors, Missing)


def test_the_log_tells_the_version_that_runs_and_the_errors_since_it_started(tmp_path: Path) -> None:
    write(tmp_path, {"/var/log/fabricmanager.log": LOG})
    facts = read_fabric_manager(tmp_path)
    assert facts.version == "570.172.08"
    [error] = present(facts.errors)
    assert "fatal error 12028" in error
