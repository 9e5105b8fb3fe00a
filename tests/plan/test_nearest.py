"""What is reported as the nearest that works does work."""

from __future__ import annotations

import re

import pytest

from tests.cli.conftest import Gpudoctor
from tests.plan.conftest import refused


@pytest.mark.parametrize(
    "argv",
    [
        "65b --node dgx1-v100-8 --nodes 500 --pipeline 64",
        "8b --node h100-nvl-4 --nodes 4 --tensor 3 --pipeline 3",
        "100b --node hgx-h100-8 --nodes 8 --tensor 8",
        "175b --node hgx-h100-8 --nodes 16 --pipeline 4",
        "1.5b --node h100-nvl-4 --nodes 8 --tensor 3",
        "774m --node rtx4090-4 --pipeline 16",
        "350m --node rtx4090-4 --nodes 8 --seq 1000 --tensor 16",
    ],
)
def test_the_nearest_split_fits_the_gpus_too(argv: str, gpudoctor: Gpudoctor) -> None:
    error = refused(gpudoctor, *argv.split())
    found = re.search(r"the nearest that works: (?:--tensor (\d+))? ?(?:--pipeline (\d+))?$", error)
    assert found is not None, error
    bare = re.sub(r" --(tensor|pipeline) \d+", "", argv).split()
    followed = gpudoctor("plan", *bare, "--tensor", found[1] or "1", "--pipeline", found[2] or "1", "--json")
    assert followed.code == 0, followed.err
    assert followed.json["recommended"]["fit"] in ("fits", "tight")


def test_the_nearest_split_does_not_leave_nvlink_where_nobody_asked_for_it(gpudoctor: Gpudoctor) -> None:
    refused = gpudoctor("plan", "70b", "--node", "t4-cloud-4", "--nodes", "64", "--pipeline", "4")
    assert "too much" in refused.err
    assert not re.search(r"--tensor [2-9]", refused.err)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("1t --node h100-nvl-2 --pipeline 16", "does not divide 2 GPUs; without --tensor and --pipeline the nearest"),
        ("530b --node hgx-h100-8 --tensor 8", "without --tensor and --pipeline the nearest that works: --nodes "),
        ("13b --node t4-cloud-4 --nodes 8 --pipeline 5", "; without --tensor and --pipeline FSDP (ZeRO-3) works"),
        ("8b --node a10g-cloud-1 --tensor 4", "does not divide 1 GPU; without"),
    ],
)
def test_where_no_split_works_the_line_says_what_does(argv: str, words: str, gpudoctor: Gpudoctor) -> None:
    assert words in refused(gpudoctor, *argv.split())


def test_memory_is_looked_at_before_the_batch(gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor("plan", "8b", "--node", "t4-cloud-4", "--tensor", "1", "--global-batch", "1")
    assert "too much on a GPU of" in outcome.err
    assert "does not divide over" not in outcome.err


def test_tensor_parallel_ranks_divide_the_mlp_and_the_sequence_too(gpudoctor: Gpudoctor) -> None:
    odd = gpudoctor("plan", "70b", "--node", "hgx-h100-8", "--nodes", "4", "--seq", "4095", "--json")
    assert all(row["tensor"] == 1 for row in odd.json["strategies"])
    asked = gpudoctor("plan", "7b", "--node", "hgx-h100-8", "--seq", "4095", "--tensor", "2")
    assert "--tensor 2 does not divide ffn 11008, or sequences of 4095 tokens" in asked.err


def test_a_shorter_sequence_with_states_in_ram_is_better_than_a_smaller_model(gpudoctor: Gpudoctor) -> None:
    argv = ["30b", "--node", "h100-pcie-2-unbridged", "--seq"]
    error = refused(gpudoctor, *argv, "16777216")
    found = re.search(r"the nearest that works: --seq (\d+)$", error)
    assert found is not None, error
    assert gpudoctor("plan", *argv, found[1], "--json").json["recommended"]["fit"] == "fits"


def test_no_batch_is_proposed_that_the_option_refuses(gpudoctor: Gpudoctor) -> None:
    refused = gpudoctor("plan", "350m", "--node", "hgx-h100-8", "--nodes", "3", "--global-batch", str(2**24))
    assert refused.err.rstrip().endswith("the nearest that works: 16777200")


@pytest.mark.parametrize(
    ("argv", "nodes"),
    [
        ("7b --node confidential-h100 --seq 131072", 9),  # 10 fit worse
        ("70b --node h100-pcie-2-unbridged --seq 32768", 105),  # no power of two does
    ],
)
def test_the_nodes_that_are_wanted_are_the_fewest_where_more_may_fit_worse(
    argv: str, nodes: int, gpudoctor: Gpudoctor
) -> None:
    assert f"--nodes {nodes}" in refused(gpudoctor, *argv.split())
    less, enough, more = (
        gpudoctor("plan", *argv.split(), "--nodes", f"{each}", "--json").json["recommended"]
        for each in range(nodes - 1, nodes + 2)
    )
    assert enough["fit"] == "fits"
    assert "fits" not in [each and each["fit"] for each in (less, more)]
