"""Plans for hardware that nobody has read: a kind of node, or so many GPUs of a model."""

from __future__ import annotations

import re

import pytest

from gpudoctor.plan.unread_node import node_of_profile
from gpudoctor.profiles.load import gpu_models, profile_for
from tests.cli.conftest import Gpudoctor
from tests.narrowed import present
from tests.plan.conftest import refused


def test_a_kind_of_node_has_no_borrowed_network(gpudoctor: Gpudoctor) -> None:
    out = gpudoctor("plan", "13b", "--nodes", "2", "--node", "dgx-a100-40gb-8").out
    assert out.startswith("From profile dgx-a100-40gb-8, no node was read: network, RAM, CPUs and faults are not known")
    assert "2 nodes of 8 x NVIDIA A100-SXM4-40GB" in out
    assert "between nodes: not known" in out
    assert "NCCL_SOCKET_IFNAME" not in out
    assert "SIMULATED" not in out


def test_every_gpu_model_is_recognised_again_by_the_name_it_is_given() -> None:
    for key, model in gpu_models().items():
        assert profile_for(present(node_of_profile(f"3x{key}"))).gpu == model, key


def test_words_of_a_model_and_its_memory(gpudoctor: Gpudoctor) -> None:
    report = gpudoctor("plan", "1b", "--node", "4x V100-SXM2-32GB", "--json").json
    assert report["source"] == {"kind": "profile", "name": "4xv100-sxm2 with 32 GB", "faults": []}
    assert report["machine"]["memory_gib"] == pytest.approx(32480 / 1024, abs=0.1)


@pytest.mark.parametrize(
    ("node", "line"),
    [
        ("8xA100-40GB", "several have this name: --node 8xa100-sxm4-40gb, 8xa100-pcie-40gb"),
        ("a100-sxm4-40gb", "is a GPU model: say how many, as in --node 8xa100-sxm4-40gb"),
        ("dgx-a100-40gb", "did you mean dgx-a100-40gb-8?"),
        ("80xt4", "a node has 1 to 64 GPUs; more of them are --nodes N"),
        ("2xh1oo-sxm", "no such GPU model: --node 2xh100-sxm"),
        ("1xh100-foo", "no such GPU model: --node 1xh100-sxm, 1xh100-"),
        ("aws-p4d", "did you mean aws-a100-efa-8?"),
    ],
)
def test_a_name_that_stands_for_nothing_gets_the_nearest(node: str, line: str, gpudoctor: Gpudoctor) -> None:
    assert line in refused(gpudoctor, "7b", "--node", node)


def test_a_scarce_fit_names_the_roomier_strategy_and_tight_never_exceeds_the_gpu(gpudoctor: Gpudoctor) -> None:
    out = gpudoctor("plan", "13b", "--nodes", "2", "--node", "dgx-a100-40gb-8").out
    assert "FSDP (ZeRO-3) leaves more room (28.6 GiB a GPU)" in " ".join(out.split())
    (tight,) = (line for line in out.splitlines() if "tight" in line)
    assert float(tight.split()[1]) < 39.6


def test_a_model_is_named_as_the_plan_names_it(gpudoctor: Gpudoctor) -> None:
    assert gpudoctor("plan", "1b", "--node", "1xh100-sxm5-80gb", "--json").json["source"]["name"] == "1xh100-sxm"


def test_states_in_ram_that_nobody_read_are_not_said_to_fail(gpudoctor: Gpudoctor) -> None:
    error = refused(gpudoctor, "7b", "--node", "4xrtx4090")
    assert "in any way" not in error
    assert "not tried, because the node's RAM is not known" in error
    (ram,) = re.findall(r"--ram (\d+),", error)
    for given, taken in ((int(ram), "fsdp-offload"), (int(ram) - 1, None)):
        made = gpudoctor("plan", "7b", "--node", "4xrtx4090", "--ram", str(given), "--json").json
        assert (made["recommended"] or {}).get("name") == taken


def test_no_amount_of_ram_is_a_way_where_none_is(gpudoctor: Gpudoctor) -> None:
    refused = gpudoctor("plan", "70b", "--node", "rtx4090-4").err
    assert "in any way" in refused
    assert "--ram" not in refused


@pytest.mark.parametrize(
    ("model", "node", "words"),
    [
        ("70b", "dgx-a100-40gb-8", "A GPU of 39.6 GiB: 16.4 + 1.3 GiB, sharded over 8 GPUs (FSDP): 21.8 GiB are left"),
        ("70b", "4xrtx4090", "32.9 + 2.6 GiB, sharded over 4 GPUs (FSDP): these alone do not fit, 11.8 GiB too much"),
        ("7b", "1xh100-sxm", "A GPU of 79.1 GiB: 12.6 + 1.0 GiB: "),
    ],
)
def test_lora_has_the_figures_of_a_gpu_and_a_verdict(model: str, node: str, words: str, gpudoctor: Gpudoctor) -> None:
    said = gpudoctor("plan", model, "--lora", "--node", node).err
    assert words in said
    fits = said.rstrip().endswith(": fits")
    assert fits is ("too much" not in said)
    assert ("--lora" in gpudoctor("plan", model, "--node", node).err) is fits


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_lora_gets_a_rule_of_thumb_and_no_hint_about_spelling(method: str, gpudoctor: Gpudoctor) -> None:
    error = refused(gpudoctor, "70b", f"--{method}", "--node", "hgx-h100-8")
    assert "is not planned. Rule of thumb: the frozen weights take" in error
    assert "did you mean" not in error
    weights = {"lora": "131.4", "qlora": "32.9"}[method]
    assert f"For Llama 3.1 70B: {weights} GiB of frozen weights and at most 10.5 GiB for adapters" in error


def test_the_formulas_are_whole_sentences_without_internals(gpudoctor: Gpudoctor) -> None:
    out = gpudoctor("plan", "13b", "--node", "hgx-h100-8", "--explain").out
    assert "UserError" not in out
    assert "Of the stages between them the second holds most" in " ".join(out.split())
