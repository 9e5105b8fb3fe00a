"""Under a real Slurm: which nodes the hooks in contrib/slurm drain, and `gpudoctor cluster check` in an allocation."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.cluster.check.model import ClusterReport
from tests.cluster.hosts import Hosts
from tests.cluster.slurm import HOOKS, WAIT_S, Slurm, SlurmError
from tests.needs import fixture_needs, missing

pytestmark = pytest.mark.wide

_REASON = "gpudoctor: SIMULATED FAIL gpu.xid GPU 3 (0000:4b:00.0): Xid 79: GPU has fallen off the bus"
_JOB_OUTPUT = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/w/train.py", line 9, in <module>
[rank3]:     loss.backward()
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB. \
GPU 3 has a total capacity of 79.10 GiB of which 1.20 GiB is free. Process 1 has 77.90 GiB memory in use.
"""
_CHECK = [sys.executable, "-m", "gpudoctor", "cluster", "check", "--level", "quick", "--node", "hgx-h100-8"]


@pytest.fixture(scope="module")
@fixture_needs("munged", "slurmctld", "slurmd", "srun")
def cluster(module_hosts: Hosts) -> Slurm:
    slurm = Slurm(module_hosts)
    try:
        slurm.start()
    except SlurmError as error:
        missing("a running Slurm", error)
    return slurm


@pytest.fixture
def slurm(cluster: Slurm) -> Iterator[Slurm]:
    yield cluster
    cluster.reset()


def test_the_prolog_drains_exactly_the_node_with_the_fault_and_the_job_runs_on_the_others(slurm: Slurm) -> None:
    slurm.set_fault("node3", "xid-79@3")
    slurm.switch_on("prolog")

    refused = slurm.run("srun", "--nodes=4", "--gpus-per-node=8", "hostname")
    slurm.wait(lambda: slurm.states()["node3"] == "IDLE+DRAIN")
    ran = slurm.run("srun", "--nodes=3", "--gpus-per-node=8", "hostname")

    assert refused.returncode != 0
    assert slurm.reasons() == {"node3": _REASON}
    assert (ran.returncode, sorted(ran.stdout.split())) == (0, ["node1", "node2", "node4"]), ran.stderr
    assert {call.split()[1] for call in slurm.calls()} == {"prolog_slurmd"}


def test_a_job_whose_prolog_refused_the_node_runs_on_another_one_without_an_administrator(slurm: Slurm) -> None:
    """`SchedulerParameters=nohold_on_prolog_fail`: without it the job is held, for good."""
    slurm.set_fault("node1", "xid-79@3")
    slurm.switch_on("prolog")

    slurm.submit("--nodes=1", "--gpus-per-node=8", "hostname")

    slurm.wait(slurm.output)
    assert slurm.reasons() == {"node1": _REASON}
    assert slurm.output() in {"node2\n", "node3\n", "node4\n"}


def test_first_only_logged_then_drained_up_to_a_cap_and_given_back_after_healthy_checks_in_a_row(slurm: Slurm) -> None:
    """What a roll-out goes through when a driver upgrade breaks every node: 25 % of 4 nodes is one."""
    names = ("node1", "node2", "node3", "node4")
    for name in names:
        slurm.set_fault(name, "compute-mode-prohibited@3")
    slurm.set_settings("GPUDOCTOR_ACTION=log")
    slurm.switch_on("health", "prolog")
    slurm.wait(lambda: all("health check: not drained, GPUDOCTOR_ACTION=log" in slurm.log(name) for name in names))
    job = slurm.run("srun", "--nodes=4", "--gpus-per-node=8", "true")
    assert (job.returncode, slurm.reasons()) == (0, {})

    # all four health checks run at the same moment: each would be the first
    slurm.set_settings("GPUDOCTOR_DRAIN_CAP=25%", "GPUDOCTOR_UNDRAIN_AFTER=3")
    slurm.wait(lambda: sum("GPUDOCTOR_DRAIN_CAP=25%" in slurm.log(name) for name in names) == 3 and slurm.reasons())
    _let_a_round_pass(slurm, *names)
    (drained,) = slurm.reasons()
    job = slurm.run("srun", "--nodes=3", "--gpus-per-node=8", "hostname")
    assert sorted(job.stdout.split()) == sorted({*names} - {drained})
    others = (name for name in names if name != drained)
    assert all(
        'gpudoctor_slurm_withheld{hook="health",simulated="true"} 1' in slurm.metrics(n, "health") for n in others
    )

    for name in names:
        slurm.set_fault(name)
    back = "healthy 3 times in a row, back in service"
    slurm.wait(lambda: back in slurm.log(drained))
    told = [f"healthy {count} of 3 times in a row, still drained" for count in (1, 2)]
    assert _in_this_order(slurm.log(drained), *told, back)
    slurm.wait(lambda: slurm.states()[drained] == "IDLE")  # slurmctld asks the node first


