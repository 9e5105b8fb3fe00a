"""Under torchrun, mpirun and srun: the first process checks, the others host ranks, and nothing is left of any."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from gpudoctor.api.load.devices import gpus_of_ranks
from gpudoctor.cli.main import main
from gpudoctor.errors import UserError
from gpudoctor.facts.simulated.load import load_node
from gpudoctor.probes.runner import local_workers
from gpudoctor.probes.runner.launch import ProbePlan, run_probes
from gpudoctor.probes.runner.launch_engine import LocalPlacement, local_placement
from gpudoctor.probes.runner.local_workers import LocalWorkers
from tests.imported_torch import ImportedTorch
from tests.narrowed import present
from tests.probes.conftest import GONE_WITHIN_S, goes_on

_TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "{rank}", "LOCAL_WORLD_SIZE": "{ranks}", "RANK": "{rank}",
    "WORLD_SIZE": "{ranks}", "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
}  # fmt: skip
_MPIRUN = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "{rank}", "OMPI_COMM_WORLD_LOCAL_SIZE": "{ranks}", "PMIX_NAMESPACE": "423624705",
}  # fmt: skip
_BATCH = {
    "SLURM_JOB_ID": "17", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "3",
    "SLURM_TASKS_PER_NODE": "2,1",
}  # fmt: skip
_SRUN = _BATCH | {"SLURM_LOCALID": "{rank}", "SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "{ranks},1"}
_ENGINES = {"torchrun": _TORCHRUN, "mpirun": _MPIRUN, "srun": _SRUN}
_CHECK = ("check", "collective", "--backend", "gloo", "--node", "hgx-h100-8", "--json")
_HANGS = (*_CHECK, "--inject", "hang-rank=1:all_reduce")


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No configuration of the user's."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def _variables(engine: str, rank: int, ranks: int) -> dict[str, str]:
    """The variables an engine sets in one of its processes; this test's process id identifies the job."""
    named = {name: value.format(rank=rank, ranks=ranks) for name, value in _ENGINES[engine].items()}
    unique = {"torchrun": "MASTER_PORT", "mpirun": "PMIX_NAMESPACE", "srun": "SLURM_JOB_ID"}[engine]
    return named | {unique: str(os.getpid())}


def _started(engine: str, rank: int, ranks: int, arguments: tuple[str, ...] = _CHECK) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gpudoctor", *arguments]
    environment = os.environ | _variables(engine, rank, ranks)
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _leader(engine: str, ranks: int) -> LocalWorkers:
    return LocalWorkers(present(local_placement(_variables(engine, 0, ranks))))


@pytest.mark.wide
@pytest.mark.parametrize(("engine", "ranks"), [("torchrun", 2), ("srun", 3)])
def test_the_first_process_reports_on_ranks_that_all_of_them_host(engine: str, ranks: int) -> None:
    processes = [_started(engine, rank, ranks) for rank in range(ranks)]
    answers = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0] * ranks, answers
    assert answers[1:] == [("", "")] * (ranks - 1), "one report, and it is the first that gives it"
    measured = json.loads(answers[0][0])["measurements"]
    assert (measured["launch"]["method"], measured["launch"]["world_size"]) == (engine, ranks)
    assert "problems" not in measured
    assert len(measured["collectives"]) == 3
    assert not any("wrong_ranks" in row for row in measured["collectives"])


def _hanging(engine: str) -> tuple[subprocess.Popen[str], subprocess.Popen[str], list[psutil.Process]]:
    """Leader and worker of a run that hangs, and all their descendants: each has a starter, its guardian and a rank."""
    leader, worker = (_started(engine, rank, 2, _HANGS) for rank in range(2))
    while True:
        goes_on(leader)
        goes_on(worker)
        found = [psutil.Process(process.pid).children(recursive=True) for process in (leader, worker)]
        if all(len(children) == 3 for children in found):
            return leader, worker, [*found[0], *found[1]]


