"""gpu.xid, and the catalogue behind it."""

from __future__ import annotations

import pytest

from gpudoctor.facts.model.gpu import CallError, NvLink
from gpudoctor.facts.model.missing import UNSUPPORTED, Missing, MissingKind
from gpudoctor.facts.model.node import KernelEvent, Node
from gpudoctor.statements.xids import ADVICE, BUCKETS, SXID_FATAL, XIDS, sxid_fatal
from gpudoctor.statements.xids import xid as entry
from tests.checks.gpu_nodes import bad, bus_id, eight, findings, h100, job, node, only, put, recovery, status, text, xid
from tests.checks.one_check import finds
from tests.narrowed import present


def logged(*events: KernelEvent, **leaves: object) -> Node:
    """Eight GPUs of a driver that reports no recovery action: only the log has evidence."""
    gpus = tuple(h100(i, recovery_action=UNSUPPORTED) for i in range(8))
    return put(node(*gpus), kernel_log__events=events, **leaves)


def sxid(code: int, fatal: bool | None) -> KernelEvent:
    return KernelEvent("sxid", f"nvidia-nvswitch3: SXid {code}", code=code, bus_id="0000:05:00.0", fatal=fatal)


def test_a_quiet_log_passes_each_gpu() -> None:
    assert [text(f) for f in findings("gpu.xid", eight())] == ["no Xid since boot"] * 8


OVERWRITTEN = "the kernel's ring buffer has been overwritten since boot: 500 s of log missing, and there is no journal"


def test_a_log_whose_start_is_gone_is_unknown_and_says_why() -> None:
    subject = put(eight(), kernel_log__truncated=True, kernel_log__gap=OVERWRITTEN)
    finds(findings("gpu.xid", subject), "unknown", kind="node", found=OVERWRITTEN)
    assert status("gpu.xid", put(eight(), kernel_log__truncated=True)) == "unknown", "facts of an older gpudoctor"


def test_an_error_in_what_is_left_of_a_log_fails_all_the_same() -> None:
    subject = put(logged(xid(79, 5)), kernel_log__truncated=True, kernel_log__gap=OVERWRITTEN)
    assert [f.status.value for f in findings("gpu.xid", subject)] == ["fail", "unknown"]


def test_a_machine_without_gpus_and_driver_needs_no_whole_log() -> None:
    assert (
        status("gpu.xid", put(node(), kernel_log__truncated=True, driver__module_loaded=False, driver__init_code=9))
        == "skip"
    )


def test_a_log_that_reaches_back_to_the_loading_of_the_driver_passes_and_claims_no_more() -> None:
    found = findings("gpu.xid", put(eight(), kernel_log__starts_s=900.0))
    assert [text(f) for f in found] == ["no Xid since the driver was loaded"] * 8


def test_lines_that_cannot_be_told_apart_are_unknown_and_shown() -> None:
    event = KernelEvent("unclear", "node12 | klogd NVRM: Xid (PCI:0000:15:00): 79, GPU has fallen off the bus.")
    found = [f for f in findings("gpu.xid", logged(event)) if f.status.value != "pass"]
    assert [(f.status.value, f.subject.kind) for f in found] == [("unknown", "node")]
    assert found[0].evidence[0].value == event.text


def test_a_timeout_of_gsp_and_a_refusal_fail_a_log_alone_and_warn_beside_gpus_that_answer() -> None:
    banner = KernelEvent("gsp", f"NVRM: GPU6 _kgspLogRpcTimeout: {'*' * 33} GSP Timeout {'*' * 34}")
    beats = KernelEvent("gsp", "NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out, diff 6070 timeout 5200")
    alone = put(node(), kernel_log__events=(beats, banner))
    finds(findings("gpu.xid", alone), "fail", "the GPU's own processor (GSP) did not answer", kind="node")
    assert status("gpu.xid", put(node(), kernel_log__events=(beats,))) == "warn"
    assert status("gpu.xid", logged(beats, banner)) == "warn"
    refused = KernelEvent(
        "rm", "NVRM: nvAssertOkFailed: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x62)"
    )
    finds(
        findings("gpu.xid", put(node(), kernel_log__events=(refused,))), "fail", "a GPU refuses work until it is reset"
    )
    assert status("gpu.xid", logged(refused)) == "warn"


