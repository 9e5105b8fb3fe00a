"""burn.counters: errors that GPUs and kernel counted during sustained load."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import msgspec

from gpudoctor.checks.burn.drift import ended_early, length_in_words
from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, Status, fail, ok, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE, of_gpu
from gpudoctor.checks.core.unread import unread
from gpudoctor.checks.gpu.xid import xids
from gpudoctor.checks.measured.probe_outcome import absent
from gpudoctor.checks.measured.ranks import gpus_of, ranks_of
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.links import GT_S
from gpudoctor.facts.model.missing import NOT_READ, Missing, known
from gpudoctor.facts.model.node import KernelLog
from gpudoctor.facts.model.telemetry import Burn, GpuCounters

_WORDS = {
    "ecc_uncorrected": "uncorrected memory errors",
    "ecc_corrected": "corrected memory errors",
    "pcie_replays": "PCIe replays",
}
# PCI Express Base Specification: one bit in 10^12 may be wrong, and is then sent again
_BIT_ERROR_RATIO = 1e-12
_LEAST_S = 60.0  # over a shorter time a few random replays would give a high rate


_UNCORRECTED = Limit(
    0, "errors", "any uncorrected error killed or corrupted work (DCGM, GCM)", name="uncorrected", status="fail"
)
_CORRECTED = Limit(
    0, "errors", "under minutes of load a sound GPU corrects none (ours)", name="corrected", status="warn"
)
_REPLAY_RATE = Limit(
    1.0,
    "of the bit error rate allowed",
    "DCGM: 10^-12 a bit, PCI Express specification",
    name="replay_rate",
    status="warn",
)
_SEE = (
    Advice("See the kernel's words.", "sudo dmesg -T | grep -iE 'xid|AER|nvrm' | tail"),
    Advice("It returns in a second burn: open a hardware case.", "nvidia-bug-report.sh"),
)
_DRAIN = Advice("Drain the node; then see what repair the GPU asks for.", "gpudoctor check gpu")
_AGAIN = (Advice("Repeat the burn; open a hardware case where the count grows each time."),)


@check(
    "burn.counters",
    needs_gpu=False,
    limits=(_UNCORRECTED, _CORRECTED, _REPLAY_RATE),
)
def counters(case: Case) -> Iterator[Finding]:
    """Judge what grew between the readings before and after the load; counters that were not read never pass."""
    burn = case.measurements.burn
    if burn is None:
        yield absent(case, "burn", "error counters under load")
        return
    if isinstance(burn.counters, Missing):
        yield unread(NODE, "error counters under load", burn.counters)
        return
    yield from ended_early(case, "error counters under load")
    logged = [*_logged(case, burn)]
    yield from logged
    quiet = not any(f.subject.kind == "node" and f.status in (Status.FAIL, Status.UNKNOWN) for f in logged)
    named = {f.subject.gpu for f in logged}
    for gpu in gpus_of(case, ranks_of(case)):
        counted = next((c for c in burn.counters if c.bus_id == gpu.bus_id), None)
        if counted is None:
            yield unknown(of_gpu(gpu), "error counters under load: not read before and after it")
            continue
        bad = [*_grown(case, gpu, counted, burn)]
        yield from bad
        missing = [unread(of_gpu(gpu), _WORDS[name], why) for name, why in counted.unread.items()]
        yield from missing
        silent = quiet and gpu.index not in named and not case.measurements.problems
        if silent and counted.growth and not bad and not any(f.status is Status.UNKNOWN for f in missing):
            yield _fine(gpu, counted, burn)


def _passed_s(burn: Burn) -> float:
    seconds = known(burn.counted_s)
    return burn.duration_s if seconds is None else seconds


def _fine(gpu: Gpu, counted: GpuCounters, burn: Burn) -> Finding:
    grown = ", ".join(f"{counted.growth[name]} {text}" for name, text in _WORDS.items() if name in counted.growth)
    log = "" if isinstance(burn.kernel_events, Missing) else ", no new Xid that matters"
    return ok(of_gpu(gpu), f"in {length_in_words(_passed_s(burn))}: {grown}{log}")


def _grown(case: Case, gpu: Gpu, counted: GpuCounters, burn: Burn) -> Iterator[Finding]:
    subject, length = of_gpu(gpu), length_in_words(_passed_s(burn))
    if counted.errors:
        error = counted.errors[0]
        yield fail(
            subject,
            Found(f"after the load it answers {error.name} ({error.code})", error.code),
            "a GPU that answers as before",
            Evidence(error.call, f"{error.code} {error.name}"),
            likely="it was lost, or stopped and waits for a reset, under load: power, heat, slot, or the GPU itself",
            advice=_SEE,
        )
    for limit, judge, likely, advice in (
        (_UNCORRECTED, fail, "a memory cell failed under load", (_DRAIN, *_SEE)),
        (_CORRECTED, warn, "memory at the edge: correcting at a high rate costs speed, and comes before worse", _AGAIN),
    ):
        count, most = counted.growth.get(f"ecc_{limit.name}", 0), case.limit(limit, gpu)
        if count > most:
            yield judge(
                subject,
                Found(f"{count} {limit.name} memory errors in {length} of load", count, "errors"),
                Expected("none", "<=", most, "errors", case.limit_source(limit, gpu)),
                Evidence(f"ECC {limit.name}, volatile", f"+{count}"),
                likely=likely,
                advice=advice,
            )
    yield from _replays(case, gpu, counted, burn)


def _replays(case: Case, gpu: Gpu, counted: GpuCounters, burn: Burn) -> Iterator[Finding]:
    replays = counted.growth.get("pcie_replays", 0)
    rate = replays * 60 / max(_LEAST_S, _passed_s(burn))
    gt_s = GT_S.get(known(gpu.pcie.generation_max) or 0, GT_S[5])
    lanes = known(gpu.pcie.width) or known(gpu.pcie.width_max) or 16
    allowed = ceil(case.limit(_REPLAY_RATE, gpu) * gt_s * 1e9 * lanes * 60 * _BIT_ERROR_RATIO)
    if rate > allowed:
        yield warn(
            of_gpu(gpu),
            Found(f"{rate:.0f} PCIe replays a minute under load ({replays} in all)", round(rate, 1), "per minute"),
            Expected(f"at most {allowed} a minute", "<=", allowed, "per minute", case.limit_source(_REPLAY_RATE, gpu)),
            Evidence("nvmlDeviceGetPcieReplayCounter", f"+{replays}"),
            likely="the link sends much again: a riser, cable or contact at the edge of what it can carry",
            advice=(Advice("Reseat the GPU and its riser or cable, and see whether the errors follow it."), *_SEE),
        )


def _logged(case: Case, burn: Burn) -> list[Finding]:
    """The findings of gpu.xid for the kernel lines of the load, without passes."""
    if isinstance(burn.kernel_events, Missing):
        return [unread(NODE, "kernel log of the load", burn.kernel_events)]
    # a GPU's answer from before the load settles no error that came after it
    before = tuple(msgspec.structs.replace(gpu, recovery_action=NOT_READ) for gpu in case.node.gpus)
    log = KernelLog(events=burn.kernel_events, source=case.node.kernel_log.source)
    node = msgspec.structs.replace(case.node, gpus=before, kernel_log=log)
    found = xids(msgspec.structs.replace(case, node=node))
    return [_during(f) for f in found if f.status is not Status.PASS]


def _during(finding: Finding) -> Finding:
    if finding.found is None:
        return finding
    found = msgspec.structs.replace(finding.found, text=f"under load: {finding.found.text}")
    return msgspec.structs.replace(finding, found=found)
