"""Dumps as they really arrive: coloured, wrapped in noise, with other line ends, mixed up; and unexpected words."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpudoctor.facts.captures.nvidia_smi.query_gpu import CUT
from gpudoctor.facts.captures.source import SourceError, load_source
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node, Source
from tests.facts.loaded_nodes import pasted
from tests.narrowed import missing, present

XID = "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
NOISE = b'[sudo] password for ops: \nDefaulted container "train" out of: train, sidecar\n'


def node_of(data: bytes) -> Node:
    return replace(pasted(data), source=Source())


@pytest.mark.parametrize("file", ["qx-h100.xml", "smi-q-8x-h100-sxm.txt", "hgx-h100-dump/topo-m.txt"])
@pytest.mark.parametrize(
    "wrapped",
    [
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: NOISE + data,
        lambda data: data + b"\nConnection to node12 closed.\n",
    ],
    ids=["crlf", "bom", "noise before", "noise after"],
)
def test_what_wraps_a_dump_does_not_change_it(captures: Path, file: str, wrapped: object) -> None:
    data = (captures / file).read_bytes()
    assert callable(wrapped)
    assert node_of(wrapped(data)) == node_of(data)


@pytest.mark.parametrize("file", ["qx-h100.xml", "smi-q-8x-h100-sxm.txt"])
def test_a_dump_that_is_there_twice_is_one_node(captures: Path, file: str) -> None:
    data = (captures / file).read_bytes()
    assert node_of(data * 2) == node_of(data)


@pytest.mark.parametrize(
    "text",
    [
        f"\x1b[32m[    0.000000] \x1b[0m\x1b[33mLinux\x1b[0m\n\x1b[32m[    5.1234] \x1b[0m\x1b[31m{XID}\x1b[0m\n",
        f"kern  :info  : [Fri Aug  1 12:00:00 2025] Linux\nkern  :warn  : [Fri Aug  1 12:00:00 2025] {XID}\n",
    ],
    ids=["colours", "facility and level"],
)
def test_a_kernel_log_is_known_in_every_dress_of_dmesg(text: str) -> None:
    (event,) = known(node_of(text.encode()).kernel_log.events) or ()
    assert (event.kind, event.code, event.bus_id) == ("xid", 79, "0000:05:00.0")
    assert "\x1b" not in event.text


def test_a_link_whose_state_nvidia_smi_cannot_read_is_not_left_out_of_the_judgement() -> None:
    dump = (
        b"GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: Unknown Error\n\t Link 2: <inactive>\n"
    )
    assert [link.state for link in present(node_of(dump).gpus[0].nvlinks)] == [
        "active",
        Missing("nvidia-smi says Unknown Error", "failed"),
        "inactive",
    ]


def test_a_number_with_a_comma_is_not_cut_at_it(captures: Path) -> None:
    text = (captures / "smi-q-8x-h100-sxm.txt").read_text().replace("81559 MiB", "81,559 MiB")
    missing(node_of(text.encode()).gpus[0].memory_total_mib, "failed", "81,559")


@pytest.mark.parametrize(
    ("smi", "other", "said"),
    [
        ("qx-h100.xml", "nvlink-status.txt", r"nvlink-status.txt contradicts qx-h100.xml \(GPU \d is GPU-"),
        ("qx-l40s.xml", "topo-m.txt", r"nvidia-smi -q shows 1 GPUs and topo -m 8: keep the dumps of one"),
    ],
)
def test_links_and_a_matrix_of_another_machine_are_refused(
    captures: Path, tmp_path: Path, smi: str, other: str, said: str
) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    shutil.copy(captures / smi, folder)
    shutil.copy(captures / "hgx-h100-dump" / other, folder)
    with pytest.raises(SourceError, match=f"mixed: {said}"):
        load_source(str(folder))


MIG_TEXT = """
    MIG Mode
        Current                           : Enabled
        Pending                           : Enabled
    MIG Device
        Index                             : 0
        GPU Instance ID                   : 1
        Compute Instance ID               : 0
        Device Attributes
            Shared
                Multiprocessor count      : 14
        ECC Errors
            Volatile
                SRAM Uncorrectable        : 0
        FB Memory Usage
            Total                         : 4864 MiB
            Used                          : 2 MiB
    MIG Device
        Index                             : 1
        GPU Instance ID                   : 2
        Compute Instance ID               : 0
        FB Memory Usage
            Total                         : 9856 MiB
