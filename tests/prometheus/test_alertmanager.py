"""An alert's way to who is on call: a real Prometheus with our rules, and a real Alertmanager with routes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.agent.running import wait_for
from tests.needs import needs
from tests.prometheus.conftest import write_metrics
from tests.prometheus.running import running_alertmanager, running_node_exporter, running_prometheus, target


@contextmanager
def pager() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address of a webhook, and the alerts that were sent to it."""
    received: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            received.extend({**alert, "receiver": body["receiver"]} for alert in body["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.wide
@needs("alertmanager", "prometheus", "prometheus-node-exporter")
def test_a_bad_node_pages_somebody_and_a_healthy_one_nobody(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("bad", "healthy")}
    for name, folder in folders.items():
        folder.mkdir()
        fault = ["--fault", "pcie-width-x8@5"] if name == "bad" else []
        write_metrics(folder / "gpudoctor.prom", "--node", "hgx-h100-8", *fault)
    with (
        pager() as (url, received),
        running_node_exporter(folders["bad"], tmp_path / "bad.log") as bad,
        running_node_exporter(folders["healthy"], tmp_path / "healthy.log") as healthy,
    ):
        hooks = [{"url": url, "send_resolved": False}]
        critical = {"receiver": "page", "matchers": ['severity="critical"']}
        route = {"receiver": "mail", "group_wait": "0s", "group_interval": "1s", "routes": [critical]}
        receivers = [{"name": name, "webhook_configs": hooks} for name in ("mail", "page")]
        with running_alertmanager(tmp_path, {"route": route, "receivers": receivers}) as port:
            jobs = {"node": [target(bad, "bad", "a"), target(healthy, "healthy", "a")]}
            alerting = {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}]}
            with running_prometheus(tmp_path, jobs, alerting=alerting) as prometheus:
                wait_for(lambda: prometheus.query('gpudoctor_verdict{verdict="pass",instance="healthy"} == 1'))
                alert, *_ = wait_for(lambda: received)
                # a rule of the healthy node would have fired with the bad one's
                alerts = prometheus.get("alerts")["alerts"]
                assert [
                    each for each in alerts if each["state"] == "firing" and each["labels"]["instance"] != "bad"
                ] == []
    labels = {name: alert["labels"][name] for name in ("alertname", "instance", "cluster", "severity")}
    assert labels == {
        "alertname": "GpudoctorNodeUnfit",
        "instance": "bad",
        "cluster": "a",
        "severity": "critical",
    }
    assert alert["receiver"] == "page"
    assert "bad is not fit to train on" in alert["annotations"]["summary"]
    assert "pcie.link-width (GPU 5" in alert["annotations"]["description"]
    assert {each["labels"]["instance"] for each in received} == {"bad"}
