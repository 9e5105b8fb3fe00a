"""Steps `rates` and `all-reduce`: gpudoctor's rates against plain torch loops and against nccl-tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from statistics import median
from time import monotonic

import msgspec
from msgspec.structs import replace

from acceptance.assumptions import beside_assumed, case_of, constant, not_measured
from acceptance.plain_loops import LOOPS, NOTHING_TO_RUN_ON, HostCopies, LoopOrder, PlainFigures
from acceptance.quick_steps import loaded_gpus
from acceptance.run import AcceptanceRun, Item, StepError, agreed, could_not, differs
from gpudoctor.checks.collective import bandwidth
from gpudoctor.checks.compute import rates as compute_rates
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.measurements import Collective, Measurements
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.model.telemetry import GpuUnderLoad
from gpudoctor.facts.nvml.sampler import Sampler
from gpudoctor.facts.system.sysfs import parse_cpu_list
from gpudoctor.process.own_program import own_python
from gpudoctor.text.units import short_size

TOLERANCE = 0.03  # from the issue: two programs doing the same on the same GPU within a minute
NCCL_TOLERANCE = 0.10  # nccl-tests enqueues many operations before it waits, a train step waits for each
_SECONDS = 3.0
_PROGRAM = "all_reduce_perf"
_OF_BUSBW = (constant(bandwidth, "SMALLEST_JUDGED_BYTES"), constant(bandwidth, "_WARN_SHARE"))
_SMALLEST = short_size(bandwidth.SMALLEST_JUDGED_BYTES)


def rates(run: AcceptanceRun) -> Iterator[Item]:
    """Plain loops, gpudoctor, plain loops again: each rate of each GPU must agree within 3 %."""
    uuids = loaded_gpus(run)
    if not uuids and not run.on_cpu:
        why = "no GPU of this node may be put under load (see the step standard)"
        yield from (not_measured(6, why, *_OF_GEMM), not_measured(7, why, *_OF_MEMORY))
        return
    if run.on_cpu:
        yield from _on_cpu(run)
        return
    ours = run.check("compute.gemm", "compute.memory", "link.host", "--level", "full", name="rates").measurements
    order = _order(run, ours, uuids)
    if order is None:
        yield differs("gpudoctor measured no matrix products on these GPUs: see report-rates.json")
        return
    alone, clocks_alone = _sampled_loops(run, replace(order, uuids=uuids[:1], host=()), uuids)
    first, clocks = _sampled_loops(run, order, uuids)
    again = run.check("compute.gemm", "compute.memory", "link.host", "--level", "full", name="rates").measurements
    second = _loops(run, order)
    if isinstance(alone, str) or isinstance(first, str) or isinstance(second, str):
        why = next(each for each in (alone, first, second) if isinstance(each, str))
        yield could_not(f"the plain loops: {why}")
        return
    taken = {"order": order, "alone": alone, "before": first, "after": second}
    run.raw["plain-loops.json"] = msgspec.json.encode(taken)
    run.raw["measured-clocks.json"] = msgspec.json.encode({"alone": clocks_alone, "together": clocks})
    names = {known(gpu.uuid): gpu.label for gpu in run.node.gpus}
    labels = [names.get(uuid, uuid) for uuid in uuids]
    yield from judged(again, labels, order, first, second)
    gpus = [gpu for uuid in uuids for gpu in run.node.gpus if known(gpu.uuid) == uuid]
    if len(gpus) == len(uuids) and order.dtype != "fp32":
        yield from judged_together(run.node, gpus, order.dtype, alone, first, (clocks_alone, clocks))
        yield from judged_memory(run.node, gpus, first)


def _on_cpu(run: AcceptanceRun) -> Iterator[Item]:
    """Check that the loops run; their rates on a CPU mean nothing and are not shown."""
    done = _loops(run, LoopOrder((), "fp32", 256, 0.1))
    if isinstance(done, str):
        yield could_not(f"the plain loops: {done}")
        return
    why = "CPU ranks have no GPU (the loops themselves ran on the CPU)"
    yield could_not(f"GEMM, device memory and host link against plain loops: {why}")
    yield from (not_measured(6, why, *_OF_GEMM), not_measured(7, why, *_OF_MEMORY))


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


def _sampled_loops(
    run: AcceptanceRun, order: LoopOrder, uuids: tuple[str, ...]
) -> tuple[PlainFigures | str, tuple[GpuUnderLoad, ...]]:
    """The rates, and the clocks and power of these GPUs meanwhile; without them if there is no sampler."""
    gpus = [(gpu.index, uuid) for uuid in uuids for gpu in run.node.gpus if known(gpu.uuid) == uuid]
    try:
        sampler = Sampler(gpus)
    except OSError:
        return _loops(run, order), ()
    began_s = monotonic()
    try:
        figures = _loops(run, order)
    finally:
        sampler.stop()
    return figures, sampler.recording().between(began_s, monotonic())


_OF_GEMM = tuple(constant(compute_rates, name) for name in ("_ACHIEVED_WARN_SHARE", "_GEMM_PEER_WARN"))
_OF_MEMORY = (constant(compute_rates, "_MEMORY_PEAK_WARN"), constant(compute_rates, "_MEMORY_PEER_WARN"))
Clocks = Sequence[GpuUnderLoad]


def judged_together(
    node: Node, gpus: Sequence[Gpu], dtype: str, alone: PlainFigures, all_: PlainFigures, clocks: tuple[Clocks, Clocks]
) -> Iterator[Item]:
    """A plain loop on healthy GPUs must stay above the limits of compute.gemm: else it would warn without reason."""
    case, share = case_of(node), compute_rates._ACHIEVED_WARN_SHARE.value
    rates = [("alone", gpus[0], alone.gemm_tflops[0], clocks[0])]
    if len(gpus) > 1:
        rates += [(f"beside {len(gpus) - 1}", *each, clocks[1]) for each in zip(gpus, all_.gemm_tflops, strict=True)]
    for how, gpu, tflops, sampled in rates:
        model = case.model_of(gpu)
        best = model.achieved_bf16_tflops if model is not None else None
        measured = f"{gpu.label} {how}: {tflops:.4g} TFLOP/s in {dtype}{_clocks_of(gpu, sampled)}"
        if model is None or best is None:
            yield not_measured(6, f"{measured}; the profile has no measured rate of this model", *_OF_GEMM)
            continue
        assumed = f"at least {share * best:.4g} TFLOP/s, {share:.0%} of the best measured on a {model.name}"
        yield beside_assumed(6, tflops >= share * best, measured, assumed, *_OF_GEMM)
    if len(gpus) > 1:
        slowest, usual = min(all_.gemm_tflops), median(all_.gemm_tflops)
        measured = f"the slowest of {len(gpus)} at {slowest / usual:.3f} of their median"
        peers = compute_rates._GEMM_PEER_WARN.value
        yield beside_assumed(
            6, slowest >= peers * usual, measured, f"at least {peers:.2f} on a healthy node", *_OF_GEMM
        )
    else:
        yield not_measured(6, "one GPU: there are no others that would slow it down", *_OF_GEMM)


def _clocks_of(gpu: Gpu, sampled: Clocks) -> str:
    load = next((each for each in sampled if each.index == gpu.index and each.samples), None)
    if load is None:
        return ""
    read = {name: spread.median for name, spread in load.readings.items()}
    return "".join(f", {read[name]:.0f} {unit}" for name, unit in (("sm_mhz", "MHz"), ("power_w", "W")) if name in read)


def judged_memory(node: Node, gpus: Sequence[Gpu], plain: PlainFigures) -> Iterator[Item]:
    """The better of copy and triad, as compute.memory takes it, against the data sheet."""
    case, share = case_of(node), compute_rates._MEMORY_PEAK_WARN.value
    for gpu, copy, triad in zip(gpus, plain.copy_gb_s, plain.triad_gb_s, strict=True):
        model = case.model_of(gpu)
        peak = model.memory_bandwidth_gb_s if model is not None else None
        measured = f"{gpu.label}: copy {copy:.4g}, triad {triad:.4g} GB/s"
        if model is None or not peak:
            yield not_measured(7, f"{measured}; the profile has no data sheet of this model", *_OF_MEMORY)
            continue
        reached = max(copy, triad) / peak
        assumed = f"{share:.2f} to 1 of the {peak:g} GB/s of the data sheet"
        yield beside_assumed(7, share <= reached <= 1, f"{measured}, {reached:.2f} of the peak", assumed, *_OF_MEMORY)


def judged(
    ours: Measurements, labels: Sequence[str], order: LoopOrder, first: PlainFigures, second: PlainFigures
) -> Iterator[Item]:
    """Each rate of each rank against the loops before and after; `labels`: the GPUs' names by rank."""
    for rank in ours.compute:
        at, label = rank.rank, labels[rank.rank]
        gemm = rank.gemms[0].tflops if rank.gemms else Missing("not measured")
        yield rate_item(f"{label}: {order.dtype} GEMM", "TFLOP/s", gemm, first.gemm_tflops[at], second.gemm_tflops[at])
        yield rate_item(f"{label}: copy in memory", "GB/s", rank.copy_gb_s, first.copy_gb_s[at], second.copy_gb_s[at])
        triads = first.triad_gb_s[at], second.triad_gb_s[at]
        yield rate_item(f"{label}: triad in memory", "GB/s", rank.triad_gb_s, *triads)
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
    """Bus bandwidth of all_reduce at each size that gpudoctor measures, with NVLS as NCCL chooses and without."""
    program = shutil.which(_PROGRAM)
    if run.on_cpu:
        yield not_measured(9, "CPU ranks do not use NCCL", *_OF_BUSBW)
        return
    if len(run.node.gpus) < 2:
        yield not_measured(9, "one GPU has nothing to sum with; it takes two or more", *_OF_BUSBW)
        return
    if program is None:
        yield not_measured(9, f"{_PROGRAM} is not on PATH", *_OF_BUSBW)
        return
    for name, settings in (("all-reduce", {}), ("all-reduce-no-nvls", {"NCCL_NVLS_ENABLE": "0"})):
        yield from _one_all_reduce(run, program, name, settings)


