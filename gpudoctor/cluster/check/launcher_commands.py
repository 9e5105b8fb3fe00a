"""The engines that start one process on each node: which one to use, and its command line."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import msgspec

from gpudoctor.cluster.check.model import ClusterCheckRequest, Launcher
from gpudoctor.cluster.check.placement import TOKEN_VARIABLE, job_placement
from gpudoctor.errors import UserError
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.system.sysfs import run_command
from gpudoctor.lazy import lazy_pattern
from gpudoctor.probes.runner.launch_engine import number_of

_ASK_LIMIT_S = 10.0
_HET_GROUP = lazy_pattern(r"--het-group[= ]([0-9]+)(?!\S)")
_TORCHRUN = (
    "export GPUDOCTOR_CLUSTER_TOKEN, the same on all nodes, and run torchrun --nnodes NODES --nproc-per-node gpu "
    "--rdzv-backend c10d --rdzv-endpoint HOST:29500 "
    "-m gpudoctor cluster rank"
)


class MemberLaunch(msgspec.Struct, frozen=True):
    """How to start the members: the launcher's words before theirs, their number, and their names if known.

    For Ray, `count` is None and `names` is empty: its process prints the names on the first line of its stdout.
    """

    launcher: Launcher
    prefix: tuple[str, ...]
    count: int | None = None
    names: tuple[str, ...] = ()


def chosen_launcher(request: ClusterCheckRequest, environment: Mapping[str, str]) -> Launcher:
    """The requested launcher, else the one whose allocation this is. Raise UserError if there is none."""
    if request.launcher != "auto":
        return request.launcher
    if request.hosts or request.hostfile:
        return "mpi"
    if environment.get("SLURM_JOB_ID") or (request.nodes and which("srun")):
        return "slurm"
    if environment.get("RAY_ADDRESS"):
        return "ray"
    if environment.get("PBS_NODEFILE"):
        return "mpi"
    if environment.get("KUBERNETES_SERVICE_HOST"):
        return "k8s"
    raise UserError(
        "no allocation here: run it inside one (salloc -N 4, then this), give -N NODES to have srun make one, "
        f"or --hosts a,b for mpirun, or RAY_ADDRESS; with torchrun: {_TORCHRUN}"
    )


def launch_with(launcher: Launcher, request: ClusterCheckRequest, environment: Mapping[str, str]) -> MemberLaunch:
    """How this launcher starts the members. Raise UserError, with what to do instead, if it cannot."""
    if launcher == "slurm":
        return _slurm(request, environment)
    if launcher == "mpi":
        return _mpi(request, environment)
    if launcher == "ray":
        return _ray(request)
    if launcher == "torchrun":
        raise UserError(f"torchrun has to be started on every node, by hand or by an engine: {_TORCHRUN}")
    raise UserError(
        "gpudoctor starts no pods itself: have Kubernetes start one on each node, which puts load on its GPUs, with "
        "kubectl apply -k contrib/kubernetes/between-nodes (first its number of nodes and its Secret); or, each node "
        "by itself, with kubectl apply -k contrib/kubernetes/load and gpudoctor cluster report on the pods' logs; "
        "contrib/kubernetes/examples has the same as MPIJob, PyTorchJob, TrainJob, JobSet and Volcano Job"
    )


def in_engine(environment: Mapping[str, str]) -> bool:
    """Whether an engine started this process as one of several on different nodes: it is then a rank of the check."""
    try:
        placement = job_placement(environment)
    except UserError:
        return True
    return placement is not None and placement.nodes > 1


def _slurm(request: ClusterCheckRequest, environment: Mapping[str, str]) -> MemberLaunch:
    inside = environment.get("SLURM_JOB_ID") is not None
    if which("srun") is None:
        raise UserError("srun is not installed here: run this on a login node of the cluster, or choose --launcher")
    if not inside and request.nodes is None:
        raise UserError("no Slurm allocation here: run it inside one (salloc -N 4, sbatch), or give -N NODES")
    names: tuple[str, ...] = ()
    nodes = request.nodes
    if inside:
        component = _component(request, environment)
        names = _hostnames(environment.get(f"SLURM_JOB_NODELIST{component}", ""))
        variable = f"SLURM_JOB_NUM_NODES{component}"
        count = environment.get(variable, "")
        if nodes is not None and nodes != len(names):
            names = ()  # srun chooses which of them it uses
        elif not (nodes := len(names) or number_of(count)):
            raise UserError(f"Slurm does not tell how many nodes this job has ({variable}={count!r}): give -N NODES")
    prefix = ["srun", "-N", str(nodes), "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--export=ALL", "--mpi=none"]
    if inside:
        prefix.append("--overlap")  # this may itself run in a step that holds all of the job's resources
    # srun binds a task to one CPU by default, which would look like too few CPUs on every node
    return MemberLaunch("slurm", (*prefix, "--cpu-bind=none", *_own(request)), nodes, names)


def _component(request: ClusterCheckRequest, environment: Mapping[str, str]) -> str:
    """The suffix of the variables about the component of a heterogeneous job that is checked; empty for other jobs.

    srun starts on the first component unless it is told otherwise, and the plain variables are about that one too, so
    without a choice the nodes of all others would be left out. Source: Slurm's page "Heterogeneous Job Support".
    """
    components = number_of(environment.get("SLURM_HET_SIZE")) or 1
    if components < 2:
        return ""
    chosen = _HET_GROUP.search(request.launcher_args or "")
    if chosen is None:
        raise UserError(
            f"this heterogeneous job has {components} components, and srun starts on one of them: check one after the "
            f"other, with --launcher-args=--het-group=0 to --launcher-args=--het-group={components - 1}"
        )
    return f"_HET_GROUP_{chosen[1]}"


def _hostnames(nodelist: str) -> tuple[str, ...]:
    if not nodelist:
        return ()
    done = run_command(["scontrol", "show", "hostnames", nodelist], _ASK_LIMIT_S)
    return () if isinstance(done, Missing) or done.returncode else tuple(done.stdout.split())


def _mpi(request: ClusterCheckRequest, environment: Mapping[str, str]) -> MemberLaunch:
    if which("mpirun") is None:
        raise UserError("mpirun is not installed here: apt-get install openmpi-bin, or choose another --launcher")
    version = run_command(["mpirun", "--version"], _ASK_LIMIT_S)
    if isinstance(version, Missing) or "Open MPI" not in version.stdout:
        raise UserError(
            "this mpirun is not Open MPI's: start gpudoctor cluster rank with it yourself, one process a node, "
            f"with RANK, WORLD_SIZE and MASTER_ADDR set, and {TOKEN_VARIABLE} the same for all"
        )
    names, where = _mpi_hosts(request, environment)
    nodes = request.nodes or len(names)
    if not nodes:
        raise UserError("mpirun has no allocation here: give --hosts node1,node2 or --hostfile FILE")
    prefix = ["mpirun", "-np", str(nodes), "--map-by", "ppr:1:node", "--bind-to", "none", *where]
    passed_on = [name for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "GLOO_SOCKET_IFNAME") if name in environment]
    passed_on += [name for name in environment if name.startswith("NCCL_")]
    for name in (TOKEN_VARIABLE, *passed_on):
        prefix += ["-x", name]
    if os.geteuid() == 0:
        prefix.append("--allow-run-as-root")
    return MemberLaunch("mpi", (*prefix, *_own(request)), nodes, names if nodes == len(names) else ())


def _mpi_hosts(request: ClusterCheckRequest, environment: Mapping[str, str]) -> tuple[tuple[str, ...], list[str]]:
    if request.hosts:
        names = tuple(dict.fromkeys(entry.partition(":")[0] for entry in request.hosts.split(",") if entry))
        return names, ["--host", request.hosts]
    path = request.hostfile or environment.get("PBS_NODEFILE")
    if path is None:
        return (), []
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot read the list of hosts: {getattr(error, 'strerror', None) or error}") from None
    names = tuple(dict.fromkeys(line.split()[0] for line in lines if line.split("#")[0].strip()))
    return names, ["--hostfile", str(path)] if request.hostfile else []


def _ray(request: ClusterCheckRequest) -> MemberLaunch:
    if find_spec("ray") is None:
        raise UserError("Ray is not installed in this Python: run gpudoctor with the Python that your Ray jobs use")
    if request.launcher_args:
        raise UserError("--launcher-args is for srun and mpirun")
    return MemberLaunch("ray", ())


def _own(request: ClusterCheckRequest) -> Sequence[str]:
    try:
        return shlex.split(request.launcher_args or "")
    except ValueError as error:
        raise UserError(f"--launcher-args {request.launcher_args!r}: {error}") from None
