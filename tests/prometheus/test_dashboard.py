"""The Grafana dashboard: what Grafana would read of it, and every query answered by a real Prometheus."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import pytest

from tests.agent.running import wait_for
from tests.needs import module
from tests.prometheus.conftest import Site
from tests.prometheus.running import CONTRIB

DASHBOARD = json.loads((CONTRIB / "gpudoctor.dashboard.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
# panels that are empty on nodes that have only just started, and on nodes without a hung run
MAY_BE_EMPTY = {"Runs without a report"}
# a line or a row for each node is too many of 500
FOR_ALL_NODES = re.compile(r"^(sum|count|max|topk|quantile)\b")


def filled(text: str, cluster: str = ".*", instance: str = ".*") -> str:
    """A query as Grafana sends it once the variables are chosen; ".*" is All."""
    chosen = {"cluster": cluster, "instance": instance, "check": "pcie.link-width"}
    for name, value in chosen.items():
        text = text.replace(f"${name}", value)
    return text


def rows(site: Site, query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = wait_for(functools.partial(site.prometheus.query, query))
    return found


@pytest.mark.wide
@pytest.mark.parametrize(("title", "query"), QUERIES, ids=[title for title, _ in QUERIES])
def test_every_query_is_answered_for_all_nodes_and_for_one(site: Site, title: str, query: str) -> None:
    if title in MAY_BE_EMPTY:
        assert site.prometheus.query(filled(query)) == []
        return
    rows(site, filled(query))
    if "ALERTS" not in query and "agent" not in query:
        rows(site, filled(query, "b", "node8"))
    if re.search(r"\w{", query) and "vector(0)" not in query:
        assert site.prometheus.query(filled(query, "a", "node8")) in ([], zeros(site, query))


def zeros(site: Site, query: str) -> list[dict[str, Any]]:
    """The result of a query if no node is chosen."""
    return site.prometheus.query(filled(query, "none", "none"))


def test_the_variables_offer_clusters_their_nodes_and_checks(site: Site) -> None:
    def offered(name: str, **chosen: str) -> list[str]:
        selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", VARIABLES[name]["definition"]).groups()  # type: ignore[union-attr]
        assert VARIABLES[name]["query"]["query"] == VARIABLES[name]["definition"]
        found: list[str] = site.prometheus.get(f"label/{label}/values", **{"match[]": filled(selector, **chosen)})
        return found

    rows(site, 'gpudoctor_verdict{instance="node8"}')
    assert offered("cluster") == ["a", "b"]
    assert offered("instance") == ["node7", "node8"]
    assert offered("instance", cluster="b") == ["node8"]
    assert "pcie.link-width" in offered("check")
    for name in ("cluster", "instance"):
        # "All" takes nodes without a cluster's label, too
        assert (VARIABLES[name]["allValue"], VARIABLES[name]["multi"]) == (".*", True)


def test_the_tables_name_the_bad_nodes_and_the_parts(site: Site) -> None:
    by_title = dict(reversed(QUERIES))
    [one, other] = rows(site, filled(by_title["Nodes that are not fit"]))
    assert {row["metric"]["instance"]: row["metric"]["verdict"] for row in (one, other)} == {
        "node7": "fail",
        "node8": "fail",
    }
    found = [
        row
        for row in rows(site, filled(by_title["Found, below or above what is expected"], instance="node7"))
        if row["metric"]["check"] == "pcie.link-width"
    ]
    [(metric, value)] = [(row["metric"], row["value"][1]) for row in found]
    assert (metric["gpu"], metric["unit"], value) == ("5", "lanes", "8")


def test_every_panel_holds_for_500_nodes_and_asks_for_those_that_are_chosen() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            query = target["expr"]
            assert query.count('cluster=~"$cluster",instance=~"$instance"') == len(re.findall(r"{(?!{)", query))
            assert panel["type"] == "table" or FOR_ALL_NODES.match(query), panel["title"]
            assert target["instant"] is (panel["type"] != "timeseries")
    assert not [panel for panel in PANELS if panel["type"] == "state-timeline"]


def test_the_panels_do_not_overlap_and_each_says_what_it_shows() -> None:
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids) >= 10
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
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
        for shown in (transformation["options"] for transformation in panel.get("transformations", ())):
            assert not set(shown["indexByName"]) & {name for name, hidden in shown["excludeByName"].items() if hidden}
    used = set(re.findall(r"\$\{?([a-z]\w+)", json.dumps(DASHBOARD)))
    assert used == set(VARIABLES)


def test_it_names_only_metrics_that_there_are(site: Site) -> None:
    every = site.prometheus.get("label/__name__/values")
    exact = set(re.findall(r"\b(gpudoctor_\w+)[{ ]", " ".join(query for _, query in QUERIES)))
    assert len(exact) >= 8
    assert exact <= set(every)


@pytest.mark.wide
def test_grafanas_own_model_of_a_dashboard_takes_all_of_it() -> None:
    """No Grafana can be installed from Debian or PyPI; its makers publish what it reads."""
    models = module("grafana_foundation_sdk.models.dashboard")
    encoder = module("grafana_foundation_sdk.cog.encoder")
    module("grafana_foundation_sdk.cog.plugins").register_default_plugins()
    read = models.Dashboard.from_json(json.loads(json.dumps(DASHBOARD)))
    known = json.loads(encoder.JSONEncoder(sort_keys=True).encode(read))
    lost = {path.rpartition(".")[2] for path in differences(DASHBOARD, known)}
    assert lost == {"definition"}  # which Grafana writes into each variable, and its model leaves out


def differences(ours: Any, known: Any, path: str = "") -> list[str]:
    """The metrics of ours that are unknown, or read as something else."""
    if isinstance(ours, dict) and isinstance(known, dict):
        return [each for key in ours for each in differences(ours[key], known.get(key), f"{path}.{key}")]
    if isinstance(ours, list) and isinstance(known, list) and len(ours) == len(known):
        pairs = zip(ours, known, strict=True)
        return [each for i, (a, b) in enumerate(pairs) for each in differences(a, b, f"{path}[{i}]")]
    return [] if ours == known else [path]
