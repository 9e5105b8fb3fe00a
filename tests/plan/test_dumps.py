"""What a dump does not hold is taken from the model's profile, or is not known; it is never made up."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node, to_json
from gpudoctor.facts.simulated.load import load_node
from tests.cli.conftest import Gpudoctor
from tests.plan.conftest import planned

GONE = Missing("not in this capture")


def saved(folder: Path, node: Node) -> Path:
    path = folder / "facts.json"
    path.write_bytes(to_json(node))
    return path


def bare(name: str) -> Node:
    """The node as nvidia-smi -q alone shows it."""
    node = load_node(name, {})
    gpus = tuple(msgspec.structs.replace(gpu, nvlinks=GONE, compute_capability=GONE) for gpu in node.gpus)
    return msgspec.structs.replace(node, gpus=gpus, pairs=GONE)


def test_a_model_without_bf16_gets_fp16_although_the_dump_has_no_compute_capability(
    gpudoctor: Gpudoctor, tmp_path: Path
) -> None:
    assert planned(gpudoctor, f"124m --node {saved(tmp_path, bare('t4-cloud-4'))}")["precision"] == "fp16"
    assert planned(gpudoctor, f"124m --node {saved(tmp_path, bare('rtx4090-4'))}")["precision"] == "bf16"


def test_the_oldest_gpu_decides_on_the_precision(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    node = load_node("workstation-mixed", {})
    old = msgspec.structs.replace(node.gpus[2], compute_capability="7.5")
    path = saved(tmp_path, msgspec.structs.replace(node, gpus=(*node.gpus[:2], old)))
    assert planned(gpudoctor, f"124m --node {path}")["precision"] == "fp16"
    assert planned(gpudoctor, f"124m --node {path} --gpu 0-1")["precision"] == "bf16"


def test_bridged_cards_of_unread_topology_get_no_rate_and_no_bound(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    path = saved(tmp_path, bare("rtx3090-nvlink-2"))
    made = planned(gpudoctor, f"350m --node {path}")
    assert made["machine"]["collective"]["value"] is None
    assert made["communication"]["efficiency_hidden"] is None
    out = " ".join(gpudoctor("plan", "350m", "--node", str(path)).out.split())
    assert "not known: whether NVLink joins these GPUs: not in this capture" in out
    assert "GPUs without peer-to-peer" not in out


def test_cards_that_have_no_nvlink_at_all_are_bound_by_pcie(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    made = planned(gpudoctor, f"350m --node {saved(tmp_path, bare('rtx4090-4'))}")
    assert made["machine"]["collective"]["value"] == pytest.approx(31.5, abs=0.1)


def test_shared_memory_is_not_called_the_only_way_where_nobody_looked(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    unread = {
        s["name"] for s in planned(gpudoctor, f"350m --node {saved(tmp_path, bare('rtx3090-nvlink-2'))}")["harmful"]
    }
    assert "NCCL_SHM_DISABLE" not in unread
    assert "NCCL_P2P_DISABLE" in unread


def test_narrow_links_of_all_gpus_say_what_to_expect(gpudoctor: Gpudoctor) -> None:
    [trouble] = planned(gpudoctor, "350m --node t4-cloud-4")["troubles"]
    assert trouble["gpus"] == [0, 1, 2, 3]
    assert trouble["means"].startswith("expect ")
    assert "s of communication a step instead of" in trouble["means"]


def test_an_odd_gpu_says_what_it_costs_the_others(gpudoctor: Gpudoctor) -> None:
    [trouble] = planned(gpudoctor, "1b --node workstation-mixed")["troubles"]
    assert trouble["check"] == "gpu.identical"
    assert trouble["means"] == (
        "leave it out (--gpu 0-1), or expect all to wait for the slowest, and 15.7 GiB of each to be used"
    )


def test_nodes_that_do_less_than_one_of_them_are_pointed_out(gpudoctor: Gpudoctor) -> None:
    slow = planned(gpudoctor, "8b --node h100-nvl-4 --nodes 2")
    assert slow["communication"]["efficiency_hidden"] < 0.5
    assert any("do at most" in warning for warning in slow["warnings"])
    assert planned(gpudoctor, "8b --node hgx-h100-8 --nodes 2")["warnings"] == []
