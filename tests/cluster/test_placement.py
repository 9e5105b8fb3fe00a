"""Where a process is in its job, from the variables that each engine really sets."""

from __future__ import annotations

import pytest

from gpudoctor.cluster.check.placement import JobPlacement, first_host, job_placement
from gpudoctor.errors import UserError

_TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "LOCAL_RANK": "3",
    "LOCAL_WORLD_SIZE": "8",
    "RANK": "11",
    "WORLD_SIZE": "16",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}
_SRUN = {
    "SLURM_CLUSTER_NAME": "c",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NODELIST": "node[02-05]",
    "SLURM_NODEID": "2",
    "SLURM_LOCALID": "0",
}
_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "n",
}


def place(environment: dict[str, str], nodes: int | None = None) -> tuple[str, int, int, int, str | None]:
    found = job_placement(environment, nodes)
    assert found is not None
    return found.engine, found.node, found.nodes, found.local, found.host


def test_each_engine_tells_the_node_and_the_process_on_it() -> None:
    assert place(_TORCHRUN) == ("torchrun", 1, 2, 3, "node1")
    assert place(_SRUN) == ("slurm", 2, 4, 0, "node02")
    assert place(_MPI) == ("mpi", 1, 2, 1, None)
    assert place({"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a"}) == ("environment", 1, 4, 0, "a")
    assert place({"JOB_COMPLETION_INDEX": "3", "MASTER_ADDR": "pod-0"}, 4) == ("kubernetes", 3, 4, 0, "pod-0")
    assert job_placement({}) is None


_SAGEMAKER = {
    "TRAINING_JOB_NAME": "train-7",
    "SM_HOSTS": '["algo-10","algo-2","algo-1"]',
    "SM_CURRENT_HOST": "algo-2",
    "SM_NUM_GPUS": "8",
}


def test_sagemakers_hosts_are_numbered_alike_whatever_the_order_of_their_list() -> None:
    assert place(_SAGEMAKER) == ("sagemaker", 1, 3, 0, "algo-1")
    assert place({**_SAGEMAKER, "SM_CURRENT_HOST": "algo-10"}) == ("sagemaker", 2, 3, 0, "algo-1")
    listed_otherwise = job_placement({**_SAGEMAKER, "SM_HOSTS": '["algo-1", "algo-2", "algo-10"]'})
    assert listed_otherwise == job_placement(_SAGEMAKER)
    # what starts processes on them knows more
    assert place({**_SAGEMAKER, **_TORCHRUN})[0] == "torchrun"
    assert place({**_SAGEMAKER, "RANK": "0", "WORLD_SIZE": "2"})[0] == "environment"


@pytest.mark.parametrize("hosts", ["", "[]", "algo-1", '{"algo-1": 1}', "[1]"])
def test_what_is_no_list_of_hosts_makes_no_job(hosts: str) -> None:
    assert job_placement({**_SAGEMAKER, "SM_HOSTS": hosts}) is None


def test_a_host_that_is_none_of_the_job_is_one_clear_line() -> None:
    with pytest.raises(UserError, match="this is algo-7, which is none of SM_HOSTS: algo-1, algo-2, algo-10"):
        job_placement({**_SAGEMAKER, "SM_CURRENT_HOST": "algo-7"})


def test_the_innermost_engine_counts() -> None:
    assert place({**_SRUN, **_TORCHRUN})[0] == "torchrun"
    assert place({**_SRUN, **_MPI})[0] == "mpi"


def test_the_batch_step_of_a_job_is_no_rank() -> None:
    assert job_placement({**_SRUN, "SLURM_STEP_ID": "4294967291"}) is None


def test_all_processes_of_a_job_and_no_other_meet_at_the_same_ports() -> None:
    mine = [job_placement({**_TORCHRUN, "GROUP_RANK": rank}) for rank in ("0", "1")]
    other = job_placement({**_TORCHRUN, "MASTER_PORT": "29501"})
    assert all(isinstance(found, JobPlacement) for found in (*mine, other))
    ports = [found.ports for found in (*mine, other) if found is not None]
    assert ports[0] == ports[1] != ports[2]
    assert all(20000 <= port < 32768 for port in ports[0])
    assert len(set(ports[0])) == len(ports[0])


def test_variables_that_contradict_each_other_are_one_clear_line() -> None:
    with pytest.raises(UserError, match="torchrun says that this is node 2 of 2"):
        job_placement({**_TORCHRUN, "GROUP_RANK": "2"})
    with pytest.raises(UserError, match="give -N NODES"):
        job_placement({"JOB_COMPLETION_INDEX": "0"})


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("node1", "node1"),
        ("node[1-4]", "node1"),
        ("gpu-[007,9]", "gpu-007"),
        ("a,b[1-2]", "a"),
        ("n[01-03,7]-ib[0-1],login", "n01-ib0"),
        ("r[1,4]", "r1"),
        ("", None),
    ],
)
def test_the_first_host_of_slurms_list(nodelist: str, host: str | None) -> None:
    assert first_host(nodelist) == host
