"""Pasted text: split into blocks, joined into one node, whatever order, noise and cuts it comes with."""

from __future__ import annotations

import gzip
import re
import shutil
import zipfile
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.captures import ABSENT, transcript
from gpudoctor.facts.captures.lines import MAX_LINE, lines_of
from gpudoctor.facts.captures.nvidia_smi.query_gpu import CUT
from gpudoctor.facts.captures.source import NotUnderstoodError, SourceError
from gpudoctor.facts.model.driver import FabricManager
from gpudoctor.facts.model.gpu import ThrottleTimes
from gpudoctor.facts.model.missing import UNSUPPORTED, Missing, known
from gpudoctor.facts.model.node import Node, NumaNode, Source
from gpudoctor.facts.simulated.load import apply_faults, load_node
from gpudoctor.report.judge import judge
from gpudoctor.report.text import render_text
from tests.facts import transcripts
from tests.facts.loaded_nodes import node_of, pasted
from tests.facts.transcripts import COLLECT_ENV, CSV_COLUMNS, TOPIC, csv, dcgm_diag, dcgm_diag_json, gpu_list, table
from tests.fuzz import seeds
from tests.narrowed import present

BROKEN = apply_faults(load_node("hgx-h100-8", {}), ("ecc-uncorrected@5", "xid-79@3"))
HEALTHY = table(load_node("hgx-h100-8", {}))


read = lru_cache(64)(pasted)


def facts(text: str | bytes) -> Node:
    """All but the source, and without the original lines around each event."""
    node = read(text)
    log = node.kernel_log
    events = tuple(replace(event, text="") for event in known(log.events) or ())
    return replace(node, source=Source(), kernel_log=replace(log, events=events) if events else log)


BLOCKS = {
    "cat /proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.172.08  Tue Jun 23\n",
    "nvidia-smi": table(BROKEN),
    "nvidia-smi -L": gpu_list(BROKEN),
    "nvidia-smi --query-gpu=index --format=csv": csv(BROKEN),
    "nvidia-smi topo -m": seeds.topology(BROKEN).decode(),
    "nvidia-smi topo -p2p r": seeds.p2p(BROKEN).decode(),
    "nvidia-smi nvlink -s": seeds.nvlink(BROKEN).decode(),
    "nvidia-smi nvlink -e": seeds.nvlink(BROKEN, "errors").decode(),
    "dmesg | tail": "[    1.000000] usb 1-1: new device\n[  500.000000] NVRM: Xid (PCI:0000:5d:00): 79, GPU is lost\n",
}
PASTE = "".join(f"root@node7:~# {command}\n{text}" for command, text in BLOCKS.items())


def test_a_paste_of_all_is_one_node_of_eight_gpus_with_what_each_text_tells() -> None:
    node = read(PASTE)
    assert [(gpu.index, gpu.bus_id, gpu.uuid) for gpu in node.gpus] == [
        (gpu.index, gpu.bus_id, gpu.uuid) for gpu in BROKEN.gpus
    ]
    gpu, same = node.gpus[5], BROKEN.gpus[5]
    assert (gpu.name, gpu.ecc.uncorrected_volatile) == (same.name, same.ecc.uncorrected_volatile)
    assert (gpu.clocks.sm_max_mhz, gpu.pcie.width) == (same.clocks.sm_max_mhz, same.pcie.width)
    assert len(known(gpu.nvlinks) or ()) == len(known(same.nvlinks) or ())
    assert (node.driver.module_version, node.driver.library_version) == ("570.172.08", BROKEN.driver.library_version)
    assert [event.code for event in known(node.kernel_log.events) or ()] == [79]
    assert len(known(node.pairs) or ()) == 28
    assert node.source.notes == ()


@pytest.mark.wide
@settings(max_examples=25, deadline=None)
@given(order=st.permutations(sorted(BLOCKS)), prompt=st.sampled_from(["$ ", "root@n[/]# ", "[me@n ~]$ ", "n:~ # "]))
def test_the_order_of_the_texts_changes_nothing(order: list[str], prompt: str) -> None:
    made, whole = facts("".join(f"{prompt}{command}\n{BLOCKS[command]}" for command in order)), facts(PASTE)
    assert made == replace(whole, host=replace(whole.host, hostname=made.host.hostname))
    assert known(made.host.hostname) == ("n" if "@" in prompt else None)


PROSE = ["Hi all, my GPUs are slow!", "Here is what it says:", "any idea? thanks", "I tried: reboot; no change."]
DRESSES: dict[str, Callable[[str], str]] = {
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "quoted": lambda text: "".join(f"> {line}\n" for line in text.splitlines()),
    "fenced": lambda text: f"```console\n{text}```\n",
    "coloured": lambda text: "".join(f"\x1b[1;32m{line}\x1b[0m\n" for line in text.splitlines()),
    "numbered": lambda text: "".join(f"{n:6}\t{line}\n" for n, line in enumerate(text.splitlines(), 1)),
    "code block": lambda text: "".join(f"    {line}\n" if line else "\n" for line in text.splitlines()),
    "no-break spaces": lambda text: text.replace("  ", "\u00a0 "),
    "marks without a width": lambda text: "".join(f"\u200b{line}\n" for line in text.splitlines()),
    "no tabs": lambda text: text.expandtabs(8),
    "no last end": lambda text: text.rstrip("\n"),
    "by kubectl": lambda text: "".join(f"[pod/a/b] {line}\n" for line in text.splitlines()),
}


@pytest.mark.parametrize("dress", DRESSES)
def test_what_is_put_around_the_lines_changes_nothing(dress: str) -> None:
    assert facts(DRESSES[dress](PASTE)) == facts(PASTE)


LSPCI = """\
01:00.0 VGA compatible controller: NVIDIA Corporation GA102 [GeForce RTX 3090]
                LnkSta: Speed 2.5GT/s (downgraded), Width x8 (downgraded)
03:00.0 VGA compatible controller: NVIDIA Corporation GA102 [GeForce RTX 3090]
                LnkSta: Speed 2.5GT/s (downgraded), Width x8 (downgraded)
"""


def test_devices_in_a_code_block_are_no_line_numbers_and_not_one_inside_the_other() -> None:
    assert [device.bus_id for device in present(facts(LSPCI).pci.nvidia_devices)] == ["0000:01:00.0", "0000:03:00.0"]
    assert facts(DRESSES["code block"](LSPCI)) == facts(LSPCI)


