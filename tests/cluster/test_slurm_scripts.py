"""The scripts in contrib/slurm without a Slurm: what reaches gpudoctor, and what a run without an answer comes to."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpudoctor.cli.parsing import parsed
from gpudoctor.slurm.hooks import metrics
from gpudoctor.slurm.quick_check import HookVerdict
from gpudoctor.slurm.settings import HookSettings
from tests.cluster.slurm import HOOKS, hooks_that_read
from tests.conftest import ROOT
from tests.needs import needs
from tests.subprocesses import completed, shell_program

_GO_ON = "echo 'go on: PASS 33 of 51 checks'"
_REFUSE = "echo 'refuse: FAIL gpu.xid GPU 3: Xid 79'; exit 1"
_NO_ANSWER = {
    "wrong arguments": "echo 'usage: gpudoctor ...' >&2; exit 2",
    "no Python": "echo 'Traceback (most recent call last):' >&2; exit 1",
    "silent": "exit 0",
    "another code than its word": "echo 'go on: PASS'; exit 1",
    "another word than its code": "echo 'refuse: FAIL'; exit 0",
    "crash": "kill -SEGV $$",
    "killed": "echo 'go on: PASS'; kill -KILL $$",
}
_JOB_SCRIPTS = ("prolog.sh", "epilog.sh")
SCRIPTS = pytest.mark.parametrize("script", [*_JOB_SCRIPTS, "gpudoctor-healthcheck.sh"])
_HOOK_OF = {"prolog.sh": "prolog", "epilog.sh": "epilog", "gpudoctor-healthcheck.sh": "health"}


@dataclass
class Bench:
    """A node `n1`: the scripts, and a gpudoctor with scripted answers."""

    folder: Path
    hooks: Path

    def gpudoctor(self, answer: str) -> None:
        """Let gpudoctor run these lines of shell."""
        shell_program(self.folder / "gpudoctor", f'echo "$*" >> {self.folder}/calls\n{answer}')

    def run(self, script: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a script with no environment but `environ`, as slurmd does: for a job with GPUs."""
        given = {"SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0", **environ}
        return completed([self.hooks / script], env=given)

    def setting(self, line: str) -> None:
        """Add a line to /etc/default/gpudoctor."""
        with (self.folder / "defaults").open("a") as file:
            file.write(f"{line}\n")

    def calls(self) -> list[str]:
        """The arguments of each call of gpudoctor, joined by spaces."""
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def state(self, name: str) -> str:
        """A file of the state folder; empty if there is none."""
        file = self.folder / "state" / name
        return file.read_text() if file.exists() else ""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path, hooks_that_read(tmp_path / "defaults", tmp_path / "hooks"))
    # as if it were a node with GPUs, whatever this machine is
    bench.setting(f"GPUDOCTOR={tmp_path}/gpudoctor\nGPUDOCTOR_STATE={tmp_path}/state\nGPUDOCTOR_TRIAL=hgx-h100-8")
    bench.gpudoctor(_GO_ON)
    return bench


@SCRIPTS
def test_each_script_calls_its_hook_with_arguments_that_gpudoctor_has(bench: Bench, script: str) -> None:
    assert bench.run(script).returncode == 0
    (call,) = bench.calls()
    assert parsed(call.split()).hook == _HOOK_OF[script]


def test_a_refusal_fails_prolog_and_epilog_and_never_the_health_check(bench: Bench) -> None:
    bench.gpudoctor(_REFUSE)
    assert [bench.run(script).returncode for script in _HOOK_OF] == [1, 1, 0]