@pytest.mark.parametrize(("leaf", "words"), [("forgeable", "could have forged"), ("quoted", "not judged")])
def test_how_far_the_lines_can_be_relied_on_is_told_beside_them(leaf: str, words: str) -> None:
    for events in ((), (xid(79, 5),), (sxid(20034, True),)):
        found = findings("gpu.xid", put(logged(*events), **{f"kernel_log__{leaf}": 1}))
        assert all(any(words in evidence.value for evidence in f.evidence) for f in found)


@pytest.mark.parametrize("name", ["a, Nonfatal XC0", "Nonfatal", "x, non-fatal", r"a\x01\x01, Nonfatal"])
def test_the_name_of_a_program_in_an_xid_does_not_soften_it(name: str) -> None:
    assert status("gpu.xid", logged(xid(149, 5, f"pid=7, name={name}, NETIR_LINK_EVT Fatal XC0 i0 Link 08"))) == "fail"
    assert status("gpu.xid", logged(xid(149, 5, f"pid=7, name={name}, SAW_MVB"))) == "warn"


def test_a_recovery_that_a_users_words_tell_settles_nothing() -> None:
    words = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    for text_ in (f"x {words}", f"pid=7, name=x y, a {words}"):
        assert only("gpu.xid", logged(xid(79, 5), xid(154, 5, text_))).status.value == "fail"


def test_a_recovery_action_that_the_line_does_not_tell_warns() -> None:
    assert status("gpu.xid", logged(xid(154, 5, "GPU recovery action changed from 0x0 (None) to"))) == "warn"


@pytest.mark.parametrize(("kind", "expected"), [("denied", "skip"), ("failed", "unknown"), ("absent", "skip")])
def test_an_unreadable_log_is_never_a_pass(kind: MissingKind, expected: str) -> None:
    assert status("gpu.xid", put(eight(), kernel_log__events=Missing("x", kind))) == expected


@pytest.mark.parametrize("code", [13, 31, 43, 45, 94, 68, 69, 32, 126])
def test_a_programs_own_errors_never_fail_or_warn_a_node(code: int) -> None:
    found = findings("gpu.xid", logged(xid(code, 5)))
    assert {f.status.value for f in found} == {"pass"}
    assert f"Xid {code}" in text(found[5])


@pytest.mark.parametrize("code", [63, 106, 160])
def test_informational_codes_pass(code: int) -> None:
    assert status("gpu.xid", logged(xid(code, 5))) == "pass"


@pytest.mark.parametrize("code", [79, 54, 64])
def test_hardware_codes_fail_their_gpu_even_where_it_asks_for_nothing_now(code: int) -> None:
    finding = only("gpu.xid", put(eight(), kernel_log__events=(xid(code, 5),)))
    finds([finding], "fail", f"Xid {code}", gpu=5)
    assert finding.evidence[0].value.startswith("NVRM: Xid")
    assert finding.advice


RESETTABLE = [46, 48, 62, 74, 95, 109, 119, 120, 136, 140, 143, 155, 158, 171, 172]


@pytest.mark.parametrize("code", RESETTABLE)
def test_reset_codes_fail_while_nothing_shows_a_reset_since(code: int) -> None:
    finds(bad("gpu.xid", logged(xid(code, 5))), "fail", gpu=5)


@pytest.mark.parametrize("code", RESETTABLE)
def test_reset_codes_warn_once_the_gpu_asks_for_nothing_more(code: int) -> None:
    finds(bad("gpu.xid", put(eight(), kernel_log__events=(xid(code, 5),))), "warn", "settled since")


def test_a_lost_gpu_cannot_settle_its_own_errors() -> None:
    lost = (CallError("nvmlDeviceGetTemperature", 15, "GPU is lost"),)
    assert status("gpu.xid", put(eight(errors=lost), kernel_log__events=(xid(119, 5),))) == "fail"


def test_recovery_action_none_in_the_log_settles_what_came_before_it() -> None:
    none = recovery(0, "None", 5)
    assert only("gpu.xid", logged(xid(79, 5), none)).status.value == "warn"
    assert only("gpu.xid", logged(none, xid(79, 5))).status.value == "fail"
    assert status("gpu.xid", logged(none)) == "pass"


@pytest.mark.parametrize(
    ("action", "words", "expected"),
    [
        (1, "GPU Reset Required", "fail"),
        (2, "Node Reboot Required", "fail"),
        (4, "Drain and Reset", "fail"),
        (3, "Drain P2P", "warn"),
    ],
)
def test_xid_154_is_judged_by_what_it_asks_for(action: int, words: str, expected: str) -> None:
    finds(bad("gpu.xid", logged(recovery(action, words, 5))), expected, words)


