"""The variables that control CUDA, NCCL, libfabric, launchers and the scheduler; and the name of this node."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Environment, Variable
from gpudoctor.lazy_import import lazy_imports

with lazy_imports():  # starts processes, which the readers of captures do not
    from gpudoctor.facts.system import path_status

_PREFIXES = ("CUDA_", "NCCL_", "TORCH_NCCL_", "TORCHELASTIC_", "OMPI_COMM_WORLD_", "FI_")
# fmt: off
_NAMES = frozenset((
    "COMPUTE_PROFILE", "GLOO_SOCKET_IFNAME", "GOMP_CPU_AFFINITY", "GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "NSIGHT_CUDA_DEBUGGER", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS", "OMP_PROC_BIND", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NVML_BASED_CUDA_CHECK", "RANK", "SM_CURRENT_HOST", "SM_HOSTS", "TORCH_DISTRIBUTED_DEBUG", "WORLD_SIZE",
    "SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_GPU", "SLURM_CPUS_PER_TASK", "SLURM_GPUS", "SLURM_GPUS_ON_NODE",
    "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_JOB_CPUS_PER_NODE", "SLURM_JOB_GPUS", "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_LOCALID", "SLURM_MEM_PER_NODE", "SLURM_NNODES",
    "SLURM_NODEID", "SLURM_NODELIST", "SLURM_NPROCS", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_PROCID",
    "SLURM_STEP_GPUS", "SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES", "SLURM_TASKS_PER_NODE",
))
# fmt: on
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS|PWD|CREDENTIAL|AUTH", re.IGNORECASE)
# Variables that name a file; the libraries may also be bare names that the loader looks up
_FILES = frozenset({"NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_CONF_FILE"})
_LIBRARIES = frozenset({"NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "CUDA_INJECTION64_PATH"})
_MAX_VALUE = 4096

_ASSIGNMENT = re.compile(r"(?:export |declare -x )?([A-Za-z_][A-Za-z0-9_.%()]*)=(.*)", re.DOTALL)


def read_environment(environ: Mapping[str, str], root: Path = Path("/")) -> Environment:
    """The variables of interest, by name; `path_exists` is set if one names a file, and its file system answers.

    Variables whose name suggests a secret are never kept. Values are truncated to 4096 characters.
    """
    return Environment(variables=_kept(environ.items(), root))


def parse_env_text(text: str) -> Environment:
    """A captured `env`, `export -p` or /proc/PID/environ; a line without NAME= continues the value above it.

    The files that variables name are on another machine, so `path_exists` stays None.
    """
    variables: dict[str, str] = {}
    last: str | None = None
    by_line = "\0" not in text
    for entry in text.split("\n") if by_line else text.split("\0"):
        match = _ASSIGNMENT.fullmatch(entry.rstrip("\r") if by_line else entry)
        if match:
            last = match[1]
            variables[last] = _unquoted(match[2]) if entry.startswith(("export ", "declare ")) else match[2]
        elif last is not None and entry and by_line and len(variables[last]) < _MAX_VALUE:
            variables[last] += f"\n{entry}"
    return Environment(variables=_kept(variables.items(), None))


def _kept(items: Iterable[tuple[str, str]], root: Path | None) -> tuple[Variable, ...]:
    wanted = ((name, value) for name, value in sorted(items) if name in _NAMES or name.startswith(_PREFIXES))
    kept = [(name, value) for name, value in wanted if not _SECRET.search(name)]
    exist = {} if root is None else _paths_exist([value for name, value in kept if _names_file(name, value)], root)
    return tuple(
        Variable(name, _clean(value), exist.get(value) if _names_file(name, value) else None) for name, value in kept
    )


def _clean(value: str) -> str:
    """Python keeps bytes that are not UTF-8 as lone surrogates, which JSON cannot hold."""
    return value[:_MAX_VALUE].encode("utf-8", "replace").decode()


def _unquoted(value: str) -> str:
    quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if quoted else value


def _names_file(name: str, value: str) -> bool:
    return name in _FILES or (name in _LIBRARIES and "/" in value)


def _paths_exist(paths: list[str], root: Path) -> dict[str, bool | None]:
    """Whether each path exists; None if it is on a mount that does not answer, which would block this process."""
    absolute = [path for path in paths if path.startswith("/")]
    found: dict[str, bool | None] = {path: os.path.exists(path) for path in paths if path not in absolute}  # noqa: PTH110 - Path.exists raises on odd text
    if root != Path("/"):
        return found | {path: os.path.exists(root / path.lstrip("/")) for path in absolute}  # noqa: PTH110
    for path, status in zip(absolute, path_status.ask_paths(absolute) if absolute else (), strict=True):
        found[path] = None if isinstance(status, Missing) else status.error is None
    return found


NODE_NAME_VARIABLE = "GPUDOCTOR_NODE_NAME"


def node_name() -> str:
    """The name of this node in reports and metrics: GPUDOCTOR_NODE_NAME, else the hostname.

    The hostname of a pod without the host's network is not the node's; its manifest sets the variable
    (Kubernetes' downward API, spec.nodeName).
    """
    return given_node_name() or socket.gethostname()


def given_node_name() -> str | None:
    """The value of GPUDOCTOR_NODE_NAME; None if it is unset or empty. Bytes that are not UTF-8 become `?`."""
    return os.environ.get(NODE_NAME_VARIABLE, "").strip().encode("utf-8", "replace").decode() or None