def test_a_kernel_log_with_line_numbers_copied_from_a_terminal_keeps_its_events() -> None:
    log = (
        "Dec  2 12:57:06 worker4 kernel: [  885.242168] NVRM: GPU 0000:0a:00.0: RmInitAdapter failed! (0x24:0x72)\n"
        "Dec  2 12:57:06 worker4 kernel: [  885.242457] NVRM: Xid (PCI:0000:0a:00): 79, GPU has fallen off the bus.\n"
    )
    numbered = "".join(f"{number:6}  {line}\n" for number, line in enumerate(log.splitlines(), 1))
    kinds = [(event.kind, event.bus_id) for event in known(facts(numbered).kernel_log.events) or ()]
    assert kinds == [("rm", "0000:0a:00.0"), ("xid", "0000:0a:00.0")]


def test_a_paste_in_utf_16_reads_the_same() -> None:
    assert facts(PASTE.encode("utf-16")) == facts(PASTE)


@pytest.mark.wide
@settings(max_examples=40, deadline=None)
@given(places=st.lists(st.tuples(st.integers(0, 400), st.sampled_from(PROSE)), max_size=6))
def test_prose_between_the_lines_changes_nothing_and_is_counted(places: list[tuple[int, str]]) -> None:
    lines = PASTE.splitlines()
    for place, words in sorted(places, reverse=True):
        lines.insert(min(place, len(lines)), words)
    text = "\n".join(lines) + "\n"
    assert facts(text) == facts(PASTE)
    if places:
        # below the command of a query even prose is a row, of too few cells
        assert any("not recognised: " in note or "was not read" in note for note in read(text).source.notes)


def test_lines_that_nobody_knows_are_named_by_their_numbers() -> None:
    (note,) = read("what is this\n\n" + gpu_list(BROKEN) + "and\nthat\n").source.notes
    assert note == "standard input: 3 lines were not recognised: 1, 11-12"


@pytest.mark.wide
@settings(max_examples=60, deadline=None)
@given(end=st.integers(0, len(PASTE)))
def test_a_cut_paste_passes_no_gpu_that_the_whole_fails_and_invents_none(end: int) -> None:
    try:
        node = read(PASTE[:end])
    except SourceError:
        return
    buses = {gpu.bus_id for gpu in BROKEN.gpus} | {f"unknown-{gpu.index}" for gpu in BROKEN.gpus}
    assert {gpu.bus_id for gpu in node.gpus} <= buses
    assert {gpu.index for gpu in node.gpus} <= set(range(8))
    failed = {(c.id, f.subject.gpu) for c in judge(read(PASTE)).checks for f in c.findings if f.status is Status.FAIL}
    passed = {(c.id, f.subject.gpu) for c in judge(node).checks for f in c.findings if f.status is Status.PASS}
    assert {(check, gpu) for check, gpu in failed & passed if gpu is not None} == set()


def test_tables_of_old_drivers_count_in_mb() -> None:
    assert read(HEALTHY.replace("MiB", "MB")).gpus == read(HEALTHY).gpus


@pytest.mark.parametrize("layout", [10, 11, 12, 13])
def test_the_table_of_every_layout_gives_back_what_was_written(layout: int) -> None:
    node = read(table(BROKEN, layout))
    assert node.driver.cuda_version == BROKEN.driver.cuda_version
    for gpu, same in zip(node.gpus, BROKEN.gpus, strict=True):
        assert (gpu.index, gpu.bus_id) == (same.index, same.bus_id)
        assert gpu.ecc.uncorrected_volatile == same.ecc.uncorrected_volatile
        assert (gpu.thermal.gpu_c, gpu.memory_used_mib) == (same.thermal.gpu_c, same.memory_used_mib)
        assert (gpu.settings.persistence, gpu.processes) == (same.settings.persistence, ())


@pytest.mark.parametrize("units", [True, False])
def test_csv_gives_back_what_was_written_with_a_header_or_with_its_command(units: bool) -> None:
    whole = facts(csv(BROKEN, units=units))
    columns = ",".join(column.partition(" ")[0] for column in CSV_COLUMNS)
    command = f"$ nvidia-smi --query-gpu={columns} --format=csv,noheader\n"
    assert facts(command + csv(BROKEN, units=units, header=False)) == whole
    for gpu, same in zip(whole.gpus, BROKEN.gpus, strict=True):
        assert (gpu.index, gpu.bus_id, gpu.uuid, gpu.name) == (same.index, same.bus_id, same.uuid, same.name)
        assert (gpu.memory_total_mib, gpu.pcie.width) == (same.memory_total_mib, same.pcie.width)
        assert gpu.ecc.uncorrected_volatile == same.ecc.uncorrected_volatile


def test_a_cell_that_no_csv_has_is_refused_in_one_line() -> None:
    with pytest.raises(SourceError, match="no CSV of nvidia-smi"):
        read(f"$ nvidia-smi --query-gpu=index,name --format=csv,noheader\n0, {'x' * 200_000}\n")


def test_rows_repeated_every_second_are_of_the_same_gpus() -> None:
    row = "GPU-{0}1111111-1111-1111-1111-111111111111, NVIDIA H100 80GB HBM3, {1}\n"
    tick = "".join(row.format(gpu, 30 + gpu) for gpu in range(2))
    node = read("$ nvidia-smi --query-gpu=uuid,name,temperature.gpu --format=csv,noheader -l 1\n" + tick * 3)
    assert [(gpu.index, gpu.thermal.gpu_c) for gpu in node.gpus] == [(0, 30), (1, 31)]


_ERRORS = "index, pci.bus_id, pcie.link.width.current, ecc.errors.uncorrected.volatile.total\n"


def test_of_rows_of_one_gpu_the_last_one_counts_and_of_its_counters_the_highest() -> None:
    node = read(f"{_ERRORS}0, 00000000:1B:00.0, 16, 5\n0, 00000000:1B:00.0, 8, 0\n")
    assert [(gpu.pcie.width, gpu.ecc.uncorrected_volatile) for gpu in node.gpus] == [(8, 5)]


def test_of_two_tables_of_one_text_the_later_one_counts() -> None:
    tables = [f"{_ERRORS}0, 00000000:1B:00.0, {width}, 0\n" for width in (16, 8)]
    for first, second in (tables, tables[::-1]):
        (gpu,) = read(f"$ nvidia-smi\n{first}$ nvidia-smi\n{second}").gpus
        assert f", {gpu.pcie.width}, " in second


def test_two_gpus_under_one_index_are_not_of_one_machine() -> None:
    with pytest.raises(SourceError, match=r"GPU 0 is 0000:1b:00\.0 in one row and 0000:2b:00\.0 in another"):
        read(f"{_ERRORS}0, 00000000:1B:00.0, 16, 0\n0, 00000000:2B:00.0, 16, 0\n")


