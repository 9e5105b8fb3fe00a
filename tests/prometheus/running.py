"""Real programs of Prometheus on loopback: Prometheus itself, Alertmanager, node_exporter, promtool."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.agent.running import DEADLINE_S, wait_for
from tests.conftest import ROOT
from tests.needs import find
from tests.subprocesses import completed

CONTRIB = ROOT / "contrib" / "prometheus"


def promtool(*words: str, text: str | None = None) -> tuple[int, str]:
    """(exit code, all of its output)."""
    done = completed(["promtool", *words], cwd=CONTRIB, input=text)
    return done.returncode, done.stdout + done.stderr


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Prometheus:
    """The HTTP API of a running Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def ready(self) -> bool:
        return answers(f"{self._url}/-/ready")

    def get(self, path: str, **words: str) -> Any:
        with urlopen(f"{self._url}/api/v1/{path}?{urlencode(words)}", timeout=DEADLINE_S) as answer:
            body = json.load(answer)
        assert body["status"] == "success", body
        return body["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def firing(self, alert: str) -> list[dict[str, Any]]:
        return [
            each
            for each in self.get("alerts")["alerts"]
            if (each["labels"]["alertname"], each["state"]) == (alert, "firing")
        ]

    def last_error(self, instance: str) -> str:
        """What Prometheus could not read of a target; "" if it read all of it."""
        [target] = [t for t in self.get("targets")["activeTargets"] if t["labels"]["instance"] == instance]
        return str(target["lastError"])


def answers(url: str) -> bool:
    with suppress(URLError, ConnectionError), urlopen(url, timeout=DEADLINE_S) as answer:
        return bool(answer.status == 200)
    return False


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
    try:
        yield process
    finally:
        process.kill()
        process.wait(DEADLINE_S)


def target(port: int, instance: str, cluster: str) -> dict[str, object]:
    return {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": instance, "cluster": cluster}}


@contextmanager
def running_prometheus(folder: Path, jobs: dict[str, list[dict[str, object]]], **more: object) -> Iterator[Prometheus]:
    """Prometheus with our rules and these targets of each job, once it answers; its data and its log are in `folder`.

    No alert is delayed: a test cannot wait a quarter of an hour. `more` is further configuration.
    """
    rules = (CONTRIB / "gpudoctor.rules.yml").read_text(encoding="utf-8")
    (folder / "rules.yml").write_text(rules.replace("for: 15m", "for: 0s").replace("interval: 5m", "interval: 1s"))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.yml")],
        "scrape_configs": [{"job_name": name, "static_configs": targets} for name, targets in jobs.items()],
        **more,
    }
    port = free_port()
    (folder / "prometheus.yml").write_text(json.dumps(config))
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with _running(command, folder / "log") as process:
        running = Prometheus(port)
        wait_for(running.ready, process)
        yield running


@contextmanager
def running_alertmanager(folder: Path, config: dict[str, Any]) -> Iterator[int]:
    """The port of an Alertmanager with that configuration, once it answers."""
    port = free_port()
    (folder / "alertmanager.yml").write_text(json.dumps(config))
    command = [
        str(find("alertmanager")),
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'alerts'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",  # it has no peers
    ]
    with _running(command, folder / "alertmanager.log") as process:
        wait_for(lambda: answers(f"http://127.0.0.1:{port}/-/ready"), process)
        yield port


@contextmanager
def running_node_exporter(textfiles: Path, log: Path) -> Iterator[int]:
    """The port of a node_exporter that reads the metrics in `textfiles`, and nothing else."""
    port = free_port()
    command = [
        str(find("prometheus-node-exporter")),
        "--collector.disable-defaults",
        "--collector.textfile",
        f"--collector.textfile.directory={textfiles}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with _running(command, log) as process:
        wait_for(lambda: answers(f"http://127.0.0.1:{port}/metrics"), process)
        yield port
