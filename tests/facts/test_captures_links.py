"""topo, nvlink and lspci: how GPUs reach each other and the root."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gpudoctor.facts.captures import ABSENT, SourceError
from gpudoctor.facts.captures.host.lspci import parse_lspci
from gpudoctor.facts.captures.nvidia_smi.nvlink import parse_nvlink
from gpudoctor.facts.model.gpu import NvLink, PcieHop
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from tests.facts.loaded_nodes import node_of, pasted
from tests.narrowed import missing, present

DUMPS = Path(__file__).parent / "dumps"
MATRIX = DUMPS / "topo-m-nics.txt"


def test_nic_columns_are_passed_over_and_paths_are_told_from_nvlinks() -> None:
    node = node_of(MATRIX)
    pairs = [(p.a, p.b, p.nvlinks, p.path) for p in present(node.pairs)]
    assert pairs == [(0, 1, 4, ABSENT), (0, 2, 0, "SYS"), (1, 2, 0, "PXB")]
    assert node.gpus[0].cpu_affinity == "0-15,32-47"
    assert [gpu.numa_node for gpu in node.gpus] == [0, 1, ABSENT]


def test_a_gpu_near_several_numa_nodes_has_none_whatever_lspci_shows() -> None:
    matrix = "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-31\t0-1\n"
    function = "18:00.0 3D controller: NVIDIA Corporation GH100\n\tNUMA node: 0\n"
    (gpu,) = pasted(f"$ nvidia-smi topo -m\n{matrix}$ lspci -vvv\n{function}").gpus
    assert (gpu.bus_id, gpu.numa_node) == ("0000:18:00.0", ABSENT)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("\tPXB\t X \tSYS", "\tNV2\t X \tSYS"), "line 4: GPU1 and GPU2 differ"),
        (("GPU1\tNV4", "GPU0\tNV4"), "line 3: GPU0 has two rows"),
        (("\tNV4\tSYS\tPIX", "\tWOW\tSYS\tPIX"), "line 2: 'WOW' is no connection"),
    ],
)
def test_a_broken_matrix_is_refused_with_its_place(change: tuple[str, str], said: str) -> None:
    text = MATRIX.read_text()
    assert change[0] in text
    with pytest.raises(SourceError, match=said):
        pasted(text.replace(*change))


def test_a_matrix_row_that_ends_early_is_cut_off() -> None:
    matrix = pasted("\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\n")
    assert matrix.source.notes == ("topo -m: cut off at line 3: the row of GPU1 ends early",)
    assert ([(pair.a, pair.b, pair.path) for pair in present(matrix.pairs)], len(matrix.gpus)) == ([(0, 1, "SYS")], 2)
    without = pasted("\tGPU0\tGPU1\nGPU0\t X \tSYS\n")
    assert without.source.notes == ("topo -m: cut off: 2 GPU columns, but no row for GPU1",)


@pytest.mark.parametrize(
    "lose", [lambda text: text.expandtabs(8), lambda text: re.sub(r"[ \t]+", " ", text), lambda text: text.lstrip()]
)
def test_a_matrix_reads_the_same_without_its_tabs(lose: Callable[[str], str]) -> None:
    text = MATRIX.read_text()
    assert pasted(lose(text)) == pasted(text)


def test_the_worse_direction_of_a_pair_counts() -> None:
    worse = pasted(" \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tCNS\tX\n")
    assert [(pair.a, pair.b, pair.p2p_read) for pair in present(worse.pairs)] == [(0, 1, "CNS")]
    with pytest.raises(SourceError, match="line 2: 'FINE' is no peer-to-peer status"):
        pasted(" \tGPU0\tGPU1\n GPU0\tX\tFINE\n GPU1\tCNS\tX\n")


def links_of(text: str) -> list[tuple[NvLink, ...] | Missing]:
    return [gpu.nvlinks for gpu in pasted(text).gpus]


def test_an_inactive_link_is_inactive_and_the_others_keep_their_speed() -> None:
    links = links_of((DUMPS / "nvlink-status-mixed.txt").read_text())[0]
    assert [(link.link, link.state, link.speed_gb_s) for link in present(links)] == [
        (0, "active", 25.781),
        (1, "inactive", ABSENT),
        (2, "active", 25.781),
    ]


def test_all_links_inactive_takes_their_number_from_a_peer_of_the_same_model() -> None:
    links = links_of((DUMPS / "nvlink-status-mixed.txt").read_text())
    assert [link.state for link in present(links[1])] == ["inactive"] * 3
    missing(links[2], "unsupported")  # no word of links: a GPU without NVLink
    missing(links[3], "absent", "not how many")


def test_error_counters_and_remote_ends_are_read() -> None:
    header = "GPU 0: X (UUID: GPU-1)\n"
    text = (
        header
        + "\t Link 0: Replay Errors: 4\n\t Link 0: Recovery Errors: 5\n\t Link 0: CRC Errors: 6\n"
        + "\t Link 1: Replay Errors: N/A\n\t Link 1: CRC FLIT Error: what\n"
        + "\t Link 0: Remote Device 00000000:B2:00.0: Link 3\n\t Link 1: Remote Device FFFFFFFF:FF:FF.0: Link 0\n"
        + "\t Link 1: Something new\n"
    )
    first, second = present(links_of(text)[0])
    assert (first.replay_errors, first.recovery_errors, first.crc_errors) == (4, 5, 6)
    assert (first.remote_bus_id, first.remote_kind) == ("0000:b2:00.0", ABSENT)
    missing(second.replay_errors, "unsupported")
    missing(second.crc_errors, "failed")
    assert (second.remote_bus_id, second.remote_kind) == (None, "switch")


def test_a_text_without_gpus_is_no_nvlink_dump() -> None:
    with pytest.raises(SourceError, match="no line like 'GPU 0"):
        parse_nvlink("Link 0: 25 GB/s\n")


@pytest.fixture
def pci() -> Node:
    return node_of(DUMPS / "lspci-2-gpus.txt")


def path_of(node: Node, index: int) -> tuple[PcieHop, ...]:
    return present(node.gpus[index].pcie.path)


def test_the_path_runs_from_the_gpu_to_its_root_port(pci: Node) -> None:
    assert [hop.bus_id for hop in path_of(pci, 0)] == ["0000:18:00.0", "0000:17:00.0", "0000:16:00.0", "0000:15:01.0"]
    assert [hop.bus_id for hop in path_of(pci, 1)] == ["0000:19:00.0", "0000:17:01.0", "0000:16:00.0", "0000:15:01.0"]


def test_each_hop_tells_its_speed_and_width_now_and_at_most(pci: Node) -> None:
    gpu, downstream, upstream, root = path_of(pci, 1)
    assert (gpu.width, gpu.max_width, downstream.width) == (8, 16, 8)
    assert (upstream.speed_gt_s, upstream.max_speed_gt_s) == (16.0, 32.0)
    assert (root.speed_gt_s, root.width, root.pci_class) == (32.0, 16, "0x060400")
    assert path_of(pci, 0)[0].speed_gt_s == 2.5
    assert gpu.aer_correctable == ABSENT, "lspci shows flags, not counts"


def test_acs_redirect_is_told_by_its_plus_sign(pci: Node) -> None:
    assert [hop.acs_redirect for hop in path_of(pci, 0)] == [False, True, False, False]


def test_nvidia_devices_are_gpus_and_switches_with_driver_and_numa_node(pci: Node) -> None:
    devices = present(pci.pci.nvidia_devices)
    assert [(d.bus_id, d.pci_class, d.driver) for d in devices] == [
        ("0000:18:00.0", "0x030200", "nvidia"),
        ("0000:19:00.0", "0x030200", None),
        ("0000:1a:00.0", "0x068000", "nvidia-nvswitch"),
    ]
    assert [d.numa_node for d in devices] == [0, None, ABSENT]
    assert [d.device_id for d in devices] == ["0x2330", ABSENT, ABSENT]


def test_a_dump_of_lspci_alone_gives_gpus_by_bus_id_and_claims_no_driver(pci: Node) -> None:
    assert [(gpu.index, gpu.bus_id) for gpu in pci.gpus] == [(0, "0000:18:00.0"), (1, "0000:19:00.0")]
    assert {gpu.name for gpu in pci.gpus} == {"NVIDIA Corporation GH100 [H100 SXM5 80GB]"}
    assert pci.driver.init_code == ABSENT


def test_lspci_without_root_is_denied_and_plain_lspci_tells_no_path() -> None:
    denied = parse_lspci("18:00.0 3D controller: NVIDIA Corporation X\n\tCapabilities: <access denied>\n")
    hop = present(denied.path("0000:18:00.0"))[0]
    assert hop.acs_redirect == missing(hop.width, "denied")
    assert parse_lspci("18:00.0 3D controller: NVIDIA Corporation X\n").path("0000:18:00.0") == ABSENT
    assert denied.path("0000:99:00.0") == ABSENT


def test_a_link_of_unknown_speed_has_failed_to_tell_it() -> None:
    text = (
        "18:00.0 3D controller: NVIDIA Corporation X\n\t\tLnkCap: Speed unknown, Width x16\n\t\tLnkSta: Speed 8GT/s\n"
    )
    hop = present(parse_lspci(text).path("0000:18:00.0"))[0]
    assert (hop.speed_gt_s, hop.max_width) == (8.0, 16)
    missing(hop.max_speed_gt_s, "failed")
    missing(hop.width, "failed")
    with pytest.raises(SourceError, match="no line like"):
        parse_lspci("nothing\n")


def test_gpus_known_by_their_index_only_have_the_addresses_that_lspci_shows() -> None:
    functions = "".join(f"{bus}:00.0 3D controller: NVIDIA Corporation GH100 (rev a1)\n" for bus in ("18", "2a"))
    for index, addresses in ((1, ["0000:18:00.0", "0000:2a:00.0"]), (5, ["unknown-0", "unknown-5"])):
        listed = "".join(f"GPU {n}: NVIDIA H100 (UUID: GPU-{n}1111111-2222)\n" for n in (0, index))
        node = pasted(f"$ nvidia-smi -L\n{listed}$ lspci\n{functions}")
        assert [gpu.bus_id for gpu in node.gpus] == addresses


@pytest.mark.parametrize(("second", "fits"), [("GA102GL [RTX A6000]", True), ("TU117GL [T1000 8GB]", False)])
def test_gpus_whose_names_do_not_fit_those_of_lspci_get_no_addresses(second: str, fits: bool) -> None:
    names = ("NVIDIA RTX A6000", "NVIDIA A100-PCIE-40GB")
    listed = "".join(f"GPU {n}: {name} (UUID: GPU-{n}1111111-2222)\n" for n, name in enumerate(names))
    functions = (second, "GA100 [A100 PCIe 40GB]")
    shown = "".join(f"{17 + n}:00.0 3D controller: NVIDIA Corporation {f} (rev a1)\n" for n, f in enumerate(functions))
    found = [gpu.bus_id for gpu in pasted(f"$ nvidia-smi -L\n{listed}$ lspci\n{shown}").gpus]
    assert found == (["0000:17:00.0", "0000:18:00.0"] if fits else ["unknown-0", "unknown-1"])
