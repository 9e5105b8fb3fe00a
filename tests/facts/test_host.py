"""The host, read from fake /proc and /sys trees, and this very machine."""

from __future__ import annotations

import errno
import os
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Host, NumaNode
from gpudoctor.facts.system.environment import node_name
from gpudoctor.facts.system.host import read_host
from tests.narrowed import missing, present
from tests.sysfs_tree import host_of, kind_of, meminfo, numa_node, write

UNLIMITED_V1 = "9223372036854771712"  # 0x7ffffffffffff000
BARE_CPU = "processor\t: 0\nflags\t\t: fpu vme sse2\n\nprocessor\t: 1\nflags\t\t: fpu vme sse2"
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max processes             4096                 8192                 processes
Max open files            1024                 1048576              files
Max locked memory         65536                unlimited            bytes"""


# --- names, memory, time -----------------------------------------------------------------------


def test_names_versions_and_times(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "/proc/sys/kernel/hostname": "node12",
            "/proc/sys/kernel/osrelease": "5.15.0-1063-nvidia",
            "/proc/sys/kernel/arch": "x86_64",
            "/etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.4 LTS"',
            "/proc/uptime": "123456.78 99.00",
            "/proc/loadavg": "3.50 2.00 1.00 2/999 4242",
        },
    )
    meminfo(tmp_path, total_mib=2048, available_mib=1024, swap_mib=512)
    host = read_host(tmp_path)
    assert (host.hostname, host.kernel, host.machine) == ("node12", "5.15.0-1063-nvidia", "x86_64")
    assert (host.os_name, host.uptime_s, host.load_1m) == ("Ubuntu 22.04.4 LTS", 123456.78, 3.5)
    assert (host.ram_mib, host.ram_available_mib, host.swap_mib, host.swap_free_mib) == (2048, 1024, 512, 512)


def test_a_pod_is_called_as_its_node_where_its_manifest_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUDOCTOR_NODE_NAME", "gpu-node-7")
    write(tmp_path, {"/proc/sys/kernel/hostname": "node12"})
    assert read_host(Path("/")).hostname == node_name() == "gpu-node-7"
    assert read_host(tmp_path).hostname == "node12"  # another machine's tree has a different name
    monkeypatch.setenv("GPUDOCTOR_NODE_NAME", " ")
    assert read_host(Path("/")).hostname == node_name() == socket.gethostname()


def test_an_empty_tree_gives_a_host_of_missing_facts_and_no_limit_is_made_up(tmp_path: Path) -> None:
    host = read_host(tmp_path)
    for name in Host.__struct_fields__:
        assert kind_of(getattr(host, name)) == "absent", name


def test_garbage_is_failed_and_names_what_it_read(tmp_path: Path) -> None:
    host = host_of(
        tmp_path,
        {
            "/proc/uptime": "soon",
            "/proc/meminfo": "MemTotal: lots kB",
            "/usr/lib/os-release": "ID=x",
            "/proc/self/limits": LIMITS.replace("1024 ", "many "),
            "/proc/self/status": "Name:\tpython",
        },
    )
    assert kind_of(host.uptime_s) == "failed"
    assert missing(host.ram_mib, "failed", "lots")
    assert kind_of(host.ram_available_mib) == "absent"
    assert host.os_name == Missing("os-release has no PRETTY_NAME", "absent")
    assert kind_of(host.open_files) == "failed"
    assert kind_of(host.cpus_usable) == "absent"


# --- NUMA --------------------------------------------------------------------------------------


def grace(root: Path, machine: str = "aarch64") -> Path:
    """A GH200: one CPU node of 480 GiB, and 96 GiB of HBM as a node without CPUs."""
    write(root, {"/proc/sys/kernel/arch": machine})
    meminfo(root, total_mib=491_520 + 98_304, available_mib=480_000 + 98_000)
    numa_node(root, 0, "0-71", 491_520, 480_000)
    numa_node(root, 1, "", 98_304, 98_000)
    return root


def test_on_grace_gpu_memory_is_no_ram(tmp_path: Path) -> None:
    write(grace(tmp_path), {"/sys/module/nvidia/initstate": "live"})
    host = read_host(tmp_path)
    assert host.numa_nodes == (
        NumaNode(node=0, memory_mib=491_520, cpus="0-71"),
        NumaNode(node=1, memory_mib=98_304, cpus="", is_gpu_memory=True),
    )
    assert host.ram_mib == 491_520
    assert host.ram_available_mib == 480_000


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_node_of_cxl_memory_is_ram(tmp_path: Path, machine: str) -> None:
    grace(tmp_path, machine)
    if machine == "x86_64":
        write(tmp_path, {"/sys/module/nvidia/initstate": "live"})
    host = read_host(tmp_path)
    assert host.ram_mib == 491_520 + 98_304
    assert not any(node.is_gpu_memory for node in present(host.numa_nodes))


def test_a_node_that_the_driver_names_is_gpu_memory_on_any_machine(tmp_path: Path) -> None:
    grace(tmp_path, "x86_64")
    numa_node(tmp_path, 2, "", 1000)
    host = host_of(tmp_path, {"/proc/driver/nvidia/gpus/0009:01:00.0/numa_status": "Node: 1\nStatus: online"})
    assert [node.is_gpu_memory for node in present(host.numa_nodes)] == [False, True, False]


def test_the_meminfo_of_a_container_on_grace_is_not_its_ram_without_gpu_memory(tmp_path: Path) -> None:
    """LXC gives a container of 64 GiB a meminfo of its own, beside the machine's NUMA nodes."""
    write(grace(tmp_path), {"/sys/module/nvidia/initstate": "live"})
    meminfo(tmp_path, 65_536, 60_000)
    assert kind_of(read_host(tmp_path).ram_mib) == "failed"


