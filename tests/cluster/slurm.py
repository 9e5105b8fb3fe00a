"""A real Slurm on emulated hosts: slurmctld on the login host, slurmd on four nodes of 8 GPUs that are simulated."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.cluster.hosts import LOGIN, Hosts
from tests.conftest import ROOT
from tests.subprocesses import shell_program

HOOKS = ROOT / "contrib" / "slurm"


def hooks_that_read(defaults: Path, into: Path) -> Path:
    """The folder of the hooks, with their fixed path /etc/default/gpudoctor replaced by another file."""
    shutil.copytree(HOOKS, into)
    for hook in into.iterdir():
        hook.write_text(hook.read_text().replace("/etc/default/gpudoctor", str(defaults)))
    return into


GPUS = 8
WAIT_S = 60

# Debian's slurmd has the hooks' paths from slurm.conf and gives them next to no environment, so these set it.
# All hosts share one /etc: what is per host here would be in /etc/default/gpudoctor there
_HOOK = """\
[ -e {folder}/on/{kind} ] || exit 0
exec {hooks}/{script}
"""
_DEFAULTS = """
GPUDOCTOR={folder}/gpudoctor
GPUDOCTOR_STATE={folder}/state/$node
GPUDOCTOR_TRIAL="hgx-h100-8 $(cat {folder}/faults/$node 2>/dev/null)"
GPUDOCTOR_UNDRAIN_AFTER=1
SLURM_CONF={folder}/slurm.conf
[ ! -e {folder}/settings ] || . {folder}/settings
"""
_GPUDOCTOR = """\
export PYTHONPATH={root} PATH=/usr/bin:/bin
echo "$SLURMD_NODENAME ${{SLURM_SCRIPT_CONTEXT:-none}} $*" >> {folder}/calls
[ -e {folder}/answer/$SLURMD_NODENAME ] && exec sh {folder}/answer/$SLURMD_NODENAME
[ "$1" = check ] || exec {python} -m gpudoctor "$@"
{python} -m gpudoctor "$@" --node hgx-h100-8 $(sed 's/[^ ][^ ]*/--fault &/g' {folder}/faults/$SLURMD_NODENAME)
code=$?
# every simulated node is called the same
cd ${{folder:-/nowhere}} && sed -i \\
  "s/\\"host\\":{{\\"name\\":\\"[a-z]*\\"/\\"host\\":{{\\"name\\":\\"$SLURMD_NODENAME\\"/" "$SLURMD_NODENAME.json"
