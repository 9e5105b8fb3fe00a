"""Steps `rates` and `all-reduce`: gpudoctor's rates against plain torch loops and against nccl-tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence

import msgspec

from acceptance.plain_loops import LOOPS, NOTHING_TO_RUN_ON, HostCopies, LoopOrder, PlainFigures
from acceptance.quick_steps import loaded_gpus
from acceptance.run import AcceptanceRun, Item, StepError, agreed, could_not, differs
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.system.sysfs import parse_cpu_list
from gpudoctor.process.own_program import own_python

TOLERANCE = 0.03  # from the issue: two programs doing the same on the same GPU within a minute
NCCL_TOLERANCE = 0.10  # nccl-tests enqueues many operations before it waits, a train step waits for each
_SECONDS = 3.0
_PROGRAM = "all_reduce_perf"


def rates(run: AcceptanceRun) -> Iterator[Item]:
    """Plain loops, gpudoctor, plain loops again: each rate of each GPU must agree within 3 %."""
    uuids = loaded_gpus(run)
    if not uuids and not run.on_cpu:
        yield could_not("no GPU of this node may be put under load (see the step standard)")
        return
    if run.on_cpu:
        yield from _on_cpu(run)
        return
    ours = run.check("compute.gemm", "compute.memory", "link.host", "--level", "full", name="rates").measurements
    order = _order(run, ours, uuids)
    if order is None:
        yield differs("gpudoctor measured no matrix products on these GPUs: see report-rates.json")
        return
    first = _loops(run, order)
    again = run.check("compute.gemm", "compute.memory", "link.host", "--level", "full", name="rates").measurements
    second = _loops(run, order)
    if isinstance(first, str) or isinstance(second, str):
        yield could_not(f"the plain loops: {first if isinstance(first, str) else second}")
        return
    run.raw["plain-loops.json"] = msgspec.json.encode({"order": order, "before": first, "after": second})
    names = {known(gpu.uuid): gpu.label for gpu in run.node.gpus}
    yield from judged(again, [names.get(uuid, uuid) for uuid in uuids], order, first, second)


def _on_cpu(run: AcceptanceRun) -> Iterator[Item]:
    """Check that the loops run; their rates on a CPU mean nothing and are not shown."""
    done = _loops(run, LoopOrder((), "fp32", 256, 0.1))
    if isinstance(done, str):
        yield could_not(f"the plain loops: {done}")
        return
    yield could_not(
        "GEMM, device memory and host link against plain loops: CPU ranks have none of them "
        "(the loops themselves ran on the CPU)"
    )


def _order(run: AcceptanceRun, ours: Measurements, uuids: tuple[str, ...]) -> LoopOrder | None:
    gemms = [rank.gemms[0] for rank in ours.compute if rank.gemms]
    if not gemms:
        return None
    cpus = {known(gpu.uuid): parse_cpu_list(known(gpu.cpu_affinity) or "") for gpu in run.node.gpus}
    host = tuple(
        HostCopies(link.rank, link.size_bytes, tuple(sorted(cpus.get(uuids[link.rank]) or ())))
        for link in ours.host_links
        if link.rank < len(uuids)
    )
    return LoopOrder(uuids, gemms[0].dtype, gemms[0].size, _SECONDS, host)


def _loops(run: AcceptanceRun, order: LoopOrder) -> PlainFigures | str:
    """The rates, or the reason why there are none. Raise StepError if the loops failed."""
    done = run.child(own_python(LOOPS, "main", msgspec.json.encode(order).decode()))
    if done.code == NOTHING_TO_RUN_ON:
        return done.said[-1] if done.said else "there is no torch to run them"
    if done.code != 0:
        raise StepError(f"the plain loops {done.words}")
    return msgspec.json.decode(done.stdout, type=PlainFigures)


def judged(
    ours: Measurements, labels: Sequence[str], order: LoopOrder, first: PlainFigures, second: PlainFigures
) -> Iterator[Item]:
    """Each rate of each rank against the loops before and after; `labels`: the GPUs' names by rank."""
    for rank in ours.compute:
        at, label = rank.rank, labels[rank.rank]
        gemm = rank.gemms[0].tflops if rank.gemms else Missing("not measured")
        yield rate_item(f"{label}: {order.dtype} GEMM", "TFLOP/s", gemm, first.gemm_tflops[at], second.gemm_tflops[at])
        yield rate_item(f"{label}: copy in memory", "GB/s", rank.copy_gb_s, first.copy_gb_s[at], second.copy_gb_s[at])
    for link in ours.host_links:
        place = next((place for place, host in enumerate(order.host) if host.gpu == link.rank), None)
        if place is not None:
            to, back = (first.h2d_gb_s[place], second.h2d_gb_s[place]), (first.d2h_gb_s[place], second.d2h_gb_s[place])
            yield rate_item(f"{labels[link.rank]}: host to GPU", "GB/s", link.h2d_alone_gb_s, *to)
            yield rate_item(f"{labels[link.rank]}: GPU to host", "GB/s", link.d2h_alone_gb_s, *back)
    if not ours.host_links:
        yield could_not(f"host link: {_why_not(ours, 'link')}")