@pytest.mark.parametrize(
    ("command", "header", "row", "mib"),
    [
        ("df", "1K-blocks Used Available Use%", "tmpfs 65536 0 65536 0%", 64),
        ("df -P", "1024-blocks Used Available Capacity", "tmpfs 65536 0 65536 0%", 64),
        ("df -B1", "1B-blocks Used Available Use%", "tmpfs 67108864 0 67108864 0%", 64),
        ("POSIXLY_CORRECT=1 df", "512B-blocks Used Available Use%", "tmpfs 131072 0 131072 0%", 64),
        ("df -BG", "1G-blocks Used Available Use%", "tmpfs 504G 0G 504G 0%", 504 << 10),
        ("df -B1MB", "1MB-blocks Used Available Use%", "tmpfs 67 0 67 0%", 64),
        ("df -h", "Size Used Avail Use%", "tmpfs 64M 0 64M 0%", 64),
        ("df -hT", "Type Size Used Avail Use%", "tmpfs tmpfs 64M 0 64M 0%", 64),
        ("df -i", "Inodes IUsed IFree IUse%", "tmpfs 131907312 1 131907311 1%", ABSENT),
        ("df -ih", "Inodes IUsed IFree IUse%", "tmpfs 126M 1 126M 1%", ABSENT),
        ("df -ih | grep shm", None, "tmpfs 126M 1 126M 1%", ABSENT),
        ("df -h | grep shm", None, "tmpfs 64M 0 64M 0%", 64),
    ],
)
def test_df_tells_the_size_of_shared_memory_in_any_unit(
    command: str, header: str | None, row: str, mib: int | Missing
) -> None:
    columns = "" if header is None else f"Filesystem {header} Mounted on\n"
    host = read(f"{gpu_list(BROKEN)}$ {command}\n{columns}{row} /dev/shm\n").host
    assert (host.shm_mib, host.shm_free_mib) == (mib, mib)


def test_capabilities_of_links_do_not_tell_that_there_are_no_links() -> None:
    link = "\t Link 0, P2P is supported: true\n\t Link 0, Access to system memory supported: true\n"
    text = "".join(f"{line}\n{link}" for line in gpu_list(BROKEN).splitlines())
    assert {gpu.nvlinks for gpu in read(f"$ nvidia-smi nvlink -c\n{text}").gpus} == {ABSENT}
    assert {gpu.nvlinks for gpu in read(f"$ nvidia-smi nvlink -s\n{gpu_list(BROKEN)}").gpus} == {UNSUPPORTED}


@pytest.mark.parametrize("option", ["-p2p n", "-p2p a", "-p2p p", "--p2pstatus n", "-p2p r", "-p2p w", "--p2pstatus w"])
def test_capabilities_of_nvlink_and_atomics_are_no_peer_to_peer_access(option: str) -> None:
    node = read(f"{gpu_list(BROKEN)}$ nvidia-smi topo {option}\n{seeds.p2p(BROKEN).decode().replace('OK', 'NS')}")
    statuses = {(known(pair.p2p_read), known(pair.p2p_write)) for pair in known(node.pairs) or ()}
    assert statuses == {"r": {("NS", None)}, "w": {(None, "NS")}}.get(option[-1], set())
    assert bool(node.source.notes) == (option[-1] not in "rw")


def test_cells_that_say_err_are_failed_readings_and_no_figures() -> None:
    row = "|   0  Tesla V100-SXM2...  Off  | 00000000:3B:00.0 Off |                 ERR! |\n"
    (gpu,) = read(row + "|ERR!  ERR! ERR!   ERR! / ERR! |  ERR! / 32510MiB |    ERR!  Default |\n").gpus
    values = (gpu.ecc.uncorrected_volatile, gpu.thermal.gpu_c, gpu.power.draw_w, gpu.utilization.gpu_pct)
    assert [getattr(value, "kind", value) for value in values] == ["failed"] * 4


def test_a_row_that_is_cut_off_tells_nothing_that_could_pass() -> None:
    text = table(BROKEN)
    lines = text.splitlines()
    last = max(number for number, line in enumerate(lines) if "  7  NVIDIA" in line)
    gpu = read("\n".join(lines[: last + 1]) + "\n").gpus[7]
    assert (gpu.index, gpu.thermal.gpu_c, gpu.power.draw_w) == (7, CUT, CUT)


