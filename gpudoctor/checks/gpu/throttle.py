"""gpu.throttle, gpu.clocks, gpu.power-limit: is a GPU slowed down, or held at low clocks or low power?"""

from __future__ import annotations

from collections import Counter

from gpudoctor.checks.core.case import Case, Limit, once_a_case
from gpudoctor.checks.core.each_gpu import by_model, each_gpu, majority_of_others
from gpudoctor.checks.core.explains import SPEEDS
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import of_gpu
from gpudoctor.checks.core.unread import first_failed, unread
from gpudoctor.checks.measured.under_load import percent, slowed_under_load
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


_SLOWED_PCT = Limit(1, "%", "of the time since boot; less is the noise of short events", name="share_pct")
_LOAD_WARN_PCT = Limit(1, "%", "of a probe's time; less is the noise of short events (ours)", name="load_warn_pct")
_LOAD_FAIL_PCT = Limit(
    10, "%", "of a probe's time: the work takes visibly longer (ours, to be calibrated)", name="load_fail_pct"
)
_APPLICATION_PCT = Limit(
    95, "%", "of the default application clock; steps of the clock table are smaller", name="application_pct"
)
_BUSY_PCT = Limit(
    50, "%", "of the maximum: a busy GPU without a reason to slow down runs far above it", name="busy_pct"
)
_BUSY_FROM_PCT = Limit(50, "%", "utilisation from which the clocks of this moment may be judged", name="busy_from_pct")
_CAP_PCT = Limit(1, "%", "rounding of the limit by the driver", name="share_pct")


