"""A real Prometheus scrapes the agent, an alert fires, and every query of the dashboard has an answer there."""

from __future__ import annotations

import functools
import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.agent.running import DEADLINE_S, Agent, wait_for
from tests.conftest import ROOT

CONTRIB = ROOT / "contrib" / "prometheus"
DASHBOARD = json.loads((CONTRIB / "gpudoctor.dashboard.json").read_text(encoding="utf-8"))
# panels that are empty on a node that is simulated, has warned of nothing, and ran for seconds
MAY_BE_EMPTY = {"Runs without a report"}


def program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed: apt install prometheus")
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Prometheus:
    """The HTTP API of a running Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def ready(self) -> bool:
        with suppress(URLError, ConnectionError), urlopen(f"{self._url}/-/ready", timeout=DEADLINE_S) as answer:
            return bool(answer.status == 200)
        return False

    def get(self, path: str, **words: str) -> Any:
        with urlopen(f"{self._url}/api/v1/{path}?{urlencode(words)}", timeout=DEADLINE_S) as answer:
            body = json.load(answer)
        assert body["status"] == "success", body
        return body["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def scraped(self) -> bool:
        """Whether it has read the agent's metrics, and understood all of them."""
        [target] = self.get("targets")["activeTargets"]
        return bool(target["health"] == "up" and target["lastError"] == "")


@pytest.fixture(scope="module")
def prometheus(faulty: Agent, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A real Prometheus with our rules, once it has scraped the agent and judged the rules."""
    path, folder, port = program("prometheus"), tmp_path_factory.mktemp("prometheus"), free_port()
    (folder / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(CONTRIB / "gpudoctor.rules.yml")],
                "scrape_configs": [
                    {
                        "job_name": "gpudoctor",
                        "static_configs": [{"targets": [f"127.0.0.1:{faulty.port}"], "labels": {"instance": "node7"}}],
                    }
                ],
            }
        )
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                path,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        running = Prometheus(port)
        wait_for(running.ready, process)
        wait_for(lambda: running.query("gpudoctor_verdict"), process)
        wait_for(lambda: running.get("alerts")["alerts"], process)
        yield running
    finally:
        process.kill()
        process.wait(DEADLINE_S)


def test_prometheus_gets_the_metrics_as_the_agent_has_them(prometheus: Prometheus, faulty: Agent) -> None:
    # Prometheus gives a scrape no longer than its interval, and takes what was there away when one comes late
    wait_for(lambda: prometheus.query("gpudoctor_verdict") and prometheus.scraped())
    [row] = wait_for(lambda: prometheus.query('gpudoctor_check_status{status="fail"} == 1'))
    assert (row["metric"]["check"], row["metric"]["gpu"], row["metric"]["instance"]) == (
        "pcie.link-width",
        "5",
        "node7",
    )
    count = len(faulty.metrics()["gpudoctor_check_status"])
    wait_for(lambda: len(prometheus.query("gpudoctor_check_status")) == count)


def test_the_alert_fires_and_names_the_part_and_that_it_is_simulated(prometheus: Prometheus) -> None:
    [alert] = wait_for(lambda: [a for a in prometheus.get("alerts")["alerts"] if a["state"] == "firing"])
    assert alert["labels"]["alertname"] == "GpudoctorNodeUnfit"
    assert alert["annotations"]["summary"] == "SIMULATED node7 is not fit to train on"
    assert "pcie.link-width (GPU 5 GPU-05fa4e00" in alert["annotations"]["description"]


def test_every_query_of_the_dashboard_is_answered(prometheus: Prometheus) -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$instance", ".*").replace("$check", "pcie.link-width")
            if panel["title"] not in MAY_BE_EMPTY:
                wait_for(functools.partial(prometheus.query, expression))


def test_the_dashboard_is_whole_and_names_only_metrics_that_there_are(faulty: Agent) -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids) >= 10
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["description"]
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    text = json.dumps(DASHBOARD)
    assert set(re.findall(r"\$\{?(\w+)", text)) - {"__all"} <= variables
    served = set(faulty.metrics())
    assert set(re.findall(r"gpudoctor_\w+", text)) <= served


def test_the_rules_name_only_metrics_that_there_are(faulty: Agent) -> None:
    rules = (CONTRIB / "gpudoctor.rules.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"gpudoctor_\w+", rules)) <= set(faulty.metrics())


def test_promtool_accepts_the_rules_and_their_tests_pass() -> None:
    promtool = program("promtool")
    for words in (("check", "rules", "gpudoctor.rules.yml"), ("test", "rules", "gpudoctor.rules.test.yml")):
        done = subprocess.run(
            [promtool, *words], cwd=CONTRIB, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_nothing_wrong_with_the_metrics_of_agent_and_check(faulty: Agent) -> None:
    promtool = program("promtool")
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=faulty.ask("/metrics").body,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt install systemd")
    units = []
    for unit in CONTRIB.glob("gpudoctor-*.*"):
        units.append(str(tmp_path / unit.name))
        # where gpudoctor is installed is the reader's choice
        text = unit.read_text(encoding="utf-8").replace("/opt/gpudoctor/bin/gpudoctor", "/bin/true")
        Path(units[-1]).write_text(text, encoding="utf-8")
    assert len(units) == 3
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if "gpudoctor" in line]
    assert (done.returncode, ours) == (0, []), done.stderr


@pytest.mark.parametrize("name", ["gpudoctor-agent.service", "gpudoctor-textfile.service"])
def test_no_unit_hides_the_driver_or_sets_a_limit_that_a_check_would_judge(name: str) -> None:
    text = (CONTRIB / name).read_text(encoding="utf-8")
    settings = {line.partition("=")[0] for line in text.splitlines() if "=" in line and not line.startswith("#")}
    for harmful in (
        *("MemoryMax", "MemoryHigh", "CPUQuota", "CPUAffinity", "AllowedCPUs", "PrivateDevices", "DevicePolicy"),
        *("DeviceAllow", "ProtectClock", "ProtectKernelLogs", "PrivateNetwork", "ProtectProc", "PrivateIPC"),
    ):
        assert harmful not in settings
    assert {"LimitMEMLOCK", "LimitNOFILE", "NoNewPrivileges", "ProtectSystem"} <= settings
    words = re.findall(r"^ExecStart=(\S+) (.+)$", text, re.MULTILINE)[0][1].split()
    from gpudoctor.cli.parsers import parsed

    assert parsed(words).command == words[0]  # options that there are
