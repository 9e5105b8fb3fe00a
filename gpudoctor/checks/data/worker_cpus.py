"""Data loader workers that share one CPU, and what bound them to it."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, warn
from gpudoctor.checks.core.subject import NODE
from gpudoctor.facts.model.measured_data import DataLoading
from gpudoctor.facts.model.missing import Missing, known

_FEWEST = 2  # one for the training loop, one for a worker
_BINDING = ("true", "close", "spread", "master", "primary")


def few_cpus(case: Case, loading: DataLoading) -> Iterator[Finding]:
    """Warn if the workers of a rank may run on only one of several CPUs, and name what bound them."""
    host = case.node.host
    total, quota = known(loading.cpus_total), known(host.cpu_quota)
    fewest = min(loading.cpus, default=None)
    if total is None or total < _FEWEST or fewest is None:
        return
    if fewest < _FEWEST:
        likely, advice = _binding(loading, fewest)
        bound = known(host.cpus_usable_list) if host.cpus_usable == fewest else None
        yield warn(
            NODE,
            Found(f"all workers of a rank share {fewest} of the {total} CPUs", fewest, "CPUs"),
            Expected("a CPU for the training loop and one for each worker", ">=", _FEWEST, "CPUs"),
            Evidence("sched_getaffinity in the workers", f"{fewest} CPU" + (f" (CPU {bound})" if bound else "")),
            *_cpuset_evidence(loading),
            likely=likely,
            advice=advice,
        )
    elif quota is not None and quota < _FEWEST:
        yield warn(
            NODE,
            Found(f"all workers of this node share {quota:g} CPUs of time", quota, "CPUs"),
            Expected("a CPU for the training loop and one for each worker", ">=", _FEWEST, "CPUs"),
            Evidence(known(host.cpu_quota_source) or "cgroup CPU quota", f"{quota:g} CPUs"),
            likely="the CPU quota of the cgroup: more workers wait for one another",
            advice=(Advice("Raise the CPU limit of the container or job.", "docker run --cpus=..."),),
        )


def bound_by_openmp(case: Case) -> Iterator[Finding]:
    """Warn of a setting with which OpenMP binds a training's main thread, and so every worker that it forks.

    Measured: with OMP_PROC_BIND=true, `import torch` alone leaves the process on one CPU (libgomp of GCC 12).
    gpudoctor's own ranks run without the setting.
    """
    for name in ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY"):
        value = case.node.environment.get(name)
        if value and (name != "OMP_PROC_BIND" or value.split(",")[0].strip().lower() in _BINDING):
            yield warn(
                NODE,
                Found(f"{name}={value} binds a training and all its workers to one CPU", value),
                Expected(f"{name} not set where data loaders fork workers"),
                Evidence("environment", f"{name}={value}"),
                likely="OpenMP binds the main thread when torch is imported; workers inherit that CPU",
                advice=(Advice("Leave it out.", f"unset {name}"),),
            )


def _binding(loading: DataLoading, fewest: int) -> tuple[str, tuple[Advice, ...]]:
    if isinstance(loading.cpuset_cpus, int) and loading.cpuset_cpus <= fewest:
        return "the cpuset of the container's or job's cgroup holds no more", (
            Advice("Ask the scheduler for more CPUs.", "srun --cpus-per-task=8 ..."),
            Advice("In a container, give it more.", "docker run --cpuset-cpus=0-15 ..."),
        )
    return (
        "an affinity that taskset, numactl or the launcher has set: every process started from there has it",
        (
            Advice("See who set it: it is in the shell, the job script or the service.", "taskset -cp $$"),
            Advice("Slurm and Open MPI bind each task to a core unless told otherwise.", "srun --cpu-bind=none ..."),
            Advice("Open MPI:", "mpirun --bind-to none ..."),
        ),
    )


def _cpuset_evidence(loading: DataLoading) -> tuple[Evidence, ...]:
    if isinstance(loading.cpuset_cpus, Missing):
        return ()
    return (Evidence("cgroup cpuset", f"{loading.cpuset_cpus} CPUs"),)
