"""The host.* checks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.facts.model.gpu import Settings
from gpudoctor.facts.model.missing import NOT_READ, Missing
from gpudoctor.facts.model.node import Driver, Environment, Host, Network, Node, RdmaPort, Software, Variable
from tests.checks.one_check import expect, gpu, gpus, judge, pairs, words
from tests.narrowed import present

RAM, CPU, SHM, LIMITS = "host.ram-per-gpu", "host.cpu-per-gpu", "host.shm", "host.limits"
GIB = 1024


def host(check: str, count: int = 4, node: dict[str, Any] | None = None, **facts: Any) -> CheckResult:
    cards = gpus(count, "NVIDIA GeForce RTX 4090", memory_total_mib=(node or {}).pop("memory", 24564))
    return judge(check, Node(gpus=cards, host=Host(**facts), **(node or {})))


@pytest.mark.parametrize(
    ("check", "fact"), [(RAM, "ram_mib"), (CPU, "cpus_usable"), (SHM, "shm_mib"), (LIMITS, "open_files")]
)
def test_a_reading_that_failed_is_unknown(check: str, fact: str) -> None:
    failed = Missing("read error", "failed")
    facts: dict[str, Any] = {fact: failed, **({"cpus_total": failed} if check == CPU else {})}
    assert host(check, **facts).status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("count", "ram_gib", "status"),
    [
        (2, 31.2, Status.WARN),  # 32 GiB of modules: the floor, though below the GPUs' own memory
        (4, 62.7, Status.WARN),
        (8, 125.6, Status.WARN),
        (4, 55.0, Status.WARN),  # below the floor, above half of the GPUs' own memory
        (4, 46.0, Status.FAIL),
        (4, 128.0, Status.PASS),
        (4, 94.0, Status.PASS),
        (8, 64.0, Status.FAIL),
    ],
)
def test_ram_is_judged_for_each_gpu(count: int, ram_gib: float, status: Status) -> None:
    expect(host(RAM, count, ram_mib=int(ram_gib * GIB)), status, f"for {count} GPUs")


@pytest.mark.parametrize(("ram_gib", "status"), [(14.7, Status.WARN), (8.2, Status.WARN), (6.5, Status.FAIL)])
def test_an_ordinary_cloud_machine_with_one_t4_starts_training(ram_gib: float, status: Status) -> None:
    # n1-standard-4 of Google Cloud: 15 GB of RAM for a GPU of 16 GB
    node = Node(gpus=(gpu(0, "Tesla T4", memory_total_mib=15360),), host=Host(ram_mib=int(ram_gib * GIB)))
    assert judge(RAM, node).status is status


def test_the_floor_is_given_for_the_whole_node() -> None:
    assert "64 GiB for 4 GPUs" in words(host(RAM, ram_mib=30 * GIB))


def test_a_cgroup_limit_counts_and_is_named() -> None:
    facts: dict[str, Any] = {
        "ram_mib": 512 * GIB,
        "memory_limit_mib": 32 * GIB,
        "memory_limit_source": "cgroup v2 memory.max",
    }
    expect(host(RAM, **facts), Status.FAIL, "cgroup v2 memory.max", "512.0 GiB")


def test_no_limit_and_a_limit_above_the_ram_change_nothing() -> None:
    for limit in (None, 600 * GIB):
        expect(host(RAM, ram_mib=512 * GIB, memory_limit_mib=limit), Status.PASS, "512.0 GiB, RAM")


def test_without_the_gpus_own_memory_the_floor_still_judges() -> None:
    assert host(RAM, node={"memory": Missing("unified", "unsupported")}, ram_mib=100 * GIB).status is Status.PASS


def test_only_gpus_in_scope_share_the_ram() -> None:
    node = Node(gpus=gpus(8, memory_total_mib=16 * GIB), host=Host(ram_mib=64 * GIB, cpus_usable=16))
    assert judge(RAM, node, scope=(0, 1)).status is Status.PASS
    assert judge(CPU, node, scope=(0, 1)).status is Status.PASS


def test_a_display_gpu_takes_no_share() -> None:
    display = gpu(1, "NVIDIA T400", memory_total_mib=4096, settings=Settings(display_active=True))
    node = Node(gpus=(gpu(0, memory_total_mib=24564), display), host=Host(ram_mib=31 * GIB))
    assert judge(RAM, node).status is Status.PASS


def test_without_gpus_ram_and_cpus_are_reported_and_not_shared() -> None:
    node = Node(host=Host(ram_mib=62 * GIB, cpus_usable=2))
    assert (judge(RAM, node).status, "62.0 GiB" in words(judge(RAM, node))) == (Status.SKIP, True)
    assert (judge(CPU, node).status, "2 CPUs" in words(judge(CPU, node))) == (Status.SKIP, True)


@pytest.mark.parametrize(
    ("facts", "status", "said"),
    [
        ({"cpus_usable": 64, "cpus_total": 64}, Status.PASS, "all CPUs of the machine"),
        ({"cpus_usable": 16, "cpus_total": 64}, Status.PASS, "CPU affinity"),
        ({"cpus_usable": 15, "cpus_total": 64}, Status.WARN, "CPU affinity"),
        ({"cpus_usable": 4, "cpus_total": 64}, Status.WARN, "1 CPUs a GPU"),
        ({"cpus_usable": 3}, Status.FAIL, "0.75 CPUs a GPU"),
        ({"cpus_usable": 64, "cpu_quota": 1.0, "cpu_quota_source": "cpu.max"}, Status.FAIL, "cpu.max"),
        ({"cpus_usable": 64, "cpu_quota": None}, Status.PASS, "64 for 4"),
        ({"cpus_usable": 16, "cpu_quota": 32.0}, Status.PASS, "16 for 4"),
        ({"cpus_total": 64}, Status.PASS, "affinity not known"),
    ],
)
def test_cpus_are_the_lesser_of_affinity_and_quota(facts: dict[str, Any], status: Status, said: str) -> None:
    expect(host(CPU, **facts), status, said)


# /dev/shm

NO_P2P = pairs(4, nvlinks=0, p2p_read="CNS")
P2P = pairs(4, nvlinks=0, p2p_read="OK")
NVLINK = pairs(8, nvlinks=18, p2p_read="OK")


CUMEM_OFF = {"NCCL_CUMEM_ENABLE": "0"}


@pytest.mark.parametrize(
    ("count", "joined", "nccl", "env", "shm_mib", "status"),
    [
        # the pool of 2.21 (7 MiB a rank) and two buffers of 9.2 MiB: docker's 64 MiB carry 2 ranks, not 4 (issue 1518)
        (2, pairs(2, nvlinks=0, p2p_read="CNS"), "2.21.5", {}, 64, Status.WARN),
        (4, NO_P2P, "2.21.5", {}, 64, Status.FAIL),
        (4, NO_P2P, "2.21.5", {}, 128, Status.WARN),
        (4, P2P, "2.21.5", {}, 64, Status.WARN),
        (8, NVLINK, "2.21.5", {}, 48, Status.FAIL),
        # 31.5 MiB a rank, mapped late with cuMem
        (4, P2P, "2.26.2", CUMEM_OFF, 64, Status.FAIL),
        (8, NVLINK, "2.26.2", CUMEM_OFF, 251, Status.FAIL),
        (8, NVLINK, "2.26.2", CUMEM_OFF, 253, Status.WARN),
        (8, NVLINK, "2.26.2", {"NCCL_RUNTIME_CONNECT": "0"}, 64, Status.FAIL),
        (8, NVLINK, "2.26.2", {}, 64, Status.WARN),
        # without peer-to-peer the buffers may be cuMem host memory, from 2.24 on
        (4, NO_P2P, "2.27.5", {}, 64, Status.WARN),
        (4, NO_P2P, "2.27.5", {"NCCL_CUMEM_HOST_ENABLE": "0"}, 64, Status.FAIL),
        (4, NO_P2P, "2.23.4", {}, 64, Status.FAIL),
        (4, NO_P2P, None, {}, 64, Status.WARN),
        (8, NVLINK, None, {}, 64, Status.WARN),
        (8, NVLINK, None, {}, 4, Status.FAIL),
        (8, NVLINK, "2.27.5", {}, 8192, Status.PASS),
        (1, (), "2.27.5", {}, 64, Status.WARN),
        (1, (), "2.27.5", {}, 1024, Status.PASS),
        (0, (), None, {}, 64, Status.WARN),
        (0, (), None, {}, 4096, Status.PASS),
        (2, Missing("not in this capture"), None, {}, 64, Status.WARN),
    ],
)
def test_shm_fails_only_if_nccl_certainly_finds_no_room(
    count: int, joined: Any, nccl: str | None, env: dict[str, str], shm_mib: int, status: Status
) -> None:
    node = Node(
        gpus=gpus(count),
        pairs=joined,
        host=Host(shm_mib=shm_mib, shm_free_mib=shm_mib),
        driver=Driver(cuda_version="12.8"),
        software=Software(nccl=nccl) if nccl else Software(),
        environment=Environment(tuple(Variable(name, value) for name, value in env.items())),
    )
    result = judge(SHM, node)
    assert result.status is status
    if status is Status.WARN:
        assert "--ipc=host" in words(result)


def test_an_old_driver_makes_nccl_map_its_pool_at_the_start() -> None:
    node = Node(gpus=gpus(8), pairs=NVLINK, host=Host(shm_mib=64, shm_free_mib=64), software=Software(nccl="2.26.2"))
    result = judge(SHM, msgspec.structs.replace(node, driver=Driver(cuda_version="11.8")))
    expect(result, Status.FAIL, "at least 252 MiB: NCCL 2.26.2 maps that for 8 ranks")
    assert "2048 x 72 x 224 bytes a rank (ncclProxyOpsPool): 31.5 MiB" in words(result)


def test_what_jobs_of_another_kind_map_is_named() -> None:
    node = Node(gpus=gpus(8), pairs=NVLINK, host=Host(shm_mib=64, shm_free_mib=64), software=Software(nccl="2.28.9"))
    assert "NCCL 2.28.9 maps 261 MiB for 8 ranks once a job uses a network" in words(judge(SHM, node))


def test_dockers_default_is_recognised() -> None:
    assert "64 MiB unless told otherwise" in words(host(SHM, shm_mib=64))
    assert "unless told otherwise" not in words(host(SHM, shm_mib=512))


# limits


def test_unlimited_and_ample_limits_pass_without_a_gpu() -> None:
    node = Node(host=Host(open_files=1024, processes=None), network=Network(rdma_ports=()))
    expect(judge(LIMITS, node), Status.PASS, "no RDMA port is active")


@pytest.mark.parametrize("facts", [{"open_files": 256}, {"processes": 1024}])
def test_a_low_limit_warns_with_the_command(facts: dict[str, Any]) -> None:
    expect(judge(LIMITS, Node(host=Host(**facts))), Status.WARN, "ulimit -")


@pytest.mark.parametrize(
    ("memlock_kib", "state", "status"),
    [
        (64, "4: ACTIVE", Status.WARN),
        (None, "4: ACTIVE", Status.PASS),
        (16 * 1024 * 1024, "ACTIVE", Status.PASS),
        (64, "1: DOWN", Status.SKIP),
        (Missing("denied", "denied"), "ACTIVE", Status.SKIP),
    ],
)
def test_locked_memory_matters_with_active_rdma_only(memlock_kib: Any, state: str, status: Status) -> None:
    ports = (RdmaPort("mlx5_0", 1, state=state),)
    node = Node(host=Host(memlock_kib=memlock_kib), network=Network(rdma_ports=ports))
    assert judge(LIMITS, node).status is status


def test_a_text_without_ports_tells_of_a_low_limit_of_locked_memory() -> None:
    def text(memlock_kib: int | None, ports: tuple[RdmaPort, ...] | Missing = NOT_READ) -> CheckResult:
        node = Node(host=Host(memlock_kib=memlock_kib, open_files=1024), network=Network(rdma_ports=ports))
        return judge(LIMITS, node)

    assert (text(64).status, "64 KiB" in words(text(64)), "only if" in words(text(64))) == (Status.WARN, True, True)
    assert text(None).status is Status.PASS
    assert text(64, ()).status is Status.PASS


@pytest.mark.parametrize(
    ("gpu_count", "peermem", "status"), [(1, False, "pass"), (1, True, "warn"), (2, False, "warn")]
)
def test_the_text_of_a_single_gpu_without_a_sign_of_rdma_asks_for_no_locked_memory(
    gpu_count: int, peermem: bool, status: str
) -> None:
    host, network = Host(memlock_kib=64, open_files=1024), Network(peermem_loaded=peermem)
    result = judge(LIMITS, Node(gpus=gpus(gpu_count), host=host, network=network))
    assert (result.status.value, "64 KiB" in words(result)) == (status, True)


def test_the_ethernet_adapters_of_a_server_ask_for_no_locked_memory() -> None:
    def status(gpu_count: int, port_count: int) -> Status:
        ports = tuple(RdmaPort(f"irdma{i}", 1, state="ACTIVE", link_layer="Ethernet") for i in range(port_count))
        node = Node(gpus=gpus(gpu_count), host=Host(memlock_kib=64), network=Network(rdma_ports=ports))
        return judge(LIMITS, node).status

    assert status(2, 2) is Status.SKIP
    assert status(8, 2) is Status.SKIP
    assert status(8, 8) is Status.WARN  # RoCE, one adapter for each GPU


def test_a_configured_limit_is_in_force_and_named_as_such() -> None:
    node = Node(gpus=gpus(2, "NVIDIA L4", memory_total_mib=23034), host=Host(ram_mib=48 * GIB))
    assert judge(RAM, node).status is Status.PASS
    result = judge(RAM, node, limit_overrides={(RAM, "floor_gib", "L4"): 64.0})
    assert result.status is Status.FAIL
    assert present(result.findings[0].expected).source == "configuration"
