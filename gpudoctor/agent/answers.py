"""The agent's HTTP responses: three paths for GET and HEAD, and a one-line refusal for everything else."""

from __future__ import annotations

from collections.abc import Callable

from gpudoctor.agent.metrics import AgentMetrics
from gpudoctor.agent.node_status import NodeStatus
from gpudoctor.errors import UserError
from gpudoctor.exits import printable
from gpudoctor.http.address import HttpAccess
from gpudoctor.http.listener import BoundedListener
from gpudoctor.report.model import render_json

try:
    from aiohttp import web
except ImportError:
    raise UserError("agent wants aiohttp: pip install 'prometheus-client>=0.20' 'aiohttp>=3.9,<4'") from None

from gpudoctor.http.server import HEADERS, one_line

CONNECTIONS_MAX = 32
CONNECTION_S = 10.0  # Prometheus itself gives up after 10 s
_SHUTDOWN_S = 0.5


class AgentAnswers:
    """Answers requests with the node's current status; `prefix` marks a node that is not this machine."""

    def __init__(
        self, access: HttpAccess, metrics: AgentMetrics, status: Callable[[], NodeStatus], prefix: str
    ) -> None:
        self._access = access
        self._metrics = metrics
        self._status = status
        self._prefix = prefix
        # one limit for the whole connection, so a client that sends or reads one byte at a time gets no extra time
        self.listener = BoundedListener(CONNECTIONS_MAX, CONNECTION_S, until_heard=False)

    def runner(self) -> web.ServerRunner:
        return web.ServerRunner(web.Server(self.answer), shutdown_timeout=_SHUTDOWN_S)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request and close the connection."""
        path = request.raw_path.partition("?")[0]
        hosts, tokens = request.headers.getall("Host", []), request.headers.getall("Authorization", [])
        if max(len(hosts), len(tokens)) > 1:
            return one_line(400, "Host or Authorization stands there twice")
        if not path.startswith("/") or request.version.major != 1:  # a line without a version is HTTP/0.9
            return one_line(400, "this is not an HTTP request for one of our paths")
        refusal = self._access.refusal(hosts[0] if hosts else None)
        if refusal is not None:
            return one_line(403, f"refused: {refusal}")
        knows = self._access.knows(tokens[0] if tokens else None)
        if path != "/healthz" and not knows:
            wanted = {"WWW-Authenticate": "Bearer"}
            return one_line(401, "a token is wanted: Authorization: Bearer TOKEN", {**HEADERS, **wanted})
        if request.method not in ("GET", "HEAD"):
            return one_line(405, "GET and HEAD only", {**HEADERS, "Allow": "GET, HEAD"})
        self.listener.heard(request.transport)
        response = self._answer(path, request.headers.get("Accept", ""), knows=knows)
        response.force_close()
        return response

    def _answer(self, path: str, accept: str, *, knows: bool) -> web.Response:
        if path == "/metrics":
            body, content_type = self._metrics.render(accept)
            return web.Response(body=body, headers={**HEADERS, "Content-Type": content_type})
        node = self._status()
        if path == "/healthz":
            # only clients with the token learn which part of the node is broken
            said = node.line if knows else "healthy" if node.healthy else "not healthy"
            text = f"{self._prefix}{printable(said)}\n"
            return web.Response(status=200 if node.healthy else 503, text=text, headers=HEADERS)
        if path == "/report":
            return _report(node, self._prefix)
        return one_line(404, "there are /metrics, /healthz and /report")


def _report(node: NodeStatus, prefix: str) -> web.Response:
    """The last report and its age. A stale report is still sent, with status 503."""
    if node.last is None:
        return one_line(503, f"{prefix}{node.why_not}")
    age = {} if node.age_s is None else {"Age": f"{node.age_s:.0f}"}
    headers = {**HEADERS, **age, "Content-Type": "application/json"}
    status = 503 if node.report is None else 200
    return web.Response(status=status, body=render_json(node.last.report).encode(), headers=headers)