@pytest.mark.parametrize("typo", ["GPUDOCTOR_DRAIN_CAP=25", "GPUDOCTOR_DRAN_CAP=25%", "GPUDOCTOR_ACTION=lgo"])
def test_a_typo_in_the_settings_of_all_nodes_is_logged_and_drains_none(slurm: Slurm, typo: str) -> None:
    log = f"GPUDOCTOR_LOG={slurm.folder}/slurmd.$node.log"
    slurm.set_settings(log, "GPUDOCTOR_ON_ERROR=hold", typo)
    slurm.switch_on("prolog", "health")

    ran = slurm.run("srun", "--nodes=4", "--gpus-per-node=8", "hostname")
    slurm.wait(lambda: slurm.last_health("node1"))
    _let_a_round_pass(slurm, "node1")

    assert sorted(ran.stdout.split()) == ["node1", "node2", "node3", "node4"]
    assert (
        f"no verdict: /etc/default/gpudoctor: {typo.partition('=')[0]}"
        in (slurm.folder / "slurmd.node1.log").read_text()
    )
    assert slurm.reasons() == {}


def test_without_a_verdict_hold_keeps_jobs_off_the_node(slurm: Slurm) -> None:
    slurm.set_settings("GPUDOCTOR_ON_ERROR=hold")
    slurm.set_fault("node1", "storage-hang")
    slurm.switch_on("prolog")

    slurm.submit("--nodes=1", "--gpus-per-node=8", "hostname")
    slurm.wait(slurm.output)

    assert slurm.output() != "node1\n"
    assert slurm.reasons() == {"node1": "gpudoctor: no verdict: SIMULATED UNKNOWN storage.mount"}


def test_the_prolog_judges_the_gpus_of_its_job_only(slurm: Slurm) -> None:
    slurm.set_fault("node1", "xid-79@7")
    slurm.switch_on("prolog")

    on_good_gpus = slurm.run("srun", "--nodelist=node1", "--gpus=4", "hostname")
    drained_by_that = slurm.reasons()
    on_all_gpus = slurm.run("srun", "--nodelist=node1", "--gpus=8", "hostname")

    assert on_good_gpus.returncode == 0, on_good_gpus.stderr
    assert drained_by_that == {}
    assert on_all_gpus.returncode != 0
    assert list(slurm.reasons()) == ["node1"]


def test_the_epilog_drains_the_node_that_went_bad_during_the_job_and_leaves_the_job_its_success(slurm: Slurm) -> None:
    slurm.set_fault("node2", "xid-79@3")
    slurm.switch_on("epilog")

    job = slurm.run("srun", "--nodes=4", "--gpus-per-node=8", "true")
    slurm.wait(slurm.reasons)

    assert job.returncode == 0
    assert slurm.reasons() == {"node2": _REASON}


def test_a_node_with_a_hardware_fault_returns_only_after_a_check_under_load(slurm: Slurm) -> None:
    slurm.set_fault("node3", "xid-79@3")
    slurm.switch_on("health")
    slurm.wait(slurm.reasons)
    drained = slurm.reasons()

    slurm.set_fault("node3")  # a reset makes the fault invisible without load
    slurm.wait(lambda: "still drained, a hardware fault" in slurm.log("node3"))
    _let_a_round_pass(slurm, "node3")
    before = slurm.reasons()
    load = slurm.run(slurm.folder / "contrib" / "load-check.sh", SLURMD_NODENAME="node3", timeout=2 * WAIT_S)
    assert (load.returncode, load.stdout.startswith("go on: SIMULATED PASS")) == (0, True), load
    slurm.wait(lambda: "back in service (was: gpudoctor: SIMULATED FAIL gpu.xid" in slurm.log("node3"))

    slurm.wait(lambda: slurm.states()["node3"] == "IDLE")  # slurmctld asks the node first

    assert drained == before == {"node3": _REASON}


def test_a_node_that_flaps_returns_as_often_as_is_allowed_and_with_never_not_at_all(slurm: Slurm) -> None:
    def fails_and_heals(until: str) -> None:
        slurm.set_fault("node2", "compute-mode-prohibited@3")
        slurm.wait(slurm.reasons)
        slurm.set_fault("node2")
        slurm.wait(lambda: until in slurm.log("node2"))

    slurm.set_settings("GPUDOCTOR_UNDRAINS_A_DAY=1")
    slurm.switch_on("health")
    fails_and_heals("back in service")
    fails_and_heals("still drained, returned 1 times in 24 h (GPUDOCTOR_UNDRAINS_A_DAY)")
    slurm.set_settings("GPUDOCTOR_UNDRAIN_AFTER=never")
    slurm.wait(lambda: "left drained, GPUDOCTOR_UNDRAIN_AFTER=never" in slurm.log("node2"))
    _let_a_round_pass(slurm, "node2")

    assert list(slurm.reasons()) == ["node2"]
    assert slurm.log("node2").count("back in service") == 1