def test_a_gap_in_the_indices_leaves_the_number_of_gpus_unknown() -> None:
    lines = gpu_list(BROKEN).splitlines(keepends=True)
    node = read("".join(lines[:2] + lines[3:]))
    assert node.driver.device_count == Missing("the text shows no GPU 2, and GPUs up to 7", "failed")
    assert [gpu.index for gpu in node.gpus] == [0, 1, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("lose", [str, lambda text: "\n".join(line.strip() for line in text.splitlines()) + "\n"])
def test_a_topic_of_q_is_read_also_where_its_indentation_is_lost(lose: Callable[[str], str]) -> None:
    (gpu,) = read(lose(TOPIC)).gpus
    assert (gpu.bus_id, gpu.clocks.graphics_mhz) == ("0000:1b:00.0", 210)
    assert set(known(gpu.clocks.event_reasons) or ()) == {"hw-slowdown", "hw-power-brake"}


def test_parts_of_gpus_that_no_line_names_are_gpus_in_their_order() -> None:
    part = "    ECC Errors\n        Volatile\n            SRAM Uncorrectable        : {}\n--\n"
    node = read("$ nvidia-smi -q | grep -A2 'ECC Errors'\n" + part.format(0) + part.format(3))
    assert [(gpu.index, gpu.bus_id, gpu.ecc.uncorrected_volatile) for gpu in node.gpus] == [
        (0, "unknown-0", 0),
        (1, "unknown-1", 3),
    ]
    slow = "    Clocks Event Reasons\n" + "        HW Slowdown    : {0}\n        HW Thermal Slowdown    : {0}\n"
    lines = slow.format("Active") + "".join(slow.format("Not Active").splitlines(keepends=True)[1:])
    assert [len(known(gpu.clocks.event_reasons) or ()) for gpu in read(lines).gpus] == [2, 0]
    assert len(read(slow.format("Active") + slow.format("Active").partition("\n")[2]).gpus) == 1


def test_a_corrupted_inforom_is_a_fact_of_the_gpu_that_the_warning_names() -> None:
    node = read(table(BROKEN) + f"WARNING: infoROM is corrupted at gpu {BROKEN.gpus[4].bus_id}\n")
    assert [gpu.index for gpu in node.gpus if known(gpu.inforom_corrupted)] == [4]


def test_collect_env_tells_the_gpus_the_driver_pytorch_and_the_matrix() -> None:
    node = read(COLLECT_ENV)
    assert [(gpu.index, gpu.name) for gpu in node.gpus] == [(0, "NVIDIA A100-SXM4-80GB"), (1, "NVIDIA A100-SXM4-80GB")]
    versions = (node.driver.library_version, node.software.torch, node.software.nccl)
    assert versions == ("535.129.03", "2.3.1+cu121", "2.20.5")
    (pair,) = known(node.pairs) or ()
    assert (pair.nvlinks, node.source.notes) == (12, ())


def test_dmesg_and_the_journal_of_one_machine_are_not_counted_twice() -> None:
    xid = "NVRM: Xid (PCI:0000:5d:00): 79, GPU has fallen off the bus."
    other = "NVRM: Xid (PCI:0000:5d:00): 13, Graphics exception"
    journal = f"Nov 14 07:00:00 n kernel: {xid}\nNov 14 07:00:01 n kernel: {other}\n"
    text = f"$ dmesg\n[ 1.000000] {xid}\n$ journalctl -k\n{journal}"
    assert [event.code for event in known(read(text).kernel_log.events) or ()] == [79, 13]


def test_two_machines_in_one_paste_are_refused() -> None:
    with pytest.raises(SourceError, match="keep the dumps of one machine"):
        read(PASTE + csv(load_node("hgx-h200-8", {})))


def test_archives_and_a_directory_of_the_texts_give_the_same_node(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain" / "out", tmp_path / "packed"
    plain.mkdir(parents=True)
    packed.mkdir()
    for number, text in enumerate(BLOCKS.values()):
        (plain / f"{number}.txt").write_text(text)
        (packed / f"{number}.gz").write_bytes(gzip.compress(text.encode()))
    archives = [shutil.make_archive(str(tmp_path / "a"), form, plain.parent) for form in ("tar", "gztar", "zip")]
    for path in (packed, *map(Path, archives)):
        node, whole = node_of(path), read(PASTE)
        log = replace(node.kernel_log, source=whole.kernel_log.source)
        node = replace(node, source=Source(), kernel_log=log, host=replace(node.host, hostname=whole.host.hostname))
        assert node == replace(whole, source=Source()), path.name


def test_an_archive_of_packed_texts_is_bounded_by_what_they_unpack_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudoctor.facts.captures.archives.MAX_BYTES", 4 << 20)
    bomb = gzip.compress(b"\n" * (1 << 20))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        for number in range(5):
            packed.writestr(f"{number}.gz", bomb)
    with pytest.raises(SourceError, match="4 MiB in the archive"):
        node_of(tmp_path / "a.zip")


def test_a_long_log_is_read_in_pieces_and_loses_nothing() -> None:
    lines = [f"[{n}.000001] NVRM: Xid (PCI:0000:5d:00): 79, GPU {n}" for n in (1, 25_000, 49_999)]
    noise = [f"[{n}.000001] usb 1-1: new device {n}" for n in range(50_000)]
    noise[1], noise[25_000], noise[49_999] = lines
    for n in (2, 3, 45_000):
        noise[n] = f"[{n}.000001] EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0"
    node = read("\n".join(noise) + "\n")
    assert [event.time_s for event in known(node.kernel_log.events) or ()] == [1.000001, 25000.000001, 49999.000001]
    (corrected,) = known(node.kernel_log.host_events) or ()
    assert (corrected.count, corrected.count_last_day) == (3, 3)


def test_a_line_without_end_is_kept_in_bounds() -> None:
    chunks = [b"x" * (1 << 20)] * 20 + [b"\nnext"]
    first, second = lines_of(iter(chunks))
    assert (len(first[0]) <= MAX_LINE + (1 << 20), first[1], second) == (True, True, ("next", False))


def test_lines_come_whole_however_the_chunks_fall() -> None:
    data = "häuser\nzwei\n\nvier".encode()
    for cuts in ([3], [2, 8], list(range(1, len(data)))):
        ends = [0, *cuts, len(data)]
        parts = [data[a:b] for a, b in pairwise(ends)]
        assert list(lines_of(iter(parts))) == [("häuser", True), ("zwei", True), ("", True), ("vier", False)]


def test_ten_thousand_unknown_lines_are_counted() -> None:
    text = gpu_list(BROKEN) + "".join(f"step {n}: loss {n / 7:.4f} of the run\n" for n in range(10_000))
    assert "10000 lines were not recognised: 9-10008" in read(text).source.notes[0]


def test_lines_of_fabric_manager_between_kernel_lines_are_one_journal_and_the_kernel_log_stays_whole() -> None:
    xid = "Oct 02 10:00:00 box kernel: NVRM: Xid (PCI:0000:1b:00): 94, pid=1, Contained: SM (0x1). RST: No, D-RST: No"
    service = (
        "systemd[1]: Starting NVIDIA fabric manager service...",
        "nv-fabricmanager[400]: initialization failed",
        "systemd[1]: Failed to start NVIDIA fabric manager service.",
        "systemd[1]: Starting NVIDIA fabric manager service...",
        "systemd[1]: Started NVIDIA fabric manager service.",
    )
    node = read("".join(f"{xid}\nOct 02 10:00:00 box {line}\n" for line in service))
    assert node.fabric_manager == FabricManager(service="active", result=ABSENT, version=ABSENT, errors=ABSENT)
    assert len(known(node.kernel_log.events) or ()) == len(service)
    lists = read(f"{gpu_list(BROKEN)}Oct 02 10:00:00 box {service[-1]}\n{gpu_list(BROKEN)}")
    assert len(lists.gpus) == len(BROKEN.gpus)


def test_the_lines_of_the_journal_below_the_status_of_a_service_belong_to_the_status() -> None:
    node = read(
        "● nvidia-fabricmanager.service - NVIDIA fabric manager service\n"
        "     Active: activating (auto-restart) (Result: exit-code) since Wed 2024-10-02 10:11:12 UTC; 3s ago\n\n"
        "Oct 02 10:11:12 box systemd[1]: Failed to start NVIDIA fabric manager service.\n"
    )
    assert (node.fabric_manager.service, node.source.notes) == ("activating", ())


def test_of_a_long_journal_the_last_lines_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "PIECE_LINES", 2)
    line = "Oct 02 10:00:00 box nv-fabricmanager[9]: failed to find GPU"
    node = read("".join(f"{line} {at}\n" for at in range(5)))
    assert node.fabric_manager.errors == tuple(f"failed to find GPU {at}" for at in (2, 3, 4))
    assert "2 lines of a text beyond its limit were not read" in "".join(node.source.notes)


# --- tools whose texts are judged in part, or not at all ------------------------------------------


@pytest.mark.parametrize("name", ["lspci -t", "AMD's tool", "tegrastats", "a log of NCCL", "ip"])
def test_a_text_that_says_nothing_of_a_node_is_refused_and_changes_no_verdict_beside_another(name: str) -> None:
    with pytest.raises(SourceError, match="paste what the machine prints"):
        read(transcripts.NOT_JUDGED[name])
    beside = judge(read(f"{HEALTHY}$ it\n{transcripts.NOT_JUDGED[name]}"))
    assert beside.verdict == judge(read(HEALTHY)).verdict == "pass"


def test_a_table_of_adapters_is_not_judged_and_changes_no_verdict_beside_another() -> None:
    table = transcripts.NOT_JUDGED["ibdev2netdev"]
    with pytest.raises(NotUnderstoodError, match="nothing in it is understood"):
        read(table)
    assert judge(read(f"{HEALTHY}$ it\n{table}")).verdict == "pass"


@pytest.mark.parametrize("name", ["dcgmi diag", "deviceQuery"])
def test_a_tools_own_good_verdict_is_judged_in_part_and_no_pass_of_the_node(name: str) -> None:
    report = judge(read(transcripts.NOT_JUDGED[name]))
    assert (report.verdict, report.exit_code, report.evaluated.partly) == ("pass", 0, True)
    assert report.reason.startswith("PARTLY JUDGED, 1 of ")


@pytest.mark.parametrize(
    ("test", "rows", "found", "verdict"),
    [
        (
            "Memory Bandwidth",
            ("GPU 2GPU 2 moved 310 GB/s, and 900 were exp", "ected: run the test again without other", "programs"),
            "Fail: Memory Bandwidth (All): GPU 2: GPU 2 moved 310 GB/s, and 900 were expected: run the test again "
            "without other programs",
            "fail",
        ),
        (
            "Persistence Mode",
            ("Persistence mode for GPU 0 is currently disa", "bled"),
            "Fail: Persistence Mode (All): Persistence mode for GPU 0 is currently disabled",
            "warn",
        ),
    ],
)
def test_the_words_of_a_failed_test_of_dcgm_name_its_gpu_and_a_setting_is_no_fault(
    test: str, rows: tuple[str, ...], found: str, verdict: str
) -> None:
    width = max(map(len, rows))
    lines = [f"| {test:25} | {'Fail - All':{width}} |"]
    lines += [f"| {'' if at else 'Warning':25} | {row:{width}} |" for at, row in enumerate(rows)]
    report = judge(read("\n".join([f"+-----  Hardware  ----------+{'-' * (width + 2)}+", *lines, ""])))
    [finding] = [
        each for check in report.checks for each in check.findings if each.found and "Fail:" in each.found.text
    ]
    assert (present(finding.found).text, finding.status) == (found, verdict)


def test_the_warning_of_a_text_about_a_part_does_not_say_that_the_machine_works() -> None:
    text = render_text(
        judge(read("[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")),
        width=100,
        color=False,
    )
    assert re.search(r"^WARN  1 of \d+ checks evaluated; look at the warnings$", text, re.MULTILINE)


def test_a_tab_in_a_statement_is_shown_as_a_blank() -> None:
    text = render_text(judge(read("LnkSta:\tSpeed 16GT/s, Width x4 (downgraded)\n")), width=100, color=False)
    assert "found     LnkSta: Speed 16GT/s, Width x4 (downgraded)\n" in text


WRONG_SUMS = transcripts.NCCL_TESTS.replace("216.50      0", "216.50     12")
WRONG_COPY = "Invalid value when checking the pattern at"


@pytest.mark.parametrize("name", ["bandwidthTest", "p2pBandwidthLatencyTest", "nccl-tests", "nvbandwidth"])
def test_figures_alone_are_no_pass(name: str) -> None:
    report = judge(read(transcripts.NOT_JUDGED[name]))
    assert (report.verdict, report.exit_code) == ("unknown", 3)
    assert report.run.notes[0].startswith(f"standard input: {name}: ")


def test_of_two_runs_of_nccl_tests_the_one_with_wrong_values_counts_and_without_a_comparison_none_is_told() -> None:
    clean, wrong = transcripts.NCCL_TESTS, WRONG_SUMS.replace("# Out of bounds values : 0 OK\n", "")
    for text in (wrong + clean, clean + wrong):
        assert judge(read(text)).verdict == "fail"
    (note,) = judge(read(re.sub(r"(?m)(\d\.\d\d)      0", r"\1    N/A", clean))).run.notes
    assert "values not compared in 2 rows" in note


_ROW_OF_NCCL = (
    "  {0}  {0}     {2}     sum      -1    195.4   17.72  {1:7.2f}       0    195.4   17.72     29.5       0\n"
)


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([(24, 10.0, "float"), (25, 29.5, "float"), (26, 5.3, "float"), (27, 5.3, "float")], "warn"),
        ([(24, 10.0, "float"), (25, 29.5, "float"), (26, 14.8, "float")], "unknown"),
        ([(25, 29.5, "float"), (26, 5.3, "float"), (27, 29.0, "float")], "unknown"),
        ([(18, 29.5, "float"), (25, 5.3, "float")], "unknown"),
        ([(25, 29.5, "float"), (3, 0.9, "float"), (25, 5.3, "float")], "unknown"),
        ([(25, 29.5, "float"), (26, 5.3, "half")], "unknown"),
        ([(25, 29.5, "float"), (0, 0, "#"), (26, 5.3, "float")], "unknown"),
    ],
    ids=["slow", "a little slow", "one of them", "small ones first", "another run", "another type", "another head"],
)
def test_large_messages_that_are_far_slower_than_smaller_ones_warn(
    rows: list[tuple[int, float, str]], verdict: str
) -> None:
    lines = [
        _ROW_OF_NCCL.format(1 << size, rate, kind) if size else "# Avg bus bandwidth    : 30\n"
        for size, rate, kind in rows
    ]
    report = judge(read("".join(lines)))
    assert report.verdict == verdict
    assert ("busbw falls from 29.5 GB/s at 33554432 bytes to 5.3 at 134217728" in report.reason) == (verdict == "warn")


