"""The alerting rules: promtool's own tests, a page for each, and alerts that a real Prometheus raises."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.agent.running import wait_for
from tests.conftest import ROOT
from tests.needs import needs
from tests.prometheus.conftest import Site
from tests.prometheus.running import CONTRIB, promtool

RULES = (CONTRIB / "gpudoctor.rules.yml").read_text(encoding="utf-8")
ALERTS: list[dict[str, Any]] = [rule for group in yaml.safe_load(RULES)["groups"] for rule in group["rules"]]
[DOCUMENTATION] = re.findall(r'^Documentation = "(.*?)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
PAGE = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")


def test_the_site_that_mkdocs_builds_is_the_one_that_the_project_names() -> None:
    assert f"\nsite_url: {DOCUMENTATION}\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("alert", ALERTS, ids=[alert["alert"] for alert in ALERTS])
def test_each_alert_says_what_it_is_how_bad_and_where_its_page_is(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
    whose = "{{ $value }} nodes" if alert["alert"] == "GpudoctorSameFault" else "{{ $labels.instance }}"
    assert whose in alert["annotations"]["summary"]
    address, heading = alert["annotations"]["runbook_url"].split("#")
    assert address == f"{DOCUMENTATION}alerts.html"
    # docs/alerts.md is that page, and a site and a forge alike make the anchor of the heading
    assert re.search(rf"^## {alert['alert']}$", PAGE, re.MULTILINE)
    assert heading == alert["alert"].lower()


def test_the_page_tells_of_no_alert_that_is_not_there() -> None:
    headings = re.findall(r"^## (Gpudoctor\w+)$", PAGE, re.MULTILINE)
    assert sorted(headings) == sorted(alert["alert"] for alert in ALERTS)


def test_the_one_line_that_the_rules_tell_leads_all_alerts_to_another_place() -> None:
    line = re.compile(r"sed -i 's\|(\S+)\|(\S+)\|'")
    [(old, new)] = line.findall(RULES)
    assert line.findall((CONTRIB / "README.md").read_text(encoding="utf-8")) == [(old, new)]
    moved = yaml.safe_load(RULES.replace(old, new))
    for group in moved["groups"]:
        for alert in group["rules"]:
            assert alert["annotations"]["runbook_url"] == f"{new}#{alert['alert'].lower()}"


def test_the_test_rules_try_every_alert() -> None:
    tests = yaml.safe_load((CONTRIB / "gpudoctor.rules.test.yml").read_text(encoding="utf-8"))["tests"]
    raised = {each["alertname"] for test in tests for each in test["alert_rule_test"] if each.get("exp_alerts")}
    assert raised == {alert["alert"] for alert in ALERTS}


@pytest.mark.wide(every=2)
@needs("promtool")
@pytest.mark.parametrize(
    "words", [("check", "rules", "gpudoctor.rules.yml"), ("test", "rules", "gpudoctor.rules.test.yml")]
)
def test_promtool_accepts_the_rules_and_their_tests_pass(words: tuple[str, ...]) -> None:
    code, said = promtool(*words)
    assert code == 0, said


def test_the_rules_name_only_metrics_that_there_are(site: Site) -> None:
    named = set(re.findall(r"\b(?:gpudoctor_\w+|node_\w+|up)\b", " ".join(alert["expr"] for alert in ALERTS)))
    assert {"gpudoctor_verdict", "gpudoctor_agent_info", "node_textfile_mtime_seconds", "up"} <= named
    wait_for(lambda: named <= set(site.prometheus.get("label/__name__/values")))


def test_an_alert_fires_names_the_part_and_says_that_it_is_simulated(site: Site) -> None:
    alerts = wait_for(lambda: len(found := site.prometheus.firing("GpudoctorNodeUnfit")) == 2 and found)
    by_node = {alert["labels"]["instance"]: alert for alert in alerts}
    assert by_node["node7"]["annotations"]["summary"] == "SIMULATED node7 is not fit to train on"
    assert "pcie.link-width (GPU 5 GPU-05fa4e00" in by_node["node7"]["annotations"]["description"]
    assert "pcie.link-width (GPU 2" in by_node["node8"]["annotations"]["description"]
    assert by_node["node8"]["labels"]["cluster"] == "b"


def test_what_a_slurm_hook_wrote_is_enough_for_an_alert(site: Site) -> None:
    [alert] = wait_for(lambda: site.prometheus.firing("GpudoctorSlurmCapReached"))
    assert (alert["labels"]["instance"], alert["labels"]["reason"]) == ("node8", "cap")
    assert "still gets jobs: GPUDOCTOR_DRAIN_CAP is reached" in alert["annotations"]["summary"]
    assert "gpu.xid;" in alert["annotations"]["description"]


def test_a_node_that_never_came_up_is_missed_and_those_that_tell_are_not(site: Site) -> None:
    def down() -> list[dict[str, Any]]:
        # a scrape of a busy machine may come too late: that node is missed for a moment
        alerts = site.prometheus.firing("GpudoctorGone")
        return alerts if [alert["labels"]["instance"] for alert in alerts] == ["node9"] else []

    [alert] = wait_for(down)
    assert alert["labels"]["cluster"] == "a"
    assert "Prometheus does not reach it" in alert["annotations"]["description"]
