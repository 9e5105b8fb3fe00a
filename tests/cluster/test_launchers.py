"""The command lines that start engines, and the error when they cannot be started."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from gpudoctor.cli.options import request_from
from gpudoctor.cli.parsing import parsed
from gpudoctor.cluster.check import launcher_commands
from gpudoctor.cluster.check.launcher_commands import chosen_launcher, launch_with
from gpudoctor.cluster.check.model import ClusterCheckRequest
from gpudoctor.errors import UserError
from gpudoctor.process.command import Completed
from tests.conftest import ROOT
from tests.subprocesses import completed


def asked(*words: str) -> ClusterCheckRequest:
    return request_from(parsed(["cluster", "check", *words]), ClusterCheckRequest)


@pytest.fixture(autouse=True)
def every_program(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """All programs are installed; those that are queried answer."""
    ran: list[list[str]] = []

    def run(argv: list[str], deadline_s: float) -> Completed:
        ran.append(argv)
        return Completed(0, "mpirun (Open MPI) 4.1.4\n" if argv[0] == "mpirun" else "n1\nn2\nn3\n")

    monkeypatch.setattr(launcher_commands, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(launcher_commands, "run_command", run)
    return ran


@pytest.mark.parametrize(
    ("words", "environment", "launcher"),
    [
        ((), {"SLURM_JOB_ID": "1"}, "slurm"),
        (("-N", "2"), {}, "slurm"),
        (("--hosts", "a,b"), {"SLURM_JOB_ID": "1"}, "mpi"),
        ((), {"RAY_ADDRESS": "auto"}, "ray"),
        ((), {"PBS_NODEFILE": "/x"}, "mpi"),
        ((), {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "k8s"),
        (("--launcher", "torchrun"), {"SLURM_JOB_ID": "1"}, "torchrun"),
    ],
)
def test_the_engine_is_the_one_whose_allocation_this_is(
    words: tuple[str, ...], environment: dict[str, str], launcher: str
) -> None:
    assert chosen_launcher(asked(*words), environment) == launcher


def test_srun_in_an_allocation_takes_all_of_its_nodes_beside_the_step_it_runs_in() -> None:
    launch = launch_with("slurm", asked(), {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-3]"})
    assert (launch.count, launch.names) == (3, ("n1", "n2", "n3"))
    assert launch.prefix[:4] == ("srun", "-N", "3", "--ntasks-per-node=1")
    assert "--overlap" in launch.prefix
    assert "--cpu-bind=none" in launch.prefix
    fewer = launch_with("slurm", asked("-N", "2"), {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-3]"})
    assert (fewer.count, fewer.names) == (2, ())


def test_of_a_heterogeneous_job_the_component_is_chosen_and_none_is_left_out_unsaid(
    every_program: list[list[str]],
) -> None:
    job = {"SLURM_JOB_ID": "1", "SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST": "n1"}
    job |= {"SLURM_JOB_NODELIST_HET_GROUP_0": "n1", "SLURM_JOB_NODELIST_HET_GROUP_1": "n[2-3]"}
    with pytest.raises(UserError, match="2 components"):
        launch_with("slurm", asked(), job)
    launch = launch_with("slurm", asked("--launcher-args=--het-group=1"), job)
    assert every_program[-1] == ["scontrol", "show", "hostnames", "n[2-3]"]
    assert launch.prefix[-1] == "--het-group=1"
    with pytest.raises(UserError, match="2 components"):
        launch_with("slurm", asked("--launcher-args=--het-group=0,1"), job)


@pytest.mark.parametrize("told", [{}, {"SLURM_JOB_NUM_NODES": "x"}, {"SLURM_JOB_NUM_NODES": "0"}])
def test_a_job_whose_size_slurm_does_not_tell_is_not_taken_for_one_node(told: dict[str, str]) -> None:
    with pytest.raises(UserError, match="give -N NODES"):
        launch_with("slurm", asked(), {"SLURM_JOB_ID": "1", **told})


def test_what_ray_says_is_its_error_and_no_line_of_its_program(tmp_path: Path) -> None:
    (tmp_path / "ray" / "util").mkdir(parents=True)
    (tmp_path / "ray" / "util" / "__init__.py").touch()
    (tmp_path / "ray" / "util" / "scheduling_strategies.py").write_text("NodeAffinitySchedulingStrategy = None\n")
    (tmp_path / "ray" / "__init__.py").write_text(
        "def init(**_):\n    raise ConnectionError('Could not find any running Ray instance.')\n"
    )
    command = [sys.executable, "-m", "gpudoctor", "cluster", "check", "--launcher", "ray"]
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = completed(command, env=environ)
    assert done.returncode == 2
    assert "(ConnectionError: Could not find any running Ray instance.)" in done.stderr


def test_srun_without_an_allocation_makes_one_with_the_words_given() -> None:
    launch = launch_with("slurm", asked("-N", "5", "--launcher-args", "-p 'big gpus'"), {})
    assert launch.count == 5
    assert launch.prefix[-2:] == ("-p", "big gpus")
    assert "--overlap" not in launch.prefix


def test_mpirun_takes_hosts_or_a_hostfile_and_one_process_each(tmp_path: Path) -> None:
    launch = launch_with("mpi", asked("--hosts", "a:8,b:8"), {"NCCL_DEBUG": "INFO"})
    assert (launch.count, launch.names) == (2, ("a", "b"))
    line = " ".join(launch.prefix)
    assert line.startswith("mpirun -np 2 --map-by ppr:1:node --bind-to none --host a:8,b:8 -x GPUDOCTOR_CLUSTER_TOKEN")
    assert "-x NCCL_DEBUG" in line
    file = tmp_path / "hosts"
    file.write_text("# ours\na slots=8\nb slots=8\nb\n\n")
    launch = launch_with("mpi", asked("--hostfile", str(file)), {})
    assert (launch.count, launch.names) == (2, ("a", "b"))
    with pytest.raises(UserError, match="cannot read the list of hosts: No such file"):
        launch_with("mpi", asked("--hostfile", str(tmp_path / "none")), {})
    with pytest.raises(UserError, match="give --hosts"):
        launch_with("mpi", asked(), {})


def test_an_mpirun_of_another_make_is_not_guessed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_commands, "run_command", lambda argv, deadline_s: Completed(0, "HYDRA build details"))
    with pytest.raises(UserError, match="not Open MPI's: start gpudoctor cluster rank with it yourself"):
        launch_with("mpi", asked("--hosts", "a,b"), {})


def test_where_gpudoctor_starts_nothing_itself_it_says_what_to_run() -> None:
    with pytest.raises(UserError, match=r"torchrun --nnodes NODES .* -m gpudoctor cluster rank"):
        launch_with("torchrun", asked(), {})
    with pytest.raises(UserError, match="no Slurm allocation here"):
        launch_with("slurm", asked(), {})
    with pytest.raises(UserError, match="No closing quotation"):
        launch_with("slurm", asked("-N", "2", "--launcher-args", "'"), {})


def test_what_is_said_for_kubernetes_names_single_things_to_apply() -> None:
    with pytest.raises(UserError) as told:
        launch_with("k8s", asked(), {})
    named = re.findall(r"kubectl apply -k ([\w/-]+)", str(told.value))
    assert named == ["contrib/kubernetes/between-nodes", "contrib/kubernetes/load"]
    assert all((ROOT / folder / "kustomization.yaml").is_file() for folder in named)
    assert "-f contrib" not in str(told.value)
