"""What one GPU lacks and its peers show, and what two sources say differently, is no pass; and no failure either."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.peer_gaps import _LEAVES
from gpudoctor.checks.core.source_conflicts import conflicts_marked
from gpudoctor.facts.captures.source import load_source
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import NOT_READ, Fact, Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.simulated.load import node_names, put
from gpudoctor.report.judge import judge
from tests.checks.simulated_nodes import findings, healthy_report, packaged


def has_peers(node: Node) -> bool:
    return sum(gpu.name == node.gpus[-1].name for gpu in node.gpus) > 1


NODES = [name for name in node_names() if has_peers(packaged(name)) and healthy_report(name).exit_code == 0]


def with_last(node: Node, gpu: Gpu) -> Node:
    return replace(node, gpus=(*node.gpus[:-1], gpu))


def losses(gpu: Gpu) -> Iterator[tuple[str, Gpu]]:
    """The GPU without each value that it shows, without each section that shows one, and with its identity alone."""
    shown = leaves_shown(gpu)
    for leaf in shown:
        yield leaf, put(gpu, leaf, NOT_READ)
    for section in {leaf.partition(".")[0] for leaf in shown if "." in leaf}:
        yield section, replace(gpu, **{section: type(getattr(gpu, section))()})
    links, path = known(gpu.nvlinks) or (), known(gpu.pcie.path) or ()
    for leaf in leaves_shown(links[-1]) if links else ():
        yield f"{leaf} of a link", put(gpu, "nvlinks", (*links[:-1], put(links[-1], leaf, NOT_READ)))
    for leaf in leaves_shown(path[0]) if path else ():
        yield f"{leaf} of its slot", put(gpu, "pcie.path", (put(path[0], leaf, NOT_READ), *path[1:]))
    if path:
        yield "every bridge", put(gpu, "pcie.path", ())
    yield "all but its identity", Gpu(gpu.index, gpu.bus_id, uuid=gpu.uuid, name=gpu.name)


def leaves_shown(fact: Fact) -> list[str]:
    return [leaf for leaf in _LEAVES[type(fact)] if not isinstance(value_of(fact, leaf), Missing)]


def value_of(fact: Fact, leaf: str) -> object:
    section, _, name = leaf.rpartition(".")
    return getattr(getattr(fact, section) if section else fact, name)


@pytest.mark.wide(but=["rtx4090-4"])
@pytest.mark.parametrize("name", NODES)
def test_a_gpu_that_lacks_what_its_peers_show_is_unknown_by_name_and_fails_nothing(name: str) -> None:
    node = packaged(name)
    last = node.gpus[-1]
    wrong = []
    for lost, gpu in losses(last):
        report = judge(with_last(node, gpu))
        named = {finding.subject.gpu for _, finding in findings(report, Status.UNKNOWN)}
        if report.exit_code != 3 or last.index not in named:
            wrong.append((lost, report.exit_code, named))
    assert wrong == []


@pytest.mark.parametrize("name", ["dgx1-v100-8", "h100-nvl-4", "hgx-h100-8"])
def test_a_gpu_without_a_single_nvlink_beside_peers_with_some_is_no_pass(name: str) -> None:
    node = packaged(name)
    assert judge(with_last(node, put(node.gpus[-1], "nvlinks", ()))).exit_code != 0


@pytest.mark.parametrize("leaf", ["power.requested_limit_w", "power.max_limit_w", "clocks.sm_mhz"])
def test_a_value_that_one_gpu_could_not_read_and_its_peers_show_is_no_pass(leaf: str) -> None:
    node = packaged("cold-start-8")
    failed = Missing("not understood: it reads -1", "failed")
    assert judge(with_last(node, put(node.gpus[-1], leaf, failed))).exit_code == 3
    links = known(packaged("hgx-h100-8").gpus[-1].nvlinks) or ()
    last = put(packaged("hgx-h100-8").gpus[-1], "nvlinks", (*links[:-1], put(links[-1], "speed_gb_s", failed)))
    assert judge(with_last(packaged("hgx-h100-8"), last)).exit_code == 3


def test_what_gpudoctor_did_not_ask_one_gpu_is_no_gap() -> None:
    node = packaged("hgx-h100-8")
    busy = put(node.gpus[-1], "inforom_corrupted", Missing("not asked while a process uses the GPU", "not_asked"))
    assert judge(with_last(node, busy)).exit_code == 0
    silent = put(node.gpus[-1], "inforom_corrupted", Missing("not in this text", "absent"))
    assert judge(with_last(node, silent)).exit_code == 3


def test_what_all_gpus_lack_is_not_judged() -> None:
    node = packaged("hgx-h100-8")
    alike = replace(node, gpus=tuple(put(gpu, "clocks.memory_mhz", NOT_READ) for gpu in node.gpus))
    assert judge(alike).exit_code == 0


@pytest.mark.parametrize(
    ("setting", "value"),
    [("vbios", "96.00.99.00.99"), ("settings.display_active", True), ("settings.virtualization", "vgpu")],
)
def test_a_setting_that_the_node_shows_explains_what_is_lacking(setting: str, value: object) -> None:
    node = packaged("rtx4090-4")
    gpu = put(node.gpus[-1], setting, value)
    lacking = put(gpu, "thermal.memory_c", NOT_READ)
    assert judge(with_last(node, lacking)).exit_code == judge(with_last(node, gpu)).exit_code != 3


@pytest.mark.parametrize("other", [{"vbios": "96.00.99.00.99"}, {"name": "NVIDIA L4"}, {"name": NOT_READ}])
def test_nothing_explains_a_gpu_that_shows_no_reading_beside_others_that_do(other: dict[str, str]) -> None:
    node = packaged("hgx-h100-8")
    last = node.gpus[-1]
    identity = replace(Gpu(last.index, last.bus_id, uuid=last.uuid, name=last.name), **other)
    report = judge(with_last(node, identity))
    assert report.exit_code == 3
    assert last.index in {finding.subject.gpu for _, finding in findings(report, Status.UNKNOWN)}


def conflicts() -> Iterator[tuple[str, Node, str]]:
    node = packaged("hgx-h100-8")
    last = node.gpus[-1]
    path = known(last.pcie.path) or ()
    narrow = put(last, "pcie.path", (replace(path[0], width=8), *path[1:]))
    yield "width", with_last(node, narrow), "pcie.link-width"
    foreign = put(last, "pcie.path", (replace(path[0], bus_id="0000:99:00.0"), *path[1:]))
    yield "bus id", with_last(node, foreign), "pcie.upstream"
    yield "module", put(node, "driver.module_loaded", False), "driver.loaded"
    devices = tuple(device for device in known(node.pci.nvidia_devices) or () if device.bus_id != last.bus_id)
    yield "bus", put(node, "pci.nvidia_devices", devices), "gpu.count"


@pytest.mark.parametrize(
    ("conflict", "node", "check"), [*conflicts()], ids=lambda value: value if isinstance(value, str) else ""
)
def test_two_sources_of_one_fact_that_differ_are_unknown(conflict: str, node: Node, check: str) -> None:
    report = judge(node)
    assert report.exit_code == 3, conflict
    assert next(each.status for each in report.checks if each.id == check) is Status.UNKNOWN


@pytest.mark.parametrize("conflict", ["module", "bus"])
def test_a_container_may_hide_a_part_of_the_host_that_the_driver_shows(conflict: str) -> None:
    node = next(node for name, node, _ in conflicts() if name == conflict)
    inside = replace(node, host=replace(node.host, virtualization="container", container="gvisor"))
    assert conflicts_marked(inside) is inside


def test_the_pcie_link_beside_nvlink_c2c_is_no_link_to_the_host() -> None:
    node = packaged("gb200-tray-4")
    path = known(node.gpus[-1].pcie.path) or ()
    narrow = with_last(node, put(node.gpus[-1], "pcie.path", (replace(path[0], width=1), *path[1:])))
    assert conflicts_marked(narrow) is narrow


HEADER = "index, name, temperature.gpu, memory.used [MiB]\n"
ROWS = [f"{index}, NVIDIA H100 80GB HBM3, 40, 100 MiB\n" for index in range(4)]


def pasted(text: str) -> tuple[int, set[int | None]]:
    report = judge(load_source("-", stdin=io.BytesIO(text.encode())).node)
    status = Status.FAIL if report.exit_code == 1 else Status.UNKNOWN
    return report.exit_code, {finding.subject.gpu for _, finding in findings(report, status)}


def test_a_row_of_csv_that_cannot_be_read_is_a_gpu_that_could_not_be_read() -> None:
    assert pasted(HEADER + "".join(ROWS))[0] == 0
    assert pasted(HEADER + "".join(ROWS[:3]) + "3, [GPU is lost]\n") == (1, {3})
    for row in ("3, NVIDIA H100 80GB HBM3, 40, 1,000 MiB\n", "3, NVIDIA H100 80GB HBM3, 40\n", "3, NVIDIA H10"):
        code, named = pasted(HEADER + "".join(ROWS[:3]) + row)
        assert (code, 3 in named) == (3, True), row
    for missing in (1, 2):
        assert pasted(HEADER + "".join(ROWS[:missing] + ROWS[missing + 1 :]))[0] == 3


def test_rows_of_few_gpus_are_a_selection() -> None:
    """`nvidia-smi -i 0,4`, pasted without its command."""
    assert pasted(HEADER + ROWS[0] + "4" + ROWS[1][1:])[0] == 0


def test_a_dump_that_counts_more_gpus_than_it_shows_is_unknown() -> None:
    section = "GPU 00000000:18:00.0\n    Product Name : NVIDIA H100 80GB HBM3\n    Processes : None\n"
    head = "==============NVSMI LOG==============\n\nAttached GPUs : {}\n"
    assert pasted(head.format(1) + section)[0] != 1
    assert pasted(head.format(8) + section)[0] == 3