def test_ram_is_not_known_where_the_size_of_the_gpu_memory_is_not(tmp_path: Path) -> None:
    write(grace(tmp_path), {"/sys/module/nvidia/initstate": "live"})
    (tmp_path / "sys/devices/system/node/node1/meminfo").unlink()
    assert kind_of(read_host(tmp_path).ram_mib) == "absent"


# --- cgroups -----------------------------------------------------------------------------------


def test_version_2_the_smallest_limit_on_the_way_up_wins(tmp_path: Path) -> None:
    job = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"
    host = host_of(
        tmp_path,
        {
            "/proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_7/step_0",
            "/proc/self/mountinfo": "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw",
            f"{job}/step_0/memory.max": "max",
            f"{job}/step_0/cpu.max": "800000 100000",
            f"{job}/memory.max": str(64 << 30),
            f"{job}/cpu.max": "max 100000",
            "/sys/fs/cgroup/system.slice/slurmstepd.scope/memory.max": str(128 << 30),
            "/sys/fs/cgroup/system.slice/cpu.max": "1600000 100000",
        },
    )
    assert (host.memory_limit_mib, host.memory_limit_source) == (65_536, f"{job}/memory.max")
    assert (host.cpu_quota, host.cpu_quota_source) == (8.0, f"{job}/step_0/cpu.max")


def test_version_1_unlimited_is_no_limit(tmp_path: Path) -> None:
    host = host_of(
        tmp_path,
        {
            "/proc/self/cgroup": "4:memory:/user.slice\n1:cpu,cpuacct:/user.slice\n0::/",
            "/sys/fs/cgroup/memory/user.slice/memory.limit_in_bytes": UNLIMITED_V1,
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED_V1,
            "/sys/fs/cgroup/cpu,cpuacct/user.slice/cpu.cfs_quota_us": "-1",
            "/sys/fs/cgroup/cpu,cpuacct/user.slice/cpu.cfs_period_us": "100000",
        },
    )
    assert host.memory_limit_mib is None
    assert host.cpu_quota is None
    assert kind_of(host.memory_limit_source) == "absent"


def test_version_1_in_docker_the_group_name_is_the_hosts_but_the_mount_is_the_containers(tmp_path: Path) -> None:
    group = "/docker/0123abcd"
    host = host_of(
        tmp_path,
        {
            "/proc/self/cgroup": f"4:memory:{group}\n2:cpuacct,cpu:{group}",
            "/proc/self/mountinfo": (
                f"31 23 0:28 {group} /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
                f"32 23 0:29 {group} /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
                "33 23 0:30 / /proc rw - proc proc rw\nnot a mount line"
            ),
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": str(16 << 30),
            "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000",
            "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
        },
    )
    assert (host.memory_limit_mib, host.cpu_quota) == (16_384, 1.5)
    assert host.memory_limit_source == "/sys/fs/cgroup/memory/memory.limit_in_bytes"
    assert host.cpu_quota_source == "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us"


@pytest.mark.parametrize("group", ["/", "/../../system.slice/x.scope"])
def test_version_2_in_a_container_the_mount_point_is_its_own_group(tmp_path: Path, group: str) -> None:
    write(tmp_path, {"/proc/self/cgroup": f"0::{group}", "/sys/fs/cgroup/memory.max": str(8 << 30)})
    write(tmp_path, {"/sys/memory.max": "4096"})  # the path that a careless join with ".." would read
    assert read_host(tmp_path).memory_limit_mib == 8192


def test_the_top_of_version_2_has_no_limit_files_and_that_is_no_limit(tmp_path: Path) -> None:
    host = host_of(tmp_path, {"/proc/self/cgroup": "0::/init.scope", "/sys/fs/cgroup/init.scope/cgroup.procs": "1"})
    assert host.memory_limit_mib is None
    assert host.cpu_quota is None


def test_a_limit_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    host = host_of(
        tmp_path,
        {
            "/proc/self/cgroup": "0::/",
            "/sys/fs/cgroup/memory.max": "plenty",
            "/sys/fs/cgroup/cpu.max": "some 100000",
        },
    )
    assert kind_of(host.memory_limit_mib) == "failed"
    assert kind_of(host.cpu_quota) == "failed"
    assert isinstance(host.memory_limit_mib, Missing)
    assert host.memory_limit_mib.reason == f"{tmp_path}/sys/fs/cgroup/memory.max: reads 'plenty', not a number"