def _one_all_reduce(run: AcceptanceRun, program: str, name: str, settings: dict[str, str]) -> Iterator[Item]:
    report = run.check("collective.bandwidth", "--level", "standard", name=name, settings=settings)
    uuids = loaded_gpus(run)
    ours = sorted(
        (each for each in report.measurements.collectives if each.op == "all_reduce"), key=lambda each: each.size_bytes
    )
    if len(uuids) < 2 or not ours:
        yield not_measured(9, _why_not(report.measurements, "collective"), *_OF_BUSBW)
        return
    how = "NVLS off" if settings else "NVLS as NCCL chooses"
    kind = {"float32": "float", "float16": "half", "bfloat16": "bfloat16"}.get(ours[0].dtype, "float")
    sizes = [str(ours[0].size_bytes), "-e", str(ours[-1].size_bytes), "-f", "2"]
    command = [program, "-b", *sizes, "-d", kind, "-w", "5", "-n", "20", "-g", str(len(uuids))]
    done = run.child(command, settings={**settings, "CUDA_VISIBLE_DEVICES": ",".join(uuids)})
    text = done.stdout.decode("utf-8", "replace")
    run.raw["nccl-tests-no-nvls.txt" if settings else "nccl-tests.txt"] = text.encode()
    if bus_bandwidth(text, ours[-1].size_bytes) is None:
        yield differs(f"{_PROGRAM} {done.words}: it shows no bus bandwidth at {ours[-1].size_bytes} B, {how}")
        return
    yield judged_all_reduce(ours, text, f"{how}, {len(uuids)} GPUs")


def judged_all_reduce(ours: Sequence[Collective], text: str, how: str) -> Item:
    """The largest size decides, as in collective.bandwidth; the smaller ones are shown beside it."""
    rows = [(each, other) for each in ours if (other := bus_bandwidth(text, each.size_bytes))]
    shown = ", ".join(f"{each.size_bytes >> 10} KiB {each.busbw_gb_s:.4g}/{other:.4g}" for each, other in rows)
    large = [each.busbw_gb_s / other - 1 for each, other in rows if each.size_bytes >= bandwidth.SMALLEST_JUDGED_BYTES]
    if not large:
        return not_measured(9, f"{how}: no size is large enough to judge: {shown}", *_OF_BUSBW)
    worst = max(large, key=abs)
    measured = f"{how}, gpudoctor/nccl-tests in GB/s: {shown}; from {_SMALLEST} on {worst:+.1%} at most"
    return beside_assumed(9, abs(worst) <= NCCL_TOLERANCE, measured, f"within {NCCL_TOLERANCE:.0%}", *_OF_BUSBW)


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
