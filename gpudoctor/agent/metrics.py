"""The agent's metrics: those of the last report while it is fresh, and those of the agent itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from gpudoctor import __version__
from gpudoctor.agent.node_status import NodeStatus, ScrapeFigures
from gpudoctor.errors import UserError
from gpudoctor.report.prometheus import Family, Labels, Sample, families, verdict_states

try:
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector
except ImportError:
    raise UserError("agent wants prometheus-client: pip install 'prometheus-client>=0.20' 'aiohttp>=3.9,<4'") from None

# the only metric of a stale report that is still exported
_TIMESTAMP = "gpudoctor_run_timestamp_seconds"


class AgentMetrics(Collector):
    """Collects all metrics at each scrape, in the format that the client accepts."""

    def __init__(self, figures: Callable[[], ScrapeFigures], *, old_series: bool) -> None:
        self._figures = figures
        self._old_series = old_series
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
        status = figures.status
        mark = {"simulated": "true"} if figures.simulated else {}
        for family in _of_report(status, mark, old_series=self._old_series):
            yield _gauge(family)
        for name, text, samples in _of_agent(figures):
            yield _gauge(Family(name, text, tuple(({**labels, **mark}, value) for labels, value in samples)))
        counter = CounterMetricFamily(
            "gpudoctor_agent_runs",
            "Runs since the agent began, with a report and without one.",
            labels=["outcome", *mark],
        )
        for outcome, number in figures.runs.items():
            counter.add_metric([outcome, *mark.values()], number)
        yield counter


def _of_report(status: NodeStatus, mark: Labels, *, old_series: bool) -> Iterator[Family]:
    if status.report is not None:
        yield from families(status.report, old_series=old_series)
        return
    states = tuple(({**labels, **mark}, value) for labels, value in verdict_states(status.verdict))
    yield Family("gpudoctor_verdict", "Verdict on the node (state set).", states)
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
    yield (
        "gpudoctor_agent_alarms",
        "Checks, on a GPU each, that want somebody to look now.",
        [({}, len(status.alarms))],
    )
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


def _gauge(family: Family) -> GaugeMetricFamily:
    labels = list(family.samples[0][0]) if family.samples else []
    gauge = GaugeMetricFamily(family.name, family.text, labels=labels)
    for sample, value in family.samples:
        gauge.add_metric([_clean(sample[label]) for label in labels], float(value))
    return gauge


def _clean(value: str) -> str:
    return "".join(c for c in value if c.isprintable())