@pytest.mark.wide(every=5)
@pytest.mark.parametrize("answer", _NO_ANSWER.values(), ids=_NO_ANSWER)
@SCRIPTS
def test_a_run_without_an_answer_is_seen_and_stops_no_job(bench: Bench, script: str, answer: str) -> None:
    bench.gpudoctor(answer)
    bench.run("prolog.sh")
    for name in ("verdict.json", "undrain.json"):  # nor may another user build on what was there before
        (bench.folder / "state" / name).write_text("{}")

    done = bench.run(script)

    assert done.returncode == 0
    assert "gpudoctor: n1: " in done.stderr
    assert "no verdict: " in done.stderr
    metric = bench.state(f"gpudoctor_slurm_{_HOOK_OF[script]}.prom")
    # line by line what a hook that answers writes, HELP and TYPE too: of two files that differ node_exporter drops one
    settings, unknown = HookSettings(simulated=("hgx-h100-8",)), HookVerdict("unknown", "")
    usual = metrics(settings, _HOOK_OF[script], unknown, None, None, 1_000_000_000).splitlines()
    at = re.compile(r"\b\d{10}\b")
    assert at.sub("", metric).splitlines() == [at.sub("", line) for line in usual if "withheld" not in line]
    assert (bench.state("verdict.json"), bench.state("undrain.json")) == ("", "")
    if not Path("/dev/log").exists():
        assert "no verdict: " in bench.state("log")


@pytest.mark.parametrize("answer", [_NO_ANSWER["no Python"], _NO_ANSWER["silent"]])
def test_an_operator_may_have_no_answer_hold_the_job_off_the_node(bench: Bench, answer: str) -> None:
    bench.setting("GPUDOCTOR_ON_ERROR=hold")
    bench.gpudoctor(answer)
    assert [bench.run(script).returncode for script in _HOOK_OF] == [1, 1, 0]


def test_where_only_logs_are_wanted_no_answer_holds_no_job_either(bench: Bench) -> None:
    bench.setting("GPUDOCTOR_ON_ERROR=hold\nGPUDOCTOR_ACTION=log")
    bench.gpudoctor(_NO_ANSWER["no Python"])
    done = [bench.run(script) for script in _HOOK_OF]
    assert [each.returncode for each in done] == [0, 0, 0]
    assert all("no verdict: " in each.stderr for each in done)


def test_the_log_that_an_operator_names_gets_the_line(bench: Bench) -> None:
    bench.setting(f"GPUDOCTOR_LOG={bench.folder}/logs/slurmd.log")
    bench.gpudoctor("exit 4")
    bench.run("prolog.sh")
    log = (bench.folder / "logs" / "slurmd.log").read_text()
    assert "gpudoctor: n1: prolog, job 7: no verdict: gpudoctor slurm prolog ended with exit code 4" in log


def test_what_the_named_folders_do_not_take_is_in_the_state_folder(bench: Bench) -> None:
    (bench.folder / "file").write_text("")
    bench.setting(f"GPUDOCTOR_LOG={bench.folder}/file/slurmd.log\nGPUDOCTOR_TEXTFILE={bench.folder}/file/metrics")
    bench.gpudoctor("exit 4")
    assert bench.run("prolog.sh").returncode == 0
    assert "gpudoctor: n1: prolog, job 7: no verdict: " in bench.state("log")
    assert 'verdict="unknown"} 1' in bench.state("gpudoctor_slurm_prolog.prom")


def test_a_missing_gpudoctor_is_said(bench: Bench) -> None:
    bench.setting("GPUDOCTOR=/nowhere/gpudoctor")
    done = bench.run("prolog.sh")
    assert done.returncode == 0
    assert "no gpudoctor at /nowhere/gpudoctor nor in PATH" in done.stderr


def test_a_settings_file_that_bash_cannot_read_is_no_verdict(bench: Bench) -> None:
    bench.setting("GPUDOCTOR_ON_ERROR=hold\nif [")
    done = bench.run("prolog.sh")
    assert done.returncode == 0
    assert "no verdict: " in done.stderr
    assert "syntax error" in done.stderr
    assert bench.calls() == []


def test_a_settings_file_whose_last_line_is_false_is_a_good_one(bench: Bench) -> None:
    bench.setting("[ -e /nowhere ] && GPUDOCTOR_ACTION=log")
    assert bench.run("prolog.sh").returncode == 0
    assert len(bench.calls()) == 1


@needs("no GPU")
@SCRIPTS
def test_a_node_without_gpus_needs_no_gpudoctor(bench: Bench, script: str) -> None:
    bench.setting("GPUDOCTOR=/nowhere/gpudoctor\nGPUDOCTOR_ON_ERROR=hold\nunset GPUDOCTOR_TRIAL")
    done = bench.run(script, SLURM_JOB_GPUS="")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_gpudoctor_that_hangs_is_ended_in_time(bench: Bench) -> None:
    bench.gpudoctor("trap '' TERM; exec sleep 600")
    # `exec` in the script passes by functions: the limit is changed in the text
    file = bench.hooks / "gpudoctor-hooks.sh"
    file.write_text(file.read_text().replace('exec timeout -k 2 "$limit"', "exec timeout -k 1 1"))
    done = bench.run("prolog.sh")
    assert (done.returncode, "no answer in 40 s" in done.stderr) == (0, True)