"""


def test_the_mig_devices_of_a_text_dump_are_told_apart(captures: Path) -> None:
    text = (captures / "smi-q-8x-h100-sxm.txt").read_text()
    head, mode, tail = text.partition("    MIG Mode\n")
    tail = tail.split("\n", 2)[2]
    assert mode
    gpu, *others = node_of((head + MIG_TEXT.lstrip("\n") + tail).encode()).gpus
    settings = gpu.settings
    assert (settings.mig_enabled, settings.mig_pending) == (True, True)
    assert [(mig.gpu_instance, mig.compute_instance, mig.memory_mib) for mig in present(settings.mig_instances)] == [
        (1, 0, 4864),
        (2, 0, 9856),
    ]
    assert gpu.memory_total_mib == 81559, "an instance's memory is not the GPU's"
    assert node_of(text.encode()).gpus[1:] == tuple(others)


@pytest.mark.wide
@pytest.mark.parametrize("file", ["nvlink-status.txt", "nvlink-errors.txt"])
def test_nvlink_text_cut_off_inside_its_last_gpu_is_never_links_that_are_down(captures: Path, file: str) -> None:
    text = (captures / "hgx-h100-dump" / file).read_text().rstrip("\n") + "\n"
    lines = text.splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if line.startswith("GPU 7"))
    whole = [len(known(gpu.nvlinks) or ()) for gpu in node_of(text.encode()).gpus]
    for part in ("".join(lines[:end]) for end in range(last + 1, len(lines))):
        loaded = pasted(part)
        assert any("cut off after line" in note for note in loaded.source.notes)
        assert [len(known(gpu.nvlinks) or ()) for gpu in loaded.gpus] == whole
        links = known(loaded.gpus[7].nvlinks) or ()
        assert "inactive" not in [link.state for link in links]
        assert CUT in [value for link in links for value in (link.state, link.crc_errors, link.replay_errors)]
    for cut in range(1, 40):
        links = known(node_of(text[:-cut].encode()).gpus[7].nvlinks) or ()
        assert {known(link.state) for link in links} <= {"active", None}


def test_a_last_gpu_that_shows_its_inactive_links_or_has_none_is_whole() -> None:
    one = "GPU 0: H100 (UUID: GPU-1)\n\t Link 0: 26 GB/s\n\t Link 1: <inactive>\n"
    other = one.replace("GPU 0", "GPU 1").replace("GPU-1", "GPU-2").replace("26 GB/s", "<inactive>")
    assert len(known(node_of((one + other).encode()).gpus[1].nvlinks) or ()) == 2
    node_of((one + "GPU 1: T4 (UUID: GPU-2)\n").encode())
    links = known(node_of((one + "GPU 1: H100 (UUID: GPU-2)\n").encode()).gpus[1].nvlinks)
    assert [link.state for link in links or ()] == [CUT, CUT]


@pytest.mark.parametrize("file", ["smi-q-8x-h100-sxm.txt", "hgx-h100-dump/topo-m.txt"])
def test_a_dump_without_its_last_line_end_reads_the_same(captures: Path, file: str) -> None:
    data = (captures / file).read_bytes()
    assert node_of(data.rstrip(b"\n")) == node_of(data)


def test_a_dump_that_counts_gpus_and_shows_none_is_cut_off(captures: Path) -> None:
    head = (captures / "smi-q-8x-h100-sxm.txt").read_bytes().partition(b"\nGPU 0000")[0]
    for text in (b"<nvidia_smi_log><attached_gpus>8</attached_gpus></nvidia_smi_log>", head + b"\n"):
        node = node_of(text)
        assert node.gpus == ()
        assert node.driver.device_count == Missing("the dump shows 0 of 8 GPUs", "failed")


def test_a_negative_width_in_a_dump_is_a_failed_reading(captures: Path) -> None:
    data = (captures / "qx-h100.xml").read_bytes()
    node = node_of(data.replace(b"<current_link_width>16x", b"<current_link_width>-16x"))
    missing(node.gpus[0].pcie.width, "failed", "-16")


def test_a_text_of_megabytes_is_clipped(captures: Path) -> None:
    data = (captures / "qx-l40s.xml").read_bytes().replace(b"NVIDIA L40S", b"N" * 5_000_000)
    name = known(node_of(data).gpus[0].name) or ""
    assert (len(name), name[-4:]) == (1000, "N...")
    log = node_of(f"[    1.000000] a\n[    5.123456] {XID} {'x' * 5000}\n".encode()).kernel_log
    assert len((known(log.events) or ())[0].text) == 1000
