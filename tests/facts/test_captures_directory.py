"""Dumps of one machine joined: directories, bug reports, and what is on the host's side of them."""

from __future__ import annotations

import gzip
import io
import os
import shutil
from pathlib import Path

import pytest

from gpudoctor.facts.captures import ABSENT
from gpudoctor.facts.captures.directory import node_from_directory
from gpudoctor.facts.captures.host.cpu_and_memory import read_df, read_free, read_meminfo
from gpudoctor.facts.captures.opened import HEAD_BYTES
from gpudoctor.facts.captures.reader import Block, TextReader
from gpudoctor.facts.captures.source import SourceError, load_source
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import Host, Node
from tests.facts.loaded_nodes import node_of
from tests.narrowed import missing, present

DUMPS = Path(__file__).parent / "dumps"
XID = "[  912.345678] NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
FREE = (
    "               total        used        free      shared  buff/cache   available\n"
    "Mem:      2113396736    33554432  2000000000       12340    79842304  2060000000\n"
    "Swap:        8388604           0     8388604\n"
)
ENV = "PATH=/usr/bin\nHOME=/root\nCUDA_VISIBLE_DEVICES=0,1\nNCCL_P2P_DISABLE=1\n"
RULER = "\n____________________________________________\n\n"


@pytest.fixture
def hgx(captures: Path, tmp_path: Path) -> Path:
    """A writable copy of the real directory of dumps."""
    folder = tmp_path / "hgx"
    folder.mkdir()
    for file in (captures / "hgx-h100-dump").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_the_real_directory_is_one_node_of_eight_gpus_with_all_links(captures: Path) -> None:
    node = node_of(captures / "hgx-h100-dump")
    assert node.source.kind == "capture"
    assert node.source.name == "hgx-h100-dump"
    assert len(node.source.files) == 6
    assert node.source.notes == ()
    assert len(node.gpus) == 8
    for links in (present(gpu.nvlinks) for gpu in node.gpus):
        assert [link.state for link in links] == ["active"] * 18
        assert {link.speed_gb_s for link in links} == {26.562}
        assert {(link.remote_kind, link.remote_bus_id) for link in links} == {("switch", None)}
        assert {(link.crc_errors, link.replay_errors, link.recovery_errors) for link in links} == {(0, 0, 0)}
    pairs = present(node.pairs)
    assert len(pairs) == 28
    assert {(pair.nvlinks, pair.path, pair.p2p_read, pair.p2p_write) for pair in pairs} == {(18, ABSENT, "OK", ABSENT)}
    assert [gpu.numa_node for gpu in node.gpus] == [0] * 4 + [1] * 4
    assert node.gpus[7].cpu_affinity == "64-127"


def test_what_no_dump_holds_is_not_in_this_capture(captures: Path) -> None:
    node = node_of(captures / "hgx-h100-dump")
    for value in (node.host.ram_mib, node.kernel_log.events, node.environment.variables, node.pci.nvidia_devices):
        assert value == ABSENT
    assert node.gpus[0].pcie.path == ABSENT
    assert node.network.rdma_ports == ABSENT


def test_host_dumps_join_the_node_whatever_their_names(hgx: Path) -> None:
    (hgx / "a").write_text(FREE)
    (hgx / "b").write_text(ENV)
    (hgx / "c.xml").write_text("[    0.000000] Linux version 6.8\n" + XID + "\n")
    (hgx / "d").write_text(
        "Filesystem      Size  Used Avail Use% Mounted on\ntmpfs           504G  1.0G  503G   1% /dev/shm\n"
    )
    node = node_of(hgx)
    assert node.host.ram_mib == 2113396736 // 1024
    assert node.host.shm_mib == 504 * 1024
    assert node.environment.get("NCCL_P2P_DISABLE") == "1"
    assert [(event.code, event.bus_id) for event in present(node.kernel_log.events)] == [(79, "0000:18:00.0")]
    assert node.kernel_log.source == "c.xml"


