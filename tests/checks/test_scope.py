"""Which GPUs are judged, and why."""

from __future__ import annotations

import pytest

from gpudoctor.checks.core.scope import scope_of
from gpudoctor.errors import UserError
from gpudoctor.facts.model.gpu import Settings
from gpudoctor.facts.model.node import Node
from tests.checks.gpu_nodes import put
from tests.checks.one_check import env, gpu, gpus, uuid_of


def node(count: int = 8, **variables: str) -> Node:
    return Node(gpus=gpus(count), environment=env(**variables))


def test_without_any_reason_all_gpus_are_judged() -> None:
    assert scope_of(node(), None) == (None, None)
    assert scope_of(Node(), None) == (None, None)


@pytest.mark.parametrize(
    ("wanted", "indices"),
    [
        ("3", (3,)),
        ("5,0", (0, 5)),
        ("2-4", (2, 3, 4)),
        (uuid_of(6), (6,)),
        ("gpu-6666", (6,)),
        ("0000:13:00.0", (3,)),
        ("00000000:13:00.0, 1", (1, 3)),
        ("13:00.0", (3,)),
    ],
)
def test_gpus_are_asked_for_by_index_uuid_or_bus_id(wanted: str, indices: tuple[int, ...]) -> None:
    assert scope_of(node(), wanted) == (indices, f"--gpu {wanted}")


@pytest.mark.parametrize("wanted", ["9", "", "0,,1", "GPU-ffff", "GPU-", "x", "1-", "4-2", "0000:ff:00.0", "5-12"])
def test_a_gpu_that_is_not_there_is_an_error_in_one_line(wanted: str) -> None:
    with pytest.raises(UserError, match="--gpu") as error:
        scope_of(node(), wanted)
    assert "\n" not in str(error.value)


def test_the_error_names_what_exists() -> None:
    with pytest.raises(UserError, match=r"no GPU 9 here; it has GPU 0 \(0000:10:00.0\), GPU 1"):
        scope_of(node(2), "9")
    with pytest.raises(UserError, match="this node shows no GPU"):
        scope_of(Node(), "0")


def test_an_ambiguous_uuid_prefix_is_an_error() -> None:
    twins = Node(gpus=(gpu(0, uuid="GPU-ab1"), gpu(1, uuid="GPU-ab2")))
    with pytest.raises(UserError, match="fits GPU 0 and 1"):
        scope_of(twins, "GPU-ab")


def test_asking_wins_over_the_variable() -> None:
    assert scope_of(node(CUDA_VISIBLE_DEVICES="0"), "2")[0] == (2,)


def test_a_valid_subset_narrows_the_scope_and_is_the_reason() -> None:
    assert scope_of(node(CUDA_VISIBLE_DEVICES="1,0"), None) == ((0, 1), "CUDA_VISIBLE_DEVICES=1,0")


@pytest.mark.parametrize("value", ["0,0,9", "0,1,9", "", "-1", "x", "0,1,2,3,4,5,6,7", "GPU-ffff"])
def test_a_broken_or_full_list_never_narrows_the_scope(value: str) -> None:
    assert scope_of(node(CUDA_VISIBLE_DEVICES=value), None) == (None, None)


def test_an_index_on_a_mixed_node_does_not_narrow_the_scope() -> None:
    mixed = Node(gpus=(gpu(0, "NVIDIA T400"), gpu(1)), environment=env(CUDA_VISIBLE_DEVICES="0"))
    assert scope_of(mixed, None) == (None, None)


def test_in_a_prolog_the_job_decides() -> None:
    assert scope_of(node(SLURM_JOB_GPUS="4,5"), None) == ((4, 5), "SLURM_JOB_GPUS=4,5")
    step = node(SLURM_JOB_GPUS="4-7", SLURM_STEP_GPUS="6")
    assert scope_of(step, None) == ((6,), "SLURM_STEP_GPUS=6")


def test_inside_a_job_the_variable_wins_over_slurm() -> None:
    assert scope_of(node(SLURM_JOB_GPUS="4,5", CUDA_VISIBLE_DEVICES="4"), None)[0] == (4,)


def test_a_job_confined_to_its_gpus_is_judged_as_a_whole() -> None:
    # two GPUs show, numbered 0 and 1, and the host calls them 4 and 5
    assert scope_of(node(2, SLURM_JOB_GPUS="4,5"), None) == (None, None)
    assert scope_of(node(2, SLURM_JOB_GPUS="1,2"), None) == (None, None)


def test_the_numbers_of_a_confined_job_are_not_those_of_its_slurm_lists() -> None:
    # a job with GPUs 2 to 5 of eight sees them as 0 to 3: the step's 2 and 3 are its 0 and 1
    confined = put(node(4, SLURM_JOB_GPUS="2-5", SLURM_STEP_GPUS="2,3"), driver__denied_gpus=("0000:17:00.0",))
    assert scope_of(confined, None) == (None, None)


@pytest.mark.parametrize("value", ["", "none", "9,10", "(null)"])
def test_a_job_list_that_names_none_of_these_gpus_narrows_nothing(value: str) -> None:
    assert scope_of(node(SLURM_JOB_GPUS=value), None) == (None, None)


def test_a_mig_gpu_in_the_variable_narrows_to_that_gpu() -> None:
    from gpudoctor.facts.model.gpu import MigInstance

    mig = Settings(mig_enabled=True, mig_instances=(MigInstance(uuid="MIG-a"),))
    shared = Node(gpus=(gpu(0, settings=mig), gpu(1)), environment=env(CUDA_VISIBLE_DEVICES="MIG-a"))
    assert scope_of(shared, None) == ((0,), "CUDA_VISIBLE_DEVICES=MIG-a")
