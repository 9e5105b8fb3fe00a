"""Kernel log lines, verbatim from machines in the field, and the ways to read the log."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.kernel_log.lines import MAX_EVENTS, MAX_REPEATS, read_kernel_text
from gpudoctor.facts.kernel_log.live import read_kernel_log
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import KernelEvent, KernelLog
from gpudoctor.process.command import Completed
from tests.facts.kernel_words import BOOT, parse_kernel_lines
from tests.narrowed import missing
from tests.subprocesses import shell_program
from tests.sysfs_tree import write

Machine = Callable[[str, str | None], KernelLog]
LOST = "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def only(*lines: str) -> KernelEvent:
    (event,) = parse_kernel_lines(lines)
    return event


def events_of(log: KernelLog) -> tuple[KernelEvent, ...]:
    assert not isinstance(log.events, Missing), log.events
    return log.events


# --- Xid and SXid ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "time_s"),
    [
        ("", None),
        ("[  123.456789] ", 123.456789),
        ("[123456.000001] ", 123456.000001),
        ("[  123.456789][ T1234] ", 123.456789),
        ("[Thu Nov 14 07:00:14 2024] ", None),
        ("Nov 14 07:00:14 node12 kernel: ", None),
        ("Nov 14 07:00:14 node12 kernel: [  123.456789] ", 123.456789),
        ("2024-11-14T07:00:14.123456+0000 node12 kernel: ", None),
        ("[  123.456789] node12 kernel: ", 123.456789),
        ("3,1377,123456789,-;", 123.456789),
        ("3,1377,123456789,-,caller=T881;", 123.456789),
        ("kern  :err   : [  123.456789] ", 123.456789),
        ("<3>[  123.456789] ", 123.456789),
    ],
)
def test_every_form_of_the_log_gives_the_same_event(prefix: str, time_s: float | None) -> None:
    line = prefix + LOST
    assert only(line) == KernelEvent(kind="xid", text=line, code=79, bus_id="0000:05:00.0", time_s=time_s)


@pytest.mark.parametrize(
    ("line", "code", "bus_id"),
    [
        (
            "NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting for RPC "
            "response from GPU4 GSP! Expected function 103 (GSP_RM_ALLOC) (0x2081 0x4).",
            119,
            "0000:9b:00.0",
        ),
        (
            "NVRM: Xid (PCI:0019:01:00): 154, GPU recovery action changed from 0x4 (Drain and Reset) to 0x1 "
            "(GPU Reset Required)",
            154,
            "0019:01:00.0",
        ),
        ("NVRM: Xid (PCI:0000:05:00): 94, pid=2503421, name=python3, Ch 00000008", 94, "0000:05:00.0"),
        (
            "NVRM: Xid (PCI:0000:05:00): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to "
            "activate.",
            63,
            "0000:05:00.0",
        ),
        (
            "NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)",
            149,
            "0008:01:00.0",
        ),
        ("NVRM: Xid (PCI:00000000:BB:00): 13, Graphics SM Warp Exception on (GPC 0)", 13, "0000:bb:00.0"),
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:03): 43, pid=5, name=pt_main_thread, Ch 00000008", 43, "0000:01:00.0"),
        ("NVRM: Xid (0000:03:00): 31, Ch 00000010, engmask 00000101", 31, "0000:03:00.0"),
    ],
)
def test_xid_lines_of_the_field(line: str, code: int, bus_id: str) -> None:
    event = only(f"[ 1.5] {line}")
    assert (event.kind, event.code, event.bus_id, event.fatal) == ("xid", code, bus_id, None)


def test_an_sxid_says_itself_whether_it_is_fatal_and_its_detail_lines_are_no_events() -> None:
    head = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): "
    events = parse_kernel_lines(
        [
            f"{head}12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
            f"{head}12028, Severity 0 Engine instance 32 Sub-engine instance 00",
            f"{head}12028, Data {{0x00000001, 0x00000000}}",
            f"{head}20034, Fatal, Link 30 LTSSM Fault Up",
            f"{head}10004, Temperature event",
        ]
    )
    assert [(event.kind, event.code, event.fatal) for event in events] == [
        ("sxid", 12028, False),
        ("sxid", 20034, True),
        ("sxid", 10004, None),
    ]
    assert {event.bus_id for event in events} == {"0000:05:00.0"}
    (detail,) = parse_kernel_lines([f"{head}12028, Data {{0x00000001, 0x00000000}}"])
    assert (detail.kind, detail.code, detail.fatal) == ("sxid", 12028, None), "of a log that lost the line before it"


# --- faults without an Xid ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "kind", "bus_id"),
    [
        ("NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.", "off-bus", "0000:29:00.0"),
        ("NVRM: GPU at 0000:29:00.0 has fallen off the bus.", "off-bus", "0000:29:00.0"),
        ("NVRM: nvCheckOkFailedNoLog: Check failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST]", "off-bus", None),
        (
            "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30).  The GPU "
            "likely needs to be reset.",
            "gsp",
            "0000:9b:00.0",
        ),
        ("NVRM: _kgspIsHeartbeatTimedOut: Heartbeat timed out", "gsp", None),
        (
            "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
            "nvlink",
            None,
        ),
        (
            "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!",
            "nvlink",
            None,
        ),
        ("NVRM: GPU 0000:05:00.0: RmInitAdapter failed! (0x62:0xffff:2142)", "rm", "0000:05:00.0"),
        ("NVRM: nvAssertFailed: Assertion failed: [NV_ERR_RESET_REQUIRED] (0x00000062)", "rm", None),
        ("nvidia 0000:05:00.0: not ready 65535ms after bus reset; giving up", "rm", "0000:05:00.0"),
        (
            "nvidia 0000:05:00.0: Unable to change power state from D3hot to D0, device inaccessible",
            "rm",
            "0000:05:00.0",
        ),
        (
            "pci 0000:03:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link at "
            "0000:01:00.0 (capable of 126.016 Gb/s with 16.0 GT/s PCIe x8 link)",
            "pcie-bandwidth",
            "0000:03:00.0",
        ),
        ("pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0", "aer", "0000:01:00.0"),
        (
            "pcieport 0000:00:01.0: AER: Multiple Uncorrected (Non-Fatal) error message received from 0000:01:00.0",
            "aer",
            "0000:01:00.0",
        ),
        ("pcieport 0000:00:01.0: AER: Corrected error received: id=0008", "aer", "0000:00:01.0"),
        (
            "nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
            "aer",
            "0000:01:00.0",
        ),
        ("pcieport 0000:00:01.1: DPC: containment event, status:0x1f01 source:0x0000", "aer", "0000:00:01.1"),
        (
            "nvidia 0000:07:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0003 address=0x80000040 flags=0x0020]",
            "iommu-fault",
            "0000:07:00.0",
        ),
        (
            "AMD-Vi: Event logged [IO_PAGE_FAULT device=07:00.0 domain=0x0003 address=0x80000040 flags=0x0020]",
            "iommu-fault",
            "0000:07:00.0",
        ),
        (
            "DMAR: [DMA Read NO_PASID] Request device [07:00.0] fault addr 0x7cd80000 [fault reason 0x06] PTE Read",
            "iommu-fault",
            "0000:07:00.0",
        ),
        (
            "dmar: DMAR:[DMA Write] Request device [07:00.0] fault addr 2231b8000 ",
            "iommu-fault",
            "0000:07:00.0",
        ),
    ],
)
def test_faults_that_come_without_an_xid(line: str, kind: str, bus_id: str | None) -> None:
    event = only(f"[   77.000001] {line}")
    assert (event.kind, event.bus_id, event.code, event.time_s) == (kind, bus_id, None, 77.000001)


def test_a_gpu_lost_at_boot_is_named_three_lines_before_its_fault() -> None:
    event = only(*(f"[ 9.1] {line}" for line in BOOT))
    assert (event.kind, event.bus_id) == ("off-bus", "0000:18:00.0")


def test_a_gpu_too_old_for_the_driver_is_not_blamed_for_another_ones_fall() -> None:
    old, lost = parse_kernel_lines(
        (
            "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:0fc6)",
            "NVRM: installed in this system is not supported by the NVIDIA 535 driver",
            f"[ 9.1] {BOOT[2]}",
        )
    )
    assert (old.kind, old.bus_id) == ("rm", "0000:01:00.0")
    assert (lost.kind, lost.bus_id) == ("off-bus", None)


@pytest.mark.parametrize(
    "line",
    [
        "[ 1.0] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build",
        "[ 1.0] NVRM: GPU at PCI:0000:05:00: GPU-6a1ff5b1-1b1a-4b1e-8a5b-000000000000",
        "[ 1.0] pcieport 0000:00:01.0: AER: enabled with IRQ 25",
        "[ 1.0] acpi PNP0A08:00: _OSC: platform does not support [SHPCHotplug AER]",
        "[ 1.0] nvidia-nvlink: Nvlink Core is being initialized, major device number 510",
        "[ 1.0] AER: Corrected error received: id=0008",
        "[ 1.0] eth0: link becomes ready at 0000:18:00.0",
        "[ 1.0] NVRM: kgspInitRm: GSP firmware booted",
        " SUBSYSTEM=pci",
        "",
    ],
)
def test_ordinary_lines_are_no_events(line: str) -> None:
    assert parse_kernel_lines([line]) == ()


def test_a_daemon_that_quotes_the_kernel_is_not_the_kernel() -> None:
    assert parse_kernel_lines([f"Nov 14 07:00:14 node12 gpu-agent[812]: saw {LOST}"]) == ()
    assert only(f"Nov 14 07:00:14 node12 kernel: {LOST}").code == 79
    assert only(f"Nov 14 07:00:14 node12 imklog[77]: kernel: [ 9.0] {LOST}").code == 79


# --- floods and bounds -------------------------------------------------------------------------


def test_a_flood_of_one_error_is_cut_and_does_not_push_out_the_lost_gpu() -> None:
    flood = [f"[{n}.000000] pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0" for n in range(20_000)]
    log = read_kernel_text("\n".join([*flood, f"[20001.000000] {LOST}"]), "dmesg")
    events = events_of(log)
    assert not log.truncated, "one message again and again is no loss"
    assert len(events) == MAX_REPEATS + 1
    assert events[-1].code == 79
    assert events[0].time_s == 0.0
    assert events[-2].time_s == 19_999.0  # the newest of the flood is kept too


def test_never_more_events_than_the_bound() -> None:
    lines = [f"NVRM: Xid (PCI:0000:{n % 256:02x}:00): {n // 256}, x" for n in range(MAX_EVENTS + 500)]
    log = read_kernel_text("\n".join(lines), "dmesg")
    assert len(events_of(log)) == MAX_EVENTS
    assert log.truncated


def test_a_short_log_is_whole() -> None:
    log = read_kernel_text(f"[ 1.0] Linux version 6.8\n[ 2.0] {LOST}", "dmesg.txt")
    assert (len(events_of(log)), log.truncated, log.source) == (1, False, "dmesg.txt")


def test_text_without_a_log_in_it_is_missing_never_a_quiet_log() -> None:
    assert read_kernel_text(" \n", "dmesg.txt").events == Missing("dmesg.txt is empty", "absent")
    refused = missing(
        read_kernel_text("dmesg: read kernel buffer failed: Operation not permitted\n", "dmesg.txt").events
    )
    assert refused.kind == "denied"


FRAGMENTS = st.sampled_from(
    [LOST, "NVRM: ", "SXid (PCI:", "0000:05:00", "AER: ", "[ 1.0] ", "6,1,1,-;", "GSP timeout", "\ud800", "٣", "\x85"]
)


@given(st.lists(st.one_of(st.text(max_size=80), FRAGMENTS), max_size=40).map("".join))
@settings(max_examples=100, deadline=None)
def test_no_text_breaks_the_parser(text: str) -> None:
    for event in parse_kernel_lines(text.splitlines()):
        assert event.text in text
        assert event.bus_id is None or event.bus_id.count(":") == 2


# --- sources of the log -------------------------------------------------------------------------

KMSG = f"6,0,0,-;Linux version 6.8.0\n SUBSYSTEM=pci\n3,1,9000000,-;{LOST}\n"


def test_the_ring_buffer_is_read_whole(tmp_path: Path) -> None:
    write(tmp_path, {"/dev/kmsg": KMSG})
    log = read_kernel_log(tmp_path)
    assert (log.source, log.truncated) == ("/dev/kmsg", False)
    (event,) = events_of(log)
    assert (event.code, event.time_s) == (79, 9.0)


def test_a_ring_buffer_that_no_longer_reaches_back_to_boot_is_truncated(tmp_path: Path) -> None:
    write(tmp_path, {"/dev/kmsg": "6,5123,864000900000,-;eth0: link up"})
    log = read_kernel_log(tmp_path)
    assert (log.events, log.truncated, log.starts_s) == ((), True, 864000.9)
    assert log.gap == (
        "the kernel's ring buffer has been overwritten since boot: 864001 s of log missing, and there is no journal"
    )


def test_a_ring_buffer_that_reaches_back_to_the_loading_of_the_driver_holds_all_of_it(tmp_path: Path) -> None:
    loading = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build"
    write(tmp_path, {"/dev/kmsg": f"6,5123,900000000,-;eth0: link up\n6,5124,901000000,-;{loading}"})
    log = read_kernel_log(tmp_path)
    assert (log.truncated, log.gap, log.starts_s) == (False, None, 900.0)
    write(tmp_path, {"/dev/kmsg": f"6,5123,900000000,-;eth0: link up\n6,5124,901000000,-;traps: {loading}"})
    assert read_kernel_log(tmp_path).truncated, "a program of that name is not the driver"


@pytest.mark.parametrize(
    ("content", "events"),
    [
        ("6,0,0,-;Linux version 6.8.0", ()),
        ("", Missing("/dev/kmsg holds no kernel messages", "absent")),
        ("a console, not a kernel log", Missing("/dev/kmsg holds no kernel messages", "absent")),
        (None, Missing("/dev/kmsg: not there", "absent")),
    ],
    ids=["quiet", "empty", "another device", "no device"],
)
def test_a_device_without_kernel_records_is_unread_not_quiet(
    tmp_path: Path, content: str | None, events: tuple[KernelEvent, ...] | Missing
) -> None:
    write(tmp_path, {} if content is None else {"/dev/kmsg": content})
    log = read_kernel_log(tmp_path)
    assert (log.events, log.source) == (events, "/dev/kmsg" if events == () else events)


def test_the_device_gives_a_record_a_read_and_may_have_lost_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"/dev/kmsg": ""})
    answers = [
        b"6,7,1,-;first\n",
        BrokenPipeError(errno.EPIPE, "overwritten"),
        f"3,9,2000000,-;{LOST}\n".encode() + b"\xff\n",
        BlockingIOError(errno.EAGAIN, "no more"),
    ]
    read = Mock(side_effect=answers)
    monkeypatch.setattr(os, "read", read)
    log = read_kernel_log(tmp_path)
    assert [event.code for event in events_of(log)] == [79]
    assert log.truncated
    assert read.call_count == len(answers)


def test_a_log_that_is_always_overwritten_before_it_is_read_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"/dev/kmsg": ""})
    overwritten = repeat(BrokenPipeError(errno.EPIPE, "overwritten"), 100_000)
    answers = chain([f"3,9,2000000,-;{LOST}\n".encode()], overwritten)
    monkeypatch.setattr(os, "read", Mock(side_effect=answers))
    log = read_kernel_log(tmp_path)
    assert [event.code for event in events_of(log)] == [79]
    assert log.truncated
    nothing = Missing("/dev/kmsg: overwritten faster than it can be read", "failed")
    assert read_kernel_log(tmp_path).events == nothing


def test_a_device_that_fails_to_read_is_failed(tmp_path: Path) -> None:
    (tmp_path / "dev/kmsg").mkdir(parents=True)
    events = read_kernel_log(tmp_path).events
    assert events == Missing("/dev/kmsg: Is a directory", "failed")


JOURNAL = f"[    0.000000] node12 kernel: Linux version 6.8\n[  123.500000] node12 kernel: {LOST}\n"


def restrict(monkeypatch: pytest.MonkeyPatch, answer: Completed | Missing) -> list[list[str]]:
    """A machine with dmesg_restrict=1 whose journalctl gives this answer; the commands run are given back."""
    commands: list[list[str]] = []

    def run_command(argv: list[str], **limits: float) -> Completed | Missing:
        assert limits["deadline_s"] > 0
        commands.append(argv)
        return answer

    def refuse(path: object, flags: int) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("gpudoctor.facts.kernel_log.live.run_command", run_command)
    monkeypatch.setattr(os, "open", refuse)
    return commands


def test_where_the_ring_buffer_is_restricted_the_journal_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = restrict(monkeypatch, Completed(0, JOURNAL))
    log = read_kernel_log(Path("/"))
    assert log.source == "journalctl -k -b"
    assert commands[0][:3] == ["journalctl", "-k", "-b"]
    (event,) = events_of(log)
    assert (event.code, event.bus_id, event.time_s) == (79, "0000:05:00.0", 123.5)
    assert not log.truncated


def test_a_journal_longer_than_may_be_read_is_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    restrict(monkeypatch, Completed(None, JOURNAL, truncated=True))
    log = read_kernel_log(Path("/"))
    assert [event.code for event in events_of(log)] == [79]
    assert log.truncated


@pytest.mark.parametrize(
    "answer",
    [
        Completed(0, "-- No entries --\n"),
        Completed(0, "Hint: You are currently not seeing messages from other users.\n"),
        Completed(1, JOURNAL),
        Missing("journalctl: not there", "absent"),
    ],
    ids=["empty", "another user's", "failed", "not installed"],
)
def test_a_journal_without_kernel_lines_leaves_the_log_denied(
    monkeypatch: pytest.MonkeyPatch, answer: Completed | Missing
) -> None:
    restrict(monkeypatch, answer)
    assert read_kernel_log(Path("/")).events == Missing("/dev/kmsg: no permission", "denied")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Missing("journalctl did not end in 5 s", "failed"), "journalctl did not end in 5 s"),
        (Completed(-9, JOURNAL), "journalctl was ended by SIGKILL"),
    ],
    ids=["hangs", "dies"],
)
def test_a_journalctl_that_hangs_or_dies_is_a_reading_that_failed_and_none_that_was_refused(
    monkeypatch: pytest.MonkeyPatch, answer: Completed | Missing, words: str
) -> None:
    restrict(monkeypatch, answer)
    assert read_kernel_log(Path("/")).events == Missing(words, "failed")


def test_only_the_newest_lines_of_a_journal_are_asked_for_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    flood = Completed(0, "[    1.000001] node7 kernel: something else\n" * 99_999 + JOURNAL)
    commands = restrict(monkeypatch, flood)
    log = read_kernel_log(Path("/"))
    assert commands[0][-2:] == ["-n", "100000"]
    assert [event.code for event in events_of(log)] == [79]
    assert log.truncated


def test_a_fake_root_never_asks_this_machines_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = restrict(monkeypatch, Completed(0, JOURNAL))
    events = read_kernel_log(tmp_path).events
    assert isinstance(events, Missing)
    assert commands == []


# --- a ring buffer that was overwritten, and the journal beside it ------------------------------

OLD = "NVRM: Xid (PCI:0000:18:00): 95, pid=4811, name=python3, Uncontained memory error"
WRAPPED = f"6,900,500000000,-;eth0: link up\n4,901,500000001,-;{LOST}\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """This machine with another /dev/kmsg, and with a journalctl that prints a text; None: it is not installed."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    real = os.open

    def opened(path: str | Path, flags: int, *mode: int) -> int:
        return real(tmp_path / "kmsg" if str(path) == "/dev/kmsg" else path, flags, *mode)

    monkeypatch.setattr(os, "open", opened)

    def read(ring: str, journal: str | None) -> KernelLog:
        (tmp_path / "kmsg").write_text(ring)
        if journal is not None:
            (tmp_path / "journal").write_text(journal)
            shell_program(programs / "journalctl", f"exec /bin/cat {tmp_path}/journal")
        return read_kernel_log(Path("/"))

    return read


