"""A real Prometheus scrapes the agent."""

from __future__ import annotations

import pytest

from tests.agent.running import wait_for
from tests.needs import needs
from tests.prometheus.conftest import Site
from tests.prometheus.running import promtool


@pytest.mark.wide
def test_prometheus_gets_the_metrics_as_the_agent_has_them(site: Site) -> None:
    prometheus = site.prometheus
    # Prometheus gives a scrape no longer than its interval, and takes what was there away when one comes late
    wait_for(lambda: prometheus.query('gpudoctor_verdict{instance="node7"}') and not prometheus.last_error("node7"))
    [row] = wait_for(lambda: prometheus.query('gpudoctor_check_status{instance="node7",status="fail"} == 1'))
    assert (row["metric"]["check"], row["metric"]["gpu"]) == ("pcie.link-width", "5")
    count = len(site.agent.metrics()["gpudoctor_check_status"])
    wait_for(lambda: len(prometheus.query('gpudoctor_check_status{instance="node7"}')) == count)


@pytest.mark.wide
@needs("promtool")
def test_promtool_finds_nothing_wrong_with_the_agents_metrics(site: Site) -> None:
    assert promtool("check", "metrics", text=site.agent.ask("/metrics").body) == (0, "")
