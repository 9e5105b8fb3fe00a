"""The little of a Kubernetes API server that `kubectl get nodes` and `kubectl taint` ask for."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LABEL = "nvidia.com/gpu.present"
_RESOURCES = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": "v1",
    "resources": [
        {
            "name": "nodes",
            "singularName": "node",
            "namespaced": False,
            "kind": "Node",
            "verbs": ["get", "list", "patch"],
        }
    ],
}


def node(name: str, problem: str | None, *taints: str, since: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    """A GPU node with the condition GpuProblem in this state (None: not set) `since` then, and NoSchedule taints."""
    conditions = [{"type": "Ready", "status": "True"}]
    conditions += [{"type": "GpuProblem", "status": problem, "lastTransitionTime": since}] if problem else []
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": name, "labels": {LABEL: "true"}},
        "spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]} if taints else {},
        "status": {"conditions": conditions},
    }


@contextlib.contextmanager
def api_server(nodes: list[dict[str, Any]], kubeconfig: Path) -> Iterator[None]:
    """Serve the nodes on loopback, change them as patches say, and write a kubeconfig that leads there."""
    by_name = {each["metadata"]["name"]: each for each in nodes}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            answers: dict[str, Any] = {
                "/api": {"kind": "APIVersions", "versions": ["v1"]},
                "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
                "/api/v1": _RESOURCES,
                "/api/v1/nodes": {"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": nodes},
            }
            self._answer(answers.get(path) or by_name.get(path.removeprefix("/api/v1/nodes/")))

        def do_PATCH(self) -> None:
            changed = by_name[self.path.partition("?")[0].removeprefix("/api/v1/nodes/")]
            patch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            taints = patch["spec"]["taints"]
            changed["spec"] = {"taints": taints} if taints else {}
            self._answer(changed)

        def _answer(self, found: dict[str, Any] | None) -> None:
            body = json.dumps(found or {"kind": "Status", "status": "Failure", "code": 404}).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": ""}}
    config = {"kind": "Config", "apiVersion": "v1", "clusters": [cluster], "contexts": [context]}
    kubeconfig.write_text(json.dumps({**config, "current-context": "c"}))
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