def _end(*processes: subprocess.Popen[str]) -> list[str]:
    return [text for process in processes for text in process.communicate(timeout=60)]


def test_no_rank_outlives_a_leader_that_is_killed() -> None:
    leader, worker, left = _hanging("torchrun")
    leader.kill()
    assert psutil.wait_procs(left, timeout=GONE_WITHIN_S)[1] == []
    assert _end(leader, worker)[2:] == ["", ""]
    assert worker.returncode == 0


@pytest.mark.wide(every=2)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_lost_is_named_and_convicts_nobody(number: signal.Signals) -> None:
    leader, worker, left = _hanging("srun")
    worker.send_signal(number)
    out, err, *of_worker = _end(leader, worker)
    assert (err, of_worker) == ("", ["", ""])
    assert psutil.wait_procs(left, timeout=GONE_WITHIN_S)[1] == []
    assert worker.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 143)
    assert leader.returncode == 3
    [problem] = json.loads(out)["measurements"]["problems"]
    assert (problem["rank"], problem["kind"]) == (1, "error")
    assert "the process that srun started for it is gone" in problem["text"]


def test_a_signal_to_the_leader_ends_all_and_keeps_its_report() -> None:
    leader, worker, left = _hanging("mpirun")
    leader.terminate()
    out, _, *of_worker = _end(leader, worker)
    assert (leader.returncode, worker.returncode, of_worker) == (143, 0, ["", ""])
    assert json.loads(out)["run"]["interrupted"] == "SIGTERM"
    assert psutil.wait_procs(left, timeout=GONE_WITHIN_S)[1] == []


@pytest.mark.wide
def test_another_number_of_ranks_than_the_engine_started_is_refused() -> None:
    processes = [_started("torchrun", rank, 2, (*_CHECK, "--ranks", "4")) for rank in range(2)]
    out, err, *of_worker = _end(*processes)
    assert [process.returncode for process in processes] == [2, 0]
    assert of_worker == ["", ""]
    assert "--ranks 4: torchrun started 2 ranks here" in json.loads(out)["error"]
    assert len(err.splitlines()) == 1


