"""The whole job on emulated hosts: torchrun, mpirun and plain variables start it; links are really slow, or cut."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from gpudoctor.checks.core.finding import Finding, Status
from gpudoctor.cluster.check.model import ClusterReport
from gpudoctor.report.model import Report
from tests.cluster.hosts import LOGIN, Hosts
from tests.narrowed import present
from tests.needs import needs
from tests.subprocesses import completed, shell_program

_LIMIT_S = 240
_TOKEN = {"GPUDOCTOR_CLUSTER_TOKEN": "of-the-test-0123456789abcdef"}
_OPTIONS = ["--source", "hgx-h100-8", "--level", "quick", "--backend", "gloo", "--json"]
_CHECK = [sys.executable, "-m", "gpudoctor", "cluster", "check"]
_RANK = [sys.executable, "-m", "gpudoctor", "cluster", "rank", *_OPTIONS]


def report_of(text: str) -> ClusterReport:
    return msgspec.json.decode(text, type=ClusterReport)


def named(report: ClusterReport, *statuses: Status) -> set[tuple[str, str | None]]:
    """The named nodes, and the check that names them, for one of these statuses."""
    return {(check.id, finding.subject.name) for check in report.checks for finding in _with(check.findings, statuses)}


def _with(findings: Sequence[Finding], statuses: Sequence[Status]) -> list[Finding]:
    return [finding for finding in findings if finding.status in statuses]


def words_of(report: ClusterReport, check: str, name: str) -> str:
    """All findings on one subject with one id."""
    found = next(c for c in report.checks if c.id == check)
    return msgspec.json.encode([f for f in found.findings if f.subject.name == name]).decode()


def start_ranks(
    hosts: Hosts,
    count: int,
    *more: str,
    env: dict[int, dict[str, str]] | None = None,
    wrap: dict[int, str] | None = None,
) -> list[subprocess.Popen[str]]:
    """A rank on each of the first hosts with the variables that Kubeflow and others set; `wrap` is shell around one."""
    ranks = []
    for i in list(hosts.numbers)[:count]:
        place = {"RANK": str(i - 1), "WORLD_SIZE": str(count), "MASTER_ADDR": "node1", "MASTER_PORT": "29578"} | _TOKEN
        command = [*_RANK, *more]
        if wrap and i in wrap:
            command = ["sh", "-c", wrap[i], "sh", *command]
        ranks.append(hosts.popen(i, command, env={**place, **(env or {}).get(i, {})}))
    return ranks


def ended(processes: Sequence[subprocess.Popen[str]]) -> list[tuple[str, str]]:
    return [process.communicate(timeout=_LIMIT_S) for process in processes]


@pytest.mark.wide
def test_torchrun_with_one_host_at_100_mbit_names_that_host_and_only_it(hosts: Hosts) -> None:
    hosts.slow(3, "100mbit")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=3", "--nproc-per-node=1"]
    agents = [
        hosts.popen(
            i,
            [*torchrun, f"--node-rank={i - 1}", "--master-addr=node1", "--master-port=29577", "-m", *_RANK[2:]],
            env=_TOKEN,
        )
        for i in list(hosts.numbers)[:3]
    ]
    (out, err), *others = ended(agents)

    report = report_of(out)
    assert named(report, Status.FAIL) == {("cluster.pairs", "node3")}, err
    assert named(report, Status.WARN, Status.UNKNOWN) == set()
    assert (report.verdict, report.exit_code, report.run.launcher) == ("fail", 1, "torchrun")
    assert [text for text, _ in others] == ["", ""]
    assert [process.returncode for process in agents] == [1, 0, 0]
    slow = [pair for pair in report.between.pairs if "node3" in pair.nodes]
    assert len(slow) == 2
    # 100 Mbit/s are 0.0125 GB/s, and a busy machine makes less of it; the limiter lets what comes in bursts through
    assert all(pair.again and 0 < (pair.busbw_gb_s or 0) < 0.02 for pair in slow), slow
    assert present(report.between.everyone).ranks == 3


@pytest.fixture
def rsh_agent(hosts: Hosts) -> Path:
    """What mpirun calls in place of ssh: it runs a command on the host of that name."""
    cases = [f'{hosts.name(i)}) exec {shlex.join(hosts.command(i, ["sh", "-c"]))} "$*" ;;' for i in hosts.numbers]
    lines = ("host=$1; shift", "case $host in", *cases, "esac")
    return shell_program(hosts.folder / "rsh", "\n".join(lines))


@pytest.mark.wide
@needs("mpirun")
def test_mpirun_starts_one_check_a_host_and_healthy_hosts_are_not_named(
    hosts: Hosts, rsh_agent: Path, tmp_path: Path
) -> None:
    done = hosts.run(
        LOGIN,
        [*_CHECK, "--hosts", "node1,node2,node3", *_OPTIONS, "--reports", tmp_path],
        env={"OMPI_MCA_plm_rsh_agent": str(rsh_agent), "OMPI_MCA_oob_tcp_if_include": "eth0"},
        timeout=_LIMIT_S,
    )

    report = report_of(done.stdout)
    assert named(report, Status.FAIL, Status.WARN, Status.UNKNOWN) == set()
    assert (done.returncode, report.verdict, report.run.launcher) == (0, "pass", "mpi"), done.stderr
    assert [node.name for node in report.nodes] == ["node1", "node2", "node3"]
    assert [node.address for node in report.nodes] == [hosts.address(i) for i in (1, 2, 3)]
    assert len(report.between.pairs) == report.between.pairs_planned == 3
    assert all(node.clock_offset_s is not None and abs(node.clock_offset_s) < 1 for node in report.nodes), (
        "one machine, one clock"
    )
    kept = [msgspec.json.decode(path.read_bytes(), type=Report) for path in sorted(tmp_path.iterdir())]
    assert [len(report.gpus) for report in kept] == [8, 8, 8]


@pytest.mark.wide
def test_a_host_that_is_cut_off_in_the_middle_is_named_and_nothing_is_left_running(hosts: Hosts) -> None:
    hosts.slow(3, "20mbit")  # so that it is in the middle of a meeting when the cable is pulled
    ranks = start_ranks(hosts, 3, "--deadline=10", "--progress")
    leader = ranks[0]
    assert leader.stderr is not None
    told = ""
    while "round 1 of 3" not in told:
        line = leader.stderr.readline()
        assert line, told
        told += line
    hosts.cut(3)
    (out, _), *others = ended(ranks)

    report = report_of(out)
    assert named(report, Status.UNKNOWN) == {("cluster.nodes", "node3")}
    assert named(report, Status.FAIL, Status.WARN) == set(), "the others' links are not to blame"
    assert (report.verdict, report.exit_code, leader.returncode) == ("unknown", 3, 3)
    verdicts = {node.name: node.verdict for node in report.nodes}
    assert verdicts == {"node1": "pass", "node2": "pass", "node3": "unknown"}
    assert "pairs of nodes, round" in words_of(report, "cluster.nodes", "node3")
    assert present(report.between.everyone).busbw_gb_s is not None, "it was there when all were measured"
    measured = {pair.nodes for pair in report.between.pairs if pair.busbw_gb_s is not None}
    assert measured == {("node1", "node2")}
    assert "is gone" in others[1][1], "the host that was cut off ends by itself"
    assert [process.returncode for process in ranks] == [3, 0, 3]
    assert [gpudoctors_on(hosts, i) for i in hosts.numbers] == [[], [], [], []]


def gpudoctors_on(hosts: Hosts, i: int) -> list[str]:
    """The command lines that run on a host; nothing else starts processes there."""
    pids = completed(["ip", "netns", "pids", hosts.command(i, [])[1].rpartition("/")[2]], check=True).stdout.split()
    lines = []
    for pid in pids:
        try:
            lines.append(Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").replace("\0", " "))
        except FileNotFoundError:
            continue
    return [line for line in lines if "gpudoctor" in line]


@pytest.mark.wide
def test_a_hostname_of_loopback_and_an_interface_that_is_not_there_are_told_and_the_link_measured_all_the_same(
    hosts: Hosts,
) -> None:
    table = hosts.folder / "debian-hosts"
    table.write_text("127.0.0.1 localhost\n127.0.1.1 node2\n10.77.0.1 node1\n")
    # the bridge of every host with containers, whose address leads each of them to itself
    hosts.run(1, ["sh", "-c", "ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0"])
    hosts.run(1, ["ip", "link", "set", "docker0", "up"]).check_returncode()
    ranks = start_ranks(
        hosts,
        2,
        env={1: {"GLOO_SOCKET_IFNAME": "nosuch0"}},
        wrap={2: f'mount --bind {table} /etc/hosts && exec "$@"'},
    )
    (out, err), _ = ended(ranks)
    hosts.run(1, ["ip", "link", "del", "docker0"]).check_returncode()

    report = report_of(out)
    assert [node.address for node in report.nodes] == ["10.77.0.1", "10.77.0.2"]
    wrong = named(report, Status.FAIL)
    assert wrong == {("cluster.network", "node1"), ("cluster.network", "node2")}, err
    assert named(report, Status.UNKNOWN) == set()
    absent = words_of(report, "cluster.network", "node1")
    assert "GLOO_SOCKET_IFNAME=nosuch0, and there is no interface nosuch0" in absent
    assert "one of docker0, eth0" in absent
    loopback = words_of(report, "cluster.network", "node2")
    assert "its hostname node2 resolves to 127.0.1.1, which no other node can reach" in loopback
    assert "export GLOO_SOCKET_IFNAME=eth0" in loopback
    assert [pair.busbw_gb_s is not None for pair in report.between.pairs] == [True]
    assert ranks[0].returncode == 1


@pytest.mark.wide
@needs("mpirun")
def test_an_interrupted_check_writes_what_it_knows_and_leaves_nothing_running(hosts: Hosts, rsh_agent: Path) -> None:
    env = {"OMPI_MCA_plm_rsh_agent": str(rsh_agent), "OMPI_MCA_oob_tcp_if_include": "eth0"}
    command = [*_CHECK, "--hosts", "node1,node2", *_OPTIONS, "--progress"]
    check = hosts.popen(LOGIN, command, env=env)
    assert check.stderr is not None
    line = ""
    while "starting the ranks" not in line:
        line = check.stderr.readline()
        assert line
    check.terminate()
    out, _ = check.communicate(timeout=_LIMIT_S)

    report = report_of(out)
    assert (check.returncode, report.exit_code, report.run.interrupted) == (143, 143, "SIGTERM")
    assert report.verdict == "unknown", "an interrupted check is no pass"
    assert [node.verdict for node in report.nodes] == ["pass", "pass"], "their own checks had been done"
    assert [gpudoctors_on(hosts, i) for i in (LOGIN, 1, 2)] == [[], [], []]


def test_without_an_allocation_one_line_says_what_to_run(tmp_path: Path) -> None:
    engines = ("SLURM", "OMPI", "PMIX", "RAY", "PBS", "KUBERNETES", "TORCHELASTIC")
    env = {name: value for name, value in os.environ.items() if not name.startswith(engines)}
    done = completed(_CHECK, env=env)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert all(word in done.stderr for word in ("salloc -N", "-N NODES", "--hosts", "RAY_ADDRESS", "torchrun --nnodes"))

    env["PATH"] = str(tmp_path)
    for launcher, package in (("mpi", "openmpi-bin"), ("slurm", "srun is not installed"), ("torchrun", "torchrun ")):
        done = completed([*_CHECK, "--launcher", launcher, "-N", "2", "--json"], env=env)
        assert done.returncode == 2
        assert package in done.stderr
        assert json.loads(done.stdout)["error"] in done.stderr
        assert "Traceback" not in done.stderr
