"""A user of the machine forges the driver's words in the kernel log: they become no error, and hide none.

Each test models a node on which any user may run a program of any name, and on which root runs gpudoctor.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpudoctor.facts.kernel_log.lines import read_kernel_text
from gpudoctor.facts.kernel_log.live import KernelTail, read_kernel_log
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import KernelLog
from tests.facts.kernel_words import (
    AER,
    BEFORE_A_STAMP,
    BOOT,
    LOST,
    NONE,
    OF_A_PROGRAM,
    OFF_BUS,
    STAMPS,
    SWITCH,
    WITH_USERS_WORDS,
    WRAPPINGS,
    kmsg,
    message,
    names,
    parse_kernel_lines,
)
from tests.sysfs_tree import write

BEGIN = "6,0,0,-;Linux version 6.8.0\n"


def told(log: KernelLog) -> list[tuple[str, int | None]]:
    return [(event.kind, event.code) for event in known(log.events) or ()]


def live(root: Path, *records: str) -> KernelLog:
    write(root, {"/dev/kmsg": (BEGIN + "".join(records)).encode()})
    return read_kernel_log(root)


# --- the live log ------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [LOST, NONE, SWITCH, OFF_BUS, AER])
def test_a_name_in_the_live_log_is_no_event(tmp_path: Path, words: str) -> None:
    for form in WITH_USERS_WORDS:
        log = live(tmp_path, kmsg(message(form, words, words)))
        assert (told(log), log.forgeable) == ([], False), form


def test_the_lines_that_were_passed_over_are_counted(tmp_path: Path) -> None:
    crash = message(WITH_USERS_WORDS[1], "a.out", LOST)
    assert live(tmp_path, kmsg(crash), kmsg(crash), kmsg("eth0: link up")).quoted == 2


@pytest.mark.wide
@given(form=st.sampled_from((*WITH_USERS_WORDS, OF_A_PROGRAM)), name=names, other=names)
@example(form=WITH_USERS_WORDS[1], name="NVRM: GSP", other="timeout")
@example(form=WITH_USERS_WORDS[1], name="NVRM: Xid (): 7", other="")
@example(form=WITH_USERS_WORDS[4], name="NVRM: Xid (xxxx", other="")
@example(form=WITH_USERS_WORDS[1], name="nvidia: probe o", other="f 0000:3b:00.0 failed with error -1")
@example(form=WITH_USERS_WORDS[1], name="NVRM: \xff\xff\xff", other=OFF_BUS)
@example(form=WITH_USERS_WORDS[1], name="NVRM: a\nNVRM: b", other="x\n" + LOST)
@example(form=WITH_USERS_WORDS[7], name="NVRM: a", other="fallen off the bus")
@settings(max_examples=300, deadline=None)
def test_no_name_makes_an_event_in_the_live_log(form: str, name: str, other: str) -> None:
    from gpudoctor.facts.kernel_log.lines import kmsg_events

    events = kmsg_events(kmsg(message(form, name, other)) + kmsg(LOST, 2, 2.5))
    expected = [("xid", 13)] if form == OF_A_PROGRAM else []
    assert [(event.kind, event.code) for event in events] == [*expected, ("xid", 79)]


@pytest.mark.parametrize("priority", [8 + 3, 3 * 8 + 4, 16 * 8 + 2, 23 * 8])
def test_only_the_kernels_own_facility_counts(tmp_path: Path, priority: int) -> None:
    log = live(tmp_path, kmsg(LOST, priority=priority))
    assert (told(log), log.quoted) == ([], 1)
    assert told(live(tmp_path, kmsg(LOST, priority=3))) == [("xid", 79)]


def test_the_keys_of_a_record_are_no_messages(tmp_path: Path) -> None:
    assert told(live(tmp_path, f"6,1,1,-;usb 1-1: new device\n {LOST}\n DEVICE={LOST}\n")) == []


def test_the_tail_of_the_live_log_is_not_fooled_either(tmp_path: Path) -> None:
    write(tmp_path, {"/dev/kmsg": b""})
    tail = KernelTail(tmp_path)
    with (tmp_path / "dev/kmsg").open("a") as log:
        log.write(kmsg(message(WITH_USERS_WORDS[0], LOST, LOST)) + kmsg(LOST, priority=11) + kmsg(OFF_BUS))
    assert [event.kind for event in tail.read()] == ["off-bus"]
    tail.close()


def test_a_gpu_lost_at_boot_is_one_record_of_three_lines(tmp_path: Path) -> None:
    log = live(tmp_path, kmsg("\n".join(BOOT)))
    assert [(event.kind, event.bus_id) for event in known(log.events) or ()] == [("off-bus", "0000:18:00.0")]


# --- dumps -------------------------------------------------------------------------------------


@pytest.mark.wide
@given(form=st.sampled_from(WITH_USERS_WORDS), name=names, other=names, stamp=st.sampled_from(STAMPS[1:]))
@settings(max_examples=300, deadline=None)
def test_no_name_makes_an_error_in_a_dump(form: str, name: str, other: str, stamp: str) -> None:
    # a line end in a name starts a new line in some tools' text; such text gets an `unclear` event
    line = stamp + message(form, name, other).replace("\n", "\\x0a").replace("\r", "\\x0d")
    log = read_kernel_text(f"{stamp}Linux version 6.8\n{line}\n{stamp}{LOST}\n", "dmesg.txt")
    assert [item for item in told(log) if item[0] != "unclear"] == [("xid", 79)]


@pytest.mark.parametrize("form", WITH_USERS_WORDS)
def test_the_kernels_own_forms_with_a_users_words_are_known_as_such(form: str) -> None:
    for stamp in STAMPS[1:]:
        log = read_kernel_text(f"{stamp}Linux version 6.8\n{stamp}{message(form, 'a.out', LOST)}\n", "dmesg.txt")
        assert told(log) == [], stamp


@pytest.mark.parametrize("line", [LOST, NONE, SWITCH, f"[    1.000000] node12 kernel: {LOST}"])
def test_the_second_line_of_a_message_is_not_the_begin_of_one(line: str) -> None:
    crash = "[  100.000000] node12 kernel: a[77]: segfault at 0 ip 0 sp 0 error 4 in x"
    log = read_kernel_text(f"{crash}\n{' ' * 30}{line}\n{' ' * 30}[400000+1000]\n", "journal.txt")
    assert told(log) == [("unclear", None)]


def test_a_text_that_does_not_tell_the_facility_may_be_forged_and_one_that_does_may_not() -> None:
    for stamp in STAMPS:
        log = read_kernel_text(f"{stamp}{LOST}\n", "dmesg.txt")
        sure = stamp.startswith(("<3>", "kern  :", "3,"))
        assert (told(log), log.forgeable) == ([("xid", 79)], not sure), stamp


@pytest.mark.parametrize(
    "prefix", ["user  :notice: [  123.456789] ", "<14>[  123.456789] ", "daemon:info  : [    1.500000] ", "12,7,1,-;"]
)
def test_a_line_of_another_facility_is_not_the_kernels(prefix: str) -> None:
    log = read_kernel_text(f"kern  :info  : [ 1.0] Linux\n{prefix}{LOST}\n", "dmesg.txt")
    assert (told(log), log.quoted) == ([], 1)


def entry(text: object, **fields: object) -> str:
    held = {"MESSAGE": text, "_SOURCE_MONOTONIC_TIMESTAMP": "123456789", "PRIORITY": "3", **fields}
    return json.dumps(held, separators=(",", ":"))


def test_of_the_journal_only_the_kernels_transport_counts() -> None:
    kernel = {"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", "SYSLOG_IDENTIFIER": "kernel"}
    (event,) = parse_kernel_lines([entry(LOST, **kernel)])
    assert (event.code, event.bus_id, event.time_s) == (79, "0000:3b:00.0", 123.456789)
    assert [e.code for e in parse_kernel_lines([entry(list(LOST.encode()), **kernel)])] == [79]
    for others in (
        {"_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "kernel"},
        {"_TRANSPORT": "journal", "SYSLOG_FACILITY": "0"},
        {"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "3"},
    ):
        assert parse_kernel_lines([entry(LOST, **others)]) == ()
    crash = f"a[77]: segfault at 0 ip 0 sp 0 error 4 in x\n{LOST}"
    assert parse_kernel_lines([entry(crash, **kernel), entry(list(crash.encode()), **kernel)]) == ()


@pytest.mark.parametrize(
    "nonsense", ["{", "{}", '{"MESSAGE": 1}', '{"log": "\\ud800"}', '{"MESSAGE": [256]}', "{" * 99]
)
def test_a_line_that_is_almost_json_breaks_nothing(nonsense: str) -> None:
    assert parse_kernel_lines([nonsense + " NVRM: x"]) == ()


# --- nothing real is lost ----------------------------------------------------------------------


@pytest.mark.parametrize(("line", "kind"), [(LOST, "xid"), (SWITCH, "sxid"), (OFF_BUS, "off-bus"), (AER, "aer")])
def test_behind_every_known_prefix_an_error_is_found(line: str, kind: str) -> None:
    for prefix in (wrapping + stamp for wrapping in WRAPPINGS for stamp in STAMPS):
        text = f"{prefix}Linux version 6.8\n{prefix}{line}\r\n"
        assert [event.kind for event in parse_kernel_lines(text.split("\n"))] == [kind], prefix


@pytest.mark.parametrize("line", [LOST, SWITCH, OFF_BUS, AER])
def test_the_colours_of_dmesg_hide_no_error(line: str) -> None:
    """`dmesg --color=always > dmesg.txt`: the subsystem is coloured separately, in the middle of the driver's words."""
    subsystem, _, words = line.partition(": ")
    coloured = f"\x1b[32m[   12.500000] \x1b[0m\x1b[33m{subsystem}: \x1b[0m\x1b[31m{words}\x1b[0m"
    plain = parse_kernel_lines([f"[   12.500000] {line}"])
    assert len(plain) == 1
    assert parse_kernel_lines([coloured]) == plain


