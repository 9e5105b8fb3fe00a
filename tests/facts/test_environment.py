"""Environment variables: what is kept, what never is, and captured `env` output."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Environment, Node, from_json, to_json
from gpudoctor.facts.system.environment import parse_env_text, read_environment
from gpudoctor.facts.system.path_status import PathQuestion
from tests.narrowed import present
from tests.sysfs_tree import write


def names(environment: Environment) -> set[str]:
    return {variable.name for variable in present(environment.variables)}


def test_the_variables_that_steer_training_are_kept_and_no_others() -> None:
    kept = (
        *("CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "TORCH_NCCL_BLOCKING_WAIT", "TORCH_DISTRIBUTED_DEBUG", "FI_PROVIDER"),
        *("SLURM_JOB_GPUS", "SLURM_PROCID", "OMP_PROC_BIND", "OMP_NUM_THREADS", "GOMP_CPU_AFFINITY", "COMPUTE_PROFILE"),
        *("NVIDIA_VISIBLE_DEVICES", "RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK"),
        *("PYTORCH_CUDA_ALLOC_CONF", "SM_HOSTS", "SM_CURRENT_HOST"),
    )
    dropped = ("SM_TRAINING_ENV", "PATH", "HOME", "LD_LIBRARY_PATH", "SLURM_JOB_ACCOUNT", "RANKS")
    environment = read_environment(dict.fromkeys((*kept, *dropped), "0,1"))
    assert names(environment) == set(kept)
    assert environment.get("CUDA_VISIBLE_DEVICES") == "0,1"


@pytest.mark.parametrize(
    "name", ["NCCL_API_KEY", "CUDA_TOKEN", "TORCHELASTIC_SECRET", "NCCL_PASSWORD", "CUDA_auth", "WANDB_API_KEY"]
)
def test_nothing_that_smells_of_a_secret_is_kept(name: str) -> None:
    assert read_environment({name: "hunter2"}).variables == ()
    assert parse_env_text(f"{name}=hunter2").variables == ()


@pytest.mark.parametrize("value", ["<unset>", "'<not set>'", '"<none>"'])
def test_a_placeholder_is_no_value(value: str) -> None:
    text = f"CUDA_VISIBLE_DEVICES={value}\nNCCL_DEBUG=INFO\n"
    assert names(parse_env_text(text)) == {"NCCL_DEBUG"}


def test_a_variable_that_names_a_file_says_whether_it_is_there(tmp_path: Path) -> None:
    write(tmp_path, {"/etc/topo.xml": "<system/>"})
    environment = read_environment(
        {
            "NCCL_TOPO_FILE": "/etc/topo.xml",
            "NCCL_GRAPH_FILE": "/etc/graph.xml",
            "NCCL_CONF_FILE": "",
            "NCCL_NET_PLUGIN": "/opt/libnccl-net.so",
            "NCCL_TUNER_PLUGIN": "tuner",
            "CUDA_INJECTION64_PATH": "/opt/\0bad.so",
            "NCCL_DEBUG_FILE": "/tmp/nccl.log",
        },
        tmp_path,
    )
    assert {variable.name: variable.path_exists for variable in present(environment.variables)} == {
        "NCCL_TOPO_FILE": True,
        "NCCL_GRAPH_FILE": False,
        "NCCL_CONF_FILE": False,
        "NCCL_NET_PLUGIN": False,
        "NCCL_TUNER_PLUGIN": None,
        "CUDA_INJECTION64_PATH": False,
        "NCCL_DEBUG_FILE": None,
    }


def test_a_file_on_a_mount_that_does_not_answer_is_not_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Missing("did not answer within 5 s", "failed")
    monkeypatch.setattr(PathQuestion, "answers", lambda self: (late,) * len(self._paths))

    def refuse(path: str) -> bool:
        raise AssertionError(f"{path} was looked up by this process, which a dead mount would block")

    monkeypatch.setattr("os.path.exists", refuse)
    variable = present(read_environment({"NCCL_TOPO_FILE": "/dead/topo.xml"}).variable("NCCL_TOPO_FILE"))
    assert variable.path_exists is None


def test_an_empty_value_is_a_value() -> None:
    environment = read_environment({"CUDA_VISIBLE_DEVICES": ""})
    assert environment.get("CUDA_VISIBLE_DEVICES") == ""
    assert environment.get("RANK") is None


def test_bytes_that_are_not_utf_8_survive_the_way_to_json() -> None:
    node = Node(environment=read_environment({"NCCL_DEBUG": "a\udcffb", "CUDA_CACHE_PATH": "x" * 9000}))
    environment = from_json(to_json(node)).environment
    assert environment.get("NCCL_DEBUG") == "a?b"
    assert len(environment.get("CUDA_CACHE_PATH") or "") == 4096


def test_captured_env_with_values_over_several_lines_and_functions() -> None:
    text = (
        "NCCL_NOTE=first\nsecond line\n  CUDA_VISIBLE_DEVICES=7 indented\n"
        "BASH_FUNC_ml%%=() {  eval $($LMOD_DIR/ml_cmd)\n}\r\n"
        "CUDA_VISIBLE_DEVICES=0,1\r\nEMPTY=\nNCCL_DEBUG=\n"
    )
    environment = parse_env_text(text)
    assert names(environment) == {"NCCL_NOTE", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG"}
    assert environment.get("CUDA_VISIBLE_DEVICES") == "0,1"
    assert environment.get("NCCL_NOTE") == "first\nsecond line\n  CUDA_VISIBLE_DEVICES=7 indented"
    assert environment.get("NCCL_DEBUG") == ""


def test_captured_exports_and_proc_environ_are_understood_too() -> None:
    exported = parse_env_text("declare -x CUDA_VISIBLE_DEVICES=\"0,1\"\nexport NCCL_DEBUG='WARN'\n")
    assert (exported.get("CUDA_VISIBLE_DEVICES"), exported.get("NCCL_DEBUG")) == ("0,1", "WARN")
    zeroed = parse_env_text("PATH=/bin\0NCCL_DEBUG=a\nb\0junk\0RANK=3\0")
    assert (zeroed.get("NCCL_DEBUG"), zeroed.get("RANK")) == ("a\nb", "3")


def test_a_capture_does_not_look_for_files_on_this_machine() -> None:
    assert present(parse_env_text("NCCL_TOPO_FILE=/etc/passwd").variable("NCCL_TOPO_FILE")).path_exists is None


@given(st.lists(st.one_of(st.text(max_size=60), st.sampled_from(["RANK=", "\n", "\0", "export ", "\udcff"]))))
@settings(max_examples=100, deadline=None)
def test_no_text_breaks_the_parser(parts: list[str]) -> None:
    environment = parse_env_text("".join(parts))
    to_json(Node(environment=environment))
