"""preflight in the processes of one node: one checks, all learn it, and a first process that is lost is no pass."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import gpudoctor
from gpudoctor.api import local_verdict
from gpudoctor.probes.runner import local_workers
from gpudoctor.probes.runner.launch_engine import LocalPlacement, local_placement
from gpudoctor.probes.runner.local_workers import LocalWorkers, WorkerHello
from tests.subprocesses import completed

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "docs" / "examples" / "preflight.py"
NODE = "rtx4090-4"
WORKER = """
import json, os, sys, gpudoctor
def told(**asked):
    try:
        report = gpudoctor.preflight(**asked)
        return ["fit", report.run.id, [gpu.index for gpu in report.gpus if gpu.in_scope]]
    except (gpudoctor.NotFitError, gpudoctor.UserError) as error:
        kind = "UserError" if isinstance(error, gpudoctor.UserError) else "NotFitError"
        return [kind, str(error), getattr(error, "report", None) and error.report.run.id]
if len(sys.argv) > 2:
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]
print(json.dumps([told(**asked) for asked in json.loads(sys.argv[1])]))
"""


def _torchrun(rank: int, ranks: int = 2) -> dict[str, str]:
    """The variables torchrun sets in one of its processes; this test's process id identifies the job."""
    return {
        "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(os.getpid()), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
    }  # fmt: skip


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start the process of a rank that calls preflight with each of these arguments; none outlives the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(rank: int, *asked: dict[str, Any], one_gpu_each: bool = False) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", WORKER, json.dumps(asked), *(["each"] if one_gpu_each else [])]
        pipe = subprocess.PIPE
        environment = {**os.environ, **_torchrun(rank)}
        started.append(subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe, stderr=pipe))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def _told(process: subprocess.Popen[bytes]) -> list[list[Any]]:
    out, err = process.communicate(timeout=120)
    assert err == b""
    answers: list[list[Any]] = json.loads(out)
    return answers


def _example(*words: str) -> subprocess.CompletedProcess[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, str(EXAMPLE), *words]
    return completed(command)


@pytest.mark.wide
def test_the_example_trains_on_a_node_that_is_fit() -> None:
    run = _example(NODE)
    assert run.returncode == 0, run.stderr
    assert (run.stdout.count("preflight: PASS"), run.stdout.count("trained: loss")) == (2, 1)


@pytest.mark.wide
def test_the_example_does_not_train_on_a_node_that_is_not() -> None:
    run = _example(NODE, "pcie-width-x8@1")
    assert run.returncode == 1
    said = f"not trained: simulated node {NODE} is not fit to train on: FAIL pcie.link-width GPU 1"
    assert run.stderr.count(said) == 2
    assert "trained: loss" not in run.stdout


@pytest.mark.wide
def test_one_process_checks_and_each_call_learns_its_own_result(start: Start) -> None:
    """The second call in the same job must not find leftovers of the first."""
    asked: list[dict[str, Any]] = [{"node": NODE}, {"node": NODE, "faults": ["gpu-lost@2"]}, {"node": NODE}]
    first, other = [_told(process) for process in [start(rank, *asked) for rank in range(2)]]
    assert [answer[0] for answer in first] == ["fit", "NotFitError", "fit"]
    assert first == other
    assert len({json.dumps(answer) for answer in first}) == 3


def test_the_gpus_of_all_processes_are_judged(start: Start) -> None:
    """srun may show each task only its own GPU: the fault is on another task's GPU."""
    asked: list[dict[str, Any]] = [{"node": NODE}, {"node": NODE, "faults": ["pcie-width-x8@1"]}]
    answers = [_told(process) for process in [start(rank, *asked, one_gpu_each=True) for rank in range(2)]]
    assert [[fit[0], fit[2], bad[0]] for fit, bad in answers] == [["fit", [0, 1], "NotFitError"]] * 2


def test_what_could_not_be_checked_is_the_same_error_in_all(start: Start) -> None:
    answers = [_told(process) for process in [start(rank, {"node": "no-such-node"}) for rank in range(2)]]
    assert answers[0] == answers[1]
    assert answers[0][0][0] == "UserError"
    assert answers[0][0][1].startswith("no-such-node: no such file")