@pytest.mark.parametrize("wrapping", BEFORE_A_STAMP)
def test_what_stands_before_a_stamp_is_a_prefix(wrapping: str) -> None:
    for stamp in STAMPS:
        if stamp.startswith(("[ ", "[T", "2024", "Nov", "Dec")):
            assert [event.code for event in parse_kernel_lines([f"{wrapping}{stamp}{LOST}"])] == [79], stamp


def test_a_log_that_a_container_printed_is_read_through_dockers_json() -> None:
    line = json.dumps({"log": f"[   12.500000] {LOST}\n", "stream": "stdout", "time": "2024-11-14T07:00:14.1Z"})
    (event,) = parse_kernel_lines([line])
    assert (event.code, event.time_s) == (79, 12.5)


@given(prefix=st.text(max_size=40).filter(lambda text: "\n" not in text))
@example(prefix="[ 12.345678] node12: ")
@example(prefix="Nov 14 07:00:14 node12 vmunix: ")
@example(prefix="node12 | klogd ")
@example(prefix="NVRM: ")
@settings(max_examples=300, deadline=None)
def test_behind_an_unknown_prefix_it_is_at_least_told_that_a_line_is_unclear(prefix: str) -> None:
    log = read_kernel_text(f"{prefix}{LOST}\n", "x")
    assert told(log) in ([("xid", 79)], [("off-bus", None)], [("unclear", None)]) or log.quoted == 1


