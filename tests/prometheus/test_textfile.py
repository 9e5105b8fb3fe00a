"""The textfile that `gpudoctor check` writes, read by a real node_exporter and scraped by a real Prometheus."""

from __future__ import annotations

import os
from pathlib import Path

from tests.agent.running import wait_for
from tests.prometheus.conftest import Site, write_metrics


def test_what_the_check_wrote_is_in_prometheus_as_it_stands(site: Site) -> None:
    wait_for(lambda: site.prometheus.query('gpudoctor_verdict{instance="node8"}'))
    assert site.prometheus.last_error("node8") == ""
    [failed] = site.prometheus.query('gpudoctor_check_status{instance="node8",status="fail"} == 1')
    assert (failed["metric"]["check"], failed["metric"]["gpu"]) == ("pcie.link-width", "2")
    written = (site.textfiles / "gpudoctor.prom").read_text().splitlines()
    ours = [line for line in written if line.startswith("gpudoctor_")]
    of_the_file = '{__name__=~"gpudoctor_.+",__name__!~"gpudoctor_slurm_.+",instance="node8"}'
    assert len(site.prometheus.query(of_the_file)) == len(ours)
    assert site.prometheus.query('node_textfile_scrape_error{instance="node8"}')[0]["value"][1] == "0"


def test_the_age_of_the_file_is_seen_as_the_alert_asks_for_it(site: Site) -> None:
    file = site.textfiles / "gpudoctor.prom"
    name = 'node_textfile_mtime_seconds{instance="node8",file=~"(.*/)?gpudoctor[.]prom"}'
    os.utime(file, (1e9, 1e9))
    wait_for(lambda: [float(row["value"][1]) for row in site.prometheus.query(name)] == [1e9])


def test_nothing_is_said_of_a_folder_that_is_read_and_one_line_of_one_that_is_not(site: Site, tmp_path: Path) -> None:
    assert "node_exporter" not in site.written
    said = write_metrics(tmp_path / "gpudoctor.prom", "--node", "hgx-h100-8")
    assert said.startswith("gpudoctor: node_exporter (process ")
    assert f"it does not see {tmp_path / 'gpudoctor.prom'}" in said
    assert said.count("\n") == 1
    assert (tmp_path / "gpudoctor.prom").read_text().startswith("# HELP")
