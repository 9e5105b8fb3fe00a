"""Two readings of one node, and the counters that grew between them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpudoctor.api.load.burn import counter_deltas, new_events
from gpudoctor.facts.model.gpu import CallError, Ecc, Gpu, PcieLink
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import KernelEvent, KernelLog, Node
from gpudoctor.facts.model.telemetry import GpuCounters
from tests.narrowed import missing


def gpu(replays: Any = 5, corrected: Any = 7, uncorrected: Any = 0, **facts: Any) -> Gpu:
    leaves: dict[str, Any] = {"index": 3, "bus_id": "0000:10:00.0", "uuid": "GPU-a", **facts}
    ecc = Ecc(corrected_volatile=corrected, uncorrected_volatile=uncorrected)
    return Gpu(pcie=PcieLink(replays=replays), ecc=ecc, **leaves)


def grown(before: Gpu, *after: Gpu) -> GpuCounters:
    [found] = counter_deltas(Node(gpus=(before,)), Node(gpus=after))
    return found


def test_growth_is_the_later_reading_less_the_earlier_one() -> None:
    found = grown(gpu(), gpu(replays=8, corrected=7, uncorrected=2))
    assert found.growth == {"pcie_replays": 3, "ecc_corrected": 0, "ecc_uncorrected": 2}
    assert (found.index, found.uuid, found.bus_id, found.unread) == (3, "GPU-a", "0000:10:00.0", {})


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (Missing("N/A", "unsupported"), Missing("N/A", "unsupported"), "unsupported"),
        (4, Missing("timed out", "failed"), "failed"),
        (Missing("timed out", "failed"), Missing("N/A", "unsupported"), "failed"),
        (Missing("no permission", "denied"), 4, "denied"),
        (9, 4, "failed"),
    ],
)
def test_what_cannot_be_compared_keeps_the_reason_that_says_most(before: Any, after: Any, kind: str) -> None:
    found = grown(gpu(replays=before), gpu(replays=after))
    assert found.unread["pcie_replays"].kind == kind
    assert set(found.growth) == {"ecc_corrected", "ecc_uncorrected"}


def test_a_counter_that_went_back_says_from_where_to_where() -> None:
    assert "from 9 to 4" in grown(gpu(replays=9), gpu(replays=4)).unread["pcie_replays"].reason


@pytest.mark.parametrize("after", [(), (gpu(uuid="GPU-b"),), (gpu(bus_id="0000:20:00.0"),)])
def test_a_gpu_that_is_not_there_any_more_or_is_another_one_was_not_read_again(after: tuple[Gpu, ...]) -> None:
    found = grown(gpu(), *after)
    assert found.growth == {}
    assert {why.kind for why in found.unread.values()} == {"failed"}
    assert len(found.unread) == 3


def test_the_calls_that_a_lost_gpu_failed_are_kept() -> None:
    error = CallError("nvmlDeviceGetName", 15, "GPU is lost")
    nothing = Missing("GPU is lost", "failed")
    found = grown(gpu(), gpu(nothing, nothing, nothing, errors=(error,), uuid=nothing))
    assert found.errors == (error,)
    assert found.growth == {}


def test_one_unknown_error_after_the_load_is_no_error_of_the_gpu() -> None:
    """WSL2 answers the utilisation so, before the load and after."""
    error = CallError("nvmlDeviceGetUtilizationRates", 999, "unknown error")
    assert grown(gpu(), gpu(errors=(error,))).errors == ()


def event(text: str) -> KernelEvent:
    return KernelEvent("xid", text, 79)


def log(*texts: str, source: str = "/dev/kmsg") -> KernelLog:
    return KernelLog(events=tuple(event(text) for text in texts), source=source)


def test_new_lines_are_those_that_the_first_reading_did_not_have() -> None:
    assert new_events(log("a", "b"), log("a", "b", "c", "d")) == (event("c"), event("d"))
    assert new_events(log("a", "b"), log("b")) == ()  # the ring buffer lost the oldest


def test_equal_lines_are_counted_and_not_taken_for_one() -> None:
    assert new_events(log("a"), log("a", "a", "a")) == (event("a"), event("a"))


@pytest.mark.parametrize("which", ["before", "after"])
def test_a_log_that_was_read_only_once_says_why_not_twice(which: str) -> None:
    denied = msgspec.structs.replace(log(), events=Missing("no permission", "denied"))
    pair = (denied, log("a")) if which == "before" else (log("a"), denied)
    assert new_events(*pair) == Missing("no permission", "denied")


def test_another_source_after_the_load_is_no_comparison() -> None:
    assert missing(new_events(log("a"), log("[1.0] a", source="journalctl -k -b"))).kind == "failed"


def timed(text: str, at_s: float) -> KernelEvent:
    return KernelEvent("xid", text, 79, time_s=at_s)


def test_a_line_that_the_journal_tells_after_the_load_is_the_same_that_the_ring_buffer_held_before() -> None:
    before = KernelLog(events=(timed("4,901,500000001,-;NVRM: Xid", 500.000001),), source="/dev/kmsg")
    old = timed("[  500.000001] node12 kernel: NVRM: Xid", 500.000001)
    new = timed("4,990,700000000,-;NVRM: Xid", 700.0)
    after = KernelLog(events=(old, new), source="/dev/kmsg and journalctl -k -b")
    assert new_events(before, after) == (new,)


def test_a_ring_buffer_that_was_overwritten_during_the_load_is_no_quiet_one() -> None:
    after = msgspec.structs.replace(log(), truncated=True, starts_s=900.0)
    assert new_events(log(), after, 800.0) == Missing(
        "the kernel's ring buffer was overwritten during the load", "failed"
    )
    assert new_events(log(), after, 950.0) == ()
