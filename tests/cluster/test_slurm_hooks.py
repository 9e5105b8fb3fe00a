"""The hooks in contrib/slurm without a Slurm: what they do on each answer, and what they tell scontrol."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpudoctor.cli.parsers import parsed
from tests.cluster.slurm import HOOKS, hooks_that_read
from tests.conftest import ROOT

_FAIL = "echo 'GPUDOCTOR CRITICAL - FAIL gpu.xid GPU 3: Xid 79 | pass=1'; exit 2"
_PASS = "echo 'GPUDOCTOR OK - PASS 33 of 51 checks | pass=33'; exit 0"
_WARN = "echo 'GPUDOCTOR WARNING - WARN gpu.settings: persistence | pass=32 warn=1'; exit 1"
_NO_VERDICT = {
    "unknown": "echo 'GPUDOCTOR UNKNOWN - pcie.errors: no answer | pass=0'; exit 3",
    "wrong arguments": "echo 'usage: gpudoctor ...' >&2; exit 2",
    "no Python": "echo 'Traceback (most recent call last):' >&2; exit 1",
    "silent": "exit 0",
    "another code than its word": "echo 'GPUDOCTOR OK - PASS | pass=33'; exit 2",
    "crash": "kill -SEGV $$",
    "killed": "echo 'GPUDOCTOR CRITICAL - FAIL'; kill -KILL $$",
}
_DRAIN = "update nodename=n1 state=drain reason=gpudoctor: FAIL gpu.xid GPU 3: Xid 79"


@dataclass
class Bench:
    """A node `n1`: hooks that find a gpudoctor and a scontrol which only say what they were asked."""

    folder: Path
    hooks: Path

    def node(self, state: str, reason: str = "", gres: str = "gpu:h100:8") -> None:
        """What scontrol says of the node."""
        said = f"NodeName=n1 CoresPerSocket=1 Gres={gres} NodeAddr=n1 State={state} ThreadsPerCore=1 Partitions=main"
        said += f" Reason={reason} [root@2026-11-21T12:00:00]" if reason else ""
        self._script("scontrol", f'if [ "$2" = show ]; then printf "%s\\n" {shlex.quote(said)}; fi')

    def no_slurmctld(self) -> None:
        """Let every scontrol fail."""
        self._script("scontrol", "exit 1")

    def gpudoctor(self, answer: str) -> None:
        """Let gpudoctor run these lines of shell."""
        self._script("gpudoctor", answer)

    def run(self, hook: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a hook with no environment but `environ`, as slurmd does."""
        given = {"SLURMD_NODENAME": "n1", **environ}
        return subprocess.run([self.hooks / hook], env=given, capture_output=True, text=True, timeout=60, check=False)

    def setting(self, line: str) -> None:
        """Add a line to /etc/default/gpudoctor."""
        with (self.folder / "defaults").open("a") as file:
            file.write(f"{line}\n")

    def calls(self, program: str) -> list[str]:
        """The arguments of each call of gpudoctor or scontrol, joined by spaces."""
        file = self.folder / f"{program}.calls"
        return file.read_text().splitlines() if file.exists() else []

    def updates(self) -> list[str]:
        """What scontrol was asked to change."""
        return [call for call in self.calls("scontrol") if call.startswith("update")]

    def _script(self, name: str, text: str) -> None:
        (self.folder / name).write_text(f'#!/bin/sh\necho "$*" >> {self.folder}/{name}.calls\n{text}\n')
        (self.folder / name).chmod(0o755)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path, hooks_that_read(tmp_path / "defaults", tmp_path / "hooks"))
    bench.setting(f"GPUDOCTOR={tmp_path}/gpudoctor\nGPUDOCTOR_STATE={tmp_path}/state\nPATH={tmp_path}:$PATH")
    bench.setting(f"GPUDOCTOR_DRIVER_TREE={tmp_path}/gpus")
    bench.node("IDLE")
    bench.gpudoctor(_FAIL)
    return bench


def test_the_health_check_drains_a_node_in_service_with_the_reason(bench: Bench) -> None:
    bench.node("MIXED")

    done = bench.run("gpudoctor-healthcheck.sh")

    assert done.returncode == 0
    assert bench.updates() == [_DRAIN]


def test_the_health_check_says_nothing_twice_and_says_what_changed(bench: Bench) -> None:
    bench.node("IDLE+DRAIN", "gpudoctor: FAIL gpu.xid GPU 3: Xid 79")
    bench.run("gpudoctor-healthcheck.sh")
    same = bench.updates()

    bench.node("IDLE+DRAIN", "gpudoctor: FAIL gpu.ecc GPU 1")
    bench.run("gpudoctor-healthcheck.sh")

    assert same == []
    assert bench.updates() == [_DRAIN]


