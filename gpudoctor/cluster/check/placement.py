"""This process's place among the processes of a job, where they meet, and the token by which they know each other."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Literal

import msgspec

from gpudoctor.cluster.check.messages import new_secret
from gpudoctor.cluster.check.model import ClusterCheckRequest
from gpudoctor.errors import UserError
from gpudoctor.facts.model.sagemaker import sagemaker_hosts
from gpudoctor.http.address import TOKEN_BYTES_MAX, checked_token, is_loopback, read_token
from gpudoctor.lazy import lazy_pattern
from gpudoctor.probes.runner.launch_engine import SLURM_SPECIAL_STEPS, number_of
from gpudoctor.process.pipes import write_all
from gpudoctor.text.output import printable

Engine = Literal["torchrun", "slurm", "mpi", "kubernetes", "environment", "sagemaker"]

_PORTS = 8  # if another job uses one of them, the next is tried
# below the kernel's ephemeral ports (from 32768), so that no outgoing connection uses one
_FIRST_PORT, _PORT_SPAN = 20000, 12000
_FIRST_HOSTS = lazy_pattern(r"(?:[^,\[\]]|\[[0-9,-]+\])+")  # up to the first comma that is not in brackets
_RANGES = lazy_pattern(r"\[(\d+)[0-9,-]*\]")
TOKEN_VARIABLE = "GPUDOCTOR_CLUSTER_TOKEN"
# 64 bits if it is random hexadecimal: whoever has recorded a connection can try tokens offline
_LENGTH_MIN = 16
_LENGTH_MAX = 1024  # the whole token must fit into a pipe that has no reader yet


class JobPlacement(msgspec.Struct, frozen=True):
    """One process of a job: number `local` on node `node` of `nodes`, all counted from 0.

    `host` is where the first node can be reached, None if the engine does not provide it; `job` identifies the job.
    """

    engine: Engine
    node: int
    nodes: int
    local: int
    host: str | None
    job: str

    @property
    def leads(self) -> bool:
        """Whether it is the very first process, which runs the hub."""
        return self.node == 0 and self.local == 0

    @property
    def ports(self) -> list[int]:
        """The ports on which the processes of this job meet, derived from the job so that all know them."""
        start = int.from_bytes(hashlib.sha256(self.job.encode()).digest()[:4], "big") % _PORT_SPAN
        return [_FIRST_PORT + (start + step) % _PORT_SPAN for step in range(_PORTS)]


def job_placement(environment: Mapping[str, str], nodes: int | None = None) -> JobPlacement | None:
    """The placement from the variables of the innermost engine; None if no engine started this process.

    `nodes` is for engines that do not provide the number of nodes. Raise UserError if it is missing, or if the engine's
    variables contradict each other.
    """
    for find in (_torchrun, _mpirun, _srun, _indexed_job, _torch_variables, _sagemaker):
        placement = find(environment, nodes)
        if placement is not None:
            if not 0 <= placement.node < placement.nodes:
                raise UserError(f"{placement.engine} says that this is node {placement.node} of {placement.nodes}")
            return placement
    return None


def _torchrun(environment: Mapping[str, str], _: int | None) -> JobPlacement | None:
    run = environment.get("TORCHELASTIC_RUN_ID")
    node, nodes = _number(environment, "GROUP_RANK"), _number(environment, "GROUP_WORLD_SIZE")
    local = _number(environment, "LOCAL_RANK")
    if run is None or node is None or local is None:
        return None
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    job = f"torchrun/{run}/{host}/{port}/{environment.get('TORCHELASTIC_RESTART_COUNT')}"
    return JobPlacement("torchrun", node, nodes or 1, local, host, job)


def _mpirun(environment: Mapping[str, str], _: int | None) -> JobPlacement | None:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    rank, size, local, local_size = (_number(environment, f"OMPI_COMM_WORLD_{name}") for name in names)
    if rank is None or size is None or local is None or not local_size:
        return None
    # mpirun does not number the nodes; this is right if they are filled in order, with equally many processes each
    job = f"mpi/{environment.get('PMIX_NAMESPACE', environment.get('OMPI_MCA_ess_base_jobid', ''))}"
    nodes = -(-size // local_size)
    return JobPlacement("mpi", min(rank // local_size, nodes - 1), nodes, local, environment.get("MASTER_ADDR"), job)


def _srun(environment: Mapping[str, str], _: int | None) -> JobPlacement | None:
    step, node = _number(environment, "SLURM_STEP_ID"), _number(environment, "SLURM_NODEID")
    local = _number(environment, "SLURM_LOCALID")
    if step is None or step >= SLURM_SPECIAL_STEPS or node is None or local is None:
        return None
    nodes = _number(environment, "SLURM_STEP_NUM_NODES") or 1
    job = f"slurm/{environment.get('SLURM_CLUSTER_NAME')}/{environment.get('SLURM_JOB_ID')}/{step}"
    return JobPlacement("slurm", node, nodes, local, first_host(environment.get("SLURM_STEP_NODELIST", "")), job)


def _indexed_job(environment: Mapping[str, str], nodes: int | None) -> JobPlacement | None:
    node = _number(environment, "JOB_COMPLETION_INDEX")
    if node is None:
        return None
    if nodes is None:
        raise UserError("a Kubernetes Job does not tell its pods how many they are: give -N NODES")
    host = environment.get("MASTER_ADDR")
    return JobPlacement("kubernetes", node, nodes, 0, host, f"kubernetes/{host}/{environment.get('MASTER_PORT')}")


def _torch_variables(environment: Mapping[str, str], _: int | None) -> JobPlacement | None:
    """RANK and WORLD_SIZE as torch's env:// needs them; one process per node unless LOCAL_WORLD_SIZE is set."""
    rank, size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    if rank is None or not size:
        return None
    local_size = _number(environment, "LOCAL_WORLD_SIZE") or 1
    local = _number(environment, "LOCAL_RANK") or 0
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    nodes = -(-size // local_size)
    return JobPlacement("environment", min(rank // local_size, nodes), nodes, local, host, f"environment/{host}/{port}")


def _sagemaker(environment: Mapping[str, str], _: int | None) -> JobPlacement | None:
    """One process per host of a SageMaker training job, whose hosts are numbered in the order of their names."""
    current, hosts = environment.get("SM_CURRENT_HOST"), sagemaker_hosts(environment.get("SM_HOSTS"))
    if current is None or not hosts:
        return None
    if current not in hosts:
        raise UserError(f"SageMaker says that this is {current}, which is none of SM_HOSTS: {', '.join(hosts)}")
    job = f"sagemaker/{environment.get('TRAINING_JOB_NAME')}/{','.join(hosts)}"
    return JobPlacement("sagemaker", hosts.index(current), len(hosts), 0, hosts[0], job)


def first_host(nodelist: str) -> str | None:
    """The first host of a Slurm node list.

    >>> first_host("node[03-07,9],login1"), first_host("r[1,4]-n[01-16]-ib0")
    ('node03', 'r1-n01-ib0')
    """
    match = _FIRST_HOSTS.match(nodelist)
    return _RANGES.sub(r"\1", match[0]) if match else None


def _number(environment: Mapping[str, str], name: str) -> int | None:
    return number_of(environment.get(name))


# The token: where it comes from, and when it is needed.


def given_token(request: ClusterCheckRequest, environ: MutableMapping[str, str]) -> str | None:
    """The token given to this process: by an inherited pipe, else by --token-file, else by the environment.

    It is removed from `environ`, so that no child process inherits it. Raise UserError if it cannot be read or is too
    short to be a secret.
    """
    variable = environ.pop(TOKEN_VARIABLE, None)
    if request.token_fd is not None:
        token, where = _from_pipe(request.token_fd), "the inherited pipe"
    elif request.token_file is not None:
        token, where = read_token(request.token_file, proves_us=True), printable(f"--token-file {request.token_file}")
    elif variable:
        token, where = variable, TOKEN_VARIABLE
    else:
        return None
    return checked_token(token, where, _LENGTH_MIN, _LENGTH_MAX)


def token_for(placement: JobPlacement, given: str | None, *, insecure: bool) -> str:
    """The token of a job that an engine started: the given one, else a random or derived one.

    On a single node it is random, since the first process passes it to its only member. Otherwise it is derived from
    the job's name, which anybody who knows the name can do too: that only keeps jobs on one machine apart. So over a
    network it is refused unless `insecure`. Raise UserError.
    """
    if given is not None:
        return given
    if placement.nodes == 1:
        return new_secret()
    if not insecure and not meets_on_loopback(placement):
        raise UserError(
            f"this job has no token, and anybody who reaches {placement.host or 'its first node'} could pose as one of "
            f"its nodes: export {TOKEN_VARIABLE}, the same on all nodes (openssl rand -hex 16 makes one), "
            "or --token-file FILE, or --insecure if nobody else is on that network"
        )
    return hashlib.sha256(f"gpudoctor/{placement.job}".encode()).hexdigest()


def meets_on_loopback(placement: JobPlacement) -> bool:
    """Whether the whole job is on this machine, so that its processes can meet on loopback."""
    return placement.nodes == 1 or (placement.host is not None and is_loopback(placement.host))


@contextlib.contextmanager
def token_pipe(token: str) -> Iterator[int]:
    """The read end of a pipe that contains the token, for a child to inherit (`--token-fd`)."""
    reader, writer = os.pipe()
    try:
        write_all(writer, token.encode())
    finally:
        os.close(writer)
    try:
        yield reader
    finally:
        os.close(reader)


def _from_pipe(fd: int) -> str:
    try:
        with os.fdopen(fd, "rb") as stream:
            return stream.read(TOKEN_BYTES_MAX).decode("ascii")
    except (OSError, ValueError) as error:
        raise UserError(f"--token-fd {fd}: no token came ({getattr(error, 'strerror', None) or error})") from None