@pytest.mark.parametrize(
    ("without", "verdict", "words"),
    [
        ("14.95", "unknown", "every pair is faster with peer to peer"),
        ("1.90", "warn", "latency: 2.31 us with peer to peer, 1.9 without"),
        ("2.30", "unknown", "1 of 2 figures are no better with peer to peer"),
        ("N/A", "unknown", "nothing to compare"),
    ],
)
def test_peer_to_peer_is_compared_by_each_pair_with_it_and_without(without: str, verdict: str, words: str) -> None:
    matrix = "P2P={}abled Latency{} Matrix (us)\n   GPU     0      1\n     0   2.61  {}\n     1   {}   2.10\n"
    off = matrix.format("Dis", "", without, "14.95" if without != "1.90" else without)
    text = off + matrix.format("En", " (P2P Writes)", "2.31", "2.26")
    numbered = "".join(f"{number:3} {line}\n" for number, line in enumerate(text.splitlines(), 1))
    for each in (text, numbered):
        report = judge(read(each))
        assert report.verdict == verdict
        assert words in f"{report.run.notes} {report.reason}"


@pytest.mark.parametrize("name", ["nccl-tests", "nvbandwidth"])
@pytest.mark.parametrize(
    "line",
    [
        "# Rank  3 Group 0 GPU 3 fell off the bus",
        "# size GPU 3 is lost: Xid 79",
        "NOTE: GPU 3 has fallen off the bus",
        "Device 3: GPU has fallen off the bus",
        "Device 0: NVIDIA H100 80GB HBM3: Xid 79",
        "Built from GPU 3, which is lost: Xid 79",
        "NOTE: The reported results are wrong, GPU 1 fell off the bus",
        "Device 1: NVIDIA H100, GPU 1 LOST: Xid 79",
    ],
)
def test_no_line_of_a_fault_is_taken_for_one_of_a_benchmark(name: str, line: str) -> None:
    lines = transcripts.NOT_JUDGED[name].splitlines()
    report = judge(read("\n".join([*lines[:3], line, *lines[3:], ""])))
    assert report.verdict == "fail"


