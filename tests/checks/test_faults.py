"""Grouping: people count faults, not findings."""

from __future__ import annotations

from gpudoctor.checks.faults import RULES, explain
from gpudoctor.checks.finding import NODE, Finding, Status, Subject, fail, of_pair, ok, unknown, warn, worst
from gpudoctor.checks.registry import matches, registry
from gpudoctor.checks.run import CheckResult


def gpu(index: int) -> Subject:
    return Subject("gpu", gpu=index, bus_id=f"0000:{index:02x}:00.0")


def result(check_id: str, *findings: Finding) -> CheckResult:
    return CheckResult(check_id, "", "quick", worst(f.status for f in findings), 0.0, findings)


def test_a_lost_gpu_explains_what_cannot_be_read_from_it_and_nothing_of_its_neighbours() -> None:
    results, faults = explain(
        [
            result("gpu.lost", fail(gpu(2), "lost (15)", "answers")),
            result("gpu.ecc", unknown(gpu(2), "lost"), unknown(gpu(3), "timeout")),
            result("pcie.link-width", ok(gpu(2), "x16"), fail(gpu(4), "x8", "x16")),
        ]
    )
    assert [f.explained_by for f in results[1].findings] == ["gpu.lost", None]
    assert [(f.check, f.subject.gpu) for f in faults] == [("gpu.lost", 2), ("pcie.link-width", 4)]
    assert faults[0].explains == ("gpu.ecc unknown: GPU 2 (0000:02:00.0): lost",)
    assert faults[1].explains == ()


def test_a_chain_of_causes_ends_in_one_fault_that_explains_all() -> None:
    results, faults = explain(
        [
            result("nvlink.fabric", fail(gpu(1), "not started", "completed")),
            result("nvlink.links", fail(gpu(1), "0 of 18", "18")),
            result("nvlink.topology", fail(of_pair(1, 2), "SYS", "NV18")),
        ]
    )
    assert [f.check for f in faults] == ["nvlink.fabric"]
    assert len(faults[0].explains) == 2
    assert results[2].findings[0].explained_by in {"nvlink.fabric", "nvlink.links"}


def test_a_warning_never_hides_a_failure() -> None:
    results, faults = explain(
        [
            result("gpu.power-limit", warn(gpu(0), "300 W", "400 W")),
            result("train.balance", fail(Subject("rank", rank=0, gpu=0), "1.3 x", "1.0 x")),
        ]
    )
    assert [f.check for f in faults] == ["train.balance"]
    assert results[1].findings[0].explained_by is None


def test_a_cause_on_the_whole_node_explains_any_gpu() -> None:
    _, faults = explain(
        [
            result("driver.loaded", fail(NODE, "not loaded", "loaded")),
            result("gpu.count", fail(NODE, "0 of 8", "8")),
            result("env.torch", fail(gpu(1), "not seen", "seen")),
            result("host.shm", fail(NODE, "64 MiB", "1 GiB")),
        ]
    )
    assert [f.check for f in faults] == ["driver.loaded", "host.shm"]


def test_no_circle_of_causes_swallows_a_failure() -> None:
    everything = [result(c.id, fail(gpu(0), c.id, "not this")) for c in registry()]
    results, faults = explain(everything)
    assert faults
    roots = sum(1 for r in results for f in r.findings if f.explained_by is None)
    assert roots == len(faults)
    assert sum(len(f.explains) for f in faults) == len(everything) - len(faults)


def test_every_rule_names_checks_that_exist() -> None:
    checks = registry()
    for rule in RULES:
        for word in (rule.cause, *rule.effects):
            assert any(matches(c, word) for c in checks), word


def test_a_passing_finding_is_never_explained() -> None:
    results, faults = explain([result("gpu.lost", fail(gpu(0), "x", "y")), result("gpu.ecc", ok(gpu(0), "0"))])
    assert results[1].findings[0].explained_by is None
    assert results[1].status is Status.PASS
    assert len(faults) == 1
