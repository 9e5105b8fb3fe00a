"""The agent's HTTP responses: metrics, health and report for GET and HEAD, a one-line refusal for everything else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from gpudoctor import __version__
from gpudoctor.agent.node_status import NodeStatus, ScrapeFigures
from gpudoctor.errors import UserError
from gpudoctor.http.address import HttpAccess
from gpudoctor.http.listener import BoundedListener
from gpudoctor.report.model import render_json
from gpudoctor.report.prometheus import Sample, families, verdict_states
from gpudoctor.text.output import printable

try:
    from aiohttp import web
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector
except ImportError as error:
    lacking = (error.name or str(error)).partition(".")[0].replace("_", "-")
    raise UserError(
        f"agent needs {lacking}, which this Python lacks: pip install 'prometheus-client>=0.20' 'aiohttp>=3.9,<4'"
    ) from None

from gpudoctor.http.server import HEADERS, one_line

CONNECTIONS_MAX = 32
CONNECTION_S = 10.0  # Prometheus itself gives up after 10 s
_SHUTDOWN_S = 0.5
# the only metric of a stale report that is still exported
_TIMESTAMP = "gpudoctor_run_timestamp_seconds"


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
            found = "this is not the token" if tokens else "no token came"
            why = f"{found}; the request must have the header Authorization: Bearer TOKEN"
            return one_line(401, why, {**HEADERS, "WWW-Authenticate": "Bearer"})
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
            reported = node.line if knows else "healthy" if node.healthy else "not healthy"
            text = f"{self._prefix}{printable(reported)}\n"
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


class AgentMetrics(Collector):
    """Collects all metrics at each scrape, in the format that the client accepts."""

    def __init__(self, figures: Callable[[], ScrapeFigures]) -> None:
        self._figures = figures
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: the metric names are known only once there is a report."""
        return ()

    def render(self, accept: str) -> tuple[bytes, str]:
        """(body, content type) for an Accept header."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self._registry), content_type

    def collect(self) -> Iterator[Metric]:
        figures = self._figures()
        mark = {"simulated": "true"} if figures.simulated else {}
        for name, text, samples in (*_of_report(figures.status), *_of_agent(figures)):
            yield _gauge(name, text, [({**labels, **mark}, value) for labels, value in samples])
        text = "Runs since the agent began, with a report and without one."
        counter = CounterMetricFamily("gpudoctor_agent_runs", text, labels=["outcome", *mark])
        for outcome, number in figures.runs.items():
            counter.add_metric([outcome, *mark.values()], number)
        yield counter


def _of_report(status: NodeStatus) -> Iterator[tuple[str, str, Iterable[Sample]]]:
    if status.report is not None:
        yield from families(status.report)
        return
    yield "gpudoctor_verdict", "Verdict on the node (state set).", verdict_states(status.verdict)
    if status.last is not None:
        yield from (family for family in families(status.last.report) if family.name == _TIMESTAMP)


def _of_agent(figures: ScrapeFigures) -> Iterator[tuple[str, str, Iterable[Sample]]]:
    status = figures.status
    yield "gpudoctor_agent_info", "This agent.", [({"version": __version__}, 1)]
    yield "gpudoctor_agent_interval_seconds", "Between starts of runs.", [({}, figures.interval_s)]
    yield "gpudoctor_agent_healthy", "Whether /healthz says 200.", [({}, status.healthy)]
    yield "gpudoctor_agent_report_fresh", "Whether the last report still counts.", [({}, status.report is not None)]
    yield "gpudoctor_agent_state_kept", "Whether the state would outlive a restart.", [({}, figures.state_kept)]
    if status.report is None or status.report.error is not None:
        return  # nothing is known of alarms: 0 would look healthy
    yield "gpudoctor_agent_alarms", "Checks, on a GPU each, that want somebody to look now.", [({}, len(status.alarms))]
    yield (
        "gpudoctor_agent_alarm",
        "What wants somebody to look: fail and unknown at once, warn after enough strikes.",
        [
            ({"check": alarm.check, "gpu": alarm.gpu, "uuid": alarm.uuid, "status": alarm.status.value}, 1)
            for alarm in status.alarms
        ],
    )
    yield (
        "gpudoctor_agent_strikes",
        "Runs in a row in which a check warned or failed.",
        [({"check": strike.check, "gpu": strike.gpu, "uuid": strike.uuid}, strike.in_row) for strike in status.strikes],
    )


def _gauge(name: str, text: str, samples: Sequence[Sample]) -> GaugeMetricFamily:
    labels = list(samples[0][0]) if samples else []
    gauge = GaugeMetricFamily(name, text, labels=labels)
    for sample, value in samples:
        gauge.add_metric(["".join(filter(str.isprintable, sample[label])) for label in labels], float(value))
    return gauge
