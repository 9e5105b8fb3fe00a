"""Plans for hardware that nobody has read: a kind of node, or so many GPUs of a model."""

from __future__ import annotations

import pytest

from gpudoctor.plan.unread_node import node_of_profile
from gpudoctor.profiles.load import gpu_models, profile_for
from tests.cli.conftest import Gpudoctor


def test_a_kind_of_node_has_no_borrowed_network(gpudoctor: Gpudoctor) -> None:
    out = gpudoctor("plan", "13b", "--nodes", "2", "--node", "dgx-a100-40gb-8").out
    assert out.startswith("From profile dgx-a100-40gb-8, no node was read: network, RAM, CPUs and faults are not known")
    assert "2 nodes of 8 x NVIDIA A100-SXM4-40GB" in out
    assert "between nodes: not known" in out
    assert "NCCL_SOCKET_IFNAME" not in out
    assert "SIMULATED" not in out


def test_every_gpu_model_is_recognised_again_by_the_name_it_is_given() -> None:
    for key, model in gpu_models().items():
        node = node_of_profile(f"3x{key}")
        assert node is not None
        assert profile_for(node).gpu == model, key


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
    ],
)
def test_a_name_that_stands_for_nothing_gets_the_nearest(node: str, line: str, gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor("plan", "7b", "--node", node)
    assert (outcome.code, outcome.out) == (2, "")
    assert line in outcome.err


def test_a_scarce_fit_names_the_roomier_strategy_and_tight_never_exceeds_the_gpu(gpudoctor: Gpudoctor) -> None:
    out = gpudoctor("plan", "13b", "--nodes", "2", "--node", "dgx-a100-40gb-8").out
    assert "FSDP (ZeRO-3) leaves more room (28.6 GiB a GPU)" in " ".join(out.split())
    (tight,) = (line for line in out.splitlines() if "tight" in line)
    assert float(tight.split()[1]) < 39.6


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_lora_gets_a_rule_of_thumb_and_no_hint_about_spelling(method: str, gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor("plan", "70b", f"--{method}", "--node", "hgx-h100-8")
    assert outcome.code == 2
    assert "is not planned. Rule of thumb: the frozen weights take" in outcome.err
    assert "did you mean" not in outcome.err
    weights = {"lora": "131.4", "qlora": "32.9"}[method]
    assert f"For Llama 3.1 70B: {weights} GiB of frozen weights and at most 10.5 GiB for adapters" in outcome.err


def test_the_formulas_are_whole_sentences_without_internals(gpudoctor: Gpudoctor) -> None:
    out = gpudoctor("plan", "13b", "--node", "hgx-h100-8", "--explain").out
    assert "UserError" not in out
    assert "Of the stages between them the second holds most" in " ".join(out.split())
