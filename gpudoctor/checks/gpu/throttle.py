"""gpu.throttle: is a GPU slowed down by heat or by its power supply?"""

from __future__ import annotations

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.each_gpu import each_gpu
from gpudoctor.checks.core.explains import SPEEDS
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, unknown, unread, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import of_gpu
from gpudoctor.checks.core.under_load import percent, slowed_under_load
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known

# Clock event reasons that mean harm; healthy GPUs show the others (idle, application clocks, power cap, sync boost,
# display) in normal work. Source: nvml.h, nvmlClocksEventReasons
HARMFUL = {
    "hw-slowdown": ("the hardware slows it to half speed or less", "heat, power delivery, or an external brake signal"),
    "hw-thermal": ("the hardware slows it for heat", "cooling: airflow, a fan, coolant, or a bad thermal interface"),
    "hw-power-brake": (
        "the power supply's brake signal slows it",
        "power: a failed or overloaded PSU, or a rack limit",
    ),
}
SOFT = {
    "sw-thermal": ("the driver slows it for heat", "cooling at its limit: airflow, a fan, coolant, room temperature")
}


_SHARE_PCT = Limit(1, "%", "of the time since boot; less is the noise of short events", name="share_pct")
_LOAD_WARN_PCT = Limit(1, "%", "of a probe's time; less is the noise of short events (ours)", name="load_warn_pct")
_LOAD_FAIL_PCT = Limit(
    10, "%", "of a probe's time: the work takes visibly longer (ours, to be calibrated)", name="load_fail_pct"
)


@check(
    "gpu.throttle",
    title="No GPU is slowed down by heat or by its power supply",
    impact="slow-gpu",
    limits=(_SHARE_PCT, _LOAD_WARN_PCT, _LOAD_FAIL_PCT),
    explains=("gpu.clocks", "gpu.temperature", "train.balance", *SPEEDS),
)
@each_gpu
def throttle(case: Case, gpu: Gpu) -> Finding:
    """Judge the harmful clock event bits set now, then those set under load, then the time slowed since boot."""
    reasons = gpu.clocks.event_reasons
    if isinstance(reasons, Missing):
        return unread(of_gpu(gpu), "clock event reasons", reasons)
    evidence = Evidence("clock event reasons", ", ".join(reasons) or "none")
    advice = [
        Advice(
            "Look at temperatures, power and clocks under load.",
            f"nvidia-smi -i {gpu.bus_id} -q -d PERFORMANCE,TEMPERATURE,POWER",
        ),
        Advice("Look for fan and PSU events.", "ipmitool sel list | tail; ipmitool sdr type fan"),
    ]
    return (
        _slowed_now(gpu, reasons, evidence, advice)
        or _slowed_by_load(case, gpu, advice)
        or _slowed_since_boot(case, gpu, evidence, advice)
        or ok(of_gpu(gpu), f"not slowed down (reasons: {', '.join(reasons) or 'none'})", None, evidence)
    )


def _slowed_now(gpu: Gpu, reasons: tuple[str, ...], evidence: Evidence, advice: list[Advice]) -> Finding | None:
    for table, judge in ((HARMFUL, fail), (SOFT, warn)):
        active = [name for name in table if name in reasons]
        if active:
            # the narrower bits name the cause; hw-slowdown matters only if it is alone
            active = [name for name in active if name != "hw-slowdown"] or active
            return judge(
                of_gpu(gpu),
                "; ".join(f"{table[name][0]} ({name})" for name in active),
                Expected("none of the slowdown reasons", source="clock event bits 0x8, 0x20, 0x40, 0x80"),
                evidence,
                likely="; ".join(table[name][1] for name in active),
                advice=advice,
            )
    return None


def _slowed_since_boot(case: Case, gpu: Gpu, evidence: Evidence, advice: list[Advice]) -> Finding | None:
    """A warning by the share of time since boot with hardware slowdown: a lower bound of the share under load."""
    times, uptime_s = gpu.throttle_times, known(case.node.host.uptime_s)
    each_us = known(times.hw_thermal_us) or 0, known(times.hw_power_brake_us) or 0
    slowed_us = sum(each_us)
    limit = case.limit(_SHARE_PCT, gpu)
    share = slowed_us / 1e6 / uptime_s * 100 if uptime_s else 0.0
    if not uptime_s or share <= limit:
        return None
    if max(each_us) / 1e6 > uptime_s:
        words = f"time slowed by the hardware: {max(each_us) / 1e6:.0f} s in the {uptime_s:.0f} s since boot"
        return unknown(of_gpu(gpu), f"{words} makes no sense")
    return warn(
        of_gpu(gpu),
        Found(f"slowed by the hardware for {share:.1f} % of the time since boot, though not now", round(share, 2), "%"),
        Expected(f"at most {limit:g} %", "<=", limit, "%", case.limit_source(_SHARE_PCT, gpu)),
        evidence,
        Evidence("time slowed by heat, by power brake (us)", str(slowed_us)),
        likely="cooling or power that fails under load",
        advice=advice,
    )


def _slowed_by_load(case: Case, gpu: Gpu, advice: list[Advice]) -> Finding | None:
    """A finding for slowdown reasons during the probes: a long one set by the hardware fails, others warn."""
    for table in (HARMFUL, SOFT):
        slowed = slowed_under_load(case, gpu, tuple(table))
        limit, judge = _LOAD_WARN_PCT, warn
        if slowed is not None and table is HARMFUL and slowed.share * 100 > case.limit(_LOAD_FAIL_PCT, gpu):
            limit, judge = _LOAD_FAIL_PCT, fail
        most_pct = case.limit(limit, gpu)
        if slowed is None or slowed.share * 100 <= most_pct:
            continue
        words, likely = table[slowed.reason]
        return judge(
            of_gpu(gpu),
            Found(f"{words} under load ({slowed.reason}), {percent(slowed.share)} of {slowed.during}", slowed.reason),
            Expected(f"at most {most_pct:g} %", "<=", most_pct, "%", case.limit_source(limit, gpu)),
            Evidence(f"clock event reasons during {slowed.during}", f"{slowed.reason} {percent(slowed.share)}"),
            likely=likely,
            advice=advice,
        )
    return None