@pytest.mark.wide(every=2)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, -2)])
def test_a_first_process_that_is_lost_is_no_pass(number: signal.Signals, code: int, start: Start) -> None:
    """Killed for memory, or by Ctrl-C, in the midst of its check: it reads its node from stdin."""
    first, other = [start(rank, {"node": "-"}) for rank in range(2)]
    assert first.stdin is not None
    first.stdin.write(b"{" + b" " * 500_000)  # more than a pipe holds: it is reading, so the other one has arrived
    first.stdin.flush()
    first.send_signal(number)
    first.stdin.close()  # Python looks for a signal when the read is over
    first.stdin = None
    assert first.wait(60) == code
    [answer] = _told(other)
    assert answer == ["NotFitError", "no verdict on this node: its first process ended before it had one", None]


@pytest.fixture
def place() -> LocalPlacement:
    place = local_placement(_torchrun(1))
    assert place is not None
    return place


def test_a_first_process_that_falls_silent_is_no_pass(place: LocalPlacement) -> None:
    first = LocalWorkers(place, local_verdict.PURPOSE)

    def be_silent() -> None:
        first.gather()
        first.broadcast(msgspec.json.encode(local_verdict._Wait(0.05)))

    thread = threading.Thread(target=be_silent, daemon=True)
    thread.start()
    with pytest.raises(gpudoctor.NotFitError, match="fell silent while it checked") as error:
        local_verdict.report_of_first(place)
    assert error.value.report is None
    thread.join()
    first.disconnect()


def test_a_process_whose_first_one_never_called_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_workers, "_LEADER_S", 0.05)
    for name, value in _torchrun(1).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(gpudoctor.NotFitError, match="number 0 did not call preflight in time; call it in all of them"):
        gpudoctor.preflight(node=NODE)


def test_a_first_process_that_alone_calls_is_checked_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_workers, "_FIRST_WORKER_S", 0.05)
    for name, value in _torchrun(0).items():
        monkeypatch.setenv(name, value)
    assert gpudoctor.preflight(node=NODE).verdict == "pass"


def test_processes_that_are_confined_to_gpus_of_their_own_are_not_passed_by_the_first(
    place: LocalPlacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Slurm task that may open /dev/nvidia1 only: the first one, with nvidia0, knows nothing of that GPU."""
    monkeypatch.setattr(local_verdict, "openable_gpus", lambda: ("nvidia0",))
    told: list[bytes] = []

    def other() -> None:
        first = local_workers.leader_of(place, local_verdict.PURPOSE)
        assert first is not None
        with first:
            first.send(msgspec.json.encode(WorkerHello(1, "0", ("nvidia1",))))
            told.append(first.recv(1 << 16))

    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    leader = msgspec.structs.replace(place, rank=0)
    with pytest.raises(gpudoctor.UserError, match="confined each process of this node to GPUs of its own"):
        local_verdict.report_for_all(leader, gpudoctor.CheckRequest(level="quick"))
    thread.join()
    assert b"confined" in told[0]


def test_without_an_engine_it_checks_alone() -> None:
    assert gpudoctor.preflight(node=NODE).exit_code == 0
    with pytest.raises(gpudoctor.NotFitError, match=r"FAIL pcie\.link-width GPU 1") as error:
        gpudoctor.preflight(node=NODE, faults="pcie-width-x8@1")
    assert error.value.report is not None
    assert error.value.report.verdict == "fail"


def test_a_failure_is_not_fit_whatever_the_exit_code_is_made_to_be() -> None:
    with pytest.raises(gpudoctor.NotFitError):
        gpudoctor.preflight(node=NODE, faults="pcie-width-x8@1", fail_on="never")


def test_processes_of_an_unknown_launcher_put_no_load_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(gpudoctor.UserError, match="none of torchrun, srun and mpirun started this process"):
        gpudoctor.preflight("standard")
    assert gpudoctor.preflight("quick", node=NODE).verdict == "pass"
