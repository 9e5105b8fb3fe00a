"""data.loader: does a torch DataLoader feed the GPUs here, with how many workers, and what slows it down?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.measured.probe_outcome import absent, judged_problems, problems_of
from gpudoctor.checks.measured.ranks import on_gpus, rank_subject, ranks_in_words
from gpudoctor.facts.model.measured_hardware import DataLoading, LoaderRates
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.text.units import counted, seconds_text, short_size, size_text, three_digits

PROBE, WHAT = "data", "data loading"
_SHORT = Limit(1.0, "of the need", "what --need names", name="warn_share_of_need", status="warn")
_MUCH_SHORT = Limit(
    0.5,
    "of the need",
    "gpudoctor's own choice: the GPUs idle for half the time",
    name="fail_share_of_need",
    status="fail",
)
_SOCKET_NAME_BYTES = 107
_AS_GOOD = 0.95  # worker counts that reach this share of the best rate are equally good: the rest is noise
_READ_ALONE = Advice("See whether the data can be read at all.", "timeout 20 cat FILE > /dev/null; echo $?")
_FASTER = (
    Advice("Measure the storage by itself.", "gpudoctor check storage --data PATH --level full"),
    Advice("More CPUs for each GPU let more workers run.", "srun --cpus-per-gpu=8 ..."),
    Advice("Pack small files into shards (WebDataset, tar, Parquet), or copy the data to a local NVMe first."),
)
_FEWEST = 2  # one for the training loop, one for a worker
_BINDING = ("true", "close", "spread", "master", "primary")


@check(
    "data.loader",
    needs_gpu=False,
    impact="costs",
    limits=(_SHORT, _MUCH_SHORT),
)
def loader(case: Case) -> Iterator[Finding]:
    """Judge the rate against --need if given; warn about workers on one CPU, a small /dev/shm and unreadable files."""
    loading = case.measurements.data_loading
    yield from _problems(case)
    if loading is None:
        if not problems_of(case, PROBE):
            yield absent(case, PROBE, WHAT)
        return
    rates = {step.workers: step.rates for step in loading.steps if step.rates is not None}
    if rates:
        yield _judged(case, loading, rates)
    yield from _without_figures(loading)
    yield from few_cpus(case, loading)
    yield from bound_by_openmp(case)
    yield from _unreadable(loading)
    yield from _long_tmpdir(loading)
    yield _pinning(loading)


def _problems(case: Case) -> Iterator[Finding]:
    """Ranks that hung or died while loading: `unknown`, as storage may be the cause and not a GPU."""
    yield from judged_problems(case, "launch")
    for problem in case.measurements.problems:
        if problem.probe == PROBE:
            lines = (Evidence(f"stderr of rank {problem.rank}", line) for line in problem.output)
            yield unknown(rank_subject(case, problem.rank), problem.text, *lines, advice=(_READ_ALONE,))


def _judged(case: Case, loading: DataLoading, rates: dict[int, LoaderRates]) -> Finding:
    need = case.measurements.data_need_gb_s
    chosen = _chosen(rates, need)
    who = ranks_in_words(case, loading.world_size)
    text = f"{_in_words(rates[chosen])} read, not decoded, by {who} with num_workers={chosen}{_of_what(loading)}"
    found = Found(text, round(rates[chosen].gb_s, 4), "GB/s")
    evidence = tuple(
        Evidence(f"num_workers={count}", f"{_in_words(rate)}, first batch after {seconds_text(rate.first_batch_s)}")
        for count, rate in rates.items()
    )
    if need is None:
        return ok(NODE, found, None, *evidence)
    each, one = rates[chosen].slowest_rank_gb_s, "GPU" if on_gpus(case) else "CPU rank"
    expected = Expected(f"{_gb_s(need)} for each {one} (--need)", ">=", need * loading.world_size, "GB/s", "--need")
    for limit, judge in ((_MUCH_SHORT, fail), (_SHORT, warn)):
        if each < case.limit(limit) * need:
            text = f"{_gb_s(each)} for the slowest {one}, at best, with num_workers={chosen}{_of_what(loading)}"
            short = Found(text, round(each, 4), "GB/s")
            return judge(NODE, short, expected, *evidence, likely=_likely(loading, rates), advice=_FASTER)
    why = loading.perhaps_in_ram
    if why is not None and why.kind == "failed":  # fast enough, but perhaps read from RAM
        return unknown(NODE, found.text, *evidence)
    return ok(NODE, found, expected, *evidence)


def _chosen(rates: dict[int, LoaderRates], need: float | None) -> int:
    """The fewest workers that reach the need, else those with the highest rate; without a need, see `_useful`."""
    if need is None:
        return _useful(rates)
    enough = [count for count, rate in rates.items() if rate.slowest_rank_gb_s >= need]
    return min(enough) if enough else max(rates, key=lambda count: rates[count].slowest_rank_gb_s)


def _useful(rates: dict[int, LoaderRates]) -> int:
    """The fewest workers that are about as fast as any number."""
    best = max(rate.slowest_rank_gb_s for rate in rates.values())
    return min(count for count, rate in rates.items() if rate.slowest_rank_gb_s >= _AS_GOOD * best)


def _gb_s(rate_gb_s: float) -> str:
    return f"{three_digits(rate_gb_s)} GB/s"


def _in_words(rate: LoaderRates) -> str:
    return f"{rate.samples_per_s:.0f} samples/s ({_gb_s(rate.gb_s)})"


def _of_what(loading: DataLoading) -> str:
    of = "of --data" if loading.paths else "made for it, in the page cache"
    files = counted(loading.files, "file")
    why = loading.perhaps_in_ram
    ram = "" if why is None else f", {'perhaps ' if why.kind == 'failed' else ''}from RAM: {why.reason}"
    return f", {short_size(round(loading.sample_bytes))} each, {files} {of}{ram}"


def _likely(loading: DataLoading, rates: dict[int, LoaderRates]) -> str:
    if _useful(rates) == max(rates) > 0:
        return "too few CPUs for more workers, each of which still brought more"
    if not loading.paths:
        return "CPUs that are busy, few or slow, or slow memory: the files were in the page cache"
    return "storage or the way to it, or no CPU that is free: more workers bring no more"


def _without_figures(loading: DataLoading) -> Iterator[Finding]:
    for step in loading.steps:
        if step.not_run is None:
            continue
        if step.not_run.kind != "denied":
            yield unread(NODE, f"num_workers={step.workers}", step.not_run)
            continue
        size = "of unknown size" if isinstance(loading.shm_bytes, Missing) else size_text(loading.shm_bytes)
        yield warn(
            NODE,
            Found(f"num_workers={step.workers} was not tried: {step.not_run.reason}", step.shm_needed_bytes, "B"),
            Expected("at least twice as much free in /dev/shm", ">=", 2 * step.shm_needed_bytes, "B"),
            Evidence("statvfs /dev/shm", f"{size} in all"),
            likely="a container gets 64 MiB of it unless told otherwise; a loader that fills it dies of a bus error",
            advice=(
                Advice("Docker:", "docker run --ipc=host ...   # or --shm-size=8g"),
                Advice('Kubernetes: mount an emptyDir with medium "Memory" at /dev/shm.'),
                Advice("Or fewer workers, a smaller batch, or prefetch_factor=1."),
            ),
        )
        return  # more workers need more


def _unreadable(loading: DataLoading) -> Iterator[Finding]:
    if loading.unreadable:
        yield warn(
            NODE,
            Found(f"{loading.unreadable} of {loading.samples} samples could not be read", loading.unreadable),
            Expected("every file of the data set can be read", "==", 0),
            Evidence("one of the reasons", loading.unreadable_why or "not known"),
            likely="files that vanished, were cut short, or are closed to this user: a training would end there",
        )


def _long_tmpdir(loading: DataLoading) -> Iterator[Finding]:
    length = loading.socket_name_bytes
    if isinstance(length, int) and length > _SOCKET_NAME_BYTES:
        yield warn(
            NODE,
            Found(f"a DataLoader with workers hangs: TMPDIR makes its sockets' names {length} bytes long", length, "B"),
            Expected("a name that the kernel takes", "<=", _SOCKET_NAME_BYTES, "B", "sun_path of unix(7)"),
            Evidence("TMPDIR", f"{length} bytes with what multiprocessing adds to it"),
            likely="a job's folder of many levels: workers cannot hand over a batch, and the rank waits for ever",
            advice=(Advice("Give the training a short one.", "export TMPDIR=/tmp"),),
        )


def _pinning(loading: DataLoading) -> Finding:
    copies = loading.copies
    if copies is None:
        why = loading.no_copies or Missing("not measured", "failed")
        return skip(NODE, f"pin_memory: {why.reason}") if loading.device == "cpu" else unread(NODE, "pin_memory", why)
    text = f"to the GPUs with pin_memory {_gb_s(copies.pinned_gb_s)}, without {_gb_s(copies.pageable_gb_s)}"
    return ok(NODE, f"{text} (num_workers={copies.workers})")


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
        cpuset = known(loading.cpuset_cpus)
        found = Found(f"all workers of a rank share {fewest} of the {total} CPUs", fewest, "CPUs")
        seen = f"{fewest} CPU" + (f" (CPU {bound})" if bound else "")
        evidence = [Evidence("sched_getaffinity in the workers", seen)]
        if cpuset is not None:
            evidence.append(Evidence("cgroup cpuset", f"{cpuset} CPUs"))
    elif quota is not None and quota < _FEWEST:
        likely = "the CPU quota of the cgroup: more workers wait for one another"
        advice = (Advice("Raise the CPU limit of the container or job.", "docker run --cpus=..."),)
        found = Found(f"all workers of this node share {quota:g} CPUs of time", quota, "CPUs")
        evidence = [Evidence(known(host.cpu_quota_source) or "cgroup CPU quota", f"{quota:g} CPUs")]
    else:
        return
    expected = Expected("a CPU for the training loop and one for each worker", ">=", _FEWEST, "CPUs")
    yield warn(NODE, found, expected, *evidence, likely=likely, advice=advice)


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