def test_a_request_for_a_reset_settles_nothing() -> None:
    finding = only("gpu.xid", logged(xid(79, 5), recovery(1, "GPU Reset Required", 5)))
    assert finding.status.value == "fail"
    assert "settled" not in text(finding)


def test_a_request_that_the_gpu_no_longer_makes_warns() -> None:
    assert status("gpu.xid", put(eight(), kernel_log__events=(recovery(1, "GPU Reset Required", 5),))) == "warn"


@pytest.mark.parametrize(("code", "expected"), [(92, "warn"), (121, "warn"), (500, "warn"), (14, "warn")])
def test_codes_to_watch_and_unknown_codes_warn(code: int, expected: str) -> None:
    assert status("gpu.xid", logged(xid(code, 5))) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6)", "fail"),
        ("RLW_CTRL Nonfatal XC0 i0 Link 08", "pass"),
        ("RLW_CTRL Non-fatal XC0", "pass"),
        ("SAW_MVB", "warn"),
    ],
)
def test_nvlink_5_codes_follow_the_severity_in_the_line(line: str, expected: str) -> None:
    assert status("gpu.xid", logged(xid(149, 5, line))) == expected


def test_the_worst_code_leads_and_the_rest_is_counted() -> None:
    finding = only("gpu.xid", logged(xid(13, 5), xid(13, 5), xid(79, 5)))
    assert text(finding) == "Xid 79: GPU has fallen off the bus; Xid 13: exception in a kernel (2 times)"
    assert present(finding.found).value == 79


def test_off_the_bus_without_an_xid_fails() -> None:
    event = KernelEvent("off-bus", "NVRM: GPU 0000:15:00.0: GPU has fallen off the bus.", bus_id=bus_id(5))
    finds(bad("gpu.xid", logged(event)), "fail", gpu=5)


def test_a_gpu_that_the_driver_no_longer_shows_is_reported_by_bus_id() -> None:
    finds(bad("gpu.xid", logged(xid(79, 9))), "fail", gpu=None, bus_id=bus_id(9))


def test_a_strangers_gpu_is_said_and_not_failed_in_a_container_or_a_narrower_scope() -> None:
    subject = logged(xid(79, 9), host__container="docker")
    assert bad("gpu.xid", subject) == ()
    assert any("Xid 79" in (f.reason or "") for f in findings("gpu.xid", subject))
    scope = {"scope": (0, 1), "scope_reason": "SLURM_JOB_GPUS=0,1"}
    assert bad("gpu.xid", logged(xid(79, 9)), **scope) == ()
    assert any("SLURM_JOB_GPUS=0,1" in (f.reason or "") for f in findings("gpu.xid", logged(xid(79, 9)), **scope))


def test_a_gpu_out_of_scope_does_not_disturb() -> None:
    assert [f.subject.gpu for f in findings("gpu.xid", logged(xid(79, 5)), scope=(0, 1))] == [0, 1]


def test_an_event_without_a_device_is_the_nodes() -> None:
    event = KernelEvent("off-bus", "NVRM: fallen off the bus and is not responding to commands.")
    assert only("gpu.xid", logged(event)).subject.kind == "node"


def test_a_bus_id_without_its_function_finds_its_gpu() -> None:
    event = KernelEvent("xid", "NVRM: Xid (PCI:0000:15:00): 79, x", code=79, bus_id="0000:15:00")
    assert only("gpu.xid", logged(event)).subject.gpu == 5


@pytest.mark.parametrize(
    ("kind", "line", "expected"),
    [
        ("gsp", "NVRM: Rate limiting GSP RPC error prints. The GPU likely needs to be reset.", "warn"),
        ("rm", "NVRM: GPU 0000:15:00.0: RmInitAdapter failed! (0x22:0x56:884)", "warn"),
        ("rm", "NVRM: nvAssertFailedNoLog: Assertion failed", "pass"),
        ("aer", "pcieport 0000:00:01.0: AER: Corrected error received", "pass"),
        ("iommu-fault", "nvidia 0000:15:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x1 address=0x0]", "pass"),
        ("nvlink", "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed", "pass"),
    ],
)
def test_driver_chatter_is_told_from_a_sick_gpu_and_links_are_left_to_their_checks(
    kind: str, line: str, expected: str
) -> None:
    event = KernelEvent(kind, line, bus_id=bus_id(5))  # type: ignore[arg-type]
    assert status("gpu.xid", logged(event)) == expected


