"""gpu.lost, and that no other check believes a lost GPU or an unread one."""

from __future__ import annotations

import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.model.gpu import CallError
from gpudoctor.facts.model.missing import UNSUPPORTED, Missing
from gpudoctor.facts.model.node import Unanswered
from tests.checks.gpu_nodes import FAILED, bad, bus_id, eight, findings, h100, node, only, put, seven_of_eight, status
from tests.checks.one_check import finds
from tests.checks.wired import judged, lost, of_gpu, simulated

LOST = (CallError("nvmlDeviceGetTemperature", 15, "GPU is lost"),)


# gpu.lost


def test_a_gpu_that_asks_for_nothing_is_alive() -> None:
    assert status("gpu.lost", eight()) == "pass"


@pytest.mark.parametrize(("code", "name"), [(15, "GPU is lost"), (16, "Reset required")])
def test_one_call_that_says_so_condemns_that_gpu(code: int, name: str) -> None:
    finding = only("gpu.lost", eight(errors=(CallError("nvmlDeviceGetPowerUsage", code, name),)))
    finds([finding], "fail", f"{name} ({code})", gpu=5)
    assert finding.evidence[0].source == "nvmlDeviceGetPowerUsage"


def unknown_errors(*calls: str) -> tuple[CallError, ...]:
    return tuple(CallError(call, 999, "unknown error") for call in calls)


CORE_CALLS = (
    *("nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetClockInfo", "nvmlDeviceGetTemperature"),
    "nvmlDeviceGetUtilizationRates",
)
CORE_LEAVES = (
    *("name", "memory_total_mib", "memory_used_mib", "clocks__graphics_mhz", "clocks__sm_mhz", "clocks__memory_mhz"),
    *("thermal__gpu_c", "utilization__gpu_pct", "utilization__memory_pct"),
)
DEAD = {"errors": unknown_errors(*CORE_CALLS), **dict.fromkeys(CORE_LEAVES, FAILED)}


@pytest.mark.parametrize("call", [*CORE_CALLS, "nvmlDeviceGetAddressingMode", "nvidia-smi -q: addressing_mode"])
def test_an_unknown_error_costs_the_one_value_that_it_answers(call: str) -> None:
    """Eight working RTX 4090, V100s of a cloud and WSL2 answer single questions so."""
    subject = eight(errors=unknown_errors(call))
    assert bad("gpu.lost", subject) == ()
    assert status("gpu.lost", subject) == "pass"
    assert status("gpu.power-limit", subject) == "pass"


def test_unknown_errors_to_all_core_questions_condemn_the_gpu() -> None:
    finds(bad("gpu.lost", eight(**DEAD)), "fail", "unknown error (999)", gpu=5)
    assert {f.status.value for f in findings("gpu.power-limit", eight(**DEAD)) if f.subject.gpu == 5} == {"unknown"}


@pytest.mark.parametrize("leaf", CORE_LEAVES)
def test_one_core_question_that_is_answered_saves_the_gpu_but_gives_no_pass(leaf: str) -> None:
    node = eight(**{**DEAD, leaf: "NVIDIA H100 80GB HBM3" if leaf == "name" else 40}, power__draw_w=FAILED)
    (struck,) = [f for f in findings("gpu.lost", node) if f.subject.gpu == 5]
    assert struck.status.value == "unknown"


@pytest.mark.parametrize(("code", "words"), [(15, "GPU is lost"), (16, "GPU requires reset"), (999, "unknown error")])
def test_a_gpu_that_gets_no_handle_for_its_hardwares_sake_fails(code: int, words: str) -> None:
    subject = seven_of_eight(driver__handle_errors=(f"index 5: {words} ({code})",))
    assert only("gpu.lost", subject).status.value == "fail"


@pytest.mark.parametrize(
    "words",
    [
        "index 5: not ready (27)",
        "index 5: argument version mismatch (25)",
        "index 5: nvmlDeviceGetPciInfo_v3: unknown error (999)",
        "index 5: the collector did not come to it",
    ],
)
def test_a_gpu_that_could_not_be_read_for_another_reason_is_unknown(words: str) -> None:
    found = findings("gpu.lost", seven_of_eight(driver__handle_errors=(words,)))
    assert [(f.status.value, f.subject.gpu) for f in found if f.status.value != "pass"] == [("unknown", 5)]


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("gpu-reset", "fail"),
        ("node-reboot", "fail"),
        ("drain-and-reset", "fail"),
        ("drain-p2p", "warn"),
        ("value 9", "warn"),
    ],
)
def test_the_recovery_a_gpu_asks_for_is_judged(action: str, expected: str) -> None:
    finding = only("gpu.lost", eight(recovery_action=action))
    assert (finding.status.value, finding.subject.gpu) == (expected, 5)
    assert finding.advice


