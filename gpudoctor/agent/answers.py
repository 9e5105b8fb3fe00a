"""What the agent answers: three paths, GET and HEAD, and one line for everything else."""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPException, parse_headers
from io import BytesIO
from typing import NamedTuple

from gpudoctor.agent.access import AgentAccess
from gpudoctor.agent.metrics import AgentMetrics
from gpudoctor.agent.node_status import NodeStatus
from gpudoctor.report.json import render_json

_REQUEST = re.compile(rb"([A-Z]{1,20}) (/[!-~]*) HTTP/1\.[01]\r\n")
_TEXT = "text/plain; charset=utf-8"


class HttpAnswer(NamedTuple):
    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT
    more: tuple[tuple[str, str], ...] = ()

    def encoded(self, *, with_body: bool = True) -> bytes:
        """As it goes over the line; the connection ends with it."""
        headers = (
            ("Content-Type", self.content_type),
            ("Content-Length", str(len(self.body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Connection", "close"),
            *self.more,
        )
        head = "".join(f"{name}: {value}\r\n" for name, value in headers)
        first = f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\n"
        return f"{first}{head}\r\n".encode() + (self.body if with_body else b"")


class HttpAnswers:
    """From the bytes of a request's head to the bytes of its answer. `look` gives how the node stands now."""

    def __init__(self, gate: AgentAccess, metrics: AgentMetrics, look: Callable[[], tuple[NodeStatus, str]]) -> None:
        self._gate = gate
        self._metrics = metrics
        self._look = look

    def to(self, head: bytes) -> bytes:
        """Answer a request, of which `head` is all up to its first empty line."""
        request = _REQUEST.match(head)
        if request is None:
            return _line(HTTPStatus.BAD_REQUEST, "this is not an HTTP request for one of our paths").encoded()
        method, target = request[1].decode(), request[2].decode()
        try:
            headers = parse_headers(BytesIO(head[request.end() :]))
        except HTTPException:
            return too_large()
        hosts, tokens = headers.get_all("Host", []), headers.get_all("Authorization", [])
        if max(len(hosts), len(tokens)) > 1:
            return _line(HTTPStatus.BAD_REQUEST, "Host or Authorization stands there twice").encoded()
        path = target.partition("?")[0]
        token = str(tokens[0]) if tokens else None
        answer = self._refused(method, path, str(hosts[0]) if hosts else None, token)
        if answer is None:
            answer = self._answer(path, str(headers.get("Accept", "")), knows=self._gate.knows(token))
        return answer.encoded(with_body=method != "HEAD")

    def _refused(self, method: str, path: str, host: str | None, authorization: str | None) -> HttpAnswer | None:
        refusal = self._gate.refusal(host)
        if refusal is not None:
            return _line(HTTPStatus.FORBIDDEN, f"refused: {refusal}")
        if path != "/healthz" and not self._gate.knows(authorization):
            wanted = _line(HTTPStatus.UNAUTHORIZED, "a token is wanted: Authorization: Bearer TOKEN")
            return wanted._replace(more=(("WWW-Authenticate", "Bearer"),))
        if method not in ("GET", "HEAD"):
            return _line(HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD only")._replace(more=(("Allow", "GET, HEAD"),))
        return None

    def _answer(self, path: str, accept: str, *, knows: bool) -> HttpAnswer:
        if path == "/metrics":
            body, content_type = self._metrics.render(accept)
            return HttpAnswer(HTTPStatus.OK, body, content_type)
        standing, mark = self._look()
        if path == "/healthz":
            status = HTTPStatus.OK if standing.healthy else HTTPStatus.SERVICE_UNAVAILABLE
            if not knows:  # which part of a node is broken is nobody else's
                return HttpAnswer(status, f"{mark}{'healthy' if standing.healthy else 'not healthy'}\n".encode())
            return HttpAnswer(status, f"{mark}{_one_line(standing.line)}\n".encode())
        if path == "/report":
            return _report(standing, mark)
        return _line(HTTPStatus.NOT_FOUND, "there are /metrics, /healthz and /report")


def too_large() -> bytes:
    """For a request with more headers than anybody needs."""
    return _line(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too large").encoded()


def _report(standing: NodeStatus, mark: str) -> HttpAnswer:
    """The last report as it is, with its age; 503 where it no longer counts, though it is still there to be read."""
    if standing.last is None:
        return _line(HTTPStatus.SERVICE_UNAVAILABLE, f"{mark}{standing.why_not}")
    status = HTTPStatus.SERVICE_UNAVAILABLE if standing.report is None else HTTPStatus.OK
    age = () if standing.age_s is None else (("Age", f"{standing.age_s:.0f}"),)
    return HttpAnswer(status, render_json(standing.last.report).encode(), "application/json", age)


def _line(status: HTTPStatus, text: str) -> HttpAnswer:
    return HttpAnswer(status, f"gpudoctor: {_one_line(text)}\n".encode())


def _one_line(text: str) -> str:
    return "".join(c for c in text.replace("\n", " ") if c.isprintable())
