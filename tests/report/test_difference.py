"""What changed between two reports."""

from __future__ import annotations

import msgspec

from gpudoctor.checks.core.finding import Finding, fail, ok, skip, unknown, warn, worst
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.checks.core.subject import NODE, Subject
from gpudoctor.facts.model.measurements import Collective, Launch, Measurements, Training
from gpudoctor.report.model import Report
from gpudoctor.report.two_reports import differences
from tests.tui.checks_app import report_of

GPU5 = Subject(kind="gpu", gpu=5, uuid="GPU-5", bus_id="0000:ab:00.0")
HEALTHY = report_of()


def report_with(*findings: Finding, check_id: str = "gpu.ecc", measured: Measurements | None = None) -> Report:
    """A report of eight GPUs that judged one check."""
    status = worst(finding.status for finding in findings)
    check = CheckResult(check_id, "title", "quick", status, 0.1, findings)
    return msgspec.structs.replace(HEALTHY, checks=(check,), measurements=measured or Measurements())


def told(old: Report, new: Report) -> list[str]:
    return [f"{each.kind}: {each.text}" for each in differences(old, new)]


def test_two_equal_runs_do_not_differ() -> None:
    assert differences(HEALTHY, HEALTHY) == ()


def test_a_pass_that_became_a_failure_is_changed_and_names_the_gpu() -> None:
    broken = report_of("hgx-h100-8", "pcie-width-x8@5")
    assert "changed: pcie.link-width GPU 5 pass -> FAIL" in told(HEALTHY, broken)
    assert "changed: pcie.link-width GPU 5 FAIL -> pass" in told(broken, HEALTHY)


def test_a_problem_where_nothing_was_said_before_is_new_and_later_gone() -> None:
    clean, broken = report_with(ok(NODE, "fine")), report_with(ok(NODE, "fine"), fail(GPU5, "9 errors", "0"))
    assert told(clean, broken) == ["new: gpu.ecc GPU 5 FAIL"]
    assert told(broken, clean) == ["gone: gpu.ecc GPU 5 FAIL"]


def test_what_was_not_looked_at_again_is_not_gone() -> None:
    broken = report_with(fail(GPU5, "9 errors", "0"))
    assert told(broken, report_with(skip(NODE, "not asked"))) == ["changed: gpu.ecc GPU 5 FAIL -> skip"]
    assert told(broken, report_with(unknown(NODE, "crashed"))) == [
        "new: gpu.ecc unknown",
        "changed: gpu.ecc GPU 5 FAIL -> unknown",
    ]
    half = report_with(ok(Subject(kind="gpu", gpu=0), "fine"), unknown(NODE, "stopped after GPU 0"))
    assert told(broken, half) == ["new: gpu.ecc unknown", "changed: gpu.ecc GPU 5 FAIL -> unknown"]


def test_the_problem_of_a_gpu_that_is_no_longer_there_is_not_gone() -> None:
    broken = report_with(fail(GPU5, "9 errors", "0"))
    others = tuple(gpu for gpu in HEALTHY.gpus if gpu.index != 5)
    fewer = msgspec.structs.replace(report_with(ok(Subject(kind="gpu", gpu=0), "fine")), gpus=others)
    assert told(broken, fewer) == ["changed: gpu.ecc GPU 5 FAIL -> unknown (no longer there)"]


def test_a_check_of_one_report_only_is_not_compared() -> None:
    broken = report_with(fail(GPU5, "9 errors", "0"), check_id="gpu.ecc")
    assert differences(broken, report_with(ok(GPU5, "fine"), check_id="gpu.xid")) == ()


def test_a_replaced_gpu_is_compared_by_its_place() -> None:
    new_card = Subject(kind="gpu", gpu=5, uuid="GPU-new", bus_id="0000:ab:00.0")
    old, new = report_with(fail(GPU5, "9 errors", "0")), report_with(ok(new_card, "0 errors"))
    assert told(old, new) == ["changed: gpu.ecc GPU 5 FAIL -> pass"]


def test_the_worst_of_several_findings_on_one_gpu_counts() -> None:
    old = report_with(warn(GPU5, "some", "none"), ok(GPU5, "fine"))
    new = report_with(ok(GPU5, "fine"), fail(GPU5, "many", "none"), warn(GPU5, "some", "none"))
    assert told(old, new) == ["changed: gpu.ecc GPU 5 warn -> FAIL"]


def test_new_problems_come_before_changes_and_the_worst_first() -> None:
    def gpu(index: int) -> Subject:
        return Subject(kind="gpu", gpu=index)

    old = report_with(ok(gpu(0), "a"), fail(gpu(1), "b", "c"), warn(gpu(2), "d", "e"))
    new = report_with(fail(gpu(0), "a", "b"), ok(gpu(1), "b"), unknown(gpu(3), "no answer"))
    assert told(old, new) == [
        "new: gpu.ecc GPU 3 unknown",
        "changed: gpu.ecc GPU 0 pass -> FAIL",
        "changed: gpu.ecc GPU 1 FAIL -> pass",
        "gone: gpu.ecc GPU 2 warn",
    ]


def measured(busbw_gb_s: float, step_ms: float, ranks: int = 8) -> Measurements:
    return Measurements(
        launch=Launch("nccl", ranks, ()),
        collectives=(Collective("all_reduce", 64 << 20, "float32", 20, 300.0, 1.0, busbw_gb_s / 1.75, busbw_gb_s),),
        training=Training("cuda", ranks, 30, 8, 1_000_000, 4_000_000, (), steady_step_ms=step_ms),
    )


def figures(old: Measurements, new: Measurements) -> list[str]:
    passed = ok(NODE, "fine")
    return told(report_with(passed, measured=old), report_with(passed, measured=new))


def test_figures_that_moved_by_more_than_a_twentieth_are_told() -> None:
    assert figures(measured(400.0, 20.0), measured(300.0, 22.0)) == [
        "figure: all_reduce of 64 MiB busbw 400 -> 300 GB/s (-25%)",
        "figure: train step 20 -> 22 ms (+10%)",
    ]
    assert figures(measured(400.0, 20.0), measured(415.0, 19.2)) == []


def test_figures_of_other_ranks_are_not_compared() -> None:
    assert figures(measured(400.0, 20.0), measured(200.0, 40.0, ranks=4)) == []
    assert figures(Measurements(), measured(200.0, 40.0)) == []


def test_a_status_of_a_skip_that_became_a_pass_is_told_by_its_words() -> None:
    assert told(report_with(skip(GPU5, "not read")), report_with(ok(GPU5, "fine"))) == [
        "changed: gpu.ecc GPU 5 skip -> pass"
    ]
