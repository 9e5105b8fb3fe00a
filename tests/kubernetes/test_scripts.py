"""The shell scripts inside contrib/kubernetes, run with a gpudoctor that sees a simulated node."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Gpudoctor
from tests.conftest import ROOT
from tests.kubernetes.manifests import FOLDER, commands_in, script_of, the
from tests.needs import needs
from tests.subprocesses import completed, shell_program

_SIMULATED = f"""
case " $* " in *" --node "*) ;; *) set -- "$@" --node hgx-h100-8 $FAULTS ;; esac
exec {sys.executable} -m gpudoctor "$@"
"""


def test_a_round_of_the_daemonset_leaves_verdict_and_metrics(tmp_path: Path) -> None:
    _install(tmp_path, "--fault xid-79@3")

    _one_round(tmp_path)

    verdict = (tmp_path / "results" / "verdict").read_text()
    metrics = (tmp_path / "textfile" / "gpudoctor.prom").read_text().splitlines()
    assert verdict.startswith("GPUDOCTOR CRITICAL - SIMULATED FAIL gpu.xid GPU 3")
    assert 'gpudoctor_verdict{verdict="fail",simulated="true"} 1' in metrics


@pytest.mark.wide
def test_a_round_that_gives_no_report_does_not_repeat_the_last_one(tmp_path: Path) -> None:
    _install(tmp_path, "")
    _one_round(tmp_path)
    good = (tmp_path / "results" / "verdict").read_text()
    shell_program(tmp_path / "bin" / "gpudoctor", f'case "$*" in *json*--include*) exit 137;; esac\n{_SIMULATED}')

    _one_round(tmp_path)

    metrics = (tmp_path / "textfile" / "gpudoctor.prom").read_text()
    assert good.startswith("GPUDOCTOR OK")
    assert (tmp_path / "results" / "verdict").read_text().startswith("GPUDOCTOR UNKNOWN")
    assert 'verdict="pass"} 1' not in metrics


@pytest.mark.wide
def test_the_jobs_log_is_the_report_also_of_a_bad_node(tmp_path: Path) -> None:
    _install(tmp_path, "--fault xid-79@3")

    done = _run_script(tmp_path, script_of(the("Job/gpudoctor-check"), "check"))

    (line,) = done.stdout.splitlines()
    report = json.loads(line)
    assert (done.returncode, done.stderr) == (0, "")
    assert (report["run"]["level"], report["verdict"]) == ("standard", "fail")
    assert (tmp_path / "termination-log").read_text().startswith("GPUDOCTOR CRITICAL - ")


@pytest.mark.wide
def test_the_logs_of_the_jobs_pods_in_one_file_are_a_report_on_all_nodes(
    tmp_path: Path, gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kubectl logs -l ...` of the README, and what it does with it."""
    logs: list[str] = []
    for faults in ("", "--fault xid-79@3"):
        folder = tmp_path / f"pod{len(logs)}"
        folder.mkdir()
        _install(folder, faults)
        logs.append(_run_script(folder, script_of(the("Job/gpudoctor-check"), "check")).stdout)
    (tmp_path / "reports.jsonl").write_text("".join(logs))
    (command,) = [c for c in commands_in((FOLDER / "README.md").read_text()) if c[:2] == ["cluster", "report"]]

    monkeypatch.chdir(tmp_path)
    done = gpudoctor(*command)

    assert (done.code, done.err) == (1, "")
    assert "gpu.xid" in done.out


def test_a_pod_of_the_job_without_a_report_fails_and_says_why(tmp_path: Path) -> None:
    _install(tmp_path, "")
    shell_program(tmp_path / "bin" / "gpudoctor", "echo cannot >&2; exit 2")

    done = _run_script(tmp_path, script_of(the("Job/gpudoctor-check"), "check"))

    assert (done.returncode, done.stdout, done.stderr) == (2, "", "cannot\n")


@pytest.mark.wide(every=4)
@pytest.mark.parametrize(
    ("faults", "starts"),
    [("", True), ("--fault persistence-off", True), ("--fault no-such", True), ("--fault xid-79@3", False)],
)
def test_the_init_container_holds_the_job_back_on_a_failure_only(tmp_path: Path, faults: str, starts: bool) -> None:
    _install(tmp_path, faults)

    done = _run_script(tmp_path, script_of(the("Job/train"), "gpudoctor"))

    assert (done.returncode == 0) is starts
    assert done.stdout.startswith("GPUDOCTOR ")
    assert done.stdout == (tmp_path / "termination-log").read_text()


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("GPUDOCTOR OK - PASS 33 of 51 checks | pass=33", 0, "PASS 33 of 51 checks"),
        ("GPUDOCTOR WARNING - WARN gpu.settings: off | warn=1", 0, "WARN gpu.settings: off"),
        ("GPUDOCTOR CRITICAL - FAIL gpu.xid GPU 3: Xid 79 | fail=1", 1, "FAIL gpu.xid GPU 3: Xid 79"),
        (f"GPUDOCTOR CRITICAL - FAIL {'x' * 100} | fail=1", 1, f"FAIL {'x' * 75}"),
        ("GPUDOCTOR UNKNOWN - UNKNOWN pcie.errors | unknown=1", 2, "UNKNOWN pcie.errors"),
        ("Traceback (most recent call last):", 2, "Traceback (most recent call last):"),
        ("", 2, ""),
    ],
)
def test_node_problem_detector_is_told_no_problem_a_problem_or_not_known(
    tmp_path: Path, line: str, code: int, words: str
) -> None:
    verdict = tmp_path / "verdict"
    verdict.write_text(f"{line}\nmore\n" if line else "")

    done = _run_plugin(tmp_path, verdict)

    assert (done.returncode, done.stdout) == (code, f"{words}\n")