@pytest.mark.parametrize(
    "hidden", ["PCI:xxxx:xx:00", "PCI:0000:**:00", "PCI:<redacted>", "PCI:0000:XX:00", "[REDACTED]"]
)
def test_an_xid_whose_bus_id_is_hidden_keeps_its_code(tmp_path: Path, hidden: str) -> None:
    line = f"NVRM: Xid ({hidden}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    (event,) = parse_kernel_lines([f"[ 1.5] {line}"])
    assert (event.kind, event.code, event.bus_id) == ("xid", 79, None)
    assert told(live(tmp_path, kmsg(line))) == [("xid", 79)]


@pytest.mark.parametrize("line", ["NVRM: Xid (xxx): 79, GPU has", "NVRM: Xid (PCI:0000:3b", "NVRM: Xid"])
def test_an_xid_that_is_cut_is_unclear_and_not_nothing(tmp_path: Path, line: str) -> None:
    assert [event.kind for event in parse_kernel_lines([f"[ 1.5] {line}"])] == ["unclear"]
    assert told(live(tmp_path, kmsg(line))) == [("unclear", None)]


@pytest.mark.parametrize("indent", ["", " " * 15])
@pytest.mark.parametrize("wrapping", WRAPPINGS[:9])
def test_the_lines_of_a_message_of_the_driver_are_its_own_too(wrapping: str, indent: str) -> None:
    text = f"{wrapping}[    9.100000] {BOOT[0]}\n{wrapping}{indent}{BOOT[1]}\n{wrapping}{indent}{BOOT[2]}\n"
    (event,) = parse_kernel_lines(text.split("\n"))
    assert (event.kind, event.bus_id) == ("off-bus", "0000:18:00.0")


def test_a_daemon_that_quotes_the_kernel_is_not_unclear() -> None:
    log = read_kernel_text(f"Nov 14 07:00:14 node12 gpu-agent[812]: saw {LOST}\n", "syslog")
    assert (told(log), log.quoted) == ([], 1)


def test_only_a_line_end_ends_a_line() -> None:
    for odd in ("\x85", "\u2028", "\x1e", "\x0c", "\r"):
        log = read_kernel_text(f"[ 1.5] usb 1-1: Product: x{odd}{LOST}\n", "dmesg.txt")
        assert told(log) == [], repr(odd)


def test_a_command_that_looks_for_xids_is_no_line_of_the_kernel() -> None:
    for line in ('root@node12:~# dmesg | grep "NVRM: Xid"', "Nov 14 07:00:14 node12 sudo: COMMAND=/bin/grep NVRM: Xid"):
        log = read_kernel_text(f"{line}\n[ 1.0] Linux\n", "paste.txt")
        assert (told(log), log.quoted) == ([], 0)