def test_a_process_without_a_leader_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(local_workers, "_LEADER_S", 0.0)
    for name, value in _variables("srun", 1, 2).items():
        monkeypatch.setenv(name, value)
    report = tmp_path / "report.json"
    assert main([*_CHECK, "-o", str(report)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "srun started this process as number 1 of 2 on this node, and number 0 did not come" in err
    assert not report.exists(), "the report is the leader's"


@pytest.mark.parametrize("arguments", [["--level", "quick"], ["host"]])
def test_where_no_rank_is_wanted_the_others_end_at_once(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local_workers, "run_local_worker", lambda _: pytest.fail("it waited for a leader"))
    for name, value in _variables("torchrun", 1, 2).items():
        monkeypatch.setenv(name, value)
    assert main(["check", *arguments, "--node", "hgx-h100-8"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.wide
def test_variables_that_were_inherited_by_a_single_process_cost_a_wait_and_no_ranks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], imported_torch: ImportedTorch
) -> None:
    monkeypatch.setattr(local_workers, "_FIRST_WORKER_S", 0.0)
    monkeypatch.setattr("gpudoctor.probes.runner.launch.start", imported_torch.start)
    for name, value in _variables("torchrun", 0, 8).items():
        monkeypatch.setenv(name, value)
    assert main(list(_CHECK)) == 0
    launch = json.loads(capsys.readouterr().out)["measurements"]["launch"]
    assert (launch["method"], launch["world_size"]) == ("fork-server", 2)


def test_a_process_that_does_not_come_is_no_fault_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_workers, "_ALL_WORKERS_S", 0.0)
    leader = _leader("mpirun", 3)
    worker = _started("mpirun", 1, 3)
    assert leader.gather()
    assert leader.missing == [2]
    plan = ProbePlan("gloo", 3, probes=("train",), engine="mpirun")
    [problem] = run_probes(plan, deadline_s=60.0, probe_deadline_s=60.0, workers=leader).problems
    assert (problem.kind, problem.rank) == ("error", None)
    assert "mpirun started 3 processes here, and process 2 did not come" in problem.text
    leader.end()
    assert _end(worker) == ["", ""]
    assert worker.returncode == 0


def test_a_second_gpudoctor_of_the_same_job_is_told_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_workers, "_FIRST_WORKER_S", 0.0)
    placement = LocalPlacement("srun", 0, 2, str(os.getpid()))
    first = LocalWorkers(placement)
    with pytest.raises(UserError, match="another gpudoctor of this job is under way"):
        LocalWorkers(placement)
    other_job = LocalWorkers(msgspec.structs.replace(placement, job="another"))
    for leader in (first, other_job):
        leader.end()
    LocalWorkers(placement).end()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        (_variables("torchrun", 3, 8), ("torchrun", 3, 8)),
        (_variables("mpirun", 1, 4), ("mpirun", 1, 4)),
        (_variables("srun", 1, 2), ("srun", 1, 2)),
        (_variables("srun", 1, 2) | _variables("mpirun", 0, 4), ("mpirun", 0, 4)),
        (_variables("srun", 0, 1) | _variables("torchrun", 5, 8), ("torchrun", 5, 8)),
        # one process per node: it checks the whole node with its own ranks
        (_variables("torchrun", 0, 1), None),
        (_variables("srun", 0, 1), None),
        (_variables("srun", 0, 2) | {"SLURM_NODEID": "1"}, None),
        # left over in a shell: without torchrun no other process was started
        ({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, None),
        (_BATCH, None),
        (_BATCH | {"SLURM_STEP_ID": "4294967291", "SLURM_STEP_TASKS_PER_NODE": "2,1"}, None),
        (_SRUN | {"SLURM_LOCALID": "5", "SLURM_STEP_TASKS_PER_NODE": "4(x2),8", "SLURM_NODEID": "2"}, ("srun", 5, 8)),
        (_SRUN | {"SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "many"}, None),
        (_variables("torchrun", 0, 2) | {"LOCAL_RANK": "-1"}, None),
        (_variables("torchrun", 2, 2), None),
    ],
)
def test_an_engine_is_known_by_what_it_sets_in_each_of_its_processes(
    variables: dict[str, str], expected: tuple[str, int, int] | None
) -> None:
    found = local_placement(variables)
    assert (None if found is None else (found.engine, found.rank, found.ranks)) == expected


def test_every_rank_gets_the_gpu_that_its_process_was_given() -> None:
    node = load_node("hgx-h100-8")

    def indices(visible: list[str | None]) -> list[int] | str:
        found = gpus_of_ranks(node, visible)
        return found if isinstance(found, str) else [gpu.index for gpu in found]

    assert indices([None] * 4) == [0, 1, 2, 3], "torchrun shows all of them to all"
    assert indices(["4,5,6,7"] * 2) == [4, 5]
    assert indices(["6", "2"]) == [6, 2], "srun --gpus-per-task=1 gives each its own"
    shut_in = indices(["0", "0"])
    assert isinstance(shut_in, str)
    assert "1 GPUs" in shut_in
    assert "srun --gpu-bind=none" in shut_in
    assert isinstance(indices([None] * 9), str)


@pytest.mark.wide
def test_a_guest_that_leaves_before_it_is_given_a_rank_does_not_stop_the_run() -> None:
    leader = _leader("mpirun", 2)
    worker = _started("mpirun", 1, 2)
    assert leader.gather()
    worker.kill()
    _end(worker)
    plan = ProbePlan("gloo", 2, probes=("collective",), engine="mpirun")
    [problem] = run_probes(plan, deadline_s=60.0, probe_deadline_s=60.0, workers=leader).problems
    assert (problem.kind, problem.rank) == ("error", 1), "nobody waits for it: that would be a timeout"
    assert "the process that mpirun started for it is gone" in problem.text