def test_no_result_and_a_stale_one_are_not_known_to_node_problem_detector(tmp_path: Path) -> None:
    verdict = tmp_path / "verdict"
    absent = _run_plugin(tmp_path, verdict)
    verdict.write_text("GPUDOCTOR OK - PASS | pass=33\n")
    half_an_hour_ago_s = verdict.stat().st_mtime - 1800
    os.utime(verdict, (half_an_hour_ago_s, half_an_hour_ago_s))
    stale = _run_plugin(tmp_path, verdict)

    assert (absent.returncode, stale.returncode) == (2, 2)
    assert "no result" in absent.stdout
    assert "older than 25 minutes" in stale.stdout
    assert max(len(absent.stdout), len(stale.stdout)) <= 81


@needs("shellcheck")
def test_shellcheck_finds_nothing_in_the_scripts(tmp_path: Path) -> None:
    scripts = {
        "daemonset": script_of(the("DaemonSet/gpudoctor"), "check"),
        "job": script_of(the("Job/gpudoctor-check"), "check"),
        "init": script_of(the("Job/train"), "gpudoctor"),
        "between-nodes": script_of(the("Job/gpudoctor-nodes", "between-nodes/job.yaml"), "check"),
        "taint": script_of(the("CronJob/gpudoctor-taint"), "taint"),
        "plugin": (FOLDER / "node-problem-detector" / "gpudoctor.sh").read_text(),
    }
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)

    done = completed(["shellcheck", "--shell=sh", *scripts], cwd=tmp_path)

    assert (done.stdout, done.returncode) == ("", 0)


def _install(folder: Path, faults: str) -> None:
    """A gpudoctor that sees a simulated node, and a sleep that ends the loop as Kubernetes does."""
    for name in ("bin", "results", "textfile"):
        (folder / name).mkdir()
    shell_program(folder / "bin" / "gpudoctor", f"FAULTS='{faults}'\n{_SIMULATED}")
    shell_program(folder / "bin" / "sleep", "kill -TERM $PPID")


def _one_round(folder: Path) -> None:
    done = _run_script(folder, script_of(the("DaemonSet/gpudoctor"), "check"))
    assert done.returncode == 0, done.stderr


def _run_script(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    script = re.sub(r"/dev/(?=termination-log)|/(?=(?:results|textfile|tmp)/)", f"{folder}/", script)
    (folder / "tmp").mkdir(exist_ok=True)
    environ = {"PATH": f"{folder}/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    return completed(["sh", "-c", script], env=environ, cwd=folder)


def _run_plugin(folder: Path, verdict: Path) -> subprocess.CompletedProcess[str]:
    (folder / "plugin.sh").write_text((FOLDER / "node-problem-detector" / "gpudoctor.sh").read_text())
    return completed(["sh", folder / "plugin.sh", verdict])


@pytest.mark.wide
def test_the_agent_keeps_its_state_in_a_volume_that_every_user_may_write_to(tmp_path: Path) -> None:
    """Kubernetes creates an emptyDir this way, and the agent requires a private folder."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    (tmp_path / "token").mkdir()
    (tmp_path / "token" / "token").write_text("0123456789abcdef\n")
    (container,) = the("DaemonSet/gpudoctor-agent").containers
    arguments = [re.sub(r"=/(?=state|token)", f"={tmp_path}/", argument) for argument in container["args"]]
    command = [sys.executable, "-m", *container["command"], *arguments, "--once", "--node", "rtx4090-4"]

    done = completed(command, cwd=ROOT)

    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "state" / "gpudoctor").stat().st_mode & 0o077 == 0


@pytest.mark.wide
def test_the_pods_between_nodes_give_one_report_by_the_nodes_names_also_of_a_bad_node(tmp_path: Path) -> None:
    shell_program(
        tmp_path / "bin" / "gpudoctor",
        f'exec {sys.executable} -m gpudoctor "$@" --level quick --node hgx-h100-8 --fault gpu-node-1:xid-79@3',
    )
    job = the("Job/gpudoctor-nodes", "between-nodes/job.yaml")
    script = script_of(job, "check").replace("-N 4", "-N 2").replace("--deadline 600", "--deadline 30")
    assert {each["name"] for each in job.containers[0]["env"]} >= {"GPUDOCTOR_NODE_NAME", "GPUDOCTOR_CLUSTER_TOKEN"}
    given = {
        "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(os.getpid()),  # distinguishes this job from those of other tests
        "GPUDOCTOR_CLUSTER_TOKEN": "0123456789abcdef",
    }
    pods = [
        subprocess.Popen(
            ["sh", "-c", script],
            env={**given, "JOB_COMPLETION_INDEX": str(index), "GPUDOCTOR_NODE_NAME": f"gpu-node-{index}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for index in range(2)
    ]
    try:
        (report, errors), (silence, _) = [pod.communicate(timeout=120) for pod in pods]
    finally:
        for pod in pods:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pod.pid, signal.SIGKILL)

    assert [pod.returncode for pod in pods] == [0, 0], errors
    assert silence == ""
    assert re.search(r"^FAIL +gpu-node-1 ", report, re.MULTILINE), report
    assert re.search(r"^PASS +gpu-node-0 ", report, re.MULTILINE), report
