"""A little of `make soak` in every run of the tests; that a wrong verdict is seen is tested too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Finding, Status, fail, ok, unknown
from gpudoctor.checks.core.registry import Check, registry
from gpudoctor.checks.core.subject import NODE, of_gpu
from gpudoctor.facts.simulated.load import faults, node_names
from gpudoctor.process.exit_codes import FailOn
from tests import soak
from tests.checks.simulated_nodes import packaged
from tests.soak_expected import EXPECTED, NODES

PROCESSES = ("collector", "library")  # each of these starts some


def faulty(fault: str, node: str = "hgx-h100-8", gpu: int | None = None) -> soak.Draw:
    """A fault on a node, by the shortest way."""
    found = next(known for known in faults() if known.name == fault)
    spec, gpus = (fault, ()) if gpu is None else (f"{fault}@{gpu}", (gpu,))
    return soak.Draw(node, (soak.PlacedFault(found, spec, gpus),), level=found.level)


def with_check(id: str, says: Finding) -> tuple[Check, ...]:
    """The registry with that check replaced by one that always has this status."""

    def blind(case: Case) -> Iterator[Finding]:
        yield says

    return tuple(replace(check, function=blind) if check.id == id else check for check in registry())


@pytest.mark.wide
def test_a_short_soak_finds_no_wrong_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.soak(60, seed=7, left_out=PROCESSES) == 0
    assert capsys.readouterr().out.endswith("60 checks, 0 wrong\n")


@pytest.mark.wide
def test_a_driver_that_hangs_is_seen_through_the_collector() -> None:
    assert soak.wrong(replace(faulty("driver-hang", gpu=3), source="collector")) == []


def test_what_is_not_asked_of_a_gpu_in_use_is_no_gap_beside_its_idle_peers() -> None:
    # the infoROM is not read while a process uses the GPU
    assert soak.wrong(replace(faulty("foreign-process", "gb200-tray-4", gpu=3), source="nvml")) == []


def test_every_fault_has_its_verdict_in_the_table_and_the_kit_agrees() -> None:
    assert {name: (check, status.value) for name, (check, status) in EXPECTED.items()} == {
        fault.name: (fault.check, fault.status) for fault in faults()
    }
    assert set(NODES) <= set(node_names())


@pytest.mark.wide(every=4)
@pytest.mark.parametrize("id", sorted({check for check, status in EXPECTED.values() if status is not Status.PASS}))
def test_a_check_that_always_passes_is_caught(id: str) -> None:
    blind = with_check(id, ok(NODE, "all is well"))
    for name, (check, status) in EXPECTED.items():
        if check != id or status is Status.PASS:
            continue
        fault = next(known for known in faults() if known.name == name)
        node = next(node for node in node_names() if node not in NODES and fault.happens_on(packaged(node)))
        last = max((gpu.index for gpu in packaged(node).gpus), default=None)
        draw = faulty(name, node, last if fault.kind == "gpu" else None)
        assert soak.wrong(draw) == []
        assert any(f"says pass, not {status.value}" in problem for problem in soak.wrong(draw, blind)), name


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (fail(NODE, "it is broken", "it is whole"), "gpu.ecc fails"),
        (unknown(NODE, "it did not answer"), "gpu.ecc is unknown"),
    ],
)
def test_a_check_that_complains_of_a_healthy_node_is_caught(says: Finding, words: str) -> None:
    draw = soak.Draw("hgx-h100-8")
    assert soak.wrong(draw) == []
    assert any(words in problem for problem in soak.wrong(draw, with_check("gpu.ecc", says)))


def test_a_failure_of_another_gpu_than_the_struck_one_is_caught() -> None:
    other = fail(of_gpu(packaged("hgx-h100-8").gpus[5]), "x8", "x16")
    problems = soak.wrong(faulty("pcie-width-x8", gpu=3), with_check("pcie.link-width", other))
    assert any("pcie.link-width names ['GPU 5" in problem for problem in problems)
    assert "pcie.link-width fails on GPU 5" in problems


@pytest.mark.parametrize("fail_on", soak.FAIL_ONS)
def test_the_exit_code_is_the_one_asked_for(fail_on: FailOn) -> None:
    warned = replace(faulty("power-cap", gpu=1), fail_on=fail_on)
    assert soak.wrong(warned) == []
    problems = soak.wrong(warned, with_check("gpu.power-limit", ok(NODE, "all is well")))
    assert any("not warn and" in problem for problem in problems)