@pytest.mark.wide(every=4)
@pytest.mark.parametrize(
    ("text", "said", "status"),
    [
        (dcgm_diag("Fail - GPU: 1"), "Fail: PCIe (GPU: 1)", "fail"),
        ("| Memory Bandwidth          | Fail - GPU: 5     |\n", "Fail: Memory Bandwidth (GPU: 5)", "fail"),
        (dcgm_diag("Fail", version=4), "Fail: pcie (GPU 1)", "fail"),
        (dcgm_diag_json("Fail"), "Fail: PCIe (GPU 1)", "fail"),
        (dcgm_diag_json("FAIL", version=4), "Fail: PCIe (GPU 1)", "fail"),
        (dcgm_diag_json("Fail").replace("\n", "").replace("\t", " "), "Fail: PCIe (GPU 1)", "fail"),
        (
            "Error: Unable to complete diagnostic for group 2147483647. Return: (-31)\n",
            "did not run: Error: Unable to complete diagnostic for group 2147483647. Return: (-31)",
            "unknown",
        ),
        (transcripts.DCGM_HEALTH, "Failure: GPU 1 Memory system; A DBE", "fail"),
        (
            transcripts.DMON.replace("pclk", "pclk tviol").replace("1755", "1755 1"),
            "thermal violation (tviol) of GPU 0",
            "warn",
        ),
        (transcripts.NCCL_TESTS.replace(": 0 OK", ": 2 FAILED"), "Out of bounds values : 2 FAILED", "fail"),
        (WRONG_SUMS.replace(": 0 OK", ": 12 FAILED"), "12 wrong values at a size of 67108864 bytes", "fail"),
        (transcripts.NVBANDWIDTH.replace("memcpy CE", f" {WRONG_COPY} 0x7\nm"), WRONG_COPY, "fail"),
        (transcripts.DEVICE_QUERY.replace("PASS", "FAIL"), "Result = FAIL", "fail"),
        (transcripts.NHC.replace("SUCCESS", "ERROR"), "nhc:  Health check passed", "fail"),
        (transcripts.dcgm_exporter(0, GPU_TEMP=41, XID_ERRORS=79), "GPU 0: the last Xid is 79", "fail"),
        (
            transcripts.GPUSTAT.replace("NVIDIA RTX A6000     | 39'C,", "((Unknown Error)) | ?'C,"),
            "[1] ((Unknown Error)) | ?'C,   3 % |   341 / 49140 MB |",
            "warn",
        ),
        (transcripts.CUDA_WARNING, "system not yet initialized", "fail"),
        (transcripts.DEVICE_PLUGIN, "'nvidia.com/gpu' device marked unhealthy: GPU-1", "fail"),
    ],
)
def test_a_failure_that_another_tool_reports_is_never_a_pass(text: str, said: str, status: str) -> None:
    for each in (text, f"{HEALTHY}\n{text}", f"{HEALTHY}$ that\n{text}$ exit\n"):
        report = judge(read(each))
        assert report.exit_code == {"fail": 1, "warn": 0, "unknown": 3}[status]
        (result,) = [check for check in report.checks if check.id == "reported.failures"]
        assert result.status.value == status
        assert said in " ".join(f.reason or (f.found.text if f.found else "") for f in result.findings)
    failed = judge(read(f"{table(BROKEN)}\n{text}"))
    assert (failed.verdict, failed.exit_code) == ("fail", 1)


def test_links_of_which_dcgm_says_that_none_is_up_are_no_pass() -> None:
    report = judge(read(re.sub(r"\bU\b", "D", transcripts.DCGM_NVLINK)))
    links = next(check for check in report.checks if check.id == "nvlink.links")
    assert (report.verdict, links.status) == ("unknown", "unknown")
    assert {(f.reason or "")[:42] for f in links.findings} == {"no link is up, and the model is not known:"}


def test_a_diagnostic_right_below_the_table_of_the_gpus_is_not_a_part_of_it() -> None:
    diag = "\n".join(dcgm_diag("Fail - GPU: 1").splitlines()[2:])
    assert judge(read(f"{HEALTHY}{diag}\n")).verdict == "fail"


def test_samples_of_dmon_are_the_last_readings_of_each_gpu() -> None:
    for text in (transcripts.DMON, transcripts.DMON.replace("    0     64", "20250101 10:00:00 0 64")):
        first, second = read(text).gpus
        assert (first.index, first.power.draw_w, first.clocks.graphics_mhz) == (0, 412.0, 1755)
        assert (first.thermal.gpu_c, first.thermal.memory_c) == (57, 71)
        assert (second.utilization.gpu_pct, second.thermal.memory_c) == (0, ABSENT)


