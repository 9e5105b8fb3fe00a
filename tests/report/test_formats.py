"""Each format has the same content as the report, in its readers' own terms."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace

from gpudoctor.checks.core.finding import Evidence, Status, fail, skip
from gpudoctor.checks.core.subject import NODE, Subject
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node, from_json, to_json
from gpudoctor.facts.simulated.load import apply_faults, load_node
from gpudoctor.process.exit_codes import FailOn
from gpudoctor.report.html.page import render_html
from gpudoctor.report.judge import Question, exit_code, judge, without_verdict
from gpudoctor.report.junit_nagios import nagios_code, render_junit, render_nagios
from gpudoctor.report.model import Report, render_json
from gpudoctor.report.prometheus import render_prometheus
from gpudoctor.report.report_schema import report_schema
from gpudoctor.report.text import render_text
from gpudoctor.report.wording import block_rows, domain_words
from tests.cli.conftest import Gpudoctor

HEALTHY = judge(load_node("hgx-h100-8"))
BROKEN = judge(apply_faults(load_node("rtx4090-4"), ["pcie-width-x4@2"]))
EMPTY = judge(Node())


@pytest.mark.wide(every=3)
@pytest.mark.parametrize("report", [HEALTHY, BROKEN, EMPTY], ids=["healthy", "broken", "empty"])
def test_json_is_one_document_that_the_schema_accepts(report: Report) -> None:
    document = json.loads(render_json(report))
    jsonschema.validate(document, json.loads(report_schema()))
    assert document["schema"] == "gpudoctor.report/1"
    assert document["counts"]["pass"] == sum(1 for c in document["checks"] if c["status"] == "pass")


def test_every_key_of_a_finding_is_there_even_where_it_is_null() -> None:
    finding = json.loads(render_json(BROKEN))["checks"][0]["findings"][0]
    assert set(finding) == {
        "status", "subject", "found", "expected", "evidence", "likely", "advice", "reason", "explained_by",
        "suppressed",
    }  # fmt: skip


def test_facts_in_a_report_are_the_facts_that_were_judged() -> None:
    node = load_node("hgx-h100-8")
    document = json.loads(render_json(judge(node, include_facts=True)))
    assert from_json(json.dumps(document["facts"])) == from_json(to_json(node))
    assert "facts" not in json.loads(render_json(judge(node)))


def test_the_same_facts_give_the_same_findings_again() -> None:
    node = apply_faults(load_node("hgx-h100-8"), ["nvlink-link-down@3"])
    first, second = judge(node), judge(from_json(to_json(node)))
    assert [c.findings for c in first.checks] == [c.findings for c in second.checks]
    assert first.faults == second.faults


def test_nagios_has_its_word_one_line_and_its_own_exit_code() -> None:
    for report, word, code in ((HEALTHY, "OK", 0), (BROKEN, "CRITICAL", 2), (EMPTY, "UNKNOWN", 3)):
        line = render_nagios(report)
        assert line.startswith(f"GPUDOCTOR {word} - ")
        assert line.count("\n") == 1
        assert line.count("|") == 1
        assert nagios_code(report) == code
    assert "SIMULATED" in render_nagios(HEALTHY)
    assert nagios_code(msgspec.structs.replace(HEALTHY, error="no")) == 3


def test_junit_counts_and_cases_are_those_of_the_report() -> None:
    suite = ElementTree.fromstring(render_junit(BROKEN))
    assert int(suite.attrib["tests"]) == len(BROKEN.checks) == len(suite.findall("testcase"))
    assert int(suite.attrib["failures"]) == BROKEN.counts.fail == len(suite.findall("testcase/failure"))
    assert int(suite.attrib["skipped"]) == BROKEN.counts.skip == len(suite.findall("testcase/skipped"))
    [failed] = [case for case in suite if case.attrib["name"] == "pcie.link-width"]
    failure = failed.find("failure")
    assert failure is not None
    assert "GPU 2" in failure.attrib["message"]
    assert "SIMULATED" in suite.attrib["name"]


def test_junit_stays_xml_with_hostile_names() -> None:
    host = msgspec.structs.replace(BROKEN.host, name="<x>&\x00\x1b[31m\ud800")
    suite = ElementTree.fromstring(render_junit(msgspec.structs.replace(BROKEN, host=host)))
    assert suite.attrib["hostname"] == "<x>&??[31m?"


@pytest.mark.parametrize("node", [HEALTHY, BROKEN])
def test_every_format_says_simulated(node: Report) -> None:
    for text in (
        render_text(node, width=80, color=False),
        render_nagios(node),
        render_prometheus(node),
        render_junit(node),
    ):
        assert "simulated" in text.lower()
    assert json.loads(render_json(node))["simulated"] is True


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
def test_text_keeps_to_the_width_and_names_the_fault(width: int) -> None:
    text = render_text(BROKEN, width=width, color=False)
    assert max(len(line) for line in text.splitlines()) <= max(width, 40)
    assert "FAIL" in text
    assert "pcie.link-width" in text
    assert "GPU 2" in text
    assert "\x1b" not in text


def test_why_several_things_were_not_measured_is_said_once() -> None:
    no_load = "a simulated node cannot be put under load; --backend gloo measures CPU ranks of this machine"
    report = judge(load_node("hgx-h100-8"))
    asked = [result for result in report.checks if result.domain == "strategy"]
    reasons = [f"{result.id}: {no_load}" for result in asked]
    skipped = [
        replace(r, status=Status.SKIP, findings=(skip(NODE, why),)) for r, why in zip(asked, reasons, strict=True)
    ]
    assert domain_words(skipped, Status.SKIP) == f"{len(asked)} checks: {no_load}"
    other = replace(skipped[0], findings=(skip(NODE, "x: in use"),))
    assert domain_words([*skipped[1:], other], Status.SKIP).endswith(f": {no_load} (and 1 more reason)")


def test_neighbours_that_are_skipped_for_one_reason_share_a_row() -> None:
    report = judge(load_node("gh200-1"), question=Question(level="full"))
    rows = [line for line in render_text(report, width=200, color=False).splitlines() if line.startswith("  SKIP")]
    assert [line.split()[1] for line in rows] == ["nvlink", "network", "6", "higher"]  # two reasons, two rows
    assert "6 domains  27 checks (collective, link, compute, train, strategy, data): " in rows[2]


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ("rtx4090-4", "gradients go over host memory, so that 4 GPUs may be slower than one"),
        ("h100-pcie-2-unbridged", "gradients go over PCIe, so that 2 GPUs may be slower than one"),
        ("hgx-h100-8", ""),
    ],
)
def test_a_healthy_node_without_nvlink_says_what_that_costs(node: str, words: str) -> None:
    text = " ".join(render_text(judge(load_node(node)), width=100, color=False).split())
    assert words in text
    assert ("no NVLink: gradients" in text) is bool(words)
    assert " 0 warnings, " in text


def test_colour_only_adds() -> None:
    plain = render_text(BROKEN, width=100, color=False)
    colored = render_text(BROKEN, width=100, color=True)
    assert "\x1b[" in colored
    assert [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", colored).splitlines()] == plain.splitlines()


def test_a_drain_reason_is_one_short_line_without_quotes() -> None:
    faults = ["pcie-width-x4@2", "gpu-lost@1", "thermal@0"]
    for report in (HEALTHY, BROKEN, EMPTY, judge(apply_faults(load_node("rtx4090-4"), faults))):
        assert 0 < len(report.reason) <= 100
        assert report.reason.isprintable()
        assert not set("\"'`\\") & set(report.reason)
    assert BROKEN.reason.startswith("FAIL pcie.link-width GPU 2 ")


@pytest.mark.parametrize(
    ("report", "fail_on", "required", "code"),
    [
        (HEALTHY, "fail", (), 0),
        (BROKEN, "fail", (), 1),
        (BROKEN, "warn", (), 1),
        (BROKEN, "never", (), 0),
        (EMPTY, "fail", (), 3),
        (EMPTY, "never", (), 0),
        (HEALTHY, "fail", ("collective.correct",), 3),
        (BROKEN, "fail", ("collective.correct",), 1),
        (HEALTHY, "fail", ("pcie.link-width",), 0),
    ],
)
def test_exit_codes(report: Report, fail_on: FailOn, required: tuple[str, ...], code: int) -> None:
    lacking = without_verdict(report.checks, required)
    assert exit_code(report.checks, report.verdict, fail_on, bool(lacking)) == code


def test_a_warning_beside_something_unknown_counts_as_both() -> None:
    node = apply_faults(load_node("hgx-h100-8"), ["hot-gpu@2"])
    unread = msgspec.structs.replace(node.gpus[6].thermal, gpu_c=Missing("the driver did not answer", "failed"))
    gpus = tuple(msgspec.structs.replace(gpu, thermal=unread) if gpu.index == 6 else gpu for gpu in node.gpus)
    report = judge(msgspec.structs.replace(node, gpus=gpus))
    assert (report.verdict, report.counts.warn, report.counts.unknown) == ("unknown", 1, 2)
    assert exit_code(report.checks, report.verdict, "fail", False) == 3
    assert exit_code(report.checks, report.verdict, "warn", False) == 1
    text = render_text(report, width=120, color=False)
    assert "GPU 6: lost, temperature; GPU 2: temperature" in text
    assert "1 warning, " in text
    assert "warn=1 " in render_nagios(report)


def test_a_finding_on_several_gpus_shows_the_reading_of_each() -> None:
    report = judge(apply_faults(load_node("hgx-h100-8"), ["pcie-width-x8@3", "pcie-width-x8@5"]))
    text = render_text(report, width=200, color=False)
    of_each = [
        line for line in text.splitlines() if "0000:4b:00.0/current_link_width" in line or "0000:ab:00.0/cur" in line
    ]
    assert [line.split("/sys")[0].removeprefix("  evidence").strip() for line in of_each] == ["GPU 3:", "GPU 5:"]
    assert text.count("nvmlDeviceGetCurrPcieLinkWidth") == 1, "what is the same on both is said once"
    html = render_html(report)
    assert "GPU 5: /sys/bus/pci/devices/0000:ab:00.0/current_link_width" in html


def test_a_command_that_is_for_one_gpu_of_several_says_so() -> None:
    report = judge(apply_faults(load_node("hgx-h100-8"), ["row-remap-pending@3", "row-remap-pending@5"]))
    [line] = [line for line in render_text(report, width=200, color=False).splitlines() if "--gpu-reset" in line]
    assert line.endswith("-i 0000:4b:00.0  # GPU 3; alike for GPU 5")


def test_faults_of_a_gpu_and_of_the_node_are_told_apart_in_words() -> None:
    report = judge(apply_faults(load_node("hgx-h100-8"), ["pcie-width-x8@1", "shm-64m"]))
    assert "2 faults on GPU 1 and the node (2 checks failed)" in render_text(report, width=200, color=False)
    report = judge(apply_faults(load_node("hgx-h100-8"), ["pcie-width-x8@1", "storage-full"]))
    assert "2 faults on GPU 1 and / (2 checks failed)" in render_text(report, width=200, color=False)


def test_a_long_list_of_readings_is_cut_and_says_so() -> None:
    findings = [
        fail(Subject("gpu", gpu=index), "x8", "x16", Evidence(f"width of {index}", "8"), Evidence("driver", "570"))
        for index in range(32)
    ]
    rows = [words for _, words in block_rows(findings[0], (), findings[1:])]
    assert rows[2:4] == ["driver = 570", "GPU 0: width of 0 = 8"]
    assert rows[-2:] == ["GPU 18: width of 18 = 8", "more = 13 readings (--format json)"]


def test_each_fault_has_its_gpus_and_what_to_do(gpudoctor: Gpudoctor) -> None:
    faults = ("pcie-width-x8@1", "pcie-width-x8@2")
    report = gpudoctor("check", "--level", "quick", "--node", "hgx-h100-8", *(f"--fault={f}" for f in faults), "--json")
    assert [fault["gpus"] for fault in report.json["faults"]] == [[1], [2]]
    for fault in report.json["faults"]:
        assert fault["status"] == "fail"
        assert fault["likely"].startswith("the link trained at x8")
        assert fault["advice"][1]["command"] == "gpudoctor check pcie"


def test_the_reason_is_cut_between_words(gpudoctor: Gpudoctor) -> None:
    report = gpudoctor("check", "--level", "quick", "--node", "hgx-h100-8", "--fault", "driver-hang@3", "--json").json
    assert report["reason"].endswith("did not return...")
    assert len(report["reason"]) <= 100


def test_every_key_of_the_report_is_described(gpudoctor: Gpudoctor) -> None:
    schema = json.loads(gpudoctor("schema", "report").out)
    assert all(each.get("description") for each in schema["$defs"]["Report"]["properties"].values())


@pytest.mark.parametrize("form", ["text", "html", "prometheus", "nagios", "junit"])
def test_a_gpu_whose_bus_id_no_text_names_has_none_in_any_format(
    form: str, gpudoctor: Gpudoctor, tmp_path: Path
) -> None:
    section = "    Product Name : NVIDIA H100\n    GPU UUID : {}\n    Temperature\n        GPU Current Temp : 40 C\n"
    (tmp_path / "dump").write_text("".join(map(section.format, ("GPU-1", "GPU-2"))))
    shown = gpudoctor("check", "--node", str(tmp_path / "dump"), "--format", form)
    assert (re.findall(r"unknown-\d", shown.out), shown.out.count("\n") > 0) == ([], True)
    if form == "text":
        assert "the dump is cut off inside GPU 1\n" in shown.out
    if form == "prometheus":
        assert shown.out.count('pci_bus_id=""') == 2