def test_a_gpudoctor_that_nothing_ends_is_not_waited_for(bench: Bench) -> None:
    """In the kernel's uninterruptible sleep, SIGKILL ends it as little as `timeout`, which waits for it."""
    fifo = bench.folder / "go"
    bench.gpudoctor(f"mkfifo {fifo}; exec 2>/dev/null; read line < {fifo}")
    file = bench.hooks / "gpudoctor-hooks.sh"
    file.write_text(file.read_text().replace('exec timeout -k 2 "$limit"', "exec").replace("limit + 5", "limit - 39"))

    done = bench.run("prolog.sh")  # gpudoctor is still there: it waits for its line

    fifo.write_text("go\n")
    assert (done.returncode, "no answer in 40 s" in done.stderr) == (0, True)


@needs("/dev/full")
def test_a_metric_that_cannot_be_written_leaves_no_part_of_it(bench: Bench) -> None:
    bench.gpudoctor("exit 4")
    file = bench.hooks / "gpudoctor-hooks.sh"
    file.write_text(file.read_text().replace('&& cat >"$file"', "&& cat >/dev/full"))
    assert bench.run("prolog.sh").returncode == 0
    assert [path.name for path in (bench.folder / "state").glob("gpudoctor_slurm*")] == []


def test_a_link_that_another_user_planted_is_not_written_through(bench: Bench) -> None:
    (bench.folder / "state").mkdir()
    for name in ("gpudoctor_slurm_prolog.prom", "prolog.stderr", "log"):
        (bench.folder / "state" / name).symlink_to(bench.folder / "target")
    bench.gpudoctor("exit 4")
    bench.run("prolog.sh")
    assert not (bench.folder / "target").exists()
    assert 'verdict="unknown"} 1' in bench.state("gpudoctor_slurm_prolog.prom")


def test_what_a_crash_wrote_to_stderr_is_kept(bench: Bench) -> None:
    bench.gpudoctor("echo Traceback >&2; echo 'ImportError: no module named msgspec' >&2; exit 1")
    done = bench.run("prolog.sh")
    assert "ended with exit code 1: ImportError: no module named msgspec" in done.stderr
    assert bench.state("prolog.stderr") == "Traceback\nImportError: no module named msgspec\n"


