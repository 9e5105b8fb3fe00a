"""Grouping: people count faults, not findings."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

import pytest

from gpudoctor.checks.core import registry as check_registry
from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.explains import Explains
from gpudoctor.checks.core.faults import Fault, explain, rules
from gpudoctor.checks.core.finding import Finding, Found, Status, fail, ok, unknown, warn, worst
from gpudoctor.checks.core.registry import check, matches, registry
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.checks.core.subject import NODE, Subject, of_pair
from gpudoctor.facts.simulated.load import apply_faults
from gpudoctor.report.judge import judge
from gpudoctor.report.model import Report
from gpudoctor.report.text import render_text
from tests.checks.simulated_nodes import packaged


def gpu(index: int) -> Subject:
    return Subject("gpu", gpu=index, bus_id=f"0000:{index:02x}:00.0")


def result(check_id: str, *findings: Finding) -> CheckResult:
    return CheckResult(check_id, "", "quick", worst(f.status for f in findings), 0.0, findings)


def grouped(*results: CheckResult) -> tuple[tuple[CheckResult, ...], tuple[Fault, ...]]:
    return explain(results)


def test_a_lost_gpu_explains_what_cannot_be_read_from_it_and_nothing_of_its_neighbours() -> None:
    results, faults = grouped(
        result("gpu.lost", fail(gpu(2), "lost (15)", "answers")),
        result("gpu.ecc", unknown(gpu(2), "lost"), unknown(gpu(3), "timeout")),
        result("pcie.link-width", ok(gpu(2), "x16"), fail(gpu(4), "x8", "x16")),
    )
    assert [f.explained_by for f in results[1].findings] == ["gpu.lost", None]
    assert [(f.check, f.subject.gpu) for f in faults] == [("gpu.lost", 2), ("pcie.link-width", 4)]
    assert faults[0].explains == ("gpu.ecc unknown: GPU 2 (0000:02:00.0): lost",)
    assert faults[1].explains == ()


def test_a_chain_of_causes_ends_in_one_fault_that_explains_all() -> None:
    results, faults = grouped(
        result("nvlink.fabric", fail(gpu(1), "not started", "completed")),
        result("nvlink.links", fail(gpu(1), "0 of 18", "18")),
        result("nvlink.topology", fail(of_pair(1, 2), "SYS", "NV18")),
    )
    assert [f.check for f in faults] == ["nvlink.fabric"]
    assert len(faults[0].explains) == 2
    assert results[2].findings[0].explained_by in {"nvlink.fabric", "nvlink.links"}


def test_a_warning_never_hides_a_failure() -> None:
    results, faults = grouped(
        result("gpu.power-limit", warn(gpu(0), "300 W", "400 W")),
        result("train.balance", fail(Subject("rank", rank=0, gpu=0), "1.3 x", "1.0 x")),
    )
    assert [f.check for f in faults] == ["train.balance"]
    assert results[1].findings[0].explained_by is None


def test_a_cause_on_the_whole_node_explains_any_gpu() -> None:
    _, faults = grouped(
        result("driver.loaded", fail(NODE, "not loaded", "loaded")),
        result("gpu.count", fail(NODE, "0 of 8", "8")),
        result("env.torch", fail(gpu(1), "not seen", "seen")),
        result("host.shm", fail(NODE, "64 MiB", "1 GiB")),
    )
    assert [f.check for f in faults] == ["driver.loaded", "host.shm"]


def test_no_circle_of_causes_swallows_a_failure() -> None:
    everything = [result(c.id, fail(gpu(0), c.id, "not this")) for c in registry()]
    results, faults = grouped(*everything)
    assert faults
    roots = sum(1 for r in results for f in r.findings if f.explained_by is None)
    assert roots == len(faults)
    assert sum(len(f.explains) for f in faults) == len(everything) - len(faults)


def test_every_rule_names_checks_that_exist() -> None:
    checks = registry()
    assert len(rules()) > 50
    for rule in rules():
        for word in (rule.cause_id, *rule.explains.effects, *rule.explains.after):
            assert any(matches(c, word) for c in checks), word


def test_a_passing_finding_is_never_explained() -> None:
    results, faults = grouped(result("gpu.lost", fail(gpu(0), "x", "y")), result("gpu.ecc", ok(gpu(0), "0")))
    assert results[1].findings[0].explained_by is None
    assert results[1].status is Status.PASS
    assert len(faults) == 1


def test_a_fault_of_the_whole_node_hides_no_fault_of_a_single_gpu() -> None:
    switch = Subject("node", name="NVSwitch 0000:05:00.0")
    bridge = Subject("node", bus_id="0000:97:01.0", name="the link above GPUs 4, 5 and 6")
    _, faults = grouped(
        result("gpu.count", fail(NODE, "8 GPUs where 9 are expected", "9")),
        result("gpu.identical", fail(NODE, "two models", "one")),
        result("gpu.lost", fail(gpu(5), "lost (15)", "answers")),
        result("gpu.xid", fail(switch, Found("SXid 20034", 20034), "none"), fail(gpu(2), Found("Xid 79", 79), "none")),
        result("gpu.throttle", fail(gpu(3), "brake", "none")),
        result("pcie.link-width", fail(gpu(1), "x4", "x16")),
        result("pcie.upstream", fail(bridge, "x8", "x16")),
        result("nvlink.fabric", fail(NODE, "not started", "completed")),
        result("nvlink.links", fail(gpu(3), "17 of 18", "18")),
    )
    assert [(f.check, f.subject.gpu, f.explains) for f in faults] == [
        ("gpu.count", None, ()),
        ("gpu.identical", None, ()),
        ("gpu.lost", 5, ()),
        ("gpu.xid", None, ()),
        ("gpu.xid", 2, ()),
        ("gpu.throttle", 3, ()),
        ("pcie.link-width", 1, ()),
        ("pcie.upstream", None, ()),
        ("nvlink.fabric", None, ()),
        ("nvlink.links", 3, ()),
    ]


@pytest.mark.parametrize(
    ("cause", "code", "explained"),
    [
        ("nvlink.links", 74, True),
        ("nvlink.links", 79, False),
        ("nvlink.links", 48, False),
        ("gpu.ecc", 95, True),
        ("gpu.ecc", 119, False),
        ("pcie.errors", 79, True),
        ("pcie.link-width", 79, False),
        ("gpu.temperature", 62, False),
    ],
)
def test_an_xid_is_explained_only_by_what_it_speaks_of(cause: str, code: int, explained: bool) -> None:
    _, faults = grouped(
        result("gpu.xid", fail(gpu(3), Found(f"Xid {code}", code), "none")),
        result(cause, fail(gpu(3), "broken", "whole")),
    )
    assert [f.check for f in faults] == ([cause] if explained else ["gpu.xid", cause])


@pytest.mark.parametrize("cause", ["driver.responsive", "gpu.lost"])
@pytest.mark.parametrize(
    ("check_id", "finding", "explained"),
    [
        ("gpu.memory-repair", warn(gpu(3), "row remap waits for a reset", "nothing waiting"), False),
        ("pcie.link-width", fail(gpu(3), Found("PCIe Gen5 x8", 8), "x16"), False),
        ("gpu.identical", fail(gpu(3), "another model", "the same"), False),
        ("gpu.xid", fail(gpu(3), Found("Xid 48", 48), "none"), False),
        ("gpu.xid", fail(gpu(3), Found("Xid 119", 119), "none"), True),
        ("gpu.xid", fail(gpu(3), Found("off the bus", None), "none"), True),
        ("gpu.memory-repair", unknown(gpu(3), "not read"), True),
        ("nvlink.links", unknown(gpu(3), "not read"), True),
    ],
)
def test_a_gpu_that_does_not_answer_explains_what_was_not_read_and_that_it_stopped(
    cause: str, check_id: str, finding: Finding, explained: bool
) -> None:
    [_, other], faults = grouped(result(cause, fail(gpu(3), "no answer", "an answer")), result(check_id, finding))
    assert (other.findings[0].explained_by == cause) is explained
    assert len(faults) == (1 if explained or finding.status is not Status.FAIL else 2)


def test_a_driver_that_hangs_is_no_reason_for_a_row_that_waits_to_be_remapped() -> None:
    node = apply_faults(packaged("hgx-h100-8"), ["row-remap-pending@3", "driver-hang@3"])
    [fault] = judge(node).faults
    assert fault.check == "driver.responsive"
    assert not [line for line in fault.explains if line.startswith(("gpu.memory-repair", "gpu.xid"))]


def test_a_setting_explains_ranks_that_hang_and_never_wrong_sums_or_a_slow_gpu() -> None:
    hung = fail(Subject("rank", rank=1, gpu=1), Found("did not come back", "timeout"), "it comes back")
    wrong = fail(Subject("rank", rank=2, gpu=2), "it got a wrong result", "the exact sum")
    slow = fail(Subject("rank", rank=6, gpu=6), Found("1.4 x", 1.4), "1.0 x")
    results, faults = grouped(
        result("env.nccl", fail(NODE, "NCCL_SOCKET_IFNAME=foo", "an interface")),
        result("collective.correct", hung, wrong),
        result("train.balance", slow, unknown(NODE, "not measured")),
    )
    assert [(f.check, f.subject.rank) for f in faults] == [
        ("env.nccl", None),
        ("collective.correct", 2),
        ("train.balance", 6),
    ]
    assert results[1].findings[0].explained_by == "env.nccl"
    assert results[2].findings[1].explained_by is not None


@pytest.mark.parametrize("cause", ["driver.loaded", "driver.fabric-manager", "nvlink.fabric"])
def test_what_keeps_ranks_from_starting_explains_no_wrong_sum(cause: str) -> None:
    """Ranks on CPUs run without a driver, and their memory may be faulty all the same."""
    hung = fail(Subject("rank", rank=1, gpu=1), Found("did not come back", "timeout"), "it comes back")
    wrong = fail(Subject("rank", rank=1, gpu=1), "it got a wrong result", "the exact sum")
    broken = fail(gpu(1) if cause == "nvlink.fabric" else NODE, "not running", "running")
    [_, sums], faults = grouped(result(cause, broken), result("collective.correct", hung, wrong))
    assert [f.explained_by for f in sums.findings] == [cause, None]
    assert [f.check for f in faults] == [cause, "collective.correct"]


def test_settings_explain_only_by_what_keeps_programs_out() -> None:
    def faults_beside(value: str | None) -> list[str]:
        torch = result("env.torch", fail(gpu(2), "not seen", "seen"))
        return [f.check for f in grouped(result("gpu.settings", fail(gpu(2), Found("set", value), "not")), torch)[1]]

    assert faults_beside("prohibited") == ["gpu.settings"]
    assert faults_beside(None) == ["gpu.settings", "env.torch"]


def test_gpus_whose_bus_ids_a_dump_has_blotted_out_are_told_apart_by_index() -> None:
    def blotted(index: int) -> Subject:
        return Subject("gpu", gpu=index, uuid="GPU-REDACTED", bus_id="0000:00:00.0")

    lost, narrow = result("gpu.lost", fail(blotted(1), "lost", "here")), fail(blotted(2), "x8", "x16")
    assert [f.subject.gpu for f in grouped(lost, result("pcie.link-width", narrow))[1]] == [1, 2]


@pytest.mark.parametrize("cause", ["collective.correct", "train.sync", "compute.exact", "gpu.xid"])
def test_a_strategy_that_trains_wrongly_is_explained_by_what_was_found_wrong_beneath_it(cause: str) -> None:
    results, faults = grouped(
        result(cause, fail(gpu(2), "wrong", "right")),
        result("strategy.ddp", fail(NODE, "its weights are off", "within 1e-4")),
        result("strategy.fsdp", unknown(NODE, "not measured (see strategy.ddp)")),
    )
    assert [fault.check for fault in faults] == [cause]
    assert results[1].findings[0].explained_by == cause


def test_a_strategy_that_alone_trains_wrongly_is_a_fault_of_its_own() -> None:
    results, faults = grouped(
        result("train.sync", ok(NODE, "equal weights")),
        result("strategy.ddp", fail(NODE, "rank 1 died", "every rank ends by itself")),
        result("strategy.zero1", unknown(NODE, "not measured (see strategy.ddp)")),
        result("strategy.tensor", fail(NODE, "its weights are off", "within 1e-4")),
    )
    assert [fault.check for fault in faults] == ["strategy.ddp", "strategy.tensor"]
    assert results[2].findings[0].explained_by == "strategy.ddp"


def report_of(*specs: str, node: str = "hgx-h100-8") -> Report:
    return judge(apply_faults(packaged(node), specs))


def test_a_power_brake_of_the_whole_chassis_is_one_fault() -> None:
    report = report_of(*(f"hw-power-brake@{index}" for index in range(8)))
    [fault] = report.faults
    assert (fault.check, fault.subject.kind, fault.gpus) == ("gpu.throttle", "node", tuple(range(8)))
    assert fault.headline.startswith("all 8 GPUs: the power supply's brake")
    assert report.reason.startswith("FAIL gpu.throttle all 8 GPUs: ")
    [result] = [r for r in report.checks if r.id == "gpu.throttle"]
    assert [f.subject.gpu for f in result.findings if f.status is Status.FAIL] == list(range(8))


def test_what_hits_seven_of_eight_gpus_or_two_causes_are_faults_of_their_gpus() -> None:
    seven = report_of(*(f"hw-power-brake@{index}" for index in range(7)))
    assert [fault.subject.gpu for fault in seven.faults] == list(range(7))
    mixed = report_of(*(f"hw-power-brake@{index}" for index in range(7)), "thermal@7")
    assert len({fault.subject.gpu for fault in mixed.faults}) == 8


def test_what_one_fault_of_all_gpus_explains_is_listed_once_below_it() -> None:
    report = report_of(*(f"gpu-lost@{index}" for index in range(8)))
    [fault] = report.faults
    assert (fault.check, fault.gpus) == ("gpu.lost", tuple(range(8)))
    assert len(fault.explains) == len(set(fault.explains)) > 8
    text = render_text(report, width=100, color=False)
    assert text.count("FAIL     gpu.lost ") == 1
    assert "checks that got no answer" in text


@pytest.mark.parametrize(
    ("check_id", "causes"),
    [
        # a cause with `after` gives way for these effects alone
        ("compute.exact", ("gpu.ecc", "gpu.memory-repair")),
        ("strategy.ddp", ("compute.exact", "collective.correct")),
        ("train.sync", ("collective.correct", "compute.exact")),
        ("gpu.xid", ("gpu.memory-repair", "gpu.ecc")),
        ("nvlink.errors", ("nvlink.fabric", "gpu.xid")),
        ("strategy.fsdp", ("gpu.xid", "nvlink.fabric")),
        # the order of depth is not that of the report
        ("train.balance", ("pcie.link-width", "gpu.temperature")),
        ("train.scaling", ("train.balance", "train.sync")),
    ],
)
def test_of_two_causes_the_deeper_one_explains(check_id: str, causes: tuple[str, str]) -> None:
    fitting = [rule.cause_id for rule in rules() if any(fnmatchcase(check_id, each) for each in rule.explains.effects)]
    first, second = causes
    assert fitting.index(first) < fitting.index(second)


def test_a_check_declares_what_it_explains(monkeypatch: pytest.MonkeyPatch) -> None:
    registry()
    monkeypatch.setattr(check_registry, "_checks", dict(check_registry._checks))
    broken = [result("site.fan", fail(gpu(2), "stands still", "turns")), result("gpu.lost", fail(gpu(2), "x", "y"))]
    assert [f.check for f in grouped(*broken)[1]] == ["site.fan", "gpu.lost"]

    @check("site.fan", title="Every fan turns", explains=("gpu.lost", Explains(("gpu.ecc",), found=(7,))))
    def fan(case: Case) -> Iterator[Finding]:
        yield ok(NODE, "it turns")

    assert [f.check for f in grouped(*broken)[1]] == ["site.fan"]
    hidden, open_ = fail(gpu(2), Found("7 errors", 7), "0"), fail(gpu(2), Found("8 errors", 8), "0")
    [explained], [own] = (grouped(*broken[:1], result("gpu.ecc", f))[0][1].findings for f in (hidden, open_))
    assert (explained.explained_by, own.explained_by) == ("site.fan", None)