def test_samples_of_pmon_are_the_processes_of_each_gpu() -> None:
    first, second = read(transcripts.PMON).gpus
    assert [(process.pid, process.name) for process in known(first.processes) or ()] == [(26351, "python3 train.py")]
    assert second.processes == ()


def test_dcgm_tells_gpus_readings_and_links() -> None:
    first, second = read(transcripts.DCGM_DISCOVERY).gpus
    assert (first.bus_id, first.name, second.name) == ("0000:19:00.0", "NVIDIA H100 80GB HBM3", ABSENT)
    first, second = read(transcripts.DCGM_DMON).gpus
    assert (first.power.draw_w, first.utilization.gpu_pct, second.utilization.gpu_pct) == (118.221, 100, ABSENT)
    (gpu, _) = read(transcripts.DCGM_NVLINK).gpus
    assert [link.state for link in known(gpu.nvlinks) or ()] == ["active"] * 3 + ["inactive", "disabled"]


def test_metrics_of_dcgm_exporter_are_readings_of_the_gpus_that_their_labels_name() -> None:
    text = transcripts.dcgm_exporter(0, GPU_TEMP=41, POWER_USAGE=118.22, ECC_DBE_VOL_TOTAL=0, ROW_REMAP_FAILURE=0)
    text += transcripts.dcgm_exporter(1, GPU_TEMP=43, POWER_USAGE=7.1e1, ECC_DBE_VOL_TOTAL=2, ROW_REMAP_FAILURE=1)
    node = read(text + transcripts.dcgm_exporter(1, GPU_TEMP=99).replace('gpu="1"', 'gpu="1",GPU_I_ID="3"'))
    readings = [(gpu.thermal.gpu_c, gpu.power.draw_w, gpu.ecc.uncorrected_volatile) for gpu in node.gpus]
    assert readings == [(41, 118.22, 0), (43, 71.0, 2)]
    assert [gpu.memory_repair.remap_failed for gpu in node.gpus] == [False, True]
    assert [gpu.name for gpu in node.gpus] == ["NVIDIA H100 80GB HBM3"] * 2


@pytest.mark.parametrize("quote", ["", '"'])
def test_the_gpus_that_kubernetes_counts_in_yaml_and_json(quote: str) -> None:
    (fewer,) = read(transcripts.kubectl_status(8, 7, quote)).reported
    assert (fewer.said_by, fewer.text) == ("kubectl", "7 of 8 GPUs of the node are given out")
    twice = f"{transcripts.kubectl_status(8, 7, quote)}{transcripts.kubectl_status(8, 8, quote)}"
    assert read(f"{gpu_list(BROKEN)}\n{twice}").reported == ()


@pytest.mark.parametrize("command", ["nvidia-smi nvlink -info", "nvidia-smi nvlink -c"])
def test_other_answers_of_nvlink_do_not_tell_that_there_are_no_links(command: str) -> None:
    (gpu,) = read(f"$ {command}\n{transcripts.NVLINK_INFO}").gpus
    assert gpu.nvlinks == ABSENT


def test_processes_by_the_gpu_that_their_row_names() -> None:
    for text in (
        transcripts.COMPUTE_APPS,
        "$ nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv,noheader\n"
        + transcripts.COMPUTE_APPS.partition("\n")[2],
    ):
        first, second = read(text).gpus
        told = [[(p.pid, p.name, known(p.memory_mib)) for p in known(gpu.processes) or ()] for gpu in (first, second)]
        assert told == [[(4711, "python3", 130004), (4712, "[Not Found]", None)], [(4713, "python3", 12)]]
    nameless = "pid, process_name, used_gpu_memory [MiB]\n4711, python3, 12 MiB\n"
    assert read(nameless).gpus == ()
    both = read(
        f"{gpu_list(BROKEN)}{transcripts.COMPUTE_APPS}".replace(
            "GPU-11111111-2222-3333-4444-555555555555", str(known(BROKEN.gpus[3].uuid))
        ).replace("GPU-11111111-2222-3333-4444-666666666666", str(BROKEN.gpus[5].uuid))
    )
    assert [gpu.index for gpu in both.gpus if known(gpu.processes)] == [BROKEN.gpus[3].index, BROKEN.gpus[5].index]


def test_ports_of_rdma_link() -> None:
    first, second = known(read(transcripts.RDMA_LINK).network.rdma_ports) or ()
    assert (first.state, first.physical_state, first.interface) == ("ACTIVE", "LinkUp", "enp1s0f0np0")
    assert (second.device, second.state, second.physical_state) == ("mlx5_1", "DOWN", "Polling")


def test_gpus_that_the_kernel_module_knows() -> None:
    (gpu,) = read(transcripts.PROC_INFORMATION).gpus
    assert (gpu.bus_id, gpu.name, gpu.minor_number, gpu.vbios) == ("0000:19:00.0", "NVIDIA H100 80GB HBM3", 5, ABSENT)