@SCRIPTS
def test_a_child_that_hangs_in_the_driver_does_not_keep_the_answer(bench: Bench, script: str) -> None:
    pipe = bench.folder / "pipe"
    os.mkfifo(pipe)
    bench.gpudoctor(f"exec 3< {pipe}; (read line <&3) & {_REFUSE}")

    held = os.open(pipe, os.O_RDWR)  # the child waits until this is closed, never on opening it
    try:
        done = subprocess.Popen(
            [bench.hooks / script],
            env={"SLURMD_NODENAME": "n1", "SLURM_JOB_GPUS": "0"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        code = done.wait(timeout=30)
    finally:
        os.close(held)

    assert code == (0 if script.startswith("gpudoctor") else 1)


@SCRIPTS
def test_nothing_of_the_jobs_environment_runs_or_is_read(bench: Bench, script: str, tmp_path: Path) -> None:
    """A Slurm that hands a user's environment to its hooks must not hand root's rights to the user."""
    evil = tmp_path / "evil"
    evil.write_text(f"touch {tmp_path}/was-run\n")
    bench.gpudoctor(f"env > {tmp_path}/seen; {_GO_ON}")
    given = {"GPUDOCTOR": "/bin/false", "GPUDOCTOR_STATE": str(tmp_path / "theirs"), "GPUDOCTOR_FAKE_DRIVER": "x"}
    given |= {"PYTHONPATH": "/evil", "PYTHONSTARTUP": "/evil", "LD_PRELOAD": "", "LD_LIBRARY_PATH": "/evil"}
    given |= {"GPUDOCTOR_DEFAULTS": str(evil), "BASH_ENV": str(evil), "XDG_CONFIG_HOME": "/evil", "LD_AUDIT": ""}
    given["BASH_FUNC_timeout%%"] = f"() {{ touch {tmp_path}/was-run; }}"

    bench.run(script, CUDA_VISIBLE_DEVICES="0", **given)

    assert not (tmp_path / "was-run").exists()
    seen = dict(line.partition("=")[::2] for line in (tmp_path / "seen").read_text().splitlines())
    own = {"GPUDOCTOR": f"{tmp_path}/gpudoctor", "GPUDOCTOR_STATE": f"{tmp_path}/state"}
    prefixes = ("GPUDOCTOR", "PYTHON", "LD_", "XDG", "BASH_", "CUDA")
    assert {name: value for name, value in seen.items() if name.startswith(prefixes)} == {
        **own,
        "GPUDOCTOR_TRIAL": "hgx-h100-8",
    }


@pytest.mark.wide
def test_the_real_gpudoctor_answers_as_the_scripts_expect(bench: Bench) -> None:
    bench.gpudoctor(f'PYTHONPATH={ROOT} exec {sys.executable} -m gpudoctor "$@"')
    node = "NodeName=n1 Gres=gpu:8 State=IDLE Partitions=main"
    shell_program(bench.folder / "scontrol", f"[ $3 = update ] || echo {node}")
    bench.setting(f"PATH={bench.folder}:$PATH")
    healthy = bench.run("prolog.sh")
    bench.setting("GPUDOCTOR_TRIAL='hgx-h100-8 xid-79@0'")
    faulty = bench.run("prolog.sh")

    assert (healthy.returncode, healthy.stderr) == (0, "")
    assert faulty.returncode == 1
    assert "drain: gpudoctor: SIMULATED FAIL gpu.xid GPU 0" in faulty.stderr


def test_the_settings_that_we_ship_are_understood(bench: Bench) -> None:
    shipped = (HOOKS / "gpudoctor.default").read_text()
    bench.setting(shipped.replace("/var/lib/prometheus", str(bench.folder)).replace("/var/log", str(bench.folder)))
    (bench.folder / "node-exporter").mkdir()
    bench.gpudoctor(f'PYTHONPATH={ROOT} exec {sys.executable} -m gpudoctor "$@"')
    done = bench.run("prolog.sh")
    assert (done.returncode, done.stderr) == (0, "")
    assert (bench.folder / "node-exporter" / "gpudoctor_slurm_prolog.prom").exists()


def test_another_health_check_runs_before_ours_and_its_failure_takes_nothing_away(bench: Bench) -> None:
    other = shell_program(bench.folder / "nhc", f"echo nhc >> {bench.folder}/calls\nexit 1")
    script = bench.hooks / "health-check-all.sh"
    script.write_text(script.read_text().replace("OTHER=/usr/sbin/nhc", f"OTHER={other}"))

    assert bench.run("health-check-all.sh").returncode == 0
    assert bench.calls() == ["nhc", "slurm health"]


def test_a_job_that_ended_well_is_not_diagnosed(bench: Bench) -> None:
    assert bench.run("diagnose-failed-job.sh", SLURM_JOB_EXIT_CODE="0").returncode == 0
    assert bench.calls() == []


def test_a_failed_job_that_cannot_be_diagnosed_is_in_the_log(bench: Bench) -> None:
    bench.setting("GPUDOCTOR=/nowhere/gpudoctor")
    done = bench.run("diagnose-failed-job.sh", SLURM_JOB_EXIT_CODE="256")
    assert (done.returncode, done.stderr) == (
        0,
        "gpudoctor: n1: job 7: not diagnosed: no gpudoctor at /nowhere/gpudoctor nor in PATH\n",
    )


@pytest.mark.wide
@needs("shellcheck")
def test_shellcheck_finds_nothing() -> None:
    scripts = sorted(path.name for path in HOOKS.iterdir() if path.suffix in (".sh", ".sbatch"))

    done = completed(["shellcheck", "-x", *scripts], cwd=HOOKS)

    assert (len(scripts), done.stdout, done.returncode) == (8, "", 0)