@check(
    "gpu.throttle",
    title="No GPU is slowed down by heat or by its power supply",
    impact="slow-gpu",
    limits=(_SLOWED_PCT, _LOAD_WARN_PCT, _LOAD_FAIL_PCT),
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
            f"nvidia-smi -i {gpu.smi_id} -q -d PERFORMANCE,TEMPERATURE,POWER",
        ),
        Advice("Look for fan and PSU events.", "ipmitool sel list | tail; ipmitool sdr type fan"),
        Advice(
            "Drain the node until cooling or power is mended, then check again under load.",
            "gpudoctor check gpu.throttle compute --level full",
        ),
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
    limit = case.limit(_SLOWED_PCT, gpu)
    share = slowed_us / 1e6 / uptime_s * 100 if uptime_s else 0.0
    if not uptime_s or share <= limit:
        return None
    if max(each_us) / 1e6 > uptime_s:
        text = f"time slowed by the hardware: {max(each_us) / 1e6:.0f} s in the {uptime_s:.0f} s since boot"
        return unknown(of_gpu(gpu), f"{text} makes no sense")
    return warn(
        of_gpu(gpu),
        Found(f"slowed by the hardware for {share:.1f} % of the time since boot, though not now", round(share, 2), "%"),
        Expected(f"at most {limit:g} %", "<=", limit, "%", case.limit_source(_SLOWED_PCT, gpu)),
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
        text, likely = table[slowed.reason]
        return judge(
            of_gpu(gpu),
            Found(f"{text} under load ({slowed.reason}), {percent(slowed.share)} of {slowed.during}", slowed.reason),
            Expected(f"at most {most_pct:g} %", "<=", most_pct, "%", case.limit_source(limit, gpu)),
            Evidence(f"clock event reasons during {slowed.during}", f"{slowed.reason} {percent(slowed.share)}"),
            likely=likely,
            advice=advice,
        )
    return None


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
            lost = (1 - mhz / default_mhz) * 100
            return warn(
                of_gpu(gpu),
                Found(f"application {what} clock set to {mhz} MHz, {lost:.0f} % below default", mhz, "MHz"),
                Expected(f"{default_mhz} MHz", ">=", default_mhz, "MHz", "the GPU's own default"),
                Evidence(f"application clock, {what}", f"{mhz} MHz"),
                likely="clocks set by hand or by a job that did not put them back",
                advice=[
                    Advice("Put the clocks back.", f"nvidia-smi -i {gpu.smi_id} -rac; nvidia-smi -i {gpu.smi_id} -rgc")
                ],
            )
    return None


def _excused(gpu: Gpu) -> bool:
    """Whether the GPU is idle, or slowed for a reason that another check judges."""
    reasons = known(gpu.clocks.event_reasons)
    excuses = {"idle", "sw-power-cap", "sync-boost", "display-clocks", *HARMFUL, *SOFT}
    return reasons is None or bool(excuses & set(reasons))


@once_a_case
def _running_mhz(case: Case) -> dict[str | Missing, list[int]]:
    """Of each model, the SM clocks of those that have no excuse to be slow."""
    models = by_model(case).items()
    return {name: [known(gpu.clocks.sm_mhz) or 0 for gpu in gpus if not _excused(gpu)] for name, gpus in models}


def _slow_now(case: Case, gpu: Gpu) -> Finding | None:
    now, top = known(gpu.clocks.sm_mhz), known(gpu.clocks.sm_max_mhz)
    share = case.limit(_BUSY_PCT, gpu) / 100
    if not now or not top or _excused(gpu) or now >= top * share:
        return None
    # its own clock is lower
    running = _running_mhz(case).get(gpu.name, [])
    if len(running) > 1 and max(running) < top * share:
        return None
    if new := [reason for reason in known(gpu.clocks.event_reasons) or () if reason.startswith("0x")]:
        return unknown(of_gpu(gpu), f"{now} of {top} MHz, for a reason unknown to this version: {', '.join(new)}")
    usual, source = f"at least {share * 100:.0f} % of its maximum when not idle", case.limit_source(_BUSY_PCT, gpu)
    busy = known(gpu.utilization.gpu_pct)
    state = known(gpu.clocks.performance_state)
    # between two kernels a healthy GPU may briefly show a low clock: fail only a busy one
    certain = busy is not None and busy >= case.limit(_BUSY_FROM_PCT, gpu)
    return (fail if certain else warn)(
        of_gpu(gpu),
        Found(f"runs at {now} of {top} MHz with no reason to slow down", now, "MHz"),
        Expected(usual, ">=", top * share, "MHz", "peers" if len(running) > 1 else source),
        Evidence("SM clock", f"{now} MHz" + (f" in P{state}" if state is not None else "")),
        Evidence("utilisation", f"{busy} %" if busy is not None else "not read"),
        Evidence("clock event reasons", ", ".join(known(gpu.clocks.event_reasons) or ()) or "none"),
        likely="clocks locked low (nvidia-smi -lgc), or a GPU stuck in a low power state",
        advice=[
            Advice("Unlock the clocks.", f"nvidia-smi -i {gpu.smi_id} -rgc; nvidia-smi -i {gpu.smi_id} -rmc"),
            Advice("Still low under load: reset the GPU.", f"nvidia-smi --gpu-reset -i {gpu.smi_id}"),
        ],
    )


def _clocks_fine(gpu: Gpu) -> Finding:
    settings = known(gpu.clocks.application_graphics_mhz), known(gpu.clocks.default_graphics_mhz)
    now, top, reasons = gpu.clocks.sm_mhz, known(gpu.clocks.sm_max_mhz), known(gpu.clocks.event_reasons)
    # some drivers return 0 if the model has no application clocks
    if isinstance(now, Missing) and not all(settings):
        return unread(of_gpu(gpu), "SM clock", now)
    if failed := first_failed((gpu.clocks.application_graphics_mhz, gpu.clocks.default_graphics_mhz)):
        return unread(of_gpu(gpu), "application clock", failed)
    resting = reasons is None or "idle" in reasons
    if all(settings):
        reported = "; idle, so its clock now says nothing" if resting else f"; {known(now)} MHz now"
        return ok(of_gpu(gpu), f"application clock {settings[0]} MHz, its default{reported}")
    if resting or top is None:
        why = "it is idle" if reasons is not None and "idle" in reasons else "whether it is idle is not known"
        return skip(of_gpu(gpu), f"clocks say nothing now: {why}")
    return ok(of_gpu(gpu), Found(f"{known(now)} of {top} MHz", known(now), "MHz"))


@once_a_case
def _limits_w(case: Case) -> dict[str | Missing, Counter[float | None]]:
    """Of each model, how many GPUs have each power limit."""
    return {name: Counter(known(gpu.power.limit_w) for gpu in gpus) for name, gpus in by_model(case).items()}


@check(
    "gpu.power-limit",
    title="No GPU is capped below its default power",
    impact="slow-gpu",
    limits=(_CAP_PCT,),
    explains=("gpu.identical", "gpu.clocks", "gpu.throttle", "train.balance", "compute.gemm"),
)
@each_gpu
def power_limit(case: Case, gpu: Gpu) -> Finding:
    """Compare the enforced limit with the GPU's default and with its peers; a cap is never more than a warning."""
    limit_w = gpu.power.limit_w
    if isinstance(limit_w, Missing):
        return unread(of_gpu(gpu), "enforced power limit", limit_w)
    default_w, source = known(gpu.power.default_limit_w), "the GPU's own default"
    model = case.model_of(gpu)
    if default_w is None and model is not None and "power_limit_w" not in model.uncertain:
        default_w, source = model.power_limit_w, f"profile {case.profile.name}"
    peers_w = majority_of_others(_limits_w(case).get(gpu.name, Counter()), limit_w)
    slack = 1 - case.limit(_CAP_PCT, gpu) / 100
    evidence = Evidence("power limit, enforced", f"{limit_w:g} W")
    for wanted_w, basis in ((default_w, source), (peers_w, "majority of the peers")):
        if wanted_w and limit_w < wanted_w * slack:
            lost = (1 - limit_w / wanted_w) * 100
            return warn(
                of_gpu(gpu),
                Found(f"capped at {limit_w:g} W, {lost:.0f} % below {basis}", limit_w, "W"),
                Expected(f"{wanted_w:g} W", ">=", wanted_w, "W", basis),
                evidence,
                likely="a power cap set by an operator or a power manager; it slows this GPU under load",
                advice=[
                    Advice("Not meant? Set the limit back.", f"nvidia-smi -i {gpu.smi_id} -pl {wanted_w:g}"),
                    Advice("Meant? Give all GPUs of the node the same cap, so that none waits for another."),
                ],
            )
    if default_w is None and peers_w is None:
        return skip(of_gpu(gpu), f"capped at {limit_w:g} W; neither its default nor peers to compare with")
    text = f"{limit_w:g} W, its default" if default_w else f"{limit_w:g} W, as its peers"
    return ok(of_gpu(gpu), Found(text, limit_w, "W"), None, evidence)