def test_an_xid_without_a_code_warns() -> None:
    assert status("gpu.xid", logged(KernelEvent("xid", "NVRM: Xid (PCI:...", bus_id=bus_id(5)))) == "warn"


@pytest.mark.parametrize(
    ("code", "fatal", "expected"),
    [
        (20034, True, "fail"),
        (12028, False, "pass"),
        (20034, False, "pass"),
        (20034, None, "fail"),
        (12028, None, "warn"),
        (10004, False, "warn"),
    ],
)
def test_switch_errors_go_by_what_the_line_says_else_by_the_list(code: int, fatal: bool | None, expected: str) -> None:
    found = [f for f in findings("gpu.xid", logged(sxid(code, fatal))) if f.subject.kind == "node"]
    assert [(f.subject.name, f.status.value) for f in found] == [("NVSwitch 0000:05:00.0", expected)]
    assert f"SXid {code}" in text(found[0])


def test_a_machine_without_gpus_and_with_a_quiet_log_is_no_pass() -> None:
    assert status("gpu.xid", node()) == "skip"


def test_every_entry_of_the_catalogue_has_a_bucket_words_and_advice() -> None:
    assert len(XIDS) > 100
    for code, item in XIDS.items():
        assert item.code == code
        assert item.bucket in BUCKETS
        assert item.words
        assert item.advice
    assert set(ADVICE) == set(BUCKETS)


def test_a_code_of_its_own_weight_has_its_own_advice() -> None:
    assert "power" in entry(54).advice
    assert entry(46).advice == ADVICE["reset"]
    assert entry(4).bucket == "unknown"


def test_the_lines_own_word_beats_the_list_of_fatal_switch_errors() -> None:
    assert 20034 in SXID_FATAL
    assert sxid_fatal(20034, False) is False
    assert sxid_fatal(None, None) is None


OFF = KernelEvent("xid", "NVRM: Xid (PCI:0000:13:00): 79, GPU has fallen off the bus.", code=79, bus_id="0000:13:00")


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        # the device files of all others are denied: this one belongs to the job
        (job(3, tuple(bus_id(i) for i in range(4, 8)), SLURM_JOB_GPUS="0-3"), "fail"),
        (job(3, tuple(bus_id(i) for i in range(3, 8)), SLURM_JOB_GPUS="0-2"), "skip"),
        # Slurm gave four, and the driver shows three: it cannot be known whether this is the fourth
        (job(3, Missing("not there"), SLURM_JOB_GPUS="0-3"), "unknown"),
        (job(3, Missing("not there"), SLURM_JOB_GPUS="0-2"), "skip"),
        (put(job(3, ()), driver__drained_gpus=(bus_id(3),)), "skip"),
        (put(job(3, ()), host__container="docker"), "skip"),
        (put(job(7, ()), gpus=tuple(h100(i) for i in range(8) if i != 3)), "fail"),
    ],
)
def test_an_error_of_a_gpu_that_is_not_shown_is_the_jobs_own_or_not(subject: Node, expected: str) -> None:
    told = findings("gpu.xid", put(subject, kernel_log__events=(OFF,)))
    [finding] = [f for f in told if f.subject.bus_id == bus_id(3)]
    assert finding.status.value == expected
    assert expected == "fail" or "Xid 79" in (finding.reason or "")


def test_an_error_of_a_link_that_is_down_is_not_called_settled() -> None:
    links = (NvLink(0, state="inactive"), *(NvLink(number, state="active") for number in range(1, 18)))
    for code, settled in ((74, False), (119, True)):
        finding = only("gpu.xid", put(eight(nvlinks=links), kernel_log__events=(xid(code, 5),)))
        assert finding.status.value == "warn"
        assert ("settled since" in text(finding)) is settled
        assert ("the GPU asks for no reset, but a link is down" in text(finding)) is not settled


def test_what_to_do_after_xid_154_is_what_it_asks_for() -> None:
    advice = [str(only("gpu.xid", logged(recovery(action, "x", 5))).advice) for action in (1, 2, 3, 4)]
    assert [
        word in each for word, each in zip(("reset the GPU", "reboot it", "end", "then reset"), advice, strict=True)
    ] == [True] * 4
    assert len(set(advice)) == 4
