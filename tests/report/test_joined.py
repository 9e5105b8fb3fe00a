"""One report of two runs."""

from __future__ import annotations

import msgspec
import pytest

from gpudoctor.facts.model.measured_strategies import Framework, FrameworkView
from gpudoctor.facts.model.measurements import Collective, Launch, Measurements, Training
from gpudoctor.facts.model.missing import Missing
from gpudoctor.report.model import Report
from gpudoctor.report.two_reports import joined
from tests.tui.checks_app import report_of

LOST = "gpu-lost@2"


def test_a_run_of_everything_replaces_all() -> None:
    new = report_of("hgx-h100-8", "pcie-width-x8@5")
    assert joined(report_of(), new) is new


def test_a_failure_that_was_not_run_again_stays() -> None:
    old = report_of("hgx-h100-8", "pcie-width-x8@5")
    both = joined(old, report_of("hgx-h100-8", words=("host",)))
    assert [check.id for check in both.checks] == [check.id for check in old.checks]
    assert both.verdict == "fail"
    assert both.exit_code == 1
    assert [fault.check for fault in both.faults] == ["pcie.link-width"]
    assert both.counts == old.counts
    assert any("as found at" in note for note in both.run.notes)


def test_what_was_run_again_counts_as_it_is_now() -> None:
    old = report_of("hgx-h100-8", "pcie-width-x8@5")
    both = joined(old, report_of("hgx-h100-8", words=("pcie",)))
    assert both.verdict == "pass"
    assert both.faults == ()
    assert both.reason.startswith("PASS")


def test_causes_are_worked_out_again_over_both() -> None:
    broken = report_of("hgx-h100-8", LOST)
    alone = report_of("hgx-h100-8", LOST, words=("pcie",))
    both = joined(broken, alone)
    assert both.faults == broken.faults
    explained = {check.id: [f.explained_by for f in check.findings] for check in both.checks}
    assert explained == {check.id: [f.explained_by for f in check.findings] for check in broken.checks}
    # and failures explained by it are no longer reported once it is repaired
    mended = joined(broken, report_of("hgx-h100-8", words=("gpu", "driver")))
    assert not any(f.explained_by == "gpu.lost" for check in mended.checks for f in check.findings)


def test_the_note_is_there_once_however_often_runs_are_joined() -> None:
    both = report_of("hgx-h100-8", "pcie-width-x8@5")
    for domain in ("host", "env", "gpu"):
        both = joined(both, report_of("hgx-h100-8", words=(domain,)))
    assert len([note for note in both.run.notes if "as found at" in note]) == 1


def with_figures(report: Report, *, train: bool, backend: str = "gloo") -> Report:
    launch = Launch(backend, 2, ())  # type: ignore[arg-type]
    row = Collective("all_reduce", 1 << 20, "float32", 20, 300.0, 1.0, 1.0, 1.75)
    training = Training("cpu", 2, 30, 8, 1000, 4000, ())
    measured = Measurements(
        launch=launch,
        collectives=() if train else (row,),
        training=training if train else None,
        not_run={"collective" if train else "train": Missing("not asked for")},
    )
    return msgspec.structs.replace(report, measurements=measured)


def test_figures_that_were_not_asked_for_again_stay() -> None:
    old = with_figures(report_of(), train=False)
    both = joined(old, with_figures(report_of(words=("train",)), train=True))
    assert both.measurements.collectives == old.measurements.collectives
    assert both.measurements.training is not None
    assert both.measurements.not_run == {}
    assert joined(old, report_of(words=("host",))).measurements == old.measurements


def test_figures_of_other_ranks_are_not_mixed() -> None:
    old = with_figures(report_of(), train=False, backend="nccl")
    assert joined(old, with_figures(report_of(words=("train",)), train=True)).measurements.collectives == ()


def test_what_was_run_apart_from_the_ranks_comes_without_a_launch() -> None:
    view = FrameworkView("jax", "0.10.2", gpus=8)
    old = with_figures(report_of(), train=True)
    asked = msgspec.structs.replace(report_of(words=("env",)), measurements=Measurements(frameworks=(view,)))
    both = joined(old, asked)
    assert both.measurements.frameworks == (view,)
    assert both.measurements.training == old.measurements.training
    again = with_figures(report_of(words=("train",)), train=True)
    again.measurements.not_run["frameworks"] = Missing("not asked for")
    assert joined(both, again).measurements.frameworks == (view,)


@pytest.mark.parametrize("launched", [True, False])
@pytest.mark.parametrize(
    ("views", "failed"),
    [(("jax",), "frameworks.torch"), ((), "frameworks"), ((), "frameworks.torch")],
)
def test_a_framework_that_gave_no_answer_this_time_does_not_count_as_the_time_before(
    views: tuple[Framework, ...], failed: str, launched: bool
) -> None:
    old = with_figures(report_of(), train=True)
    before = (FrameworkView("torch", "2.13.0", gpus=8), FrameworkView("jax", "0.10.2", gpus=8))
    old = msgspec.structs.replace(old, measurements=msgspec.structs.replace(old.measurements, frameworks=before))
    again = with_figures(report_of(words=("env",)), train=True) if launched else report_of(words=("env",))
    found = msgspec.structs.replace(
        again.measurements,
        frameworks=tuple(FrameworkView(name, "1", gpus=8) for name in views),
        not_run=again.measurements.not_run | {failed: Missing("no answer", "failed")},
    )
    both = joined(old, msgspec.structs.replace(again, measurements=found)).measurements
    assert both.frameworks == found.frameworks
    assert both.not_run[failed] == Missing("no answer", "failed")


def test_a_library_that_was_not_asked_for_again_stays_with_why_it_has_no_figures() -> None:
    old = with_figures(report_of(), train=True)
    old.measurements.not_run["frameworks.jax"] = old.measurements.not_run["deepspeed"] = Missing("hung", "failed")
    again = with_figures(report_of(words=("train",)), train=True)
    again.measurements.not_run["frameworks"] = again.measurements.not_run["deepspeed"] = Missing("not asked for")
    both = joined(old, again).measurements
    assert both.not_run["frameworks.jax"] == both.not_run["deepspeed"] == Missing("hung", "failed")