def test_files_that_are_no_dump_are_named_and_harm_nothing(hgx: Path) -> None:
    (hgx / "notes.md").write_text("# what we saw\n")
    (hgx / "empty").write_text("")
    (hgx / "photo.png").write_bytes(b"\x89PNG\0\0\0")
    (hgx / "broken.gz").write_bytes(b"\x1f\x8b\x08oh no")
    (hgx / "inner").mkdir()
    os.mkfifo(hgx / "pipe")
    (hgx / "gone").symlink_to(hgx / "nowhere")
    (hgx / ".hidden").write_text("x")
    node = node_of(hgx)
    notes = node.source.notes
    # what may be a dump and cannot be read may hold a failure
    assert [each.text.partition(":")[0] for each in node.reported] == ["broken.gz", "gone"]
    assert sorted(note.partition(":")[0] for note in notes) == [
        "broken.gz", "empty", "gone", "inner", "notes.md", "photo.png", "pipe",
    ]  # fmt: skip
    assert "notes.md: not recognised as a dump" in notes


def test_xml_on_one_line_of_any_length_is_read_and_a_dump_of_which_nothing_is_read_is_unknown(
    captures: Path, tmp_path: Path
) -> None:
    xml = captures / "qx-h100.xml"
    pastes = tmp_path / "pastes"
    pastes.mkdir()
    smi = pastes / "smi.txt"
    smi.write_text(f"$ nvidia-smi -q -x\n{xml.read_text().replace(chr(10), '')}\n")
    assert smi.stat().st_size > 2 * HEAD_BYTES
    assert node_of(smi).gpus == node_of(pastes).gpus == node_of(xml).gpus
    assert node_of(pastes).reported == ()
    (pastes / "other.txt").write_text("x <nvidia_smi_log> of which nothing follows\n")
    assert [one.text for one in node_of(pastes).reported if one.loudness == "unread"] == [
        "other.txt: it begins like a dump, but nothing in it was recognised"
    ]


def test_links_are_joined_by_uuid_even_where_the_order_differs(hgx: Path) -> None:
    status = (hgx / "nvlink-status.txt").read_text()
    swapped = status.replace("GPU 0:", "GPU X:").replace("GPU 5:", "GPU 0:").replace("GPU X:", "GPU 5:")
    blocks = swapped.split("GPU 5:")
    (hgx / "nvlink-status.txt").write_text(
        blocks[0] + "GPU 5:" + blocks[1].replace("Link 7: 26.562 GB/s", "Link 7: <inactive>", 1)
    )
    (hgx / "nvlink-errors.txt").unlink()
    (hgx / "nvlink-remote.txt").unlink()
    first = min(gpu.bus_id for gpu in node_of(hgx).gpus)
    down = [
        (gpu.index, gpu.bus_id)
        for gpu in node_of(hgx).gpus
        if any(link.state == "inactive" for link in present(gpu.nvlinks))
    ]
    assert down == [(5, first)], "-q counts in its order; nvidia-smi nvlink gives the index"


def test_alike_redacted_uuids_are_joined_by_index(hgx: Path) -> None:
    for file in hgx.iterdir():
        text = file.read_text()
        for number in range(8):
            text = text.replace(f"GPU-01000100-0000-0000-0000-00000000000{number}", "GPU-0")
        if file.name == "nvlink-status.txt":
            text = text.replace("26.562", "13.0", 18)
        file.write_text(text)
    node = node_of(hgx)
    speeds = [present(gpu.nvlinks)[0].speed_gb_s for gpu in node.gpus]
    assert speeds == [13.0] + [26.562] * 7


def test_remote_ends_that_are_gpus_or_shared_addresses_are_told_apart(hgx: Path) -> None:
    remote = (hgx / "nvlink-remote.txt").read_text()
    remote = remote.replace("FFFFFFFF:FF:FF.0", "00000000:1B:00.0", 1).replace("FFFFFFFF:FF:FF.0", "00000000:C1:00.0")
    (hgx / "nvlink-remote.txt").write_text(remote)
    links = present(node_of(hgx).gpus[0].nvlinks)
    assert (links[0].remote_kind, links[0].remote_bus_id) == ("gpu", "0000:1b:00.0")
    assert (links[1].remote_kind, links[1].remote_bus_id) == ("switch", "0000:c1:00.0")


def test_writes_are_told_from_reads_by_the_files_name(hgx: Path) -> None:
    shutil.copy(hgx / "topo-p2p-r.txt", hgx / "topo-p2p-w.txt")
    pairs = present(node_of(hgx).pairs)
    assert {(pair.p2p_read, pair.p2p_write) for pair in pairs} == {("OK", "OK")}


