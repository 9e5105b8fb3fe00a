"""The environment that ranks start with."""

from __future__ import annotations

import socket
from typing import Literal

import pytest

from gpudoctor.cluster.check.local_ranks import LocalRanks
from gpudoctor.facts.model.measurements import Probe
from gpudoctor.probes.runner.messages import RankJob
from gpudoctor.probes.runner.rank_starter_client import _environment


def environment(backend: Literal["nccl", "gloo"], probe: Probe = "train") -> dict[str, str]:
    return _environment(RankJob(backend, 1, probes=(probe,), folder="/nowhere", group_timeout_s=10.0))


def test_settings_of_openmp_do_not_put_all_ranks_on_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("OMP_PROC_BIND", "true"), ("GOMP_CPU_AFFINITY", "0"), ("OMP_NUM_THREADS", "8")):
        monkeypatch.setenv(name, value)
    seen = environment("gloo")
    assert seen["OMP_NUM_THREADS"] == "1"
    assert not {"OMP_PROC_BIND", "GOMP_CPU_AFFINITY"} & set(seen)


def test_cublas_is_told_a_fixed_workspace_where_bits_are_compared() -> None:
    variable = "CUBLAS_WORKSPACE_CONFIG"
    assert environment("nccl", "compute")[variable] == ":4096:8"
    assert variable not in environment("nccl")


def test_a_cpu_rank_sees_no_gpu_that_a_cuda_build_of_torch_could_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert environment("gloo")["CUDA_VISIBLE_DEVICES"] == ""
    assert environment("nccl")["CUDA_VISIBLE_DEVICES"] == "0,1"
    with socket.socket() as hub:
        ranks = {name: LocalRanks(name, ["GPU-1"], "", None, hub) for name in ("gloo", "nccl")}
    shown = {name: each._environment(0, "GPU-1")["CUDA_VISIBLE_DEVICES"] for name, each in ranks.items()}
    assert shown == {"gloo": "", "nccl": "GPU-1"}
