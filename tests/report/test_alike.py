"""Findings that are one problem of several subjects are one block."""

from __future__ import annotations

from msgspec.structs import replace

from gpudoctor.checks.core.finding import warn
from gpudoctor.checks.core.subject import NODE, Subject
from gpudoctor.report.wording import Explained, block_rows, problem_groups
from tests.tui.checks_app import report_of

GPUS = [Subject(kind="gpu", gpu=index) for index in range(30)]


def test_one_cause_on_all_gpus_is_one_block_with_the_steps_once() -> None:
    report = report_of("hgx-h100-8", "acs-redirect")
    [(_, findings)] = list(problem_groups(report))
    assert [finding.subject.gpu for finding in findings] == list(range(8))
    rows = block_rows(findings[0], (), findings[1:])
    assert [label for label, _ in rows if label] == ["found", "expected", "evidence", "likely", "do"]
    [command] = [text for _, text in rows if "setpci" in text]
    assert all(bridge in command for bridge in ("0000:1a:00.0", "0000:19:00.0", "0000:18:01.0"))
    assert command.endswith("# GPU 0; alike for GPU 1-7")


def test_what_differs_between_the_subjects_of_a_block_says_whose_it_is() -> None:
    findings = [warn(gpu, f"{90 + (gpu.gpu == 2)} C", "below 85 C", likely="a fan") for gpu in GPUS[:4]]
    assert block_rows(findings[0], (), findings[1:]) == [
        ("found", "GPU 0-1, 3: 90 C"),
        ("", "GPU 2: 91 C"),
        ("expected", "below 85 C"),
        ("likely", "a fan"),
    ]


def test_a_warning_explains_what_is_about_its_own_gpu_and_what_is_about_none() -> None:
    report = report_of("hgx-h100-8")
    effects = {
        "gpu.temperature": tuple(warn(gpu, f"{gpu.gpu} C", None) for gpu in GPUS[:3]),
        "pcie.balance": (warn(NODE, "uneven", None),),
    }
    checks = tuple(
        replace(check, findings=tuple(replace(f, explained_by="gpu.throttle") for f in effects[check.id]))
        if check.id in effects
        else check
        for check in report.checks
    )
    explained = Explained(replace(report, checks=checks))
    assert explained.by("gpu.throttle", [warn(GPUS[1], "hot", None)]) == [
        "gpu.temperature warn: GPU 1: 1 C",
        "pcie.balance warn: uneven",
    ]
    assert len(explained.by("gpu.throttle", [warn(NODE, "hot", None)])) == 4
    assert explained.by("gpu.ecc", [warn(GPUS[1], "hot", None)]) == []


def test_a_long_list_of_what_differs_is_cut_and_says_so() -> None:
    findings = [warn(gpu, f"{gpu.gpu} errors", "none", likely="a cable") for gpu in GPUS]
    found = [text for _, text in block_rows(findings[0], (), findings[1:])][:-2]
    assert (len(found), found[-1]) == (21, "10 more (--format json)")