def test_two_contradictory_dumps_are_an_error_that_names_both(hgx: Path, captures: Path) -> None:
    shutil.copy(captures / "smi-q-8x-h100-sxm.txt", hgx / "other.txt")
    with pytest.raises(SourceError, match=r"other.txt contradicts nvidia-smi-q.xml \(driver 565.57.01 here, 550"):
        node_of(hgx)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("0000-000000000003", "0000-0000000000ff"), "GPU 0000:"),
        (("00000000:1A:00.0", "00000000:FA:00.0"), "is 0000:fa:00.0 here, 0000:1a:00.0 there"),
    ],
)
def test_other_gpus_in_a_second_dump_contradict_the_first(hgx: Path, change: tuple[str, str], said: str) -> None:
    (hgx / "z.xml").write_text((hgx / "nvidia-smi-q.xml").read_text().replace(*change))
    with pytest.raises(SourceError, match=said):
        node_of(hgx)


def test_a_failed_nvidia_smi_beside_one_that_worked_is_judged(hgx: Path) -> None:
    (hgx / "z.txt").write_text("Failed to initialize NVML: Driver/library version mismatch\n")
    node = node_of(hgx)
    assert (node.driver.init_code, len(node.gpus)) == (18, 8)
    assert "one text shows GPUs, in the other the driver failed: the failure is judged" in node.source.notes


def test_two_agreeing_dumps_are_one_node(hgx: Path) -> None:
    shutil.copy(hgx / "nvidia-smi-q.xml", hgx / "z.xml")
    node = node_of(hgx)
    assert len(node.gpus) == 8
    assert node.source.notes == ()


def test_a_second_other_dump_is_passed_over_with_a_note(hgx: Path) -> None:
    (hgx / "y.txt").write_text(ENV)
    (hgx / "z.txt").write_text(ENV.replace("0,1", "3"))
    node = node_of(hgx)
    assert node.environment.get("CUDA_VISIBLE_DEVICES") == "0,1"
    (note,) = node.source.notes
    assert note == "two texts differ in environment.variables.value: 0,1 and 3: the first counts"


def test_lspci_in_a_directory_gives_its_path_to_the_gpu_of_that_bus_id(captures: Path, tmp_path: Path) -> None:
    shutil.copy(DUMPS / "lspci-2-gpus.txt", tmp_path)
    shutil.copy(captures / "smi-q-8x-h100-sxm.txt", tmp_path)
    node = node_of(tmp_path)
    assert present(node.gpus[0].pcie.path)[-1].bus_id == "0000:15:01.0"
    assert (node.gpus[0].numa_node, node.gpus[0].pcie.width) == (0, 16)
    assert node.gpus[1].pcie.path == ABSENT, "the dump does not list 0000:2a:00.0"


def test_links_and_lspci_without_nvidia_smi_are_joined_by_order(tmp_path: Path) -> None:
    shutil.copy(DUMPS / "lspci-2-gpus.txt", tmp_path)
    (tmp_path / "n").write_text(
        "GPU 0: H100 (UUID: GPU-a)\n\t Link 0: 26 GB/s\nGPU 1: H100 (UUID: GPU-b)\n\t Link 0: <inactive>\n"
    )
    node = node_of(tmp_path)
    assert [(gpu.bus_id, gpu.uuid, gpu.name) for gpu in node.gpus] == [
        ("0000:18:00.0", "GPU-a", "H100"),
        ("0000:19:00.0", "GPU-b", "H100"),
    ]


def test_a_passed_through_gpu_says_that_the_host_is_a_vm(captures: Path) -> None:
    assert node_of(captures / "qx-h100.xml").host.virtualization == "vm"
    assert node_of(captures / "smi-q-8x-h100-sxm.txt").host.virtualization == ABSENT


def test_free_on_a_grace_node_is_not_its_ram(captures: Path, tmp_path: Path) -> None:
    shutil.copy(captures / "qx-gb200.xml", tmp_path)
    (tmp_path / "free").write_text(FREE)
    missing(node_of(tmp_path).host.ram_mib, "absent", "GPU memory")


def host_in(reader: TextReader, text: str) -> Host:
    return reader.read(Block(text.splitlines())).node.host