@pytest.mark.parametrize("answer", [_PASS, _WARN])
def test_the_health_check_takes_back_its_own_drain_only(bench: Bench, answer: str) -> None:
    bench.gpudoctor(answer)
    for state, reason in (("IDLE+DRAIN", "ticket 12"), ("IDLE+DRAIN", "bad: gpudoctor: x"), ("IDLE", "gpudoctor: x")):
        bench.node(state, reason)
        bench.run("gpudoctor-healthcheck.sh")
    foreign = bench.updates()

    bench.node("MIXED+DRAIN", "gpudoctor: FAIL gpu.xid GPU 3: Xid 79")
    bench.run("gpudoctor-healthcheck.sh")

    assert foreign == []
    assert bench.updates() == ["update nodename=n1 state=undrain"]


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "DOWN", "DOWN*", "ALLOCATED+DRAIN", "FAIL"])
@pytest.mark.parametrize("hook", ["gpudoctor-healthcheck.sh", "prolog.sh", "epilog.sh"])
def test_no_hook_writes_over_the_reason_of_somebody_else(bench: Bench, hook: str, state: str) -> None:
    bench.node(state, "ticket 12")

    done = bench.run(hook, SLURM_JOB_GPUS="0")

    assert bench.updates() == []
    assert "ticket 12" in done.stderr
    assert done.returncode == (1 if hook == "prolog.sh" else 0)


def test_a_reason_that_slurm_kept_after_the_node_came_back_is_no_reason(bench: Bench) -> None:
    bench.node("IDLE", "Prolog error")

    bench.run("gpudoctor-healthcheck.sh")

    assert bench.updates() == [_DRAIN]


@pytest.mark.parametrize("answer", _NO_VERDICT.values(), ids=_NO_VERDICT)
@pytest.mark.parametrize("hook", ["gpudoctor-healthcheck.sh", "prolog.sh", "epilog.sh"])
def test_without_a_verdict_no_hook_changes_a_node_or_stops_a_job_and_each_says_so(
    bench: Bench, hook: str, answer: str
) -> None:
    bench.gpudoctor(answer)
    bench.node("IDLE+DRAIN", "gpudoctor: FAIL gpu.xid GPU 3: Xid 79")

    done = bench.run(hook, SLURM_JOB_GPUS="0")

    assert (done.returncode, bench.updates()) == (0, [])
    assert "no verdict" in done.stderr


def test_a_missing_gpudoctor_is_said_and_drains_nothing(bench: Bench) -> None:
    bench.setting("GPUDOCTOR=/nowhere/gpudoctor\nPATH=${PATH#*:}")

    done = bench.run("prolog.sh", SLURM_JOB_GPUS="0")

    assert done.returncode == 0
    assert "no gpudoctor at /nowhere/gpudoctor nor in PATH" in done.stderr


def test_an_operator_may_have_no_verdict_drain_too(bench: Bench) -> None:
    bench.setting("GPUDOCTOR_DRAIN_ON_UNKNOWN=yes")
    bench.gpudoctor(_NO_VERDICT["unknown"])

    health = bench.run("gpudoctor-healthcheck.sh")
    prolog = bench.run("prolog.sh", SLURM_JOB_GPUS="0")

    assert (health.returncode, prolog.returncode) == (0, 1)
    assert bench.updates() == ["update nodename=n1 state=drain reason=gpudoctor: pcie.errors: no answer"] * 2


def test_the_reason_is_one_plain_line_of_100_characters(bench: Bench) -> None:
    words = f"""FAIL "it's" 5 \N{DEGREE SIGN}C `here` {"x" * 200}"""
    (bench.folder / "said").write_text(f"GPUDOCTOR CRITICAL - {words} | pass=1\nmore\n")
    bench.gpudoctor(f"cat {bench.folder}/said; exit 2")

    bench.run("gpudoctor-healthcheck.sh")

    (update,) = bench.updates()
    reason = update.partition("reason=")[2]
    assert len(reason) == 100
    assert reason.startswith("gpudoctor: FAIL its 5 C here xxx")
    assert reason.isascii()
    assert reason.isprintable()


def test_the_prolog_fails_and_the_epilog_does_not_once_the_node_is_drained(bench: Bench) -> None:
    prolog = bench.run("prolog.sh", SLURM_JOB_GPUS="0")
    epilog = bench.run("epilog.sh", SLURM_JOB_GPUS="0")

    assert (prolog.returncode, epilog.returncode) == (1, 0)
    assert bench.updates() == [_DRAIN, _DRAIN]
    assert "gpudoctor: FAIL gpu.xid GPU 3: Xid 79" in prolog.stderr


