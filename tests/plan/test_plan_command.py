"""`gpudoctor plan` as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import msgspec
import pytest

from gpudoctor.facts.model.node import to_json
from gpudoctor.facts.simulated.load import load_node
from gpudoctor.plan.make_plan import FORMULAS
from tests.cli.conftest import Gpudoctor
from tests.golden_files import assert_golden
from tests.plan.conftest import planned, refused
from tests.subprocesses import completed

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize(
    ("name", "columns", "argv"),
    [
        ("7b-rtx4090-4-80", 80, "7b --node rtx4090-4"),
        ("405b-hgx-h100-8-16-nodes-120", 120, "405b --node hgx-h100-8 --nodes 16"),
        ("8b-hgx-h100-8-narrow-link-80", 80, "8b --node hgx-h100-8 --fault pcie-width-x8@5 --global-batch 512"),
        ("350m-rtx4090-4-narrow-link-120", 120, "350m --node rtx4090-4 --fault pcie-width-x8@2"),
    ],
)
def test_the_text_is_what_a_person_approved(
    name: str, columns: int, argv: str, gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    outcome = gpudoctor("plan", *argv.split())
    assert outcome.code == 0
    assert outcome.err == ""
    assert_golden(outcome.out, GOLDEN / f"{name}.txt")
    # statements and commands are to be copied, and stay whole
    body = outcome.out.split("\n$ ")[0].splitlines()
    assert max(len(line) for line in body if "fully_shard(" not in line) <= columns
    assert all(line.endswith(")") for line in body if "fully_shard(" in line)


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_the_text_fits_a_narrow_terminal(columns: int, gpudoctor: Gpudoctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out = gpudoctor("plan", "13b", "--node", "rtx4090-4", "--nodes", "8").out
    lines = out.split("\nset  ")[0].splitlines()
    assert max(len(line) for line in lines) <= columns
    words = " ".join(out.split())
    for said in ("> Pipeline (1F1B): pipeline 8 x data 4", "full recomputation", "34.3 GiB too much"):
        assert said in words


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        ("350m --node rtx4090-4", "ddp"),
        ("8b --node hgx-h100-8", "fsdp"),
        ("8b --node hgx-h100-8 --nodes 4", "fsdp"),
        ("405b --node hgx-h100-8 --nodes 16", "3d"),
        ("70b --node hgx-h100-8", "fsdp-offload"),
        ("70b --node hgx-h100-8 --precision bf16-true", "tensor"),
        ("70b --node hgx-h100-8 --nodes 4", "3d"),
        ("13b --node rtx4090-4 --nodes 8", "pipeline"),
    ],
)
def test_the_simplest_strategy_that_fits_is_taken(argv: str, name: str, gpudoctor: Gpudoctor) -> None:
    plan = planned(gpudoctor, argv)
    assert plan["recommended"]["name"] == name
    assert plan["recommended"]["memory"]["total_gib"] <= plan["machine"]["memory_gib"]


def test_several_nodes_hold_copies_where_one_holds_the_model(gpudoctor: Gpudoctor) -> None:
    taken = planned(gpudoctor, "8b --node hgx-h100-8 --nodes 4")["recommended"]
    assert (taken["data"], taken["shards"]) == (32, 8)


def test_tensor_parallelism_stays_inside_nvlink(gpudoctor: Gpudoctor) -> None:
    taken = planned(gpudoctor, "405b --node hgx-h100-8 --nodes 16")["recommended"]
    assert (taken["tensor"], taken["pipeline"], taken["data"]) == (8, 16, 1)
    ampere = planned(gpudoctor, "7b --node dgx-a100-8")
    assert "NCCL_ALGO" not in {s["name"] for s in ampere["harmful"]}  # its switches do not add up
    rtx = planned(gpudoctor, "7b --node rtx4090-4")
    [tensor] = [row for row in rtx["strategies"] if row["name"] == "tensor"]
    assert tensor["fit"] == "not here"
    assert "NVLink" in tensor["reason"]


@pytest.mark.wide
def test_every_simulated_node_gives_a_plan_or_one_line(gpudoctor: Gpudoctor) -> None:
    from gpudoctor.facts.simulated.load import node_names

    for name in node_names():
        outcome = gpudoctor("plan", "350m", "--node", name)
        assert outcome.code in (0, 2), name
        if outcome.code == 0:
            assert outcome.out.startswith(f"SIMULATED node {name}"), name
        else:
            assert outcome.err.count("\n") == 1, name


def test_a_simulated_node_is_called_so_in_text_and_json(gpudoctor: Gpudoctor) -> None:
    assert gpudoctor("plan", "7b", "--node", "hgx-h100-8").out.startswith("SIMULATED node hgx-h100-8: made up")
    plan = planned(gpudoctor, "7b --node hgx-h100-8")
    assert plan["simulated"] is True
    assert plan["schema"] == "gpudoctor.plan/1"


def test_a_facts_file_is_called_another_machine(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    node = load_node("dgx-a100-8", {})
    source = msgspec.structs.replace(node.source, kind="facts", name="")
    path = tmp_path / "facts.json"
    path.write_bytes(to_json(msgspec.structs.replace(node, source=source)))
    assert "that machine, not this one" in gpudoctor("plan", "7b", "--node", str(path)).out


def test_a_config_json_is_planned_for(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {"model_type": "mistral", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
             "num_hidden_layers": 32, "intermediate_size": 14336, "vocab_size": 32000, "_name_or_path": "m\x1b[31m"}
        )
    )  # fmt: skip
    outcome = gpudoctor("plan", str(path), "--node", "hgx-h100-8")
    assert "7.242B parameters" in outcome.out
    assert "\x1b" not in outcome.out


def test_the_global_batch_is_shared_out_and_accumulated(gpudoctor: Gpudoctor) -> None:
    batch = planned(gpudoctor, "8b --node hgx-h100-8 --global-batch 512")["batch"]
    assert batch["per_gpu"] * batch["accumulation"] * batch["data_ranks"] == 512
    assert batch["accumulation"] > 1


def test_older_gpus_get_fp16_and_a_word_where_bf16_was_asked_for(gpudoctor: Gpudoctor) -> None:
    assert planned(gpudoctor, "350m --node t4-cloud-4")["precision"] == "fp16"
    warned = planned(gpudoctor, "350m --node t4-cloud-4 --precision bf16")
    assert "no bf16 arithmetic" in warned["warnings"][0]


@pytest.mark.wide(every=4)
@pytest.mark.parametrize(
    "argv",
    ["7b --node rtx4090-4", "70b --node hgx-h100-8", "405b --node hgx-h100-8 --nodes 16", "405b --node hgx-h100-8"],
)
def test_every_plan_is_what_the_schema_says_the_one_that_failed_too(argv: str, gpudoctor: Gpudoctor) -> None:
    schema = gpudoctor("schema", "plan").json
    document = gpudoctor("plan", *argv.split(), "--json").json
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "strategies": "many"}, schema)


def test_explain_prints_every_formula_with_its_source(gpudoctor: Gpudoctor) -> None:
    out = gpudoctor("plan", "7b", "--node", "hgx-h100-8", "--explain").out
    assert "arXiv:1910.02054" in out
    assert "arXiv:2205.05198" in out
    assert out.count("Source: ") >= 17
    assert not [line for line in out.splitlines() if line.startswith("  arXiv:")]  # a sentence that goes on
    assert len([line for line in out.splitlines() if line.startswith("  Source: ")]) == len(FORMULAS)


def test_the_plan_goes_to_a_file_and_stdout_stays_empty(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    outcome = gpudoctor("plan", "7b", "--node", "hgx-h100-8", "--json", "-o", str(path))
    assert (outcome.code, outcome.out) == (0, "")
    assert json.loads(path.read_text())["model"]["parameters"] == 6738415616


def test_where_the_network_is_not_known_no_time_is_printed(gpudoctor: Gpudoctor) -> None:
    plan = planned(gpudoctor, "1.5b --node t4-cloud-4 --nodes 2")
    step = plan["communication"]
    assert step["communication_s"] is None
    assert step["efficiency_hidden"] is None
    assert [row["seconds"] for row in step["traffic"] if row["link"] == "network"] == [None]
    text = gpudoctor("plan", "1.5b", "--node", "t4-cloud-4", "--nodes", "2").out
    assert "no bound and no time: no network interface with a known speed is up" in text


def test_the_launch_command_names_nodes_and_gpus(gpudoctor: Gpudoctor) -> None:
    one = planned(gpudoctor, "350m --node rtx4090-4")["launch"]
    assert one["command"].endswith("torchrun --standalone --nproc-per-node 4 train.py")
    assert "CUDA_VISIBLE_DEVICES" not in one["command"]
    some = planned(gpudoctor, "350m --node rtx4090-4 --gpu 0,1,3")["launch"]
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,1,3 " in some["command"]
    assert "--nproc-per-node 3 " in some["command"]
    many = planned(gpudoctor, "405b --node hgx-h100-8 --nodes 16")["launch"]
    assert many["command"] == "sbatch plan.sbatch"
    for line in ("#SBATCH --nodes=16", "#SBATCH --gpus-per-node=8", "--nnodes 16 --nproc-per-node 8"):
        assert line in many["script"]
    assert "--tensor-model-parallel-size 8" in many["code"]


def test_a_split_can_be_asked_for_and_slow_links_are_pointed_out(gpudoctor: Gpudoctor) -> None:
    asked = planned(gpudoctor, "350m --node hgx-h100-8 --tensor 2 --pipeline 2")
    taken = asked["recommended"]
    assert (taken["tensor"], taken["pipeline"], taken["data"]) == (2, 2, 2)
    assert asked["warnings"] == []
    slow = planned(gpudoctor, "350m --node rtx4090-4 --tensor 2")
    assert slow["warnings"] == ["tensor parallelism over 2 GPUs, but no NVLink joins these GPUs: every layer waits for "
                                "the slower link"]  # fmt: skip
    bridged = planned(gpudoctor, "350m --node h100-nvl-4 --tensor 4")
    assert "NVLink joins 2 GPUs only" in bridged["warnings"][0]


def test_a_tight_fit_says_how_tight_and_what_else_works(gpudoctor: Gpudoctor) -> None:
    tight = planned(gpudoctor, "405b --node hgx-h100-8 --nodes 12")
    assert tight["recommended"]["fit"] == "tight"
    over = tight["recommended"]["memory"]["total_gib"] - tight["machine"]["memory_gib"]
    assert f"it is {over:.1f} GiB more than there is" in tight["warnings"][0]
    assert "--nodes 13" in tight["instead"]
    assert any("RAM" in way for way in tight["instead"])


def test_the_longest_sequence_that_fits_is_named_and_fits(gpudoctor: Gpudoctor) -> None:
    assert "nearest that works: --seq 16384" in refused(gpudoctor, "7b", "--node", "rtx4090-8", "--seq", "65536")
    shorter = planned(gpudoctor, "7b --node rtx4090-8 --seq 16384")
    assert shorter["recommended"]["fit"] == "fits"


def test_a_sequence_longer_than_the_model_knows_is_pointed_out(gpudoctor: Gpudoctor) -> None:
    plan = planned(gpudoctor, "7b --node hgx-h100-8 --seq 8192")
    assert "made for sequences of up to 4096 tokens" in plan["warnings"][0]


def test_a_sbatch_script_is_valid_shell(gpudoctor: Gpudoctor) -> None:
    script = planned(gpudoctor, "405b --node hgx-h100-8 --nodes 16")["launch"]["script"]
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_settings_fit_the_topology(gpudoctor: Gpudoctor) -> None:
    switch = planned(gpudoctor, "405b --node hgx-h100-8 --nodes 16")
    assert {"NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_ALGO"} <= {s["name"] for s in switch["harmful"]}
    assert {s["name"]: s["value"] for s in switch["wanted"]}["NCCL_SOCKET_IFNAME"] == "ens1f0np0"
    rtx = planned(gpudoctor, "7b --node rtx4090-4")
    harmful = {s["name"] for s in rtx["harmful"]}
    assert "NCCL_SHM_DISABLE" in harmful
    assert not {"NCCL_P2P_DISABLE", "NCCL_IB_DISABLE"} & harmful


def test_planning_loads_neither_torch_nor_textual() -> None:
    code = (
        "import sys; from gpudoctor.cli.main import main; main(['plan', '7b', '--node', 'hgx-h100-8']); "
        "print([m for m in ('torch', 'textual', 'numpy', 'pynvml') if m in sys.modules], file=sys.stderr)"
    )
    done = completed([sys.executable, "-c", code], check=True)
    assert done.stderr == "[]\n"


def test_what_does_not_fit_names_more_nodes_and_fewer_with_states_in_ram(gpudoctor: Gpudoctor) -> None:
    done = gpudoctor("plan", "70b", "--node", "rtx4090-4")
    assert done.code == 2
    assert "--nodes 41; or --nodes 5, with states in host RAM (slow)" in done.err
    assert gpudoctor("plan", "70b", "--node", "rtx4090-4", "--nodes", "4").code == 2
    assert "> FSDP, states in host RAM" in gpudoctor("plan", "70b", "--node", "rtx4090-4", "--nodes", "5").out