@pytest.mark.parametrize(
    ("cells", "swap", "mib"),
    [
        ("2113396736 33554432 2000000000", "8388604", 2063864),  # no flag: KiB
        ("2164118257664 34359738368 2048000000000", "8589930496", 2063864),  # -b
        ("2063863 32767 1953125", "8191", 2063863),  # -m
        ("2015 31 1907", "7", 2015 * 1024),  # -g
        ("2.0Ti 31Gi 1.9Ti", "8.0Gi", 2 * 1024 * 1024),  # -h
        ("15988 1203 9001", "2047", 15988),  # a 16 GiB machine, -m
        ("16371712 1232896 9217024", "0", 15988),  # the same, no flag
    ],
)
def test_free_is_read_in_every_unit_it_may_have(cells: str, swap: str, mib: int) -> None:
    host = host_in(read_free, f"        total        used        free\nMem:   {cells}\nSwap:  {swap} 0 {swap}\n")
    assert host.ram_mib == mib
    assert host.swap_free_mib == present(host.swap_mib)


def test_free_meminfo_and_df_refuse_what_they_cannot_read() -> None:
    assert host_in(read_meminfo, "MemTotal:       16371712 kB\nMemAvailable:    1048576 kB\n").ram_available_mib == 1024
    missing(host_in(read_free, "  total used free\nMem: lots 1 2\n").ram_mib)
    df = "Filesystem 1M-blocks Used Available Use% Mounted on\ntmpfs 64 0 64 0% /dev/shm\n"
    assert host_in(read_df, df).shm_mib == 64
    for reader, text in ((read_free, "Mem: 1\n"), (read_meminfo, "MemFree: 1 kB\n"), (read_df, "tmpfs /dev/shm\n")):
        with pytest.raises(SourceError):
            host_in(reader, text)


def bug_report(captures: Path, *sections: str) -> str:
    smi = (captures / "smi-q-8x-h100-sxm.txt").read_text()
    head = "Start of NVIDIA bug report log file.  Please include this file, along\n\nnvidia-bug-report.sh Version: 3\n"
    parts = (head, f"/usr/bin/nvidia-smi --query\n\n{smi}", *sections, "End of NVIDIA bug report log file.\n")
    return RULER.join(parts)


@pytest.fixture
def report(captures: Path) -> str:
    return bug_report(
        captures,
        "*** /proc/driver/nvidia/./version\n\nNVRM version: NVIDIA UNIX x86_64 Kernel Module  565.57.01  Thu Oct 10\n",
        "/usr/bin/lspci -nn -vvv\n\n" + (DUMPS / "lspci-2-gpus.txt").read_text(),
        "/usr/bin/journalctl -b -1\n\n"
        + "".join(f"Nov 1{n} 07:00:14 n1 kernel: NVRM: Xid (PCI:0000:2a:00): {n}, DBE\n" for n in range(40, 49)),
        "/usr/bin/dmesg\n\n[    0.000000] Linux version 6.8\n" + XID + "\n" + XID.replace("79", "119") + "\n",
        "/usr/bin/journalctl -b -0\n\n"
        + "Nov 14 07:00:13 n1 kernel: x\n" * 9
        + "Nov 14 07:00:14 n1 kernel: "
        + XID[15:]
        + "\n",
        "*** /proc/meminfo\n\nMemTotal:       2113396736 kB\nMemFree:        1 kB\n",
        "/usr/bin/nvidia-smi --query --unit\n\n==============NVSMI LOG==============\n\nAttached Units : 0\n",
        "something else\n\nwhatever\n",
        # what another program quotes of an older kernel log
        "*** /var/log/nvidia-installer.log\n\n" + "-> building\n" * 9 + "ERROR: Unable to find the kernel source tree\n"
        f"{XID.replace('79', '48')}\n",
    )


def check_bug_report(node: Node) -> None:
    assert len(node.gpus) == 8
    assert node.driver.module_version == "565.57.01"
    assert node.host.ram_mib == 2113396736 // 1024
    codes = [event.code for event in present(node.kernel_log.events)]
    assert codes == [79, 119], "once each, and nothing of an earlier boot"
    assert len(present(node.gpus[0].pcie.path)) == 4
    assert (node.driver.load_failures, node.reported) == ((), ())


def test_a_bug_report_is_read_section_by_section(report: str, tmp_path: Path) -> None:
    (tmp_path / "nvidia-bug-report.log").write_text(report)
    node = node_of(tmp_path / "nvidia-bug-report.log")
    check_bug_report(node)
    assert node.source.files == ("nvidia-bug-report.log",)


