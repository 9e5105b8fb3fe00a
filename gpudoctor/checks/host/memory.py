"""host.ram-per-gpu, host.swap: is there enough RAM for the GPUs, and does the machine swap?"""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE
from gpudoctor.checks.core.unread import unread
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.text.units import counted

OURS = "gpudoctor's own choice"
_MORE_RAM = (
    Advice("Give the job or container more memory, where a limit holds it down.", "cat /sys/fs/cgroup/memory.max"),
    Advice("Use fewer data loader workers and no pinned copies of the data set, or add RAM."),
)
_FLOOR_GIB = Limit(
    16,
    "GiB a GPU",
    "rule of thumb of multi-GPU guides: 2 GPUs 32, 4 GPUs 64, 8 GPUs 128 GiB",
    name="floor_gib",
    status="warn",
)
_FAIL_SHARE = Limit(
    0.5, "of the GPU's memory", f"{OURS}: less cannot hold a model that half fills the GPU", name="fail_share"
)
_GPU_MEMORY_SHARE = Limit(
    1.0,
    "of the GPU's memory",
    "recommendation: a checkpoint of the GPU fits into RAM",
    name="gpu_memory_share",
    status="warn",
)
_AVAILABLE_GIB = Limit(
    1,
    "GiB a GPU",
    f"{OURS}: a rank that imports torch and starts CUDA wants 2 to 4 GiB",
    name="available_gib",
    status="fail",
)
_NOMINAL_SHARE = Limit(
    0.94, "of the size", "firmware and kernel keep some: 64 GiB show as 62.7 GiB", name="nominal_share"
)
_USED_MIB = Limit(
    1024, "MiB", f"{OURS}: idle services of a healthy machine may be swapped out", name="used_mib", status="warn"
)
_USED_PCT = Limit(1, "% of RAM", f"{OURS}: less is noise on a machine with much RAM", name="used_pct", status="warn")


@check(
    "host.ram-per-gpu",
    title="There is enough RAM for each GPU",
    needs_gpu=False,
    limits=(_FLOOR_GIB, _FAIL_SHARE, _GPU_MEMORY_SHARE, _AVAILABLE_GIB, _NOMINAL_SHARE),
)
def ram_per_gpu(case: Case) -> Iterator[Finding]:
    """Judge the RAM that any cgroup limit leaves: warn below the floor or the GPUs' own memory.

    Fail if training could not start: below the floor and also below a share of the GPU's memory, or below a floor
    that the operator configured.
    """
    host, gpus = case.node.host, case.compute_gpus
    if isinstance(host.ram_mib, Missing):
        yield unread(NODE, "RAM", host.ram_mib)
        return
    ram_mib, source = host.ram_mib, "RAM"
    evidence = [Evidence("host", f"RAM {_gib(host.ram_mib)}")]
    if (limit_mib := known(host.memory_limit_mib)) is not None:
        limit_source = known(host.memory_limit_source) or "cgroup memory limit"
        evidence.append(Evidence(limit_source, _gib(limit_mib)))
        if limit_mib < ram_mib:
            ram_mib, source = limit_mib, limit_source
    if not gpus:
        yield skip(NODE, f"no GPU to share it: {_gib(ram_mib)} ({source})")
        return
    each_gib, shared = ram_mib / 1024 / len(gpus), counted(len(gpus), "GPU")
    text = f"{each_gib:.1f} GiB of RAM a GPU ({_gib(ram_mib)}, {source}, for {shared})"
    found = Found(text, round(each_gib, 1), "GiB")
    held = f"the limit ({source}) holds it below the machine's {_gib(host.ram_mib)}" if source != "RAM" else None
    tolerance, floor_gib = case.limit(_NOMINAL_SHARE), case.limit(_FLOOR_GIB, gpus[0])
    memory_gib = max((known(gpu.memory_total_mib) or 0 for gpu in gpus), default=0) / 1024
    own_gib = memory_gib * case.limit(_GPU_MEMORY_SHARE, gpus[0])
    if each_gib < floor_gib * tolerance:
        message = f"at least {floor_gib:g} GiB a GPU: {floor_gib * len(gpus):g} GiB for {shared}"
        expected = Expected(message, ">=", floor_gib, "GiB", case.limit_source(_FLOOR_GIB, gpus[0]))
        start_gib = (memory_gib or floor_gib) * case.limit(_FAIL_SHARE, gpus[0])
        judge = fail if each_gib < start_gib or expected.source == "configuration" else warn
        yield judge(
            NODE, found, expected, *evidence, likely=held or "too little RAM for so many GPUs", advice=_MORE_RAM
        )
    elif limit_unread := not_told(host.memory_limit_mib):
        yield unread(NODE, f"{text}, but the memory limit of the job or container", limit_unread)
    elif used_up := _used_up(case, len(gpus), evidence):
        yield used_up
    elif each_gib < own_gib * tolerance:
        message = f"at least the GPU's own memory, {own_gib:.0f} GiB"
        expected = Expected(message, ">=", round(own_gib, 1), "GiB", case.limit_source(_GPU_MEMORY_SHARE, gpus[0]))
        likely = held or "data loading, pinned buffers and checkpoints will compete for RAM"
        yield warn(NODE, found, expected, *evidence, likely=likely, advice=_MORE_RAM)
    else:
        yield ok(NODE, found, Expected(f"at least {floor_gib:g} GiB a GPU", ">=", floor_gib, "GiB"), *evidence)


