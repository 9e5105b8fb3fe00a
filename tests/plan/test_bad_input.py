"""Absurd input is one line, with the nearest that would work, and exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import to_json
from gpudoctor.facts.simulated.load import load_node
from tests.cli.conftest import Gpudoctor
from tests.plan.conftest import refused

HGX = "--node hgx-h100-8"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (f"7x {HGX}", "7x is no size: did you mean 7b?"),
        (f"7,5b {HGX}", "7,5b is no size: did you mean 7.5b?"),
        (f"-7b {HGX}", "-7b is no size: did you mean 7b?"),
        (f"٧b {HGX}", "٧b: neither a size (350m, 7b, 1.5b) nor a file"),
        (f"10000000b {HGX}", "10000000b: a model must have 1m to 5t parameters; the nearest is 5t"),
        (f"seven {HGX}", "neither a size (350m, 7b, 1.5b) nor a file"),
        (f"0b {HGX}", "the nearest is 1m"),
        (f"10k {HGX}", "the nearest is 1m"),
        (f"9000t {HGX}", "the nearest is 5t"),
        (f"/nowhere/config.json {HGX}", "/nowhere/config.json: neither a size"),
        (f"7b {HGX} --pipeline 40", "has 32 layers, and a stage needs one; the nearest that works: --pipeline 8"),
        (f"7b {HGX} --tensor 3", "does not divide the 32 heads (32 key-value heads) of Llama 2 7B"),
        (f"7b {HGX} --tensor 3", "the nearest that works: --tensor 2"),
        (f"7b {HGX} --tensor 4 --pipeline 3", "does not divide 8 GPUs; the nearest that works: --tensor 4 --pip"),
        (f"70b {HGX} --tensor 8", "too much on a GPU of 79.2 GiB; without --tensor and --pipeline FSDP, states"),
        (f"8b {HGX} --global-batch 100", "8 data-parallel ranks of FSDP (ZeRO-3); the nearest that works: 96 or 104"),
        (f"8b {HGX} --global-batch 3", "the nearest that works: 8"),
        (f"{'x' * 5000} {HGX}", "neither a size"),
        (f"{'7' * 5000}b {HGX}", "neither a size"),
        (f"/dev/null {HGX}", "/dev/null: not a file"),
        (f"5t {HGX}", "5T made to size does not fit 8 GPUs"),
        (f"405b {HGX}", "does not fit 8 GPUs of 79.2 GiB in any way"),
        (f"405b {HGX}", "nearest that works: --nodes 13"),
        (f"350m {HGX} --seq 4096", "has 1024 learned positions; the nearest that works: --seq 1024"),
        ("7b --node cpu-only", "the driver shows no GPU: nothing to plan on. Plan for another node: --node hgx-h100-8"),
        ("7b --node a100-mig-8", "MIG is on"),
        ("7b --node gb10-1", "the memory of GPU 0 is not known"),
        (f"7b {HGX} --gpu 9", "there is no GPU 9"),
        (f"7b {HGX} --fault driver-not-loaded", "nothing to plan on"),
        ("7b --node nowhere-8", "no simulated node of that name"),
    ],
)  # fmt: skip
def test_it_is_one_line_with_the_way_out(argv: str, words: str, gpudoctor: Gpudoctor) -> None:
    assert words in refused(gpudoctor, *argv.split())


def test_an_empty_size_is_no_file_of_this_folder(
    gpudoctor: Gpudoctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    monkeypatch.chdir(tmp_path)
    assert "MODEL_SIZE is empty" in refused(gpudoctor, "", "--node", "hgx-h100-8")


@pytest.mark.parametrize(
    "argv", ["--seq 0", "--seq 1e3", "--nodes 0", "--nodes 99999999999", "--global-batch -1", "--tensor ²"]
)
def test_numbers_that_make_no_sense_are_refused(argv: str, gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor("plan", "7b", "--node", "hgx-h100-8", *argv.split())
    assert outcome.code == 2
    assert "a whole number from 1 to" in outcome.err


def test_json_is_one_document_with_the_error(gpudoctor: Gpudoctor) -> None:
    outcome = gpudoctor("plan", "405b", "--node", "hgx-h100-8", "--json")
    assert outcome.code == 2
    assert "does not fit" in outcome.json["error"]
    assert outcome.json["recommended"] is None


def test_the_nearest_that_works_does_work(gpudoctor: Gpudoctor) -> None:
    enough = gpudoctor("plan", "405b", "--node", "hgx-h100-8", "--nodes", "13", "--json").json
    assert enough["recommended"]["fit"] == "fits"
    one_less = gpudoctor("plan", "405b", "--node", "hgx-h100-8", "--nodes", "12", "--json").json
    assert one_less["recommended"]["fit"] == "tight"
    plan = gpudoctor("plan", "70b", "--node", "hgx-h100-8", "--json").json
    assert plan["recommended"]["name"] == "fsdp-offload"
    assert len(plan["instead"]) == 2
    for option in plan["instead"]:
        flag, value = option.split()[:2]
        other = gpudoctor("plan", "70b", "--node", "hgx-h100-8", flag, value, "--json").json
        assert other["recommended"]["name"] != "fsdp-offload"


def test_a_node_whose_ram_is_not_known_gets_no_plan_that_needs_it(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    node = load_node("rtx4090-4", {})
    gone = Missing("not in this capture")
    host = msgspec.structs.replace(node.host, ram_mib=gone, ram_available_mib=gone, memory_limit_mib=gone)
    path = tmp_path / "facts.json"
    path.write_bytes(to_json(msgspec.structs.replace(node, host=host)))
    outcome = gpudoctor("plan", "7b", "--node", str(path), "--json")
    assert outcome.code == 2
    assert "does not fit 4 GPUs" in outcome.json["error"]


def test_a_node_whose_links_are_not_known_gets_no_time(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    node = load_node("rtx4090-4", {})
    gone = Missing("not in this capture")
    gpus = tuple(
        msgspec.structs.replace(g, pcie=msgspec.structs.replace(g.pcie, width=gone, generation_max=gone))
        for g in node.gpus
    )
    path = tmp_path / "facts.json"
    path.write_bytes(to_json(msgspec.structs.replace(node, gpus=gpus)))
    plan = gpudoctor("plan", "350m", "--node", str(path), "--json").json
    assert plan["machine"]["collective"]["value"] is None
    assert plan["communication"]["communication_s"] is None
    assert "the PCIe link of GPU 0 is not known" in gpudoctor("plan", "350m", "--node", str(path)).out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file or directory; make one with gpudoctor check --level full --json -o"),
        ("{}", "not a report of gpudoctor check --json (Object missing required field"),
        ("[" * 100_000, "not a report of gpudoctor check --json ("),
        ("a report", "make one with gpudoctor check --level full --json -o FILE"),
    ],
)
def test_a_report_that_is_none_is_one_line(
    content: str | None, words: str, gpudoctor: Gpudoctor, tmp_path: Path
) -> None:
    path = tmp_path / "last.json"
    if content is not None:
        path.write_text(content)
    error = refused(gpudoctor, "8b", "--node", "hgx-h100-8", "--report", str(path))
    assert words in error
    assert str(path) in error


def test_a_report_of_another_machine_or_of_a_check_that_failed_is_refused(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    path = tmp_path / "last.json"
    gpudoctor("check", "--node", "rtx4090-4", "--level", "quick", "--json", "-o", str(path))
    assert "it is of another machine" in refused(gpudoctor, "8b", "--node", "hgx-h100-8", "--report", str(path))
    gpudoctor("check", "--node", "hgx-h100-8", "--gpu", "77", "--json", "-o", str(path))
    assert "a report in which nothing was judged: " in refused(
        gpudoctor, "8b", "--node", "hgx-h100-8", "--report", str(path)
    )


def test_a_report_that_was_made_to_go_wrong_is_no_ground_for_a_plan(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    path = tmp_path / "last.json"
    report = gpudoctor("check", "--node", "hgx-h100-8", "--level", "quick", "--json").json
    path.write_text(json.dumps(report | {"run": report["run"] | {"injected": ["slow-rank=1:3"]}}))
    error = refused(gpudoctor, "8b", "--node", "hgx-h100-8", "--report", str(path))
    assert error.endswith("it was made to go wrong (--inject slow-rank=1:3): make one without\n")


@pytest.mark.parametrize(
    "more",
    [{"num_experts": 64}, {"n_routed_experts": 256}, {"kv_lora_rank": 512}, {"vision_config": {"hidden_size": 8}}],
)
def test_a_model_with_more_than_its_type_says_is_not_planned_as_a_plain_one(
    more: dict[str, object], gpudoctor: Gpudoctor, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    plain = {"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16}
    plain |= {"intermediate_size": 5632, "vocab_size": 32000, "num_experts": 0, "vision_config": None}
    path.write_text(json.dumps(plain))
    assert gpudoctor("plan", str(path), "--node", "hgx-h100-8").code == 0
    path.write_text(json.dumps(plain | more))
    error = refused(gpudoctor, str(path), "--node", "hgx-h100-8")
    assert f"with the key {next(iter(more))!r} this is no plain llama model" in error


def test_a_model_of_an_unknown_architecture_is_one_line(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "mamba"}))
    error = refused(gpudoctor, str(path), "--node", "hgx-h100-8")
    assert "'mamba' is not known; known are gemma, gemma2, gemma3_text, gpt2" in error