def test_a_packed_bug_report_reads_the_same_alone_and_in_a_directory(report: str, tmp_path: Path) -> None:
    path = tmp_path / "nvidia-bug-report.log.gz"
    path.write_bytes(gzip.compress(report.encode()))
    check_bug_report(node_of(path))
    check_bug_report(node_of(tmp_path))


def test_a_mail_that_quotes_a_bug_report_is_read_with_what_its_writer_says(report: str, tmp_path: Path) -> None:
    quoted = "".join(f"> {line}\n" for line in report.splitlines())
    (tmp_path / "mail.txt").write_text(f"{quoted}\nGPU 3 has fallen off the bus\n")
    node = node_of(tmp_path / "mail.txt")
    assert (len(node.gpus), [each.gpu for each in node.reported if each.label == "gpu_lost"]) == (8, [3])


def test_a_bug_report_with_a_broken_section_says_so(captures: Path, tmp_path: Path) -> None:
    path = tmp_path / "report"
    path.write_text(bug_report(captures, "/usr/bin/nvidia-smi topo -m\n\n\tGPU0\tGPU1\nGPU0\t X \tWOW\n"))
    assert "nvidia-smi topo in line 1812: not read: line 2: 'WOW' is no connection" in node_of(path).source.notes[0]
    assert [each.loudness for each in node_of(path).reported] == ["unread"]
    path.write_text(bug_report(captures).partition("GPU 00000000:2A:00.0")[0] + "GPU 00000000:2A:00.0\n")
    assert "the dump is cut off inside GPU 0000:2a:00.0" in node_of(path).source.notes
    path.write_text("Start of NVIDIA bug report log file.\n" + RULER + "nothing\n")
    with pytest.raises(SourceError, match="without any section"):
        node_of(path)


def test_a_directory_honours_the_deadline_and_shows_where_it_is(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("1\n2\n")
    lines: list[str] = []
    with pytest.raises(SourceError, match="0 of 2 files of this directory were read within --deadline 0"):
        node_from_directory(str(tmp_path), 0.0, lines.append)
    with pytest.raises(SourceError, match="no dump in this directory"):
        node_from_directory(str(tmp_path), 3600, lines.append)
    assert lines[0] == "reading the directory: file 1 of 2, a.txt"


@pytest.mark.parametrize("name", ["log", "log.gz", "-"])
def test_a_text_of_any_kind_honours_the_deadline(name: str, tmp_path: Path) -> None:
    text = b"[1.5] nvidia 0000:05:00.0: enabled\n" * 3000
    path = tmp_path / name
    path.write_bytes(gzip.compress(text) if path.suffix else text)
    source = name if name == "-" else str(path)
    with pytest.raises(SourceError, match=r"0 lines of this text were read within --deadline 0: "):
        load_source(source, stdin=io.BytesIO(text), deadline_s=0.0)
    assert load_source(source, stdin=io.BytesIO(text), deadline_s=3600).node.source.kind == "capture"


def test_a_directory_in_which_no_dump_shows_gpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no dump in this directory that shows GPUs"):
        node_of(tmp_path)
    (tmp_path / "env").write_text(ENV)
    (tmp_path / "lspci").write_text("00:00.0 Host bridge: Intel Corporation 440FX\n")
    with pytest.raises(SourceError, match="no dump in this directory that shows GPUs"):
        node_of(tmp_path)
    shutil.copy(DUMPS / "lspci-2-gpus.txt", tmp_path / "a")
    assert len(node_of(tmp_path).gpus) == 2


def test_a_directory_with_a_kernel_log_alone_is_read(tmp_path: Path) -> None:
    (tmp_path / "dmesg").write_text("[    0.000000] Linux version 6.8\n" + XID + "\n")
    assert len(known(node_of(tmp_path).kernel_log.events) or ()) == 1


def test_of_many_files_that_are_no_dumps_ten_are_named(hgx: Path) -> None:
    for number in range(25):
        (hgx / f"note{number:02}").write_text("words\n")
    notes = node_of(hgx).source.notes
    assert len(notes) == 11
    assert notes[-1] == "and 15 more files that were not read"


def test_file_names_that_are_no_text_are_made_printable(hgx: Path) -> None:
    (hgx / os.fsdecode(b"\xff.log")).write_text("words\n")
    (hgx / "topo-m.txt").rename(hgx / os.fsdecode(b"\xfe.txt"))
    source = node_of(hgx).source
    assert source.notes == ("\\udcff.log: not recognised as a dump",)
    assert "\\udcfe.txt" in source.files