exit $code
"""
# settings of contrib/slurm/slurm.conf that cannot apply here
_HERE = {
    "Prolog": "{folder}/hooks/prolog",
    "Epilog": "{folder}/hooks/epilog",
    "HealthCheckProgram": "{folder}/hooks/health",
    "HealthCheckInterval": "2",
    "HealthCheckNodeState": "ANY",
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
}
_CONF = """
ClusterName=gpudoctor
SlurmctldHost=ctl({controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# how long a requeued job waits before it starts again: 120 s unless it is set
AuthInfo=socket={folder}/munge.sock,cred_expire=5
StateSaveLocation={folder}/controller
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
EpilogSlurmctld={folder}/hooks/job_end
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=1
KillWait=2
SlurmdParameters=config_overrides
{ours}
PlugStackConfig=/dev/null
PartitionName=main Nodes=ALL Default=YES State=UP
"""


def _ours(folder: Path) -> str:
    """contrib/slurm/slurm.conf with the hooks of `folder`."""
    lines = [line for line in (HOOKS / "slurm.conf").read_text().splitlines() if line and not line.startswith("#")]
    settings = dict(line.split("=", 1) for line in lines)
    assert set(_HERE) < set(settings)
    # the scheduler looks for due jobs once a minute: too long a wait for a test
    settings["SchedulerParameters"] += ",sched_interval=1,bf_interval=1"
    return "\n".join(f"{key}={_HERE.get(key, value).format(folder=folder)}" for key, value in settings.items())


class SlurmError(Exception):
    """Slurm cannot be started here; the text is the reason."""


class Slurm:
    """Slurm on `hosts`, its files in their folder; no hook acts until it is switched on.

    Raises SlurmError if it is not installed or does not come up.
    """

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self.folder = hosts.folder / "slurm"

    def start(self) -> None:
        """Start the daemons and wait until every node is idle."""
        self._write_files()
        options = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid", "log-file": "munged.log"}
        munge = [f"--{name}={self.folder / file}" for name, file in (*options.items(), ("seed-file", "munge.seed"))]
        self._daemon(LOGIN, ["munged", "--force", *munge])
        self._daemon(LOGIN, ["slurmctld", "-c", "-i"])
        for i in self._hosts.numbers:
            self._daemon(i, ["slurmd"])
        try:
            self.wait(lambda: set(self.states().values()) == {"IDLE"})
        except TimeoutError:
            raise SlurmError(f"the nodes do not come up: {self.states()}") from None

    def run(self, *command: str | Path, timeout: float = WAIT_S, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run `command` on the login host."""
        environ |= {"SLURM_CONF": str(self.folder / "slurm.conf"), "GPUDOCTOR_DEFAULTS": str(self.folder / "defaults")}
        return self._hosts.run(LOGIN, command, environ, timeout, cwd=self.folder)

    def states(self) -> dict[str, str]:
        """Each node's state as Slurm writes it: IDLE, MIXED, IDLE+DRAIN, ..."""
        return {record["NodeName"]: record["State"] for record in self._records()}

    def reasons(self) -> dict[str, str]:
        """The reason of each node that is drained."""
        return {
            record["NodeName"]: record["Reason"].rpartition(" [")[0]
            for record in self._records()
            if "DRAIN" in record["State"]
        }

    def wait(self, ready: Callable[[], object]) -> None:
        """Poll until `ready` is true; raise TimeoutError after a minute."""
        end_s = time.monotonic() + WAIT_S
        while not ready():
            if time.monotonic() > end_s:
                raise TimeoutError(f"after {WAIT_S} s: {self.states()} {self.reasons()}\n{self.log()[-4000:]}")
            time.sleep(0.1)

    def is_free(self) -> bool:
        """Whether no job waits, runs or completes."""
        return not self.run("squeue", "--noheader").stdout

    def switch_on(self, *kinds: str) -> None:
        """Let the hooks act: prolog, epilog, health."""
        for kind in kinds:
            (self.folder / "on" / kind).touch()

    def set_fault(self, node: str, *faults: str) -> None:
        """Put faults on the simulated GPUs of `node`; none makes it healthy."""
        (self.folder / "faults" / node).write_text(" ".join(faults))

    def set_settings(self, *lines: str) -> None:
        """Add these lines to /etc/default/gpudoctor of every node, in place of those of an earlier call."""
        (self.folder / "settings").write_text("\n".join(lines) + "\n")

    def set_answer(self, node: str, script: str) -> None:
        """Run this shell script on `node` in place of gpudoctor."""
        (self.folder / "answer" / node).write_text(script)

    def log(self, node: str = "*") -> str:
        """The output of `node`'s hooks, or of all hosts', since `reset`."""
        return "".join(file.read_text() for file in self.folder.glob(f"state/{node}/log"))

    def metrics(self, node: str, hook: str) -> str:
        """The metrics file that a hook of `node` left for node_exporter; empty if it has not run since `reset`."""
        file = self.folder / "state" / node / f"gpudoctor_slurm_{hook}.prom"
        return file.read_text() if file.exists() else ""

    def submit(self, *words: str) -> None:
        """Submit a batch job: options, and last the command. `output` returns what it prints."""
        *options, command = words
        self.run("sbatch", *options, f"--output={self.folder}/job.out", "--wrap", command).check_returncode()

    def output(self) -> str:
        """What the submitted job has printed so far."""
        file = self.folder / "job.out"
        return file.read_text() if file.exists() else ""

    def calls(self) -> list[str]:
        """How gpudoctor was called since `reset`: node, prolog_slurmd or such, arguments."""
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def last_health(self, node: str) -> str:
        """What the health check of `node` left, without its time; empty if it has not run since `reset`."""
        file = self.folder / "state" / node / "healthcheck"
        return file.read_text().partition(" ")[2].strip() if file.exists() else ""

    def reset(self) -> None:
        """No hook acts, no fault, no job, every node idle."""
        for folder in ("on", "faults", "answer"):
            for file in (self.folder / folder).iterdir():
                file.unlink()
        self.run("scancel", "--user=root")
        self.wait(self.is_free)
        # a health check that was under way still ends
        self.wait(lambda: not self._is_running("gpudoctor-healthcheck.sh"))
        for node, state in self.states().items():
            if "DRAIN" in state:
                self.run("scontrol", "update", f"nodename={node}", "state=resume")
        self.wait(lambda: set(self.states().values()) == {"IDLE"})
        shutil.rmtree(self.folder / "state", ignore_errors=True)
        for name in ("calls", "settings", "job.out", "job.out.diagnosis.txt"):
            (self.folder / name).unlink(missing_ok=True)

    def _is_running(self, program: str) -> bool:
        mine = str(self._hooks / program).encode()
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if mine in file.read_bytes() and str(self.folder).encode() in (file.parent / "environ").read_bytes():
                    return True
            except OSError:  # it has ended
                continue
        return False

    def _records(self) -> list[dict[str, str]]:
        done = self.run("scontrol", "--oneliner", "show", "node")
        records = []
        for line in done.stdout.splitlines():
            fields, _, reason = line.partition(" Reason=")
            record = dict(field.split("=", 1) for field in fields.split() if "=" in field)
            records.append({**record, "Reason": reason})
        return records

    def _daemon(self, i: int, command: list[str]) -> None:
        environ = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        # a daemon must not hold the pipe that its starter's words are read from
        quiet = ["sh", "-c", '"$@" >/dev/null 2>"$0"', str(self.folder / f"{command[0]}.{i}.err"), *command]
        if self._hosts.run(i, quiet, environ, WAIT_S).returncode != 0:
            raise SlurmError(f"{command[0]} did not start: {(self.folder / f'{command[0]}.{i}.err').read_text()}")

    def _write_files(self) -> None:
        for name in ("controller", "spool", "hooks", "dev", "on", "faults", "answer"):
            (self.folder / name).mkdir(parents=True)
        for name in map(self._hosts.name, self._hosts.numbers):
            (self.folder / "spool" / name).mkdir()
        for number in range(GPUS):  # Slurm takes nothing but a device: this is /dev/null's twin
            try:
                os.mknod(self.folder / "dev" / f"nvidia{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
            except OSError as error:
                raise SlurmError(f"no device file can be made: {error}") from None
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self._hooks = hooks_that_read(self.folder / "defaults", self.folder / "contrib")
        places = {"folder": self.folder, "hooks": self._hooks, "root": ROOT, "python": sys.executable}
        scripts = {"prolog": "prolog", "epilog": "epilog", "health": "gpudoctor-healthcheck"}
        for kind, script in (*scripts.items(), ("job_end", "diagnose-failed-job")):
            shell_program(self.folder / "hooks" / kind, _HOOK.format(kind=kind, script=f"{script}.sh", **places))
        shell_program(self.folder / "gpudoctor", _GPUDOCTOR.format(**places))
        (self.folder / "defaults").write_text(_DEFAULTS.format(**places))
        nodes = "".join(
            f"NodeName={self._hosts.name(i)} NodeAddr={self._hosts.address(i)} CPUs=16 RealMemory=64000 "
            f"Gres=gpu:h100:{GPUS} State=UNKNOWN\n"
            for i in self._hosts.numbers
        )
        conf = _CONF.format(ours=_ours(self.folder), controller=self._hosts.address(LOGIN), **places)
        (self.folder / "slurm.conf").write_text(conf.replace("PartitionName", f"{nodes}PartitionName"))
        devices = self.folder / "dev" / f"nvidia[0-{GPUS - 1}]"
        (self.folder / "gres.conf").write_text(f"Name=gpu Type=h100 File={devices}\n")