def test_a_handle_error_fails_and_names_the_gpu_it_names() -> None:
    words = "GPU 5: nvmlDeviceGetHandleByIndex: GPU is lost (15)"
    finds(bad("gpu.lost", seven_of_eight(driver__handle_errors=(words,))), "fail", gpu=5)
    nameless = only("gpu.lost", seven_of_eight(driver__handle_errors=("Unknown Error",)))
    assert nameless.subject.kind == "node"


def test_a_gpu_that_our_reader_did_not_reach_is_unknown_with_the_cause_and_never_lost() -> None:
    words = "GPU 5: the collector died by SIGKILL in nvmlDeviceGetHandleByIndex"
    finds(bad("gpu.lost", seven_of_eight(driver__unread_handles=(words,))), "unknown", words, gpu=5)


def test_a_denied_handle_is_scope_and_not_a_fault() -> None:
    subject = seven_of_eight(driver__handle_errors=("GPU 5: insufficient permissions (4)",))
    assert bad("gpu.lost", subject) == ()
    assert "skip" in {f.status.value for f in findings("gpu.lost", subject)}


def test_a_capture_that_names_the_lost_gpu_twice_gives_one_fault() -> None:
    words = f"Unable to determine the device handle for GPU{bus_id(5)}: GPU is lost."
    assert len(bad("gpu.lost", put(eight(errors=LOST), driver__handle_errors=(words,)))) == 1


def test_a_hung_gpu_is_unknown() -> None:
    subject = put(eight(), driver__unanswered=(Unanswered("nvmlDeviceGetPowerUsage", 5, 10.0),))
    finds(bad("gpu.lost", subject), "unknown", gpu=5)


def test_a_driver_without_recovery_actions_passes_on_signs_of_life() -> None:
    assert status("gpu.lost", node(h100(recovery_action=UNSUPPORTED))) == "pass"


SIGNS_OF_LIFE = ("recovery_action", "memory_used_mib", "thermal__gpu_c", "power__draw_w", "utilization__gpu_pct")
SILENT = dict.fromkeys(SIGNS_OF_LIFE, Missing("not in this capture"))


def test_a_gpu_that_said_nothing_is_no_pass() -> None:
    assert status("gpu.lost", node(h100(**SILENT))) == "skip"
    assert status("gpu.lost", node(h100(**{**SILENT, "thermal__gpu_c": FAILED}))) == "unknown"


# the guard


JUDGED = (
    *("gpu.identical", "gpu.ecc", "gpu.memory-repair", "gpu.throttle", "gpu.temperature", "gpu.power-limit"),
    *("gpu.clocks", "gpu.settings", "gpu.in-use"),
)


@pytest.mark.parametrize("check", JUDGED)
def test_readings_of_a_lost_gpu_are_never_judged_while_its_peers_are(check: str) -> None:
    found = findings(check, eight(errors=LOST, ecc__uncorrected_volatile=7, clocks__event_reasons=("hw-thermal",)))
    finds([f for f in found if f.subject.gpu == 5], "unknown", "the GPU is lost (15")
    assert {f.status.value for f in found if f.subject.gpu != 5} == {"pass"}


LINKS = ["nvlink.links", "nvlink.topology", "nvlink.errors", "nvlink.fabric"]
WAYS = ["pcie.link-width", "pcie.link-speed", "pcie.upstream", "pcie.balance", "pcie.errors", "pcie.acs"]


@pytest.mark.parametrize("check", [*LINKS, *WAYS])
def test_the_links_of_a_lost_gpu_are_unknown_and_those_of_the_others_are_judged(check: str) -> None:
    result = judged(check, lost(simulated("hgx-h100-8"), 3))
    assert of_gpu(result, 3).status is Status.UNKNOWN
    assert any(f.status is Status.PASS for f in result.findings)