def test_where_scontrol_does_not_answer_the_epilog_fails_so_that_slurm_drains_and_the_health_check_waits(
    bench: Bench,
) -> None:
    bench.no_slurmctld()

    codes = [bench.run(hook, SLURM_JOB_GPUS="0").returncode for hook in ("prolog.sh", "epilog.sh")]
    health = bench.run("gpudoctor-healthcheck.sh")

    assert codes == [1, 1]
    assert health.returncode == 0
    assert "slurmctld does not tell" in health.stderr


def test_a_healthy_job_start_asks_slurm_nothing(bench: Bench) -> None:
    bench.gpudoctor(_PASS)

    codes = [bench.run(hook, SLURM_JOB_GPUS="0").returncode for hook in ("prolog.sh", "epilog.sh")]

    assert codes == [0, 0]
    assert bench.calls("scontrol") == []


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="this machine has GPUs")
def test_a_node_without_gpus_is_left_alone_and_one_that_lost_them_all_is_not(bench: Bench) -> None:
    bench.node("IDLE", gres="(null)")
    codes = [bench.run(hook).returncode for hook in ("prolog.sh", "epilog.sh", "gpudoctor-healthcheck.sh")]
    asked_without_gpus = bench.calls("gpudoctor")

    bench.node("IDLE")
    bench.run("gpudoctor-healthcheck.sh")

    assert codes == [0, 0, 0]
    assert asked_without_gpus == []
    assert bench.updates() == [_DRAIN]


def test_the_jobs_gpus_are_named_by_bus_id_where_the_driver_counts_otherwise_than_slurm(bench: Bench) -> None:
    for minor, bus in ((0, "0000:9b:00.0"), (1, "0000:1b:00.0"), (2, "0000:2b:00.0")):
        folder = bench.folder / "gpus" / bus
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            f"Model: \t NVIDIA H100\nBus Location: \t {bus}\nDevice Minor: \t {minor}\n"
        )

    bench.run("prolog.sh", SLURM_JOB_GPUS="0,2")
    bench.run("prolog.sh", SLURM_JOB_GPUS="0,9")
    bench.setting("GPUDOCTOR_SCOPE=node")
    bench.run("prolog.sh", SLURM_JOB_GPUS="0")

    of_job, of_unknown_gpu, of_node = bench.calls("gpudoctor")
    assert of_job.endswith("--gpu 0000:9b:00.0,0000:2b:00.0")
    assert "--gpu" not in of_unknown_gpu
    assert "--gpu" not in of_node


def test_nothing_of_the_job_narrows_what_is_judged(bench: Bench) -> None:
    bench.gpudoctor(f'echo "${{CUDA_VISIBLE_DEVICES-none}} ${{SLURM_JOB_GPUS-none}}" > {bench.folder}/seen; {_PASS}')

    bench.run("prolog.sh", SLURM_JOB_GPUS="0,1", CUDA_VISIBLE_DEVICES="0,1")

    assert (bench.folder / "seen").read_text() == "none none\n"


def test_a_health_check_that_still_runs_keeps_a_second_one_out(bench: Bench) -> None:
    fifo = bench.folder / "go"
    bench.gpudoctor(f"mkfifo {fifo}; read line < {fifo}; {_FAIL}")
    given = {"SLURMD_NODENAME": "n1"}
    first = subprocess.Popen([bench.hooks / "gpudoctor-healthcheck.sh"], env=given, stderr=subprocess.DEVNULL)
    _until(fifo.exists)

    second = bench.run("gpudoctor-healthcheck.sh")
    asked_by_then = len(bench.calls("gpudoctor"))
    fifo.write_text("go\n")

    assert first.wait(timeout=60) == 0
    assert (second.returncode, asked_by_then) == (0, 1)
    assert bench.updates() == [_DRAIN]


def test_a_child_that_hangs_in_the_driver_keeps_neither_the_answer_nor_the_next_check(bench: Bench) -> None:
    fifo = bench.folder / "go"
    bench.gpudoctor(f"[ -e {fifo} ] || {{ mkfifo {fifo}; (read line < {fifo}) & }}\n{_FAIL}")

    first = bench.run("gpudoctor-healthcheck.sh")
    second = bench.run("gpudoctor-healthcheck.sh")
    fifo.write_text("go\n")

    assert (first.returncode, second.returncode) == (0, 0)
    assert len(bench.calls("gpudoctor")) == 2


def test_a_gpudoctor_that_hangs_is_ended_in_time(bench: Bench) -> None:
    bench.setting('timeout() { if [ "$1" = -k ]; then shift 3; set -- -k 1 1 "$@"; fi; command timeout "$@"; }')
    bench.gpudoctor("trap '' TERM; exec sleep 600")

    health = bench.run("gpudoctor-healthcheck.sh")

    assert bench.updates() == []
    assert "no answer in 40 s" in health.stderr