def test_what_was_overwritten_is_read_from_the_journal_and_each_line_once(machine: Machine) -> None:
    journal = (
        "[    0.000000] node12 kernel: Linux version 6.8\n"
        f"[  300.000000] node12 kernel: {OLD}\n"
        f"[  500.000001] node12 kernel: {LOST}\n"
    )
    log = machine(WRAPPED + f"4,902,600000000,-;{LOST}\n", journal)
    assert [(event.code, event.time_s) for event in events_of(log)] == [(95, 300.0), (79, 500.000001), (79, 600.0)]
    assert (log.source, log.truncated, log.gap) == ("/dev/kmsg and journalctl -k -b", False, None)


def test_a_recovery_that_only_the_journal_holds_keeps_its_place_among_the_errors(machine: Machine) -> None:
    none = "NVRM: Xid (PCI:0000:05:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    journal = f"[    0.000000] n kernel: Linux\n[  400.000000] n kernel: {none}\n[  700.000000] n kernel: eth0: up\n"
    assert [event.code for event in events_of(machine(WRAPPED, journal))] == [154, 79]


@pytest.mark.parametrize(
    ("journal", "why"),
    [
        (None, "there is no journal"),
        ("-- No entries --\n", "there is no journal"),
        ("[  350.500000] node12 kernel: eth0: up\n", "the journal begins 350 s after boot"),
    ],
    ids=["not installed", "of another user", "vacuumed"],
)
def test_where_the_journal_does_not_reach_back_either_that_is_said(
    machine: Machine, journal: str | None, why: str
) -> None:
    log = machine(WRAPPED, journal)
    assert [event.code for event in events_of(log)] == [79], "what is left counts"
    assert log.truncated
    assert log.gap == f"the kernel's ring buffer has been overwritten since boot: 500 s of log missing, and {why}"


def test_a_journal_that_begins_late_is_not_the_whole_log(monkeypatch: pytest.MonkeyPatch) -> None:
    restrict(monkeypatch, Completed(0, "[  350.500000] node12 kernel: eth0: up\n"))
    log = read_kernel_log(Path("/"))
    assert (log.events, log.truncated, log.gap) == ((), True, "the journal begins 350 s after boot")


def test_a_whole_ring_buffer_needs_no_journal(machine: Machine) -> None:
    log = machine(KMSG, f"[    0.000000] node12 kernel: {OLD}\n")
    assert (log.source, [event.code for event in events_of(log)]) == ("/dev/kmsg", [79])


def test_a_line_of_the_journal_that_a_program_wrote_is_none_of_the_kernels(machine: Machine) -> None:
    journal = (
        "[    0.000000] node12 kernel: Linux version 6.8\n"
        f"[  300.000000] node12 agent[7]: {OLD}\n"
        "[  301.000000] node12 kernel: a[77]: segfault at 0 ip 0 sp 0 error 4 in x\n"
        f"                            [  302.000000] node12 kernel: {OLD}\n"
    )
    log = machine(WRAPPED, journal)
    assert [event.code for event in events_of(log) if event.kind == "xid"] == [79]
    assert not log.forgeable
