"""The command and the lines of code are those that really train what the plan counts."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.cli.conftest import Gpudoctor
from tests.plan.conftest import planned


def options_of(command: str) -> list[str]:
    """The arguments after pretrain_gpt.py, as a shell passes them to the program."""
    words = shlex.split(command.replace("\\\n", " "))
    return words[words.index("pretrain_gpt.py") + 1 :]


def test_gpus_left_out_on_several_nodes_are_hidden_inside_the_step_where_slurm_cannot_show_them_again(
    gpudoctor: Gpudoctor,
) -> None:
    script = planned(gpudoctor, "8b --node hgx-h100-8 --fault gpu-lost@2 --nodes 4")["launch"]["script"]
    visible = "CUDA_VISIBLE_DEVICES=0,1,3,4,5,6,7"
    assert f"srun env CUDA_DEVICE_ORDER=PCI_BUS_ID {visible} torchrun --nnodes 4 --nproc-per-node 7" in script
    assert "export CUDA_VISIBLE_DEVICES" not in script


def test_the_job_gets_all_of_the_nodes_ram_which_exclusive_alone_does_not_give(gpudoctor: Gpudoctor) -> None:
    script = planned(gpudoctor, "8b --node hgx-h100-8 --nodes 4")["launch"]["script"]
    assert {"#SBATCH --exclusive", "#SBATCH --mem=0"} <= set(script.splitlines())


def test_megatrons_command_has_the_split_and_the_model(gpudoctor: Gpudoctor) -> None:
    launch = planned(gpudoctor, "405b --node hgx-h100-8 --nodes 16")["launch"]
    given = options_of(launch["script"])
    for option, value in (
        ("--tensor-model-parallel-size", "8"), ("--pipeline-model-parallel-size", "16"), ("--num-layers", "126"),
        ("--hidden-size", "16384"), ("--ffn-hidden-size", "53248"), ("--num-attention-heads", "128"),
        ("--num-query-groups", "8"), ("--kv-channels", "128"), ("--seq-length", "4096"),
        ("--position-embedding-type", "rope"), ("--normalization", "RMSNorm"),
    ):  # fmt: skip
        assert given[given.index(option) + 1] == value
    assert {"--swiglu", "--disable-bias-linear", "--untie-embeddings-and-output-weights", "--bf16"} <= set(given)
    assert given[-1] == "$@"  # the user's own part
    assert all(option in launch["script"] for option in launch["code"])


def test_stages_of_different_size_are_told_to_megatron_which_divides_evenly_else(gpudoctor: Gpudoctor) -> None:
    given = options_of(planned(gpudoctor, "405b --node hgx-h100-8 --nodes 16")["launch"]["script"])
    layout = given[given.index("--pipeline-model-parallel-layout") + 1]
    stages = layout.split("|")
    assert (stages[0][0], stages[-1][-1]) == ("E", "L")
    layers = [int(re.sub(r"[EL]|t\*", "", stage)) for stage in stages]
    assert layers == [7, *[8] * 14, 7]
    even = options_of(planned(gpudoctor, "350m --node hgx-h100-8 --pipeline 2")["launch"]["command"])
    assert "--pipeline-model-parallel-layout" not in even


def test_gpt_2_is_told_to_megatron_with_its_biases_and_positions(gpudoctor: Gpudoctor) -> None:
    given = options_of(planned(gpudoctor, "350m --node hgx-h100-8 --tensor 2")["launch"]["command"])
    assert given[given.index("--position-embedding-type") + 1] == "learned_absolute"
    assert given[given.index("--normalization") + 1] == "LayerNorm"
    unwanted = {"--swiglu", "--disable-bias-linear", "--untie-embeddings-and-output-weights", "--num-query-groups"}
    assert not unwanted & set(given)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("70b --node hgx-h100-8 --precision bf16-true", "no option for bf16 weights without fp32 copies"),
        ("350m --node hgx-h100-8 --tensor 2 --optimizer lion", "no option for lion"),
        ("350m --node hgx-h100-8 --tensor 2 --optimizer momentum", "no option for momentum whose states are sharded"),
        ("7b --node rtx4090-4", "the CPUs update the states in RAM: no time here counts that"),
    ],
)
def test_what_the_command_or_the_times_leave_out_is_said(argv: str, words: str, gpudoctor: Gpudoctor) -> None:
    assert words in " ".join(planned(gpudoctor, argv)["warnings"])


def test_ddp_exchanges_once_a_step_as_the_traffic_is_counted(gpudoctor: Gpudoctor) -> None:
    code = planned(gpudoctor, "350m --node rtx4090-4 --global-batch 512")["launch"]["code"]
    assert "all but the last of them under model.no_sync()" in code
    assert any("set_to_none=False" in line for line in code)
    once = planned(gpudoctor, "350m --node rtx4090-4")["launch"]["code"]
    assert not any("no_sync" in line for line in once)


def test_replicas_exchange_once_a_step_as_the_traffic_is_counted(gpudoctor: Gpudoctor) -> None:
    code = planned(gpudoctor, "8b --node hgx-h100-8 --nodes 2 --global-batch 1024")["launch"]["code"]
    assert any("set_requires_all_reduce(False)" in line for line in code)


@pytest.mark.parametrize(
    ("argv", "wanted", "unwanted"),
    [
        ("350m --node rtx4090-4", ['torch.autocast("cuda", torch.bfloat16)'], ["GradScaler", "model.to("]),
        ("350m --node rtx4090-4", ["layer.compile()", "torch.optim.AdamW(..., fused=True)"], ["checkpoint"]),
        ("350m --node rtx4090-4 --optimizer adamw-8bit", ["layer.compile()"], ["fused"]),
        ("350m --node t4-cloud-4", ['torch.autocast("cuda", torch.float16)', "torch.amp.GradScaler"], []),
        ("350m --node rtx4090-4 --precision fp32", [], ["autocast", "GradScaler", "model.to("]),
        ("7b --node rtx4090-4 --gpu 0", ["MixedPrecisionPolicy", "CPUOffloadPolicy"], ["autocast", "fused"]),
        ("8b --node hgx-h100-8", ["MixedPrecisionPolicy(torch.bfloat16, torch.float32)"], ["autocast"]),
        ("8b --node hgx-h100-8 --precision bf16-true", ["model.to(torch.bfloat16)"], ["autocast", "MixedPrecision"]),
        ("7b --node rtx4090-4", ["partial(create_selective_checkpoint_contexts, policy)", "layer.compile()"], []),
        ("8b --node hgx-h100-8 --precision bf16-true", ["checkpoint every layer"], ["layer.compile()"]),
    ],
)
def test_the_code_computes_as_the_memory_is_counted(
    argv: str, wanted: list[str], unwanted: list[str], gpudoctor: Gpudoctor
) -> None:
    code = " ".join(planned(gpudoctor, argv)["launch"]["code"])
    for words in wanted:
        assert words in code
    for words in unwanted:
        assert words not in code