@pytest.mark.parametrize("hook", ["gpudoctor-healthcheck.sh", "prolog.sh", "epilog.sh"])
def test_each_hook_calls_gpudoctor_with_options_that_it_has(bench: Bench, hook: str) -> None:
    bench.run(hook, SLURM_JOB_GPUS="0,3")

    args = parsed(shlex.split(bench.calls("gpudoctor")[0]))

    assert (args.level, args.format) == ("quick", "nagios")
    assert "env" in args.skip
    assert args.gpu == (None if "health" in hook else "0,3")


def test_the_real_gpudoctor_speaks_as_the_hooks_expect(bench: Bench) -> None:
    simulated = f'said=$(PYTHONPATH={ROOT} {sys.executable} -m gpudoctor "$@" --node hgx-h100-8 '
    verdicts = []
    for faults in ("", "--fault persistence-off", "--fault xid-79@3", "--fault no-such-fault"):
        # as it would say it of a real node
        bench.gpudoctor(f"{simulated}{faults}); code=$?; echo \"$said\" | sed 's/- SIMULATED /- /'; exit $code")
        bench.run("gpudoctor-healthcheck.sh")
        verdicts.append((bench.folder / "state" / "healthcheck").read_text().split()[1])

    assert verdicts == ["ok", "ok", "fail", "unknown"]


@pytest.mark.parametrize("hook", ["gpudoctor-healthcheck.sh", "prolog.sh", "epilog.sh"])
@pytest.mark.parametrize("faults", ["", "--fault xid-79@3"])
def test_a_simulated_node_is_no_verdict_on_this_one(bench: Bench, hook: str, faults: str) -> None:
    """Whatever makes a fake driver or a simulated node answer neither drains a good node nor clears a bad one."""
    bench.node("IDLE+DRAIN", "gpudoctor: FAIL gpu.ecc GPU 1")
    bench.gpudoctor(f'PYTHONPATH={ROOT} exec {sys.executable} -m gpudoctor "$@" --node hgx-h100-8 {faults}')

    done = bench.run(hook, SLURM_JOB_GPUS="0")

    assert done.returncode == 0
    assert bench.updates() == []
    assert "no verdict: SIMULATED" in done.stderr


def test_a_name_in_the_answer_does_not_make_it_a_simulated_one(bench: Bench) -> None:
    bench.gpudoctor("echo 'GPUDOCTOR CRITICAL - FAIL gpu.xid: a program - SIMULATED x | pass=1'; exit 2")

    bench.run("gpudoctor-healthcheck.sh")

    assert len(bench.updates()) == 1


@pytest.mark.parametrize("hook", ["gpudoctor-healthcheck.sh", "prolog.sh", "epilog.sh"])
def test_nothing_of_the_jobs_environment_runs_or_is_read(bench: Bench, hook: str, tmp_path: Path) -> None:
    """A Slurm that hands a user's environment to its hooks must not hand root's rights to the user."""
    evil = tmp_path / "evil"
    evil.write_text(f"touch {tmp_path}/was-run\n")
    bench.gpudoctor(f"env > {tmp_path}/seen; {_PASS}")
    given = {"GPUDOCTOR": "/bin/false", "GPUDOCTOR_STATE": str(tmp_path / "theirs"), "GPUDOCTOR_FAKE_DRIVER": "x"}
    given |= {"PYTHONPATH": "/evil", "PYTHONSTARTUP": "/evil", "LD_PRELOAD": "", "LD_LIBRARY_PATH": "/evil"}
    given |= {"GPUDOCTOR_DEFAULTS": str(evil), "BASH_ENV": str(evil), "XDG_CONFIG_HOME": "/evil", "LD_AUDIT": ""}
    given["BASH_FUNC_timeout%%"] = f"() {{ touch {tmp_path}/was-run; }}"

    bench.run(hook, SLURM_JOB_GPUS="0", **given)

    assert not (tmp_path / "was-run").exists()
    names = {line.partition("=")[0] for line in (tmp_path / "seen").read_text().splitlines()}
    assert {name for name in names if name.startswith(("GPUDOCTOR", "PYTHON", "LD_", "XDG", "BASH_"))} == set()


def test_shellcheck_finds_nothing() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck: apt-get install shellcheck")
    scripts = sorted(path.name for path in HOOKS.iterdir() if path.suffix in (".sh", ".sbatch"))

    done = subprocess.run(["shellcheck", "-x", *scripts], cwd=HOOKS, capture_output=True, text=True, check=False)

    assert (len(scripts), done.stdout, done.returncode) == (6, "", 0)


def _until(ready: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < end_s
        time.sleep(0.01)