def _used_up(case: Case, gpus: int, evidence: list[Evidence]) -> Finding | None:
    """A finding for RAM in use: a warning if jobs on the GPUs use it, else a failure. None if enough is available."""
    available = case.node.host.ram_available_mib
    if isinstance(available, Missing):
        return unread(NODE, "available RAM", available) if available.kind == "failed" else None
    limit = case.limit(_AVAILABLE_GIB)
    if available >= limit * 1024 * gpus:
        return None
    # a container does not show the processes of the job, but it shows their GPU memory
    busy = any(
        (known(gpu.memory_used_mib) or 0) > 1024 or any("C" in process.kind for process in known(gpu.processes) or ())
        for gpu in case.node.gpus
    )
    text = f"{size(available)} of RAM available for {counted(gpus, 'GPU')}"
    return (warn if busy else fail)(
        NODE,
        Found(text, round(available / 1024 / gpus, 2), "GiB"),
        Expected(f"at least {limit:g} GiB a GPU", ">=", limit, "GiB", case.limit_source(_AVAILABLE_GIB)),
        *evidence,
        Evidence("MemAvailable", f"{available} MiB"),
        likely="the jobs on the GPUs use it" if busy else "a process left behind, files in /dev/shm, or huge pages",
        advice=[
            Advice(
                "See who holds it.",
                "ps -eo pid,user,rss,cmd --sort=-rss | head; df -h /dev/shm; grep Huge /proc/meminfo",
            ),
            "End what is left behind; else reboot the node.",
        ],
    )


def _gib(mib: float) -> str:
    return f"{mib / 1024:.1f} GiB"


def not_told(limit: object) -> Missing | None:
    """The reason if reading a limit failed: it may be lower than all known ones, so nothing may pass."""
    return limit if isinstance(limit, Missing) and limit.kind in ("failed", "denied") else None


def size(mib: float) -> str:
    """Format a size as in findings: MiB, GiB with three digits, or whole GiB from 100 on."""
    return f"{mib:.0f} MiB" if mib < 1024 else f"{mib / 1024:,.0f} GiB" if mib >= 102400 else f"{mib / 1024:.3g} GiB"


@check("host.swap", title="The machine does not swap", impact="costs", needs_gpu=False, limits=(_USED_MIB, _USED_PCT))
def swap(case: Case) -> Iterator[Finding]:
    """Warn if swap in use exceeds both limits: a data loader or rank whose pages are on disk stalls every step."""
    host = case.node.host
    if isinstance(host.swap_mib, Missing):
        yield unread(NODE, "swap", host.swap_mib)
        return
    if host.swap_mib == 0:
        yield ok(NODE, Found("no swap", 0, "MiB"), None, Evidence("SwapTotal", "0 MiB"))
        return
    if isinstance(host.swap_free_mib, Missing):
        yield unread(NODE, "free swap", host.swap_free_mib)
        return
    used_mib = host.swap_mib - host.swap_free_mib
    if used_mib < 0:
        yield unknown(NODE, f"swap: {size(host.swap_free_mib)} free of {size(host.swap_mib)} makes no sense")
        return
    most_mib, source = case.limit(_USED_MIB), case.limit_source(_USED_MIB)
    if isinstance(host.ram_mib, Missing):
        if used_mib > most_mib:
            yield unread(NODE, f"{size(used_mib)} of swap in use; the RAM to compare it with", host.ram_mib)
            return
    elif (share_mib := host.ram_mib * case.limit(_USED_PCT) / 100) > most_mib:
        most_mib, source = share_mib, case.limit_source(_USED_PCT)
    found = Found(f"{size(used_mib)} of {size(host.swap_mib)} swap in use", used_mib, "MiB")
    expected = Expected(f"at most {size(most_mib)}", "<=", round(most_mib), "MiB", source)
    evidence = Evidence("SwapTotal, SwapFree", f"{host.swap_mib} MiB, {host.swap_free_mib} MiB")
    if used_mib <= most_mib:
        yield ok(NODE, found, expected, evidence)
        return
    yield warn(
        NODE,
        found,
        expected,
        evidence,
        likely="RAM ran out under a job, or memory that nothing has touched since was moved out",
        advice=(
            Advice("See whether it still swaps: columns si and so above 0.", "vmstat 1 5"),
            Advice("See whose memory it is.", "grep VmSwap /proc/[0-9]*/status | sort -k2 -n | tail"),
            Advice(
                "Give jobs less RAM to fill (loader workers, pinned copies); with room in RAM, bring it back.",
                "swapoff -a && swapon -a",
            ),
        ),
    )