def test_times_of_throttling_in_csv() -> None:
    names = ("sw_power_cap", "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
    header = ", ".join(["index", "name", *(f"clocks_event_reasons_counters.{name} [us]" for name in names)])
    (gpu,) = read(f"{header}\n0, NVIDIA H100, 1 us, 2 us, 3 us, 4 us, 5 us\n").gpus
    assert gpu.throttle_times == ThrottleTimes(1, 2, 3, 4, 5)


def test_a_name_with_a_comma_leaves_a_process_its_memory() -> None:
    text = "gpu_bus_id, pid, process_name, used_gpu_memory [MiB]\n00000000:19:00.0, 4711, /opt/a, b, 12 MiB\n"
    (gpu,) = read(text).gpus
    assert [(p.pid, p.memory_mib) for p in known(gpu.processes) or ()] == [(4711, 12)]


def test_a_value_without_indentation_is_of_its_section() -> None:
    section = "GPU 00000000:19:00.0\nProduct Name : NVIDIA H100\nPCI\nDevice Id : 0x233010DE\nProcesses : None\n"
    (gpu,) = read(f"Driver Version : 550.54.15\nAttached GPUs : 1\n{section}").gpus
    assert (gpu.pci_device_id, gpu.processes) == ("0x233010de", ())


def test_banks_without_spares_in_csv() -> None:
    text = "index, remapped_rows.pending, remapped_rows.failure, remapped_rows.histogram.none\n0, No, No, 3\n"
    assert read(text).gpus[0].memory_repair.banks_no_spare == 3


def test_a_gpu_whose_row_says_that_it_is_lost_is_lost() -> None:
    row = "|   1  NVIDIA H100              On  |   00000000:3B:00.0 Off |                 ERR! |\n"
    text = f"{HEALTHY.splitlines()[2]}\n{row}|ERR!  ERR! ERR!   ERR! / ERR! |  GPU is lost   |    ERR!     ERR! |\n"
    report = judge(read(text))
    assert [fault.check for fault in report.faults] == ["gpu.lost"]


def test_processors_and_their_numa_nodes() -> None:
    nodes = (NumaNode(0, 31900, "0-3"), NumaNode(1, 32000, "4-7"))
    assert read(transcripts.NUMACTL).host == replace(read(table(BROKEN)).host, numa_nodes=nodes, cpus_total=8)
    both = read(transcripts.NUMACTL + transcripts.LSCPU.replace("16", "8").replace("6,8", "7"))
    assert (both.host.numa_nodes, both.source.notes) == (nodes, ())
    host = read(transcripts.LSCPU).host
    assert (host.cpus_total, host.machine, host.virtualization, host.hypervisor) == (8, "x86_64", "vm", "KVM")
    assert [node.cpus for node in known(host.numa_nodes) or ()] == ["0-3", "4-6,8"]


@pytest.mark.parametrize("end", range(1, transcripts.NUMACTL.count("\n")))
def test_numa_nodes_that_are_cut_off_are_not_used(end: int) -> None:
    text = "\n".join(transcripts.NUMACTL.splitlines()[:end])
    cpus = read(f"{gpu_list(BROKEN)}$ numactl -H\n{text}").host.cpus_total
    assert cpus == (8 if end >= 6 else ABSENT)


@pytest.mark.parametrize(
    ("header", "memory", "swap", "comma"),
    [
        ("gesamt benutzt frei gemns. Puffer/Cache verf\u00fcgbar", "Speicher:", "Auslager:", ","),
        ("total utilis\u00e9 libre partag\u00e9 tamp/cache disponible", "Mem:", "Partition d'\u00e9change:", ","),
        (
            "\u603b\u8ba1 \u5df2\u7528 \u7a7a\u95f2 \u5171\u4eab \u7f13\u51b2/\u7f13\u5b58 \u53ef\u7528",
            "\u5185\u5b58\uff1a",
            "\u4ea4\u6362\uff1a",
            ".",
        ),
        ("total used free shared buff/cache available", "Mem:", "Swap:", "."),
    ],
)
def test_free_is_read_in_any_language(header: str, memory: str, swap: str, comma: str) -> None:
    for sizes in ("31Gi 12Gi 5.4Gi 319Mi 14Gi 18Gi|2.0Gi 8.0Ki 2.0Gi", "31744 12288 5530 319 14336 18432|2048 0 2048"):
        of_memory, _, of_swap = sizes.replace(".", comma).partition("|")
        host = read(f"{'':15}{header.replace(' ', '  ')}\n{memory} {of_memory}\n{swap} {of_swap}\n").host
        assert (host.ram_mib, host.ram_available_mib, host.swap_mib) == (31 << 10, 18 << 10, 2 << 10)


@pytest.mark.parametrize(
    ("header", "row"),
    [
        (
            "Dateisystem    1K-Bl\u00f6cke Benutzt Verf\u00fcgbar Verw% Eingeh\u00e4ngt auf",
            "tmpfs 16777216 0 16777216 0%",
        ),
        ("Sys. de fichiers   1M-blocs Utilis\u00e9 Disponible Uti% Mont\u00e9 sur", "tmpfs 16384 0 16384 0%"),
        (
            "\u6587\u4ef6\u7cfb\u7edf        1K-\u5757  \u5df2\u7528  \u53ef\u7528 \u5df2\u7528% \u6302\u8f7d\u70b9",
            "tmpfs 16777216 0 16777216 0%",
        ),
        ("Dateisystem    Gr\u00f6\u00dfe Benutzt Verf. Verw% Eingeh\u00e4ngt auf", "tmpfs 16,0G 0 16,0G 0%"),
    ],
)
def test_df_is_read_in_any_language(header: str, row: str) -> None:
    host = read(f"{header}\n/dev/sda2       187500000 1000 187499000   65% /\n{row} /dev/shm\n").host
    assert (host.shm_mib, host.shm_free_mib) == (16 << 10, 16 << 10)


@pytest.mark.parametrize(
    ("cells", "limit"), [("N/A / N/A", "unsupported"), ("15W /  N/A", "unsupported"), ("15W / 30W", 30.0)]
)
@pytest.mark.parametrize(("memory", "total"), [("2MiB / 2000MiB", 2000), ("Not Supported", "unsupported")])
def test_cells_that_hold_a_slash_or_no_pair(cells: str, limit: object, memory: str, total: object) -> None:
    row = "|   0  NVIDIA GB10              On  |   0000000F:01:00.0 Off |                  N/A |\n"
    node = read(f"{row}| N/A   38C    P8   {cells} | {memory}   |      0%      Default |\n")
    (gpu,) = node.gpus
    assert [getattr(v, "kind", v) for v in (gpu.power.limit_w, gpu.memory_total_mib)] == [limit, total]
    assert node.source.notes == ()


ABOUT_TOOLS = """Tested it on 8 GPUs: all slow. Result = bad; the P2P bandwidth is low (see a/b page) and 12% used.
Running our train job again gives Error: nothing. The device is slow, nThread and nGpus do not matter.
      please look at the docs page/section below
Note: memory is 31 GB: 12 used
the disk is 65% full on the root file system
# gpu memory is full
Architecture: three layers of MLP
"""


def test_prose_about_tools_is_no_text_of_theirs() -> None:
    with pytest.raises(SourceError, match="not recognised"):
        read(ABOUT_TOOLS)


@pytest.mark.wide(every=4)
@pytest.mark.parametrize(
    "text",
    [*(text for text in transcripts.READ if "0000:" not in text), *transcripts.NOT_JUDGED.values()],
)
def test_a_text_of_any_of_these_tools_ends_at_the_next_tool(text: str) -> None:
    for between in ("$ nvidia-smi\n", "\n", "```\n"):
        node = read(text + between + HEALTHY)
        assert [gpu.name for gpu in node.gpus] == ["NVIDIA H100 80GB HBM3"] * 8
        assert {gpu.settings.persistence for gpu in node.gpus} == {True}
