"""A small site that many tests look at: an agent, a node_exporter with a textfile, and a node that is down."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gpudoctor.slurm import hooks
from gpudoctor.slurm.quick_check import HookVerdict
from gpudoctor.slurm.settings import HookSettings
from tests.agent.conftest import faulty
from tests.agent.running import Agent, environ, wait_for
from tests.needs import fixture_needs
from tests.prometheus.running import Prometheus, running_node_exporter, running_prometheus, target
from tests.subprocesses import completed

__all__ = ["faulty"]


class Site(NamedTuple):
    """`written` is the stderr of `gpudoctor check` when it wrote into the folder `textfiles`."""

    prometheus: Prometheus
    agent: Agent
    textfiles: Path
    written: str


def write_metrics(file: Path, *options: str) -> str:
    """Check a simulated node as the timer does; return its stderr."""
    command = [sys.executable, "-m", "gpudoctor", "check", "--level", "quick", "--format", "prometheus"]
    done = completed([*command, "-o", str(file), *options], env=environ(file.parent.parent))
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout == ""
    return done.stderr


@pytest.fixture(scope="package")
@fixture_needs("prometheus", "prometheus-node-exporter")
def site(faulty: Agent, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A real Prometheus with our rules, once it has scraped all and an alert fires.

    Cluster a: node7 with the agent, and node9, which is down.
    Cluster b: node8 with textfiles of the timer and of Slurm's health check.
    """
    folder = tmp_path_factory.mktemp("site")
    textfiles = folder / "textfiles"
    textfiles.mkdir()
    with running_node_exporter(textfiles, folder / "node_exporter.log") as port:
        written = write_metrics(textfiles / "gpudoctor.prom", "--node", "rtx4090-4", "--fault", "pcie-width-x4@2")
        settings, passed = HookSettings(textfile=textfiles), HookVerdict("pass", "")
        assert hooks.write_metrics(settings, "epilog", passed, None, out_of_service=False) is None
        failed = HookVerdict("fail", "", check="gpu.xid")
        # what alerts and panels ask of a node is the health check's: a hook before a job says it of that job only
        assert hooks.write_metrics(settings, "health", failed, "cap", out_of_service=False) is None
        agents = [target(faulty.port, "node7", "a"), target(1, "node9", "a")]  # no listener there
        with running_prometheus(folder, {"gpudoctor": agents, "node": [target(port, "node8", "b")]}) as prometheus:
            wait_for(lambda: prometheus.query('count(gpudoctor_verdict{verdict="fail"} == 1) == 2'))
            yield Site(prometheus, faulty, textfiles, written)