def test_a_load_check_of_a_node_that_gpudoctor_did_not_drain_is_refused(slurm: Slurm) -> None:
    done = slurm.run(slurm.folder / "contrib" / "load-check.sh", SLURMD_NODENAME="node1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "node1 is no idle node that gpudoctor drained: its state is IDLE" in done.stderr


def test_a_failed_jobs_cause_is_in_a_file_beside_its_output(slurm: Slurm) -> None:
    """EpilogSlurmctld: a comment would be refused, since the job has finished."""
    slurm.switch_on("job_end")
    slurm.submit("--nodes=1", f"printf %s {shlex.quote(_JOB_OUTPUT)}; exit 1")

    answer = slurm.folder / "job.out.diagnosis.txt"
    slurm.wait(answer.exists)

    slurm.wait(lambda: "cuda_oom (certain) rank 3 gpu 3" in slurm.log())
    assert "CUDA out of memory" in answer.read_text()


@pytest.mark.parametrize("output", ["a fifo", "a link to a file of root", "no file"])
def test_a_path_that_a_user_chose_is_not_read_unless_it_is_the_users_file(slurm: Slurm, output: str) -> None:
    slurm.switch_on("job_end")
    path = slurm.folder / "job.out"
    slurm.submit("--nodes=1", _swap(path, output))
    slurm.wait(lambda: "not diagnosed: " in slurm.log())
    assert not (slurm.folder / "job.out.diagnosis.txt").exists()


def _swap(path: Path, output: str) -> str:
    """A job that puts something else in the place of its output, and fails."""
    other = {"a fifo": f"mkfifo {path}", "a link to a file of root": f"ln -s /etc/hosts {path}", "no file": "true"}
    return f"rm {path}; {other[output]}; exit 1"


def test_the_health_check_leaves_a_drain_of_somebody_else_alone_good_node_or_bad(slurm: Slurm) -> None:
    slurm.set_fault("node2", "xid-79@3")
    for node in ("node1", "node2"):
        slurm.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=fan noise, see ticket 12")
    slurm.switch_on("health")

    slurm.wait(lambda: slurm.last_health("node1") and slurm.last_health("node2"))
    _let_a_round_pass(slurm, "node1", "node2")

    assert slurm.last_health("node1").startswith("pass")
    assert slurm.last_health("node2").startswith("fail")
    assert slurm.reasons() == dict.fromkeys(("node1", "node2"), "fan noise, see ticket 12")


def test_a_gpudoctor_that_cannot_start_neither_drains_nor_undrains_nor_holds_a_job(slurm: Slurm) -> None:
    for node in ("node1", "node2"):
        slurm.set_answer(node, "echo 'Traceback (most recent call last):'; exit 1")
    slurm.run("scontrol", "update", "nodename=node2", "state=drain", "reason=gpudoctor: FAIL gpu.ecc GPU 1")
    slurm.switch_on("health", "prolog")

    slurm.wait(lambda: slurm.metrics("node1", "health") and slurm.metrics("node2", "health"))
    _let_a_round_pass(slurm, "node1", "node2")
    job = slurm.run("srun", "--nodelist=node1", "--gpus=8", "hostname")

    assert "no verdict: gpudoctor slurm health ended with exit code 1: Traceback" in slurm.log("node1")
    assert "no verdict: gpudoctor slurm prolog ended with exit code 1: Traceback" in slurm.log("node1")
    assert 'verdict="unknown"} 1' in slurm.metrics("node1", "health")
    assert slurm.reasons() == {"node2": "gpudoctor: FAIL gpu.ecc GPU 1"}
    assert job.stdout == "node1\n"


def test_the_next_job_runs_on_nodes_that_the_batch_script_knows_as_good(slurm: Slurm) -> None:
    """The recipe of contrib/slurm/README.md: a node that fails, one that is silent and one that is unknown."""
    slurm.set_fault("node1", "xid-79@3")
    slurm.set_answer("node2", "exit 137")
    slurm.set_fault("node4", "storage-hang")
    recipe = (slurm.folder / "recipe.sh").resolve()
    recipe.write_text(_recipe(slurm))

    done = slurm.run("bash", "-x", recipe)

    job = max((slurm.folder / "reports").iterdir(), key=lambda folder: int(folder.name))
    reports = {file.stem: json.loads(file.read_text()) for file in job.glob("*.json")}
    assert {name: report["verdict"] for name, report in reports.items()} == {
        "node1": "fail",
        "node3": "pass",
        "node4": "unknown",
    }
    assert {report["run"]["level"] for report in reports.values()} == {"standard"}
    assert (job / "exclude").read_text() == "node[1-2,4]\n"
    slurm.wait(slurm.output)
    assert slurm.output() == "node3\n", done.stderr


def test_no_job_follows_a_check_after_which_no_node_is_known_as_good(slurm: Slurm) -> None:
    slurm.set_fault("node1", "xid-79@3")  # it runs the batch script
    for name in ("node2", "node3", "node4"):
        slurm.set_answer(name, "exit 1")
    recipe = (slurm.folder / "recipe.sh").resolve()
    recipe.write_text(_recipe(slurm))

    done = slurm.run("bash", recipe)

    job = max((slurm.folder / "reports").iterdir(), key=lambda folder: int(folder.name))
    assert [file.name for file in job.iterdir()] == ["node1.json"]
    assert "exclude: No such file" in done.stderr
    assert slurm.is_free()


def _recipe(slurm: Slurm) -> str:
    """The recipe as the README has it, with the paths of this Slurm."""
    text = (HOOKS / "README.md").read_text()
    found = re.search(r"((?:^    .*\n)+)(?=\n.*`exclude`)", text, re.MULTILINE)
    assert found is not None
    recipe = found[1]
    train = f"--gpus-per-node=8 --output={slurm.folder}/job.out --wrap hostname"
    for old, new in (
        ("-N 16", "-N 4"),
        ("/opt/gpudoctor/slurm", str(HOOKS)),
        ("train.sbatch", train),
    ):
        assert old in recipe
        recipe = recipe.replace(old, new)
    return recipe


def test_srun_checks_every_node_of_the_allocation_and_names_the_one_with_the_fault(slurm: Slurm) -> None:
    done = slurm.run(
        "salloc", "--nodes=4", "--gpus-per-node=8", *_CHECK, "--json", "--fault", "node3:xid-79@3", timeout=240
    )

    report = msgspec.json.decode(done.stdout, type=ClusterReport)
    assert (report.run.launcher, report.run.nodes_expected, report.exit_code) == ("slurm", 4, 1), done.stderr
    assert {node.name: node.verdict for node in report.nodes} == {
        "node1": "pass",
        "node2": "pass",
        "node3": "fail",
        "node4": "pass",
    }
    named = {f.subject.name for c in report.checks for f in c.findings if f.status in (Status.FAIL, Status.UNKNOWN)}
    assert named == {"node3"}
    assert done.returncode == 1
    assert "Xid 79" in report.nodes[2].reason
    slurm.wait(slurm.is_free)  # no step, and nothing of it, is left


def test_a_drill_on_a_host_that_is_not_there_is_an_error(slurm: Slurm) -> None:
    done = slurm.run("salloc", "--nodes=2", "--gpus-per-node=8", *_CHECK, "--fault", "nod3:xid-79@3", timeout=240)
    assert done.returncode == 2
    assert "--fault nod3:xid-79@3: no node of this check is called nod3: node[1-2]" in done.stderr


def test_without_an_allocation_srun_makes_one_and_nodes_that_do_not_exist_end_it(slurm: Slurm) -> None:
    done = slurm.run(*_CHECK, "-N", "2", "--launcher-args=--gpus-per-node=8", timeout=240)
    assert done.returncode == 0, done.stderr
    assert "2 nodes by slurm, level quick" in done.stdout

    done = slurm.run(*_CHECK, "-N", "9", "--launcher-args=--immediate=2", timeout=240)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no node came" in done.stderr
    assert "srun: error" in done.stderr


def _let_a_round_pass(slurm: Slurm, *nodes: str) -> None:
    """Wait until each node's health check has started once more, so that the effects of the last one are complete."""
    before = {node: _checks_of(slurm, node) for node in nodes}
    slurm.wait(lambda: all(_checks_of(slurm, node) > count for node, count in before.items()))


def _in_this_order(text: str, *parts: str) -> bool:
    places = [text.find(part) for part in parts]
    return -1 not in places and places == sorted(places)


def _checks_of(slurm: Slurm, node: str) -> int:
    return sum(call == f"{node} none slurm health" for call in slurm.calls())


_TRAIN = """
import torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.wide
def test_each_node_of_a_step_makes_one_report_of_its_own_tasks(slurm: Slurm, tmp_path: Path) -> None:
    watched = [sys.executable, "-m", "gpudoctor", "run", "--precheck", "none", "--format", "json"]
    watched += ["-o", str(tmp_path / "%h.json"), "--", sys.executable, "-c", _TRAIN]
    done = slurm.run("srun", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2", *watched, timeout=200)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads(file.read_text())["ranks"] for file in sorted(tmp_path.iterdir())]
    steps = [[(rank["rank"], rank["steps"]) for rank in each] for each in ranks]
    assert steps == [[(0, 40), (1, 40)], [(2, 40), (3, 40)]]
    assert not list(Path("/tmp").glob("gpudoctor-run-*-*.*"))
