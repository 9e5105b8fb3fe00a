"""`gpudoctor check` as a user sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpudoctor.report.report_schema import report_schema
from tests.cli.conftest import Gpudoctor


def check_of(document: Any, check_id: str) -> Any:
    [found] = [check for check in document["checks"] if check["id"] == check_id]
    return found


def test_a_healthy_simulated_node_passes_and_is_called_simulated(gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor("check", "--node", "hgx-h100-8", "--level", "quick")
    assert outcome.code == 0
    assert outcome.err == ""
    assert outcome.out.startswith("SIMULATED node hgx-h100-8")
    assert "8 x NVIDIA H100 80GB HBM3" in outcome.out
    assert "144 of 144 links up" in outcome.out


def test_json_names_the_fault_and_validates(gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor("check", "--node", "hgx-h100-8", "--fault", "nvlink-link-down@3", "--level", "quick", "--json")
    assert outcome.code == 1
    jsonschema.validate(outcome.json, json.loads(report_schema()))
    fault = outcome.json["faults"][0]
    assert (fault["check"], fault["subject"]["gpu"]) == ("nvlink.links", 3)
    assert outcome.json["exit_code"] == 1
    assert outcome.json["run"]["source"] == {
        "kind": "simulated",
        "name": "hgx-h100-8",
        "faults": ["nvlink-link-down@3"],
    }


def test_this_machine_is_judged_without_a_traceback_and_never_passed_unseen(gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor("check", "--json", "--level", "quick")
    document = outcome.json
    assert document["run"]["source"]["kind"] == "live"
    assert document["simulated"] is False
    if not document["gpus"]:
        assert outcome.code == 1
        assert document["faults"][0]["check"] == "driver.loaded"
        assert check_of(document, "pcie.link-width")["status"] == "skip"
    assert check_of(document, "host.limits")["status"] in {"pass", "warn"}


def test_ids_domains_and_globs_choose_and_skip_leaves_out_aloud(gpudoctor: Gpudoctor) -> None:
    base = ("check", "--node", "hgx-h100-8", "--level", "quick", "--json")
    chosen = gpudoctor(*base, "host", "pcie.link-*").json["checks"]
    assert {c["id"].split(".")[0] for c in chosen} == {"host", "pcie"}
    assert {"host.shm", "host.ram-per-gpu", "pcie.link-width", "pcie.link-speed"} <= {c["id"] for c in chosen}
    assert not any(c["id"] == "pcie.acs" for c in chosen)
    left = gpudoctor(*base, "--skip", "host", "--skip", "env").json
    skipped = [c for c in left["checks"] if c["id"].startswith(("host.", "env."))]
    assert skipped
    assert all(c["status"] == "skip" and "--skip" in c["findings"][0]["reason"] for c in skipped)


def test_fail_on_warn_and_never(gpudoctor: Gpudoctor) -> None:
    warned = ("check", "--node", "hgx-h100-8", "--fault", "persistence-off@1", "--level", "quick")
    assert gpudoctor(*warned).code == 0
    assert gpudoctor(*warned, "--fail-on", "warn").code == 1
    broken = ("check", "--node", "hgx-h100-8", "--fault", "gpu-lost@1", "--level", "quick")
    assert gpudoctor(*broken, "--fail-on", "never").code == 0


def test_the_gpu_option_narrows_the_scope_and_says_so(gpudoctor: Gpudoctor) -> None:
    base = ("check", "--node", "hgx-h100-8", "--fault", "pcie-width-x8@5", "--level", "quick", "--json")
    narrowed = gpudoctor(*base, "--gpu", "0,1")
    assert narrowed.code == 0
    assert [gpu["in_scope"] for gpu in narrowed.json["gpus"]] == [True, True] + [False] * 6
    assert any("0, 1 of 8" in note for note in narrowed.json["run"]["notes"])
    assert gpudoctor(*base, "--gpu", "5").code == 1


def test_a_saved_report_is_judged_again_with_its_facts(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    saved = tmp_path / "r.json"
    base = ("check", "--level", "quick", "--json")
    first = gpudoctor(*base, "--node", "hgx-h100-8", "--fault", "thermal@2", "--include-facts", "-o", str(saved))
    assert (first.code, first.out) == (1, "")
    again = gpudoctor(*base, "--node", str(saved))
    assert again.code == 1
    assert again.json["faults"] == json.loads(saved.read_text())["faults"]
    assert again.json["simulated"] is True


def test_the_callers_variables_are_tried_on_a_simulated_node(
    gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,0,9")
    outcome = gpudoctor("check", "env", "--node", "hgx-h100-8", "--json")
    finding = check_of(outcome.json, "env.cuda-visible-devices")["findings"][0]
    assert outcome.code == 1
    assert finding["status"] == "fail"
    assert "twice" in json.dumps(finding)


def test_a_threshold_of_the_configuration_is_used(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("thresholds: {host.ram-per-gpu: {floor_gib: 100000}}\n")
    base = ("check", "host.ram-per-gpu", "--node", "hgx-h100-8", "--level", "quick", "--json")
    assert gpudoctor(*base).code == 0
    outcome = gpudoctor(*base, "--config", str(config))
    assert outcome.code == 1
    assert outcome.json["checks"][0]["findings"][0]["expected"]["source"] == "configuration"


def test_a_suppressed_fault_is_skipped_with_its_reason_and_stays_visible(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("suppress: [{check: pcie.link-width, gpu: 2, until: 2999-01-01, reason: riser is ordered}]\n")
    command = ("check", "pcie", "--node", "rtx4090-4", "--fault", "pcie-width-x4@2", "--config", str(config))
    outcome = gpudoctor(*command, "--json")
    assert outcome.code == 0
    findings = check_of(outcome.json, "pcie.link-width")["findings"]
    [reason] = [f["reason"] for f in findings if f["status"] == "skip"]
    assert "riser is ordered" in reason
    assert "Note: pcie.link-width, GPU 2" in gpudoctor(*command).out
    verbose = gpudoctor(*command, "-v").out
    assert "suppressed until 2999-01-01" in verbose[verbose.index("PASS     pcie.link-width") :]


BROKEN_MEMORY = ("check", "--node", "hgx-h100-8", "--fault", "ecc-uncorrected@2", "--level", "quick")


def everything_about_gpus_set_aside(folder: Path) -> str:
    """A configuration as an operator in a hurry, or a stranger, writes it: no more alarms about GPUs."""
    config = folder / "c.yaml"
    config.write_text("suppress: [{check: gpu, until: 2999-01-01, reason: known}]\n")
    return str(config)


def test_a_fault_that_is_suppressed_is_said_in_the_one_line_of_every_format(
    gpudoctor: Gpudoctor, tmp_path: Path
) -> None:
    command = (*BROKEN_MEMORY, "--config", everything_about_gpus_set_aside(tmp_path))
    assert "PASS  nothing wrong" in gpudoctor(*command).out
    assert "; 1 suppressed by the" in gpudoctor(*command).out
    nagios = gpudoctor(*command, "--format", "nagios")
    assert nagios.out.startswith("GPUDOCTOR OK - SIMULATED PASS ")
    assert ", 1 suppressed | " in nagios.out
    report = gpudoctor(*command, "--json").json
    assert report["reason"].endswith(", 1 suppressed")
    [finding] = [f for c in report["checks"] for f in c["findings"] if f["suppressed"]]
    assert (finding["suppressed"], finding["status"], finding["subject"]["gpu"]) == ("fail", "skip", 2)
    assert 'gpudoctor_suppressed_findings{simulated="true"} 1' in gpudoctor(*command, "--format", "prometheus").out


def test_beside_a_fault_the_line_says_both_and_stays_short(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    command = (*BROKEN_MEMORY, "--fault", "pcie-width-x4@5", "--config", everything_about_gpus_set_aside(tmp_path))
    reason = gpudoctor(*command, "--json").json["reason"]
    assert reason.startswith("FAIL pcie.link-width GPU 5")
    assert reason.endswith(", 1 suppressed")
    assert len(reason) <= 100


def test_a_suppressed_finding_is_no_verdict_for_require(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    command = (*BROKEN_MEMORY, "--require", "gpu.ecc", "--config", everything_about_gpus_set_aside(tmp_path))
    outcome = gpudoctor(*command, "--json")
    assert (outcome.code, outcome.json["verdict"]) == (3, "unknown")
    assert outcome.json["reason"] == "UNKNOWN required but without a verdict: gpu.ecc, 1 suppressed"
    assert gpudoctor(*command, "--format", "nagios").code == 3


def test_a_setting_of_this_shell_that_is_tried_on_a_simulated_node_is_named(
    gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    report = gpudoctor("check", "env", "--node", "hgx-h100-8")
    assert report.code == 1
    assert "Note: tried on it, from this shell: NCCL_P2P_DISABLE\n" in report.out


def test_next_names_every_fault(gpudoctor: Gpudoctor) -> None:
    faults = ("--fault", "pcie-width-x8@1", "--fault", "gpu-lost@3")
    out = gpudoctor("check", "--level", "quick", "--node", "hgx-h100-8", *faults).out
    following = out.partition("Next:\n")[2].splitlines()
    assert following[:2] == ["  gpudoctor explain gpu.lost", "  gpudoctor explain pcie.link-width"]
    assert following[2].startswith("  gpudoctor check gpu pcie -v --level quick --node hgx-h100-8")


def test_list_explain_nodes_and_schema(gpudoctor: Gpudoctor) -> None:
    listed = gpudoctor("list")
    assert "pcie.link-width" in listed.out
    assert all(row["id"] in listed.out for row in gpudoctor("list", "--json").json)
    assert "\nFalse alarms\n" in gpudoctor("explain", "pcie.link-width").out
    nodes = gpudoctor("nodes").out
    assert "hgx-h100-8" in nodes
    assert "  pcie      pcie-width-x8, pcie-width-x4, " in nodes
    assert len(nodes.splitlines()) < 130
    assert "  pcie-width-x8  pcie.link-width  The link trained at 8 of 16 lanes\n" in gpudoctor("nodes", "trained").out
    for kind in ("report", "facts", "config", "cluster", "fleet", "comparison", "plan", "diagnosis"):
        assert gpudoctor("schema", kind).json["$defs"]


def test_captures_of_other_peoples_machines(gpudoctor: Gpudoctor, captures: Path) -> None:
    h100 = gpudoctor("check", "--node", str(captures / "qx-h100.xml"), "--level", "quick", "--json")
    assert h100.code in {0, 3}
    assert h100.json["counts"]["fail"] == 0
    assert len(h100.json["gpus"]) == 8
    dump = gpudoctor("check", "--node", str(captures / "hgx-h100-dump"), "--level", "quick")
    assert "144 of 144 links up" in dump.out


def test_no_capture_fails(gpudoctor: Gpudoctor, captures: Path) -> None:
    # next to them are complaints (blind, cases) and logs of jobs
    sources = [path for path in sorted(captures.iterdir()) if path.name not in ("README.md", "blind", "cases", "logs")]
    assert len(sources) >= 11
    for path in sources:
        outcome = gpudoctor("check", "--node", str(path), "--level", "quick", "--json")
        failed = [c["id"] for c in outcome.json["checks"] if c["status"] == "fail"]
        assert (path.name, failed) == (path.name, [])
        assert outcome.json["gpus"]
        assert outcome.json["run"]["source"]["kind"] == "capture"


def test_a_word_that_names_only_checks_of_level_full_runs_them(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    def level(*words: str) -> str:
        return str(gpudoctor("check", *words, "--node", "hgx-h100-8", "--json").json["run"]["level"])

    assert level("strategy") == "full"
    assert level("strategy.fsdp", "compute.memory") == "full"
    assert level("strategy", "--level", "standard") == "standard"
    assert level("strategy", "train") == "full"
    assert level("storage") == "standard"
    assert level("burn") == "standard"
    config = tmp_path / "quick.yaml"
    config.write_text("level: quick\n")
    assert level("strategy", "--config", str(config)) == "quick"