# --- CPUs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("online", "allowed", "usable"),
    [
        ("0-95", "0-3,48-51,120-127", (96, 8, "0-3,48-51")),
        ("0-127,256-511", "0-1023", (384, 384, "0-127,256-511")),
    ],
)
def test_usable_cpus_are_the_allowed_ones_that_are_online(
    online: str, allowed: str, usable: tuple[int, int, str], tmp_path: Path
) -> None:
    status = f"Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}"
    host = host_of(tmp_path, {"/sys/devices/system/cpu/online": online, "/proc/self/status": status})
    assert (host.cpus_total, host.cpus_usable, host.cpus_usable_list) == usable


def test_without_sysfs_cpuinfo_counts(tmp_path: Path) -> None:
    host = host_of(tmp_path, {"/proc/cpuinfo": BARE_CPU, "/proc/self/status": "Cpus_allowed_list:\t0-1"})
    assert (host.cpus_total, host.cpus_usable) == (2, 2)


def test_the_governor_is_one_word_or_all_that_differ(tmp_path: Path) -> None:
    cpufreq = "/sys/devices/system/cpu/cpufreq"
    host = host_of(
        tmp_path,
        {
            f"{cpufreq}/policy0/scaling_governor": "performance",
            f"{cpufreq}/policy0/scaling_driver": "intel_pstate",
            f"{cpufreq}/policy1/scaling_governor": "powersave",
            f"{cpufreq}/policy1/scaling_driver": "intel_pstate",
        },
    )
    assert (host.cpu_governor, host.cpu_scaling_driver) == ("performance,powersave", "intel_pstate")


def test_older_kernels_keep_the_governor_under_each_cpu(tmp_path: Path) -> None:
    cpus = (f"/sys/devices/system/cpu/cpu{number}" for number in (0, 1))
    host = host_of(tmp_path, {f"{cpu}/cpufreq/scaling_governor": "schedutil" for cpu in cpus})
    assert host.cpu_governor == "schedutil"


# --- limits and shared memory ------------------------------------------------------------------


def test_ulimits_are_the_soft_ones_in_kib_and_none_where_unlimited(tmp_path: Path) -> None:
    host = host_of(tmp_path, {"/proc/self/limits": LIMITS})
    assert (host.memlock_kib, host.open_files, host.processes) == (64, 1024, 4096)
    assert host_of(tmp_path, {"/proc/self/limits": LIMITS.replace("65536    ", "unlimited")}).memlock_kib is None


def test_dockers_64_mib_of_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def statvfs(path: Path) -> SimpleNamespace:
        assert path == tmp_path / "dev/shm"
        return SimpleNamespace(f_frsize=4096, f_blocks=16384, f_bavail=8192)

    monkeypatch.setattr(os, "statvfs", statvfs)
    host = read_host(tmp_path)
    assert (host.shm_mib, host.shm_free_mib) == (64, 32)


def test_shared_memory_without_a_limit_is_not_a_size_of_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tmpfs with size=0 has no limit, and statvfs answers 0 blocks."""
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_frsize=4096, f_blocks=0, f_bavail=0))
    host = read_host(tmp_path)
    assert (kind_of(host.shm_mib), kind_of(host.shm_free_mib)) == ("unsupported", "unsupported")


def test_shared_memory_that_may_not_be_asked_for_is_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def statvfs(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert kind_of(read_host(tmp_path).shm_mib) == "denied"


def test_a_limits_file_without_the_line_or_the_number_is_missing(tmp_path: Path) -> None:
    host = host_of(tmp_path, {"/proc/self/limits": "Max open files"})
    assert kind_of(host.open_files) == "failed"
    assert kind_of(host.memlock_kib) == "absent"


# --- this machine ------------------------------------------------------------------------------


def test_this_machine_is_read_without_a_failure() -> None:
    host = read_host(Path("/"))
    failed = {name for name in Host.__struct_fields__ if getattr(getattr(host, name), "kind", "") == "failed"}
    assert not failed
    assert host.machine == os.uname().machine
    assert host.cpus_usable == len(os.sched_getaffinity(0))
    assert present(host.ram_mib) > 100


def test_the_uptime_of_this_machine_is_the_kernels_and_not_that_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """LXC replaces /proc/uptime; the kernel's log and the driver's counters begin at the machine's boot."""
    real = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda clock: 7.5e6 if clock == time.CLOCK_BOOTTIME else real(clock))
    assert read_host(Path("/")).uptime_s == 7.5e6


@pytest.mark.parametrize("told", ["inf", "nan", "9" * 5000, "-1.0"])
def test_an_uptime_that_cannot_be_is_failed(told: str, tmp_path: Path) -> None:
    assert kind_of(host_of(tmp_path, {"/proc/uptime": f"{told} 1.0"}).uptime_s) == "failed"