def _why_not(ours: Measurements, probe: str) -> str:
    gap = ours.not_run.get(probe)
    return gap.reason if gap is not None else "gpudoctor measured none"


def rate_item(
    what: str, unit: str, ours: float | Missing, before: float, after: float, tolerance: float = TOLERANCE
) -> Item:
    """gpudoctor's rate against those of the plain loop before and after it.

    If the plain loop itself changed by more than the tolerance (unsteady clocks), nothing can be compared.
    """
    if isinstance(ours, Missing):
        return differs(f"{what}: gpudoctor has no figure ({ours.reason}), the plain loop {before:.4g} {unit}")
    plain = (before + after) / 2
    if plain <= 0 or abs(before - after) / plain > tolerance:
        return could_not(f"{what}: the plain loop itself gave {before:.4g} and then {after:.4g} {unit}")
    return _within(f"{what}: gpudoctor {ours:.4g}, plain loop {plain:.4g} {unit}", ours / plain - 1, tolerance)


def _within(words: str, off: float, tolerance: float) -> Item:
    """Whether the relative difference `off` of the two rates in `words` is within the tolerance."""
    words = f"{words} ({off:+.1%})"
    return agreed(words) if abs(off) <= tolerance else differs(f"{words}; allowed are {tolerance:.0%}")


def all_reduce(run: AcceptanceRun) -> Iterator[Item]:
    """Bus bandwidth of the largest all_reduce against nccl-tests with the same size and type on the same GPUs."""
    if run.on_cpu:
        yield could_not("all_reduce against nccl-tests: CPU ranks do not use NCCL")
        return
    if len(run.node.gpus) < 2:
        yield could_not("all_reduce against nccl-tests: one GPU has nothing to sum with; it takes two or more")
        return
    program = shutil.which(_PROGRAM)
    if program is None:
        yield could_not(f"all_reduce against nccl-tests: {_PROGRAM} is not on PATH")
        return
    report = run.reports.get("full") or run.reports.get("standard") or run.check("collective")
    uuids = loaded_gpus(run)
    ours = [each for each in report.measurements.collectives if each.op == "all_reduce"]
    if len(uuids) < 2 or not ours:
        yield could_not(f"all_reduce against nccl-tests: {_why_not(report.measurements, 'collective')}")
        return
    largest = max(ours, key=lambda each: each.size_bytes)
    kind = {"float32": "float", "float16": "half", "bfloat16": "bfloat16"}.get(largest.dtype, "float")
    size = str(largest.size_bytes)
    command = [program, "-b", size, "-e", size, "-d", kind, "-w", "5", "-n", "20", "-g", str(len(uuids))]
    done = run.child(["env", f"CUDA_VISIBLE_DEVICES={','.join(uuids)}", *command])
    text = done.stdout.decode("utf-8", "replace")
    run.raw["nccl-tests.txt"] = text.encode()
    theirs = bus_bandwidth(text, largest.size_bytes)
    if theirs is None:
        yield differs(f"{_PROGRAM} {done.words}: it shows no bus bandwidth at {size} B, see nccl-tests.txt")
        return
    what = f"all_reduce of {largest.size_bytes >> 20} MiB on {len(uuids)} GPUs"
    words = f"{what}: gpudoctor {largest.busbw_gb_s:.4g}, nccl-tests {theirs:.4g} GB/s"
    yield _within(words, largest.busbw_gb_s / theirs - 1, NCCL_TOLERANCE)


def bus_bandwidth(text: str, size_bytes: int) -> float | None:
    """Out-of-place bus bandwidth (GB/s) in the row of this size in nccl-tests' table; None if there is none.

    Columns: size, count, type, redop (newer: root), then time, algbw, busbw, #wrong out of place and again in place.
    """
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 12 and words[0] == str(size_bytes):
            try:
                return float(words[-6])
            except ValueError:
                return None
    return None
