"""Kernel log events besides Xids: GPUs that do not start, links that limit, refused modules, the host's own."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.kernel_log.lines import MAX_SUBJECTS, read_kernel_text
from gpudoctor.facts.kernel_log.message_tables import HOST_MESSAGES, HOST_WORDS, driver_message, host_message
from gpudoctor.facts.model.driver import ApiMismatch, HostEvent, KernelEvent, KernelLog, PcieLimit
from gpudoctor.facts.model.missing import known
from tests.facts.kernel_words import BUS_9B as BUS
from tests.facts.kernel_words import (
    DRIVER_LINES,
    HOST_LINES,
    LOST,
    STAMPS,
    WITH_USERS_WORDS,
    WRAPPINGS,
    message,
    names,
    parse_kernel_lines,
)
from tests.narrowed import present


def only(text: str) -> KernelEvent:
    (event,) = parse_kernel_lines(text.split("\n"))
    return event


def log_of(*lines: str, stamp: str = "[   12.500000] ") -> KernelLog:
    return read_kernel_text("".join(f"{stamp}{line}\n" for line in lines), "dmesg.txt")


def host_of(*lines: str) -> list[tuple[str, str | None, int]]:
    return [(e.kind, e.device, e.count) for e in known(log_of(*lines).host_events) or ()]


# --- start of a message -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prefix",
    [
        *("Nov 14 07:00:14 node12 vmunix: ", "vmunix: ", "12.345678 ", "Nov 14 2024 07:00:14 node12 kernel: "),
        *("10.0.0.7: kern:    info: [2024-11-14T07:00:14.123456789Z]: ", "MESSAGE=", '\t"MESSAGE" : "'),
        *("118-[  123.456789] ", "/var/log/syslog.1-Nov 14 07:00:14 node12 kernel: ", "dmesg.txt-12-[  1.500000] "),
    ],
)
def test_prefixes_that_people_paste_are_read(prefix: str) -> None:
    text = f"{prefix}Linux version 6.8\n--\n{prefix}{LOST}"
    assert [(event.kind, event.code) for event in parse_kernel_lines(text.split("\n"))] == [("xid", 79)]


@pytest.mark.parametrize("key", ["log", "message", "msg"])
def test_a_collectors_json_around_a_line_is_read(key: str) -> None:
    event = only(json.dumps({key: f"[   12.5] {LOST}", "stream": "stdout"}))
    assert (event.kind, event.code, event.time_s) == ("xid", 79, 12.5)


@pytest.mark.parametrize("tag", ["vmlinux:", "klogd[77]:", "gpu-log:"])
def test_a_whole_message_behind_a_programs_tag_is_unclear_with_its_code(tag: str) -> None:
    event = only(f"Nov 14 07:00:14 node12 {tag} {LOST}")
    assert (event.kind, event.code, event.bus_id) == ("unclear", 79, "0000:3b:00.0")


def test_an_xid_keeps_what_it_says_led_to_it() -> None:
    event = only(f"kernel: NVRM: Xid (PCI:{BUS[:-2]}): 45, pid=7, name=python3, Ch 00000003 caused by previous Xid 31")
    assert (event.code, event.caused_by, event.bus_id) == (45, 31, BUS)
    # a program's name is no cause
    assert only("NVRM: Xid (PCI:0000:9b:00): 45, pid=7, name=caused by previ, Ch 00000003").caused_by is None


# --- GPUs that do not start ---------------------------------------------------------------------


@pytest.mark.parametrize(("line", "name", "kind", "bus_id"), DRIVER_LINES)
def test_a_gpu_that_does_not_start_is_an_event(line: str, name: str | None, kind: str, bus_id: str | None) -> None:
    event = only(f"[   77.000001] {line}")
    assert (event.kind, event.bus_id) == (kind, bus_id)
    assert name in (None, present(driver_message(line)).name)


@pytest.mark.parametrize("line", [each[0] for each in DRIVER_LINES])
@pytest.mark.parametrize("wrapping", WRAPPINGS[:6])
def test_it_is_read_behind_every_prefix(line: str, wrapping: str) -> None:
    for stamp in STAMPS:
        prefix = wrapping + stamp
        assert len(parse_kernel_lines(f"{prefix}Linux version 6.8\n{prefix}{line}".split("\n"))) == 1, prefix


def test_a_link_that_limits_is_kept_in_numbers() -> None:
    event = only(
        "pci 0000:8b:00.0: 126.024 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x8 link at 0000:87:00.0 "
        "(capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)"
    )
    assert event.limit == PcieLimit("0000:87:00.0", 126.024, 504.112, 16.0, 8)
    unknown = only("pci 000f:01:00.0: 0.000 Gb/s available PCIe bandwidth, limited by Unknown x0 link at 000f:00:00.0")
    assert (unknown.kind, unknown.limit) == ("pcie-bandwidth", None)


# --- a library of another version ---------------------------------------------------------------

MISMATCH = {
    "two lines": ("NVRM: API mismatch: the client has the version 550.54.15, but",
                  "NVRM: this kernel module has the version 535.183.01.  Please"),
    "with a pid": ("NVRM: API mismatch: the client 'nvidia-smi' (pid 4711)",
                   "NVRM: has the version 550.54.15, but this kernel module has",
                   "NVRM: the version 535.183.01.  Please make sure that this"),
    "one record": ("NVRM: API mismatch: the client has the version 550.54.15, but\\x0aNVRM: this kernel module has the "
                   "version 535.183.01.",),
    "rsyslog": ("NVRM: API mismatch: the client has the version 550.54.15, but#012NVRM: this kernel module has the "
                "version 535.183.01.  Please#012NVRM: make sure that this kernel module",),
}  # fmt: skip


@pytest.mark.parametrize("lines", MISMATCH.values(), ids=MISMATCH)
@pytest.mark.parametrize("later", ["[   12.500000] ", "               "])
def test_both_versions_of_a_mismatch_are_kept(lines: tuple[str, ...], later: str) -> None:
    text = "".join(f"{later if number else '[   12.500000] '}{line}\n" for number, line in enumerate(lines))
    log = read_kernel_text(text, "dmesg.txt")
    assert (log.api_mismatch, log.events) == (ApiMismatch("550.54.15", "535.183.01"), ())


@pytest.mark.parametrize(
    ("line", "library", "module"),
    [
        ("the client has the version 550.54.15, but", "550.54.15", None),
        ("the client 'nvidia-smi' (pid 4711)", None, None),
        ("the NVIDIA kernel module has version 340.108,", None, "340.108"),
    ],
)
def test_the_first_line_of_a_mismatch_is_one(line: str, library: str | None, module: str | None) -> None:
    mismatch = present(log_of(f"NVRM: API mismatch: {line}").api_mismatch)
    assert (known(mismatch.library), known(mismatch.module)) == (library, module)


def test_a_version_that_is_none_is_no_mismatch() -> None:
    log = log_of("NVRM: API mismatch: the client has the version $(reboot), but", "NVRM: this kernel module has the")
    assert log.api_mismatch is None


def test_a_message_of_several_lines_in_one_line_of_syslog_is_read() -> None:
    of_boot = "NVRM: The NVIDIA GPU 0000:9b:00.0#012NVRM: (PCI ID: 10de:1c82)#012NVRM: installed in this system is#012"
    assert only(f"{of_boot}NVRM:  not supported by open nvidia.ko").bus_id == "0000:9b:00.0"


def test_the_probe_of_one_device_is_of_the_gpu_that_the_driver_named_before() -> None:
    named = "NVRM: The NVIDIA GPU 000a:00:00.0 (PCI ID: 10de:2330) installed in this system"
    loaded = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15"
    failed = "NVRM: The NVIDIA probe routine failed for 1 device(s)."
    for lines, bus_id in (
        ((named, failed), "000a:00:00.0"),
        ((named, failed.replace("1", "2")), None),
        ((named, loaded, failed), None),
        ((named, named.replace("000a", "000b"), failed), None),
    ):
        assert [event.bus_id for event in known(log_of(*lines).events) or ()] == [bus_id]


# --- the host -----------------------------------------------------------------------------------


def test_the_lines_of_one_hardware_error_are_one_event_of_its_severity() -> None:
    detail = "{7}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 4"
    for severity, kinds in {"corrected": ["machine-check"], "fatal": ["machine-check-fatal"], "info": []}.items():
        log = log_of(detail, f"{{7}}[Hardware Error]: event severity: {severity}", "{7}[Hardware Error]:  Error 0")
        assert [event.kind for event in known(log.host_events) or ()] == kinds


@pytest.mark.parametrize(("line", "kind", "device"), HOST_LINES, ids=[line[0][:40] for line in HOST_LINES])
def test_a_message_about_the_host_is_an_event_of_its_own(line: str, kind: str, device: str | None) -> None:
    assert host_of(line) == [(kind, device, 1)]
    assert [event.kind for event in known(log_of(line).events) or ()] == []


def test_every_row_of_the_table_has_its_words_and_is_tried_here() -> None:
    assert all(any(word in line for word in HOST_WORDS) for line, _, _ in HOST_LINES)
    assert {row.kind for row in HOST_MESSAGES} - {kind for _, kind, _ in HOST_LINES} == {"hard-lockup"}


@pytest.mark.parametrize(
    "line",
    [
        *("I/O error, dev sr0, sector 0", "I/O error, dev fd0, sector 0", "nvme nvme0: 16/0/0 default queues"),
        "EDAC MC0: Giving out device to module skx_edac",
        "audit: type=1400 audit(1700000000.1:22): apparmor=ALLOWED name=x: 1234 [#12]",
        f"mlx5_core {BUS}: mlx5_pcie_event:301:(pid 9): PCIe slot advertised sufficient power (75W).",
        f"mlx5_core {BUS}: Port module event: module 1, Cable unplugged",
        f"mlx5_core {BUS}: firmware version: 28.39.1002",
        "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
        *("nvidia: loading out-of-tree module taints kernel.", "nfs: Deprecated parameter 'intr'"),
        *("EXT4-fs (sda2): mounted filesystem r/w", "nvidia-nvlink: Nvlink Core is being initialized"),
    ],
)
def test_what_healthy_hosts_log_is_no_event(line: str) -> None:
    assert host_of(line) == []


@pytest.mark.wide
@given(form=st.sampled_from(WITH_USERS_WORDS), name=names, other=names)
@settings(max_examples=300, deadline=None)
def test_a_name_of_a_user_makes_no_other_event_of_the_host_than_the_kernel_meant(
    form: str, name: str, other: str
) -> None:
    plain = host_message(message(form, "a.out", "a.out"))
    said = host_message(message(form, name, other))
    assert (said or (None,))[0] == (plain or (None,))[0]


def test_a_line_that_stands_for_many_errors_counts_as_many() -> None:
    line = "EDAC MC1: {} CE memory read error on CPU_SrcID#1_Ha#0_Chan#0_DIMM#0 (channel:0 slot:0 OVERFLOW)"
    assert host_of(line.format(262), line.format(3)) == [("memory-corrected", "MC1", 265)]


def test_a_flood_of_one_kind_is_one_event_with_its_count_and_times() -> None:
    text = "".join(f"[{second}.000000] nfs: server nas1 not responding, still trying\n" for second in range(10, 5010))
    (event,) = known(read_kernel_text(text, "dmesg.txt").host_events) or ()
    assert event == HostEvent(
        "nfs-timeout", "nfs: server nas1 not responding, still trying", "nas1", 5000, 10.0, 5009.0, 5000
    )


def test_the_lines_of_the_last_day_are_counted_apart() -> None:
    times = (10, 90_000, 170_000, 176_300, 176_400)
    text = "".join(
        f"[{at}.000000] EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0\n" for at in times
    )
    (event,) = known(read_kernel_text(text, "dmesg.txt").host_events) or ()
    assert (event.count, event.count_last_day) == (5, 4)


def test_many_devices_are_bounded() -> None:
    lines = [f"I/O error, dev sd{number}, sector 0" for number in range(MAX_SUBJECTS + 50)]
    assert len(host_of(*lines)) == MAX_SUBJECTS


def test_a_host_event_names_no_machine() -> None:
    log = read_kernel_text("Nov 14 07:00:14 node12 kernel: nfs: server nas1 OK\n", "syslog")
    assert [event.text for event in known(log.host_events) or ()] == ["nfs: server nas1 OK"]
