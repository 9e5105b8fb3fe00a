"""gpu.clocks: is a GPU locked to low clocks?"""

from __future__ import annotations

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.each_gpu import each_gpu, same_model
from gpudoctor.checks.core.explains import SPEEDS
from gpudoctor.checks.core.finding import (
    Advice,
    Evidence,
    Expected,
    Finding,
    Found,
    fail,
    ok,
    skip,
    unknown,
    unread,
    warn,
)
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import of_gpu
from gpudoctor.checks.gpu.throttle import HARMFUL, SOFT
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known

_APPLICATION_PCT = Limit(
    95, "%", "of the default application clock; steps of the clock table are smaller", name="application_pct"
)
_BUSY_PCT = Limit(
    50, "%", "of the maximum: a busy GPU without a reason to slow down runs far above it", name="busy_pct"
)
_BUSY_FROM_PCT = Limit(50, "%", "utilisation from which the clocks of this moment may be judged", name="busy_from_pct")


@check(
    "gpu.clocks",
    title="No GPU is locked to low clocks",
    impact="slow-gpu",
    limits=(_APPLICATION_PCT, _BUSY_PCT, _BUSY_FROM_PCT),
    explains=("gpu.throttle", "gpu.identical", "train.balance", *SPEEDS),
)
@each_gpu
def clocks(case: Case, gpu: Gpu) -> Finding:
    """Judge the clock settings always, and the current clocks only on a GPU that is not idle."""
    return _lowered(case, gpu) or _slow_now(case, gpu) or _clocks_fine(gpu)


def _lowered(case: Case, gpu: Gpu) -> Finding | None:
    """A warning for application clocks below the GPU's default."""
    share = case.limit(_APPLICATION_PCT, gpu) / 100
    for what, mhz, default_mhz in (
        ("graphics", known(gpu.clocks.application_graphics_mhz), known(gpu.clocks.default_graphics_mhz)),
        ("memory", known(gpu.clocks.application_memory_mhz), known(gpu.clocks.default_memory_mhz)),
    ):
        if mhz and default_mhz and mhz < default_mhz * share:
            return warn(
                of_gpu(gpu),
                Found(
                    f"application {what} clock set to {mhz} MHz, {(1 - mhz / default_mhz) * 100:.0f} % below default",
                    mhz,
                    "MHz",
                ),
                Expected(f"{default_mhz} MHz", ">=", default_mhz, "MHz", "the GPU's own default"),
                Evidence(f"application clock, {what}", f"{mhz} MHz"),
                likely="clocks set by hand or by a job that did not put them back",
                advice=[
                    Advice("Put the clocks back.", f"nvidia-smi -i {gpu.bus_id} -rac; nvidia-smi -i {gpu.bus_id} -rgc")
                ],
            )
    return None


def _excused(gpu: Gpu) -> bool:
    """Whether the GPU is idle, or slowed for a reason that another check judges."""
    reasons = known(gpu.clocks.event_reasons)
    excuses = {"idle", "sw-power-cap", "sync-boost", "display-clocks", *HARMFUL, *SOFT}
    return reasons is None or bool(excuses & set(reasons))


def _slow_now(case: Case, gpu: Gpu) -> Finding | None:
    now, top = known(gpu.clocks.sm_mhz), known(gpu.clocks.sm_max_mhz)
    share = case.limit(_BUSY_PCT, gpu) / 100
    if not now or not top or _excused(gpu) or now >= top * share:
        return None
    running = [known(p.clocks.sm_mhz) or 0 for p in same_model(case, gpu) if not _excused(p)]
    if running and max(running) < top * share:
        return None
    if new := [reason for reason in known(gpu.clocks.event_reasons) or () if reason.startswith("0x")]:
        return unknown(of_gpu(gpu), f"{now} of {top} MHz, for a reason unknown to this version: {', '.join(new)}")
    busy = known(gpu.utilization.gpu_pct)
    state = known(gpu.clocks.performance_state)
    # between two kernels a healthy GPU may briefly show a low clock: fail only a busy one
    certain = busy is not None and busy >= case.limit(_BUSY_FROM_PCT, gpu)
    return (fail if certain else warn)(
        of_gpu(gpu),
        Found(f"runs at {now} of {top} MHz with no reason to slow down", now, "MHz"),
        Expected(
            f"at least {share * 100:.0f} % of its maximum when not idle",
            ">=",
            top * share,
            "MHz",
            "peers" if running else case.limit_source(_BUSY_PCT, gpu),
        ),
        Evidence("SM clock", f"{now} MHz" + (f" in P{state}" if state is not None else "")),
        Evidence("utilisation", f"{busy} %" if busy is not None else "not read"),
        Evidence("clock event reasons", ", ".join(known(gpu.clocks.event_reasons) or ()) or "none"),
        likely="clocks locked low (nvidia-smi -lgc), or a GPU stuck in a low power state",
        advice=[
            Advice("Unlock the clocks.", f"nvidia-smi -i {gpu.bus_id} -rgc; nvidia-smi -i {gpu.bus_id} -rmc"),
            Advice("Still low under load: reset the GPU.", f"nvidia-smi --gpu-reset -i {gpu.bus_id}"),
        ],
    )


def _clocks_fine(gpu: Gpu) -> Finding:
    settings = known(gpu.clocks.application_graphics_mhz), known(gpu.clocks.default_graphics_mhz)
    now, top, reasons = gpu.clocks.sm_mhz, known(gpu.clocks.sm_max_mhz), known(gpu.clocks.event_reasons)
    # some drivers return 0 if the model has no application clocks
    if isinstance(now, Missing) and not all(settings):
        return unread(of_gpu(gpu), "SM clock", now)
    resting = reasons is None or "idle" in reasons
    if all(settings):
        said = "; idle, so its clock now says nothing" if resting else f"; {known(now)} MHz now"
        return ok(of_gpu(gpu), f"application clock {settings[0]} MHz, its default{said}")
    if resting or top is None:
        why = "it is idle" if reasons is not None and "idle" in reasons else "whether it is idle is not known"
        return skip(of_gpu(gpu), f"clocks say nothing now: {why}")
    return ok(of_gpu(gpu), Found(f"{known(now)} of {top} MHz", known(now), "MHz"))
