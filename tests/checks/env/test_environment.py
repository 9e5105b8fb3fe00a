"""The env.* checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.facts.model.gpu import CallError, MigInstance, NvLink, Settings
from gpudoctor.facts.model.measurements import Launch, Measurements, ProbeProblem, RankInfo, TorchView
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import (
    Driver,
    Environment,
    Interface,
    Network,
    Node,
    RdmaPort,
    Software,
    Source,
    Variable,
)
from gpudoctor.facts.system.environment import read_software
from tests.checks.one_check import blames, env, expect, gpu, gpus, judge, pairs, uuid_of, words

VISIBLE, NCCL, TORCH = "env.cuda-visible-devices", "env.nccl", "env.torch"


def visible(count: int = 8, **variables: str) -> CheckResult:
    return judge(VISIBLE, Node(gpus=gpus(count), environment=env(**variables)))


def test_an_environment_that_could_not_be_read_is_unknown() -> None:
    broken = Environment(variables=Missing("cannot read", "failed"))
    for check in (VISIBLE, NCCL):
        assert judge(check, Node(gpus=gpus(2), environment=broken)).status is Status.UNKNOWN


def test_an_unset_variable_shows_all_gpus() -> None:
    expect(visible(), Status.PASS, "not set: all 8 GPUs visible")


def test_a_subset_passes_and_says_what_it_leaves_out() -> None:
    expect(visible(CUDA_VISIBLE_DEVICES="0,1,2,3,4,5"), Status.PASS, "left out: GPU 6, 7")


def test_a_repeat_fails_and_tells_of_the_missing_gpu_too() -> None:
    result = visible(CUDA_VISIBLE_DEVICES="0,0,9")
    expect(result, Status.FAIL, "CUDA sees no GPU; 0 appears twice", "unset CUDA_VISIBLE_DEVICES")
    assert "9 does not exist on a node with GPUs 0-7" in words(result)


def test_a_cut_list_fails_and_says_where_cuda_stops() -> None:
    result = visible(CUDA_VISIBLE_DEVICES="0,1,9,2")
    expect(result, Status.FAIL, "CUDA sees GPU 0, 1 of 8; CUDA stops at 9", "named, and yet hidden: GPU 2")


@pytest.mark.parametrize(("value", "likely"), [("", "for the CPU"), ("-1", "for the CPU"), ("NoDevFiles", "Slurm")])
def test_hiding_every_gpu_fails(value: str, likely: str) -> None:
    expect(visible(CUDA_VISIBLE_DEVICES=value), Status.FAIL, likely)


def test_host_indices_in_a_container_are_explained() -> None:
    result = visible(2, CUDA_VISIBLE_DEVICES="4,5", NVIDIA_VISIBLE_DEVICES="4,5")
    expect(result, Status.FAIL, "inside this container GPUs are numbered from 0")


def test_an_index_on_a_mixed_node_warns_until_the_order_is_set() -> None:
    mixed = (gpu(0, "NVIDIA T400"), gpu(1))
    result = judge(VISIBLE, Node(gpus=mixed, environment=env(CUDA_VISIBLE_DEVICES="0")))
    expect(result, Status.WARN, "CUDA_DEVICE_ORDER=PCI_BUS_ID")
    ordered = env(CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert judge(VISIBLE, Node(gpus=mixed, environment=ordered)).status is Status.PASS


def test_a_gpu_that_does_not_answer_makes_a_cut_list_unknown() -> None:
    node = Node(gpus=gpus(7), driver=Driver(device_count=8), environment=env(CUDA_VISIBLE_DEVICES="0,7"))
    expect(judge(VISIBLE, node), Status.UNKNOWN, "only 7 answered")


def test_unknown_uuids_are_no_verdict() -> None:
    node = Node(gpus=(gpu(0, uuid=Missing("error", "failed")),), environment=env(CUDA_VISIBLE_DEVICES="GPU-1"))
    assert judge(VISIBLE, node).status is Status.UNKNOWN


def test_mig_passes_where_it_is_not_named_and_warns_where_several_are() -> None:
    mig = Settings(mig_enabled=True, mig_instances=(MigInstance(uuid="MIG-a"), MigInstance(uuid="MIG-b")))
    two = (gpu(0, settings=mig), gpu(1, settings=mig))
    assert judge(VISIBLE, Node(gpus=two, environment=env())).status is Status.PASS
    for value in ("MIG-a,MIG-b", "0,1"):
        result = judge(VISIBLE, Node(gpus=two, environment=env(CUDA_VISIBLE_DEVICES=value)))
        expect(result, Status.WARN, "one MIG instance")
    assert judge(VISIBLE, Node(gpus=two, environment=env(CUDA_VISIBLE_DEVICES="MIG-b"))).status is Status.PASS


@pytest.mark.parametrize(
    ("variables", "status"),
    [
        ({"SLURM_JOB_GPUS": "4,5"}, Status.WARN),
        ({"SLURM_STEP_GPUS": "4,5"}, Status.WARN),
        ({"SLURM_JOB_GPUS": "0,1,2"}, Status.PASS),
        ({"NVIDIA_VISIBLE_DEVICES": "4,5"}, Status.WARN),
        ({"NVIDIA_VISIBLE_DEVICES": uuid_of(4)}, Status.WARN),
        ({"NVIDIA_VISIBLE_DEVICES": f"{uuid_of(0)},{uuid_of(1)}"}, Status.PASS),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, Status.PASS),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, Status.PASS),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, Status.PASS),
        ({"NVIDIA_VISIBLE_DEVICES": ""}, Status.PASS),
    ],
)
def test_gpus_that_nobody_gave_are_a_warning(variables: dict[str, Any], status: Status) -> None:
    blames(visible(CUDA_VISIBLE_DEVICES="0,1", **variables), status, "shows GPU 0, 1, but")


def test_a_confined_job_numbers_its_gpus_from_0_without_contradiction() -> None:
    assert visible(2, CUDA_VISIBLE_DEVICES="0,1", SLURM_JOB_GPUS="6,7").status is Status.PASS
    assert visible(2, CUDA_VISIBLE_DEVICES="0,1", NVIDIA_VISIBLE_DEVICES="6,7").status is Status.PASS


# env.nccl


def nccl(network: Network | None = None, node: dict[str, Any] | None = None, **variables: str) -> CheckResult:
    facts: dict[str, Any] = {"gpus": gpus(2), **(node or {})}
    return judge(NCCL, Node(environment=env(**variables), network=network or Network(), **facts))


def test_no_settings_pass_also_without_a_gpu() -> None:
    result = judge(NCCL, Node(environment=env(HOME="/")))
    assert (result.status, words(result)) == (Status.PASS, "no NCCL settings")


def test_harmless_settings_pass_and_are_named() -> None:
    assert "NCCL_DEBUG" in words(nccl(NCCL_DEBUG="WARN"))
    assert nccl(NCCL_P2P_DISABLE="0", NCCL_SHM_DISABLE="", NCCL_IB_DISABLE="no").status is Status.PASS


@pytest.mark.parametrize("setting", [{"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_LEVEL": "LOC"}])
def test_switching_peer_to_peer_off_is_judged_by_what_it_costs_here(setting: dict[str, Any]) -> None:
    expect(nccl(None, {"pairs": pairs(2, nvlinks=18)}, **setting), Status.FAIL, "the NVLinks between 1 pairs")
    assert nccl(None, {"pairs": pairs(2, nvlinks=0, p2p_read="OK")}, **setting).status is Status.WARN
    up = gpus(2, nvlinks=(NvLink(0, "active"), NvLink(1, "active")))
    expect(nccl(None, {"gpus": up}, **setting), Status.FAIL, "the NVLinks of 2 GPUs")
    expect(nccl(None, {"pairs": pairs(2, nvlinks=0, p2p_read="CNS")}, **setting), Status.PASS, "costs nothing")
    assert nccl(None, {"gpus": gpus(1)}, **setting).status is Status.PASS
    assert nccl(None, None, **setting).status is Status.WARN


def test_shared_memory_switched_off_warns() -> None:
    assert nccl(NCCL_SHM_DISABLE="1").status is Status.WARN


IB = Network(rdma_ports=(RdmaPort("mlx5_0", 1, state="4: ACTIVE"),), interfaces=(Interface("eth0"), Interface("ib0")))


def test_rdma_switched_off_warns_only_where_there_is_some() -> None:
    assert nccl(IB, NCCL_IB_DISABLE="1").status is Status.WARN
    assert nccl(Network(rdma_ports=()), NCCL_IB_DISABLE="1").status is Status.PASS


@pytest.mark.parametrize("value", ["eth", "=eth0", "^docker", "foo,ib", "=ib0,eth0", "eth0:0"])
def test_interface_lists_that_keep_an_interface_pass(value: str) -> None:
    assert nccl(IB, NCCL_SOCKET_IFNAME=value).status is Status.PASS


@pytest.mark.parametrize("value", ["foo", "=eth", "^eth,ib", "=foo,bar", "^=eth0,ib0"])
def test_interface_lists_that_keep_none_fail(value: str) -> None:
    expect(nccl(IB, NCCL_SOCKET_IFNAME=value), Status.FAIL, "one of eth0, ib0")


def test_gloo_wants_whole_names() -> None:
    assert nccl(IB, GLOO_SOCKET_IFNAME="eth0").status is Status.PASS
    assert nccl(IB, GLOO_SOCKET_IFNAME="eth").status is Status.FAIL


def test_interfaces_that_are_not_known_are_not_judged() -> None:
    result = nccl(NCCL_SOCKET_IFNAME="foo")
    assert Status.FAIL not in {f.status for f in result.findings}
    assert "network interfaces: not read" in words(result)


def test_an_adapter_that_does_not_exist_warns() -> None:
    assert nccl(IB, NCCL_IB_HCA="mlx4").status is Status.WARN
    assert nccl(IB, NCCL_IB_HCA="=mlx5_0:1").status is Status.PASS
    assert nccl(NCCL_IB_HCA="mlx4").status is Status.SKIP


def test_a_setting_is_not_called_harmless_where_what_it_costs_was_not_read() -> None:
    pasted = Source(kind="capture")
    for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"):
        expect(nccl(None, {"gpus": (), "source": pasted}, **{name: "1"}), Status.UNKNOWN, f"{name}=1: what it costs")
    assert nccl(None, {"gpus": ()}, NCCL_P2P_DISABLE="1").status is Status.PASS  # a machine without GPUs
    result = nccl(NCCL_IB_DISABLE="1")
    assert (result.status, words(result)) == (Status.SKIP, "NCCL_IB_DISABLE=1: RDMA ports: not read")


def test_what_the_vendor_of_a_network_plugin_prescribes_is_no_leftover() -> None:
    assert nccl(NCCL_NET="FasTrak", NCCL_ALGO="Ring,Tree", NCCL_PROTO="Simple").status is Status.PASS
    assert nccl(NCCL_NET="IB", NCCL_ALGO="Ring,Tree", NCCL_PROTO="Simple").status is Status.WARN


@pytest.mark.parametrize(("name", "status"), [("NCCL_GRAPH_FILE", Status.FAIL), ("NCCL_TOPO_FILE", Status.WARN)])
def test_a_file_that_is_missing_stops_nccl_or_only_costs(name: str, status: Status) -> None:
    def with_file(exists: bool | None, value: str = "/a.xml", kind: Literal["live", "capture"] = "capture") -> Status:
        variables = (Variable(name, value, path_exists=exists),)
        return judge(NCCL, Node(source=Source(kind=kind), gpus=gpus(2), environment=Environment(variables))).status

    assert with_file(False) is status
    assert with_file(None, "") is status
    assert with_file(True) is Status.PASS
    assert with_file(None) is Status.PASS  # a capture: the file is on another machine
    assert with_file(None, kind="live") is Status.UNKNOWN


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_DEBUG", "info"),
        ("NCCL_DEBUG", "TRACE"),
        ("CUDA_LAUNCH_BLOCKING", "1"),
        ("NVIDIA_TF32_OVERRIDE", "0"),
        ("TORCH_NCCL_BLOCKING_WAIT", "1"),
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"),
        ("CUDA_INJECTION64_PATH", "/opt/nsys/lib.so"),
        ("NCCL_PROFILER_PLUGIN", "x"),
        ("NCCL_ALGO", "Ring"),
        ("NCCL_PROTO", "LL"),
    ],
)
def test_what_debugging_left_behind_warns_with_the_way_out(name: str, value: str) -> None:
    setting: dict[str, Any] = {name: value}
    expect(nccl(**setting), Status.WARN, f"unset {name}")


@pytest.mark.parametrize(
    ("variables", "status"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, Status.PASS),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, Status.FAIL),
        ({"LOCAL_RANK": "8", "LOCAL_WORLD_SIZE": "8"}, Status.FAIL),
        ({"RANK": "x", "WORLD_SIZE": "1"}, Status.FAIL),
        ({"RANK": "0", "WORLD_SIZE": "4"}, Status.WARN),
        ({"RANK": "0"}, Status.WARN),
        ({"RANK": "0", "WORLD_SIZE": "1"}, Status.PASS),
        ({"MASTER_ADDR": "head"}, Status.PASS),
        ({"WORLD_SIZE": "8"}, Status.PASS),
    ],
)
def test_launcher_variables_are_held_against_each_other(variables: dict[str, Any], status: Status) -> None:
    assert nccl(**variables).status is status


def test_a_partial_rendezvous_names_what_is_missing() -> None:
    assert "not MASTER_ADDR, MASTER_PORT" in words(nccl(RANK="0", WORLD_SIZE="4"))


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "127.0.1.1", "::1", "LOCALHOST"])
@pytest.mark.parametrize(
    ("variables", "status"),
    [
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, Status.FAIL),
        ({"WORLD_SIZE": "16", "SLURM_NNODES": "2"}, Status.FAIL),
        ({"OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, Status.FAIL),
        ({"WORLD_SIZE": "16", "SM_HOSTS": '["algo-1","algo-2"]'}, Status.FAIL),
        ({"SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-1"}, Status.WARN),
        ({"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1", "WORLD_SIZE": "8"}, Status.PASS),
        ({"WORLD_SIZE": "16"}, Status.WARN),
        ({"SLURM_NNODES": "2"}, Status.WARN),
        ({"SLURM_JOB_NUM_NODES": "4", "WORLD_SIZE": "8"}, Status.WARN),
        ({"SLURM_NNODES": "2", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, Status.PASS),  # torchrun --standalone
        ({"SLURM_NNODES": "2", "SLURM_STEP_NUM_NODES": "1"}, Status.PASS),
        ({"SLURM_NNODES": "1", "WORLD_SIZE": "8"}, Status.PASS),
        ({"WORLD_SIZE": "8"}, Status.PASS),
        ({}, Status.PASS),
    ],
)
def test_a_rendezvous_at_this_machine_itself_joins_no_other(
    address: str, variables: dict[str, Any], status: Status
) -> None:
    blames(nccl(MASTER_ADDR=address, node={"gpus": gpus(8)}, **variables), status, f"MASTER_ADDR={address}")


def test_on_sagemaker_the_first_host_is_named_as_the_way_out() -> None:
    assert "export MASTER_ADDR=algo-1" in words(nccl(MASTER_ADDR="localhost", SM_HOSTS='["algo-2","algo-10","algo-1"]'))


def test_a_rendezvous_at_a_host_is_no_matter_of_this_machine() -> None:
    assert nccl(MASTER_ADDR="node1", WORLD_SIZE="16", LOCAL_WORLD_SIZE="8").status is Status.PASS


# env.torch

LIVE = Source(kind="live")


def torch_node(torch: str = "2.13.0", cuda: str | None = "12.8", driver: str = "12.8", **facts: Any) -> Node:
    facts.setdefault("environment", env())
    facts.setdefault("source", Source(kind="simulated"))
    software = Software(torch=torch, torch_cuda=cuda, nccl_copies=facts.pop("copies", ()))
    return Node(gpus=gpus(2), software=software, driver=Driver(cuda_version=driver), **facts)


def sees(*indices: int, **view: Any) -> Measurements:
    uuids = tuple(uuid_of(i) for i in indices)
    facts: dict[str, Any] = {"torch": "2.13.0", "cuda": "12.8", "cuda_available": True, **view}
    facts.setdefault("visible_uuids", uuids)
    facts.setdefault("device_count", len(indices))
    return Measurements(torch_view=TorchView(**facts))


@pytest.mark.parametrize(
    ("cuda", "driver", "status"),
    [
        ("12.8", "12.8", Status.PASS),
        ("11.8", "12.8", Status.PASS),
        ("12.8", "12.4", Status.PASS),
        ("13.0", "12.8", Status.FAIL),
        ("12.1", "11.8", Status.FAIL),
        ("10.2", "10.1", Status.FAIL),
        (None, "12.8", Status.FAIL),
        ("odd", "12.8", Status.UNKNOWN),
    ],
)
def test_the_cuda_of_torch_is_held_against_the_driver(cuda: str | None, driver: str, status: Status) -> None:
    assert judge(TORCH, torch_node(cuda=cuda, driver=driver)).status is status


def test_minor_version_compatibility_is_said() -> None:
    assert "minor version compatibility" in words(judge(TORCH, torch_node(driver="12.4")))


def test_a_newer_cuda_that_opens_the_gpus_all_the_same_is_no_fault() -> None:
    """As with the package cuda-compat on data-centre GPUs."""
    node = torch_node(source=LIVE, driver="12.4", cuda="13.0")
    expect(judge(TORCH, node, sees(0, 1, cuda="13.0")), Status.PASS, "compatibility package")
    refused = sees(cuda="13.0", cuda_available=False, error="The NVIDIA driver on your system is too old")
    assert judge(TORCH, node, refused).status is Status.FAIL
    on_cpus = sees(cuda="13.0", cuda_available=True, device_count=2, visible_uuids=Missing("CPU ranks"))
    assert judge(TORCH, node, on_cpus).status is Status.FAIL, "counted by NVML, not opened"


def test_an_old_torch_and_a_second_nccl_warn() -> None:
    assert "torch 2.4 or later" in words(judge(TORCH, torch_node(torch="2.3.1+cu121")))
    assert judge(TORCH, torch_node(torch="2.10.0a0+nv")).status is Status.PASS
    two = judge(TORCH, torch_node(copies=("/usr/lib/libnccl.so.2", "/venv/libnccl.so.2")))
    expect(two, Status.WARN, "2 copies of NCCL")


def test_without_torch_the_reason_is_given(tmp_path: Path) -> None:
    live = judge(TORCH, Node(source=LIVE, gpus=gpus(2), software=read_software([str(tmp_path)])))
    expect(live, Status.SKIP, "pip install 'torch>=2.4' 'numpy>=1.26'")
    broken = Software(torch=Missing("cannot be read", "failed"))
    assert judge(TORCH, Node(source=LIVE, gpus=gpus(2), software=broken)).status is Status.UNKNOWN


def test_gaps_beside_torch_are_no_pass() -> None:
    gap = Node(gpus=gpus(2), software=Software(torch="2.13.0"))
    assert judge(TORCH, gap).status is Status.SKIP
    no_driver = Node(gpus=gpus(2), software=Software(torch="2.13.0", torch_cuda="12.8"))
    assert judge(TORCH, no_driver).status is Status.SKIP


def test_torch_that_sees_every_gpu_passes() -> None:
    expect(judge(TORCH, torch_node(source=LIVE), sees(0, 1)), Status.PASS, "torch sees 2 of 2 GPUs")


def test_a_gpu_that_torch_does_not_see_is_named() -> None:
    expect(judge(TORCH, torch_node(source=LIVE), sees(0)), Status.FAIL, gpu=1)
    other = judge(TORCH, torch_node(source=LIVE), sees(0, device_count=1, visible_uuids=Missing("old torch")))
    assert other.status is Status.FAIL


def test_gpus_that_the_variable_hides_are_not_expected() -> None:
    hidden = torch_node(source=LIVE, environment=env(CUDA_VISIBLE_DEVICES="0"))
    assert judge(TORCH, hidden, sees(0)).status is Status.PASS
    assert judge(TORCH, torch_node(source=LIVE), sees(0), scope=(0,)).status is Status.PASS


def test_ranks_on_some_of_the_gpus_are_expected_to_see_just_these() -> None:
    ranks = (RankInfo(0, "cuda", 1, uuid_of(1), "0000:11:00.0"),)
    launch = Launch("nccl", 1, ranks)
    view = msgspec.structs.replace(sees(1), launch=launch)
    assert judge(TORCH, torch_node(source=LIVE), view).status is Status.PASS
    other = msgspec.structs.replace(sees(0), launch=launch)
    result = judge(TORCH, torch_node(source=LIVE), other)
    assert [f.subject.gpu for f in result.findings if f.status is Status.FAIL] == [1]


def test_a_rank_that_ended_early_leaves_it_open_which_gpus_torch_sees() -> None:
    ended = ProbeProblem("launch", "crash", "rank 1 died in join", rank=1)
    early = msgspec.structs.replace(sees(0), problems=(ended,))
    expect(judge(TORCH, torch_node(source=LIVE), early), Status.UNKNOWN, "rank 1 died in join")


def test_torch_that_counts_gpus_and_cannot_open_them_fails() -> None:
    view = sees(0, 1, error="CUDA error: out of sync", visible_uuids=Missing("x", "failed"))
    assert judge(TORCH, torch_node(source=LIVE), view).status is Status.FAIL


def test_torch_without_cuda_on_a_live_node_fails_with_its_own_words() -> None:
    view = sees(cuda_available=False, error="CUDA unknown error", visible_uuids=())
    expect(judge(TORCH, torch_node(source=LIVE), view), Status.FAIL, "CUDA unknown error")


def test_mig_names_are_not_compared_with_uuids_of_gpus() -> None:
    view = sees(0, 1, visible_uuids=("MIG-a", "MIG-b"))
    assert judge(TORCH, torch_node(source=LIVE), view).status is Status.PASS


def test_ranks_on_cpus_say_nothing_about_gpus() -> None:
    view = sees(cuda_available=False, visible_uuids=())
    on_cpus = Measurements(launch=Launch("gloo", 2, ()), torch_view=view.torch_view)
    expect(judge(TORCH, torch_node(source=LIVE), on_cpus), Status.PASS, "ranks ran on CPUs")
    cpu_build = TorchView(torch="2.13.0+cpu")
    live = judge(TORCH, torch_node(source=LIVE), Measurements(launch=Launch("gloo", 2, ()), torch_view=cpu_build))
    expect(live, Status.FAIL, "CPU-only build")
    rocm_build = Measurements(torch_view=TorchView(torch="2.9.1+rocm6.4"))
    rocm = judge(TORCH, torch_node(source=LIVE), rocm_build)
    assert (rocm.status, "ROCm (AMD) build" in words(rocm), "CPU-only" in words(rocm)) == (Status.FAIL, True, False)


def test_a_simulated_node_is_not_judged_by_the_torch_of_this_machine() -> None:
    here = Measurements(torch_view=TorchView(torch="2.13.0+cpu"))
    assert judge(TORCH, torch_node(), here).status is Status.PASS


def test_torch_that_was_not_asked_is_said() -> None:
    result = judge(TORCH, torch_node(source=LIVE), Measurements(not_run={"torch": Missing("it hung", "failed")}))
    expect(result, Status.UNKNOWN, "it hung")


def test_a_lost_gpu_does_not_crash_the_check() -> None:
    lost = gpu(0, errors=(CallError("nvmlDeviceGetName", 15, "NVML_ERROR_GPU_IS_LOST"),))
    assert judge(VISIBLE, Node(gpus=(lost,), environment=env())).status is Status.PASS
