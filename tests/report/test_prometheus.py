"""The metrics of a report: few series, one metric a unit, and the old ones for those who still query them."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpudoctor.checks.core.finding import Found
from gpudoctor.facts.simulated.load import apply_faults, load_node, node_names
from gpudoctor.report.judge import judge
from gpudoctor.report.model import Report
from gpudoctor.report.prometheus import families, metric_unit, render_prometheus, statuses
from tests.golden_files import ACCEPT
from tests.needs import needs
from tests.subprocesses import completed

NAMES = Path(__file__).parent.parent / "golden" / "metric_names.txt"
BROKEN = judge(apply_faults(load_node("rtx4090-4"), ["pcie-width-x4@2"]))


def series(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Samples by name, as the Prometheus library reads them."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def report_with(report: Report, check: str, value: float, unit: str | None) -> Report:
    """The report, in which a check about the node has found that number."""
    [result] = [result for result in report.checks if result.id == check]
    [finding] = result.findings
    changed = msgspec.structs.replace(finding, found=Found("so much", value, unit), expected=None)
    return msgspec.structs.replace(report, checks=(msgspec.structs.replace(result, findings=(changed,)),))


def test_each_check_has_the_state_that_holds_on_each_gpu_and_no_other() -> None:
    told = series(render_prometheus(BROKEN))["gpudoctor_check_status"]
    assert {value for _, value in told} == {1}
    states = {(labels["check"], labels["gpu"]): labels["status"] for labels, _ in told}
    assert states == {(check, gpu): status.value for check, gpu, _, status in statuses(BROKEN)}
    assert len(told) == len(states)
    assert states["pcie.link-width", "2"] == "fail"
    assert states["pcie.link-width", "1"] == "pass"


@pytest.mark.parametrize("name", node_names())
def test_the_series_of_a_node_grow_with_its_gpus_times_checks_and_no_faster(name: str) -> None:
    """The bound that contrib/prometheus/README.md gives: how many series a node can cost, whatever is wrong with it."""
    report = judge(load_node(name, {}))
    every = [(family.name, sample) for family in families(report) for sample in family.samples]
    subjects, checks = len(report.gpus) + 1, len(report.checks)  # each GPU, and the node
    parts = {labels["part"] for _, (labels, _) in every if labels.get("part")}
    of_checks = [name for name, _ in every if name.startswith("gpudoctor_check_")]
    # a status, a number and its threshold for each; a part of a GPU (a link, a pair) has a separate number
    assert 0 < len(of_checks) <= 3 * checks * subjects + 2 * checks * len(parts)
    of_gpus = [name for name, _ in every if name == "gpudoctor_gpu_info"]
    assert len(of_gpus) == len(report.gpus)
    of_node = [name for name, _ in every if name not in {*of_checks, *of_gpus}]
    assert len(of_node) - len(set(of_node)) == 3, "each stands there once, but for the four verdicts"


@pytest.mark.parametrize(
    ("unit", "name", "value", "expected"),
    [
        ("C", "celsius", 83, 83),
        ("MiB", "bytes", 3, 3 << 20),
        ("GiB", "bytes", 1.5, 3 << 29),
        ("Gbit/s", "bytes_per_second", 400, 50e9),
        ("GB/s", "bytes_per_second", 370.25, 370.25e9),
        ("%", "ratio", 85.3, 0.853),
        ("share", "ratio", 0.853, 0.853),
        ("per minute", "per_second", 90, 1.5),
        ("MHz", "hertz", 1980, 1.98e9),
        ("lanes", "lanes", 8, 8),
        ("open files", "open_files", 1024, 1024),
        (None, "number", 79, 79),
        # of other packages' checks
        ("ms", "seconds", 20, 0.02),
        ("days", "seconds", 2, 172800),
        ("retries (total)", "retries_total_unit", 2, 2),
        ('"} 1\nup{job="', "1_up_job", 2, 2),
        ("°", "number", 2, 2),
    ],
)
def test_a_number_stands_in_the_metric_of_its_base_unit(
    unit: str | None, name: str, value: float, expected: float
) -> None:
    told = series(render_prometheus(report_with(BROKEN, "host.shm", value, unit)))
    [(labels, found)] = told[f"gpudoctor_check_value_{name}"]
    assert found == pytest.approx(expected)
    assert labels["check"] == "host.shm"
    assert "unit" not in labels


def test_a_threshold_stands_in_the_same_unit_as_what_it_judged() -> None:
    told = series(render_prometheus(BROKEN))
    links = [(labels["gpu"], value) for labels, value in told["gpudoctor_check_value_lanes"] if labels["gpu"] == "2"]
    limits = [
        (labels["gpu"], labels["op"], value)
        for labels, value in told["gpudoctor_check_threshold_lanes"]
        if labels["gpu"] == "2" and labels["check"] == "pcie.link-width"
    ]
    assert ("2", 4) in links
    assert limits == [("2", ">=", 16)]
    [shm] = [finding for result in BROKEN.checks if result.id == "host.shm" for finding in result.findings]
    assert shm.expected is not None
    assert shm.expected.unit == "MiB"
    [limit] = [value for labels, value in told["gpudoctor_check_threshold_bytes"] if labels["check"] == "host.shm"]
    assert limit == float(shm.expected.value or 0) * (1 << 20)


@needs("promtool")
def test_the_names_keep_to_prometheus_own_rules() -> None:
    """What a report writes, and every metric that was ever promised or that a check under load can make."""
    units = (
        "GB/s",
        "Gbit/s",
        "GT/s",
        "TFLOP/s",
        "MHz",
        "%",
        "per minute",
        "ratio",
        "days",
        "wrong bytes",
        "results",
        None,
    )
    names = {f"gpudoctor_check_value_{metric_unit(unit).suffix}" for unit in units}
    names |= {line.split()[0] for line in NAMES.read_text().splitlines()}
    for text in (
        render_prometheus(BROKEN),
        "".join(f"# HELP {name} Some text.\n# TYPE {name} gauge\n{name} 1\n" for name in sorted(names)),
    ):
        done = completed(["promtool", "check", "metrics"], input=text)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("unit", ["total", "count", "errors info", "request bucket", "sum", "created"])
def test_no_unit_makes_a_gauge_look_like_a_counter_or_a_histogram(unit: str) -> None:
    assert re.fullmatch(r"[a-z_]+_unit", metric_unit(unit).suffix)


def test_every_metric_that_was_ever_promised_is_there_with_its_labels() -> None:
    """Of a number too: a check that gives its unit another word renames its metric."""
    told = {
        " ".join([family.name, *sorted({*family.samples[0][0]} - {"simulated"})])
        for name in node_names()
        for family in families(judge(load_node(name, {})))
    }
    if ACCEPT:
        NAMES.write_text("\n".join(sorted(told | set(NAMES.read_text().splitlines()))) + "\n")
    promised = set(NAMES.read_text().splitlines())
    assert len(promised) >= 30
    assert promised - told == set()


def test_what_a_name_may_hold_is_escaped() -> None:
    gpu = msgspec.structs.replace(BROKEN.gpus[0], name='a"b\\c\nd\x1b[31m')
    text = render_prometheus(msgspec.structs.replace(BROKEN, gpus=(gpu,)))
    assert 'name="a\\"b\\\\c\\nd[31m"' in text
