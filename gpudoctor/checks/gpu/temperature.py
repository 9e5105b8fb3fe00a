"""gpu.temperature: is a GPU too hot, by its own limits or compared with its peers?"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from math import inf
from typing import NamedTuple

from gpudoctor.checks.core.case import Case, Limit, once_a_case
from gpudoctor.checks.core.each_gpu import by_model, each_gpu
from gpudoctor.checks.core.explains import SPEEDS
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import of_gpu
from gpudoctor.checks.core.unread import first_failed, unread
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known

_ADVICE = [
    Advice("Look at fans, airflow, dust and room temperature.", "ipmitool sdr type temperature; ipmitool sdr type fan"),
    Advice("One GPU hot among cool ones at the same power: its heat sink or thermal paste; open a hardware case."),
]


_OVER_PEERS_C = Limit(10, "C", "above the peers' median at equal load (field rule)", name="over_peers_c", status="warn")
_LIMIT_GAP_C = Limit(
    30,
    "C",
    "real GPUs: 2 to 12 C between the highest operating point and the slowdown point (ours)",
    name="limit_gap_c",
    status="warn",
)
_EQUAL_LOAD_PCT = Limit(15, "%", "of the peers' median power: more apart is not equal load", name="equal_load_pct")


@check(
    "gpu.temperature",
    title="No GPU is too hot",
    impact="slow-gpu",
    limits=(_OVER_PEERS_C, _EQUAL_LOAD_PCT, _LIMIT_GAP_C),
    explains=("gpu.throttle", "gpu.clocks", "train.balance", *SPEEDS),
)
@each_gpu
def temperature(case: Case, gpu: Gpu) -> Finding:
    """Compare with the GPU's own limits (absolute or as margins), with its memory's, and with peers at equal load."""
    over = _over_limit(gpu)
    if over is not None:
        return over
    if isinstance(gpu.thermal.gpu_c, Missing):
        return unread(of_gpu(gpu), "temperature", gpu.thermal.gpu_c)
    if low := _low_limit(case, gpu):
        return low
    return _beside_peers(case, gpu, gpu.thermal.gpu_c)


def _margins(gpu: Gpu) -> bool:
    """Whether the margins are plausible: the slowdown point is below 0 on their scale."""
    slowdown = known(gpu.thermal.slowdown_margin_c)
    return known(gpu.thermal.margin_c) is not None and slowdown is not None and slowdown < 0


def _over_limit(gpu: Gpu) -> Finding | None:
    thermal = gpu.thermal
    now, memory = known(thermal.gpu_c), known(thermal.memory_c)
    margin = known(thermal.margin_c) if _margins(gpu) else None
    # (unfit, reading, limit, name of the limit, whether both are margins); the first exceeded is reported
    for unfit, value, limit, point, is_margin in (
        (True, margin, known(thermal.slowdown_margin_c), "slowdown point", True),
        (True, now, known(thermal.slowdown_c), "slowdown point", False),
        (False, margin, known(thermal.max_operating_margin_c), "highest operating point", True),
        (False, now, known(thermal.max_operating_c), "highest operating point", False),
        (False, memory, known(thermal.memory_max_c), "memory's highest operating point", False),
    ):
        if value is None or limit is None or (not is_margin and limit <= 0):
            continue
        # slowdown begins at its point; the operating points may be reached but not exceeded
        over = limit - value if is_margin else value - limit  # a lower margin is hotter
        if over < 0 or (over == 0 and not unfit):
            continue
        text, side = f"{value} C, {point} is {limit} C", "below"
        if is_margin:
            text, side = f"thermal margin {value} C, its {point} is at {limit} C", "above"
        return (fail if unfit else warn)(
            of_gpu(gpu),
            Found(text, value, "C"),
            Expected(f"{side} {limit} C", ">" if is_margin else "<", limit, "C", "the GPU's own limit"),
            Evidence("GPU temperature", f"{now} C" if now is not None else "not read"),
            Evidence(f"thermal margin at its {point}" if is_margin else point, f"{limit} C"),
            likely="cooling: airflow, a fan, coolant, dust, or a bad thermal interface",
            advice=_ADVICE,
        )
    return None


def _low_limit(case: Case, gpu: Gpu) -> Finding | None:
    """A warning if the highest operating point is far below the slowdown point: the GPU slows down before it is hot."""
    highest, slowdown = known(gpu.thermal.max_operating_c), known(gpu.thermal.slowdown_c)
    most = case.limit(_LIMIT_GAP_C, gpu)
    if highest is None or slowdown is None or highest <= 0 or slowdown - highest <= most:
        return None
    return warn(
        of_gpu(gpu),
        Found(f"its highest operating point is {highest} C, {slowdown - highest} C below its slowdown point", highest),
        Expected(f"at most {most:g} C below", "<=", most, "C", case.limit_source(_LIMIT_GAP_C, gpu)),
        Evidence("GPU temperature", f"{known(gpu.thermal.gpu_c)} C"),
        likely="firmware, the system's thermal policy or an operator lowered the limit: the GPU slows down early",
        advice=(Advice("See whether it is throttled now.", "nvidia-smi -q -d TEMPERATURE,PERFORMANCE"),),
    )


def _beside_peers(case: Case, gpu: Gpu, now: int) -> Finding:
    degrees = _at_equal_load(case, gpu, now)
    evidence = Evidence("GPU temperature", f"{now} C")
    # with only two GPUs it is open which one is abnormal
    if len(degrees) >= 2:
        usual = degrees[len(degrees) // 2]
        limit = case.limit(_OVER_PEERS_C, gpu)
        source = f"{limit:g} C above the median of the peers at equal load"
        if now - usual > limit:
            return warn(
                of_gpu(gpu),
                Found(f"{now} C, {now - usual} C hotter than its peers at equal load", now, "C"),
                Expected(f"at most {usual + limit:g} C", "<=", usual + limit, "C", source),
                evidence,
                Evidence("temperatures of the peers", ", ".join(f"{c} C" for c in degrees)),
                likely="a bad thermal interface or heat sink, or a place with little air",
                advice=_ADVICE,
            )
    thermal, subject = gpu.thermal, of_gpu(gpu)
    limits = [known(thermal.slowdown_c), known(thermal.max_operating_c)]
    if _margins(gpu) or any(c is not None and c > 0 for c in limits):
        return ok(subject, Found(f"{now} C, within its limits", now, "C"), None, evidence)
    failed = first_failed((thermal.margin_c, thermal.slowdown_margin_c, thermal.slowdown_c, thermal.max_operating_c))
    if failed is None and len(degrees) >= 2:
        return ok(subject, Found(f"{now} C, like its peers (its own limits are not known)", now, "C"), None, evidence)
    missing = failed or thermal.slowdown_c
    return unread(subject, "temperature limits", missing if isinstance(missing, Missing) else Missing("make no sense"))


class _Readings(NamedTuple):
    """Temperatures of the GPUs of one model, by load."""

    by_power: list[tuple[float, int]]  # W and C, in order of power
    idle: list[int]
    idle_without_power: list[int]


def _at_equal_load(case: Case, gpu: Gpu, now: int) -> list[int]:
    """The temperatures of the peers that draw about the same power, or are idle like it if power is not known."""
    model = _readings(case).get(gpu.name)
    if model is None:
        return []
    draw_w, is_idle = known(gpu.power.draw_w), _is_idle(gpu)
    if draw_w is None:
        alike = list(model.idle) if is_idle else [now]
    else:
        share = max(0.0, 1 - case.limit(_EQUAL_LOAD_PCT, gpu) / 100)
        first = bisect_left(model.by_power, (draw_w * share, -inf))
        last = bisect_right(model.by_power, (draw_w / share if share else inf, inf))
        alike = [c for _, c in model.by_power[first:last]] + (model.idle_without_power if is_idle else [])
    if now in alike:
        alike.remove(now)
    return sorted(alike)


@once_a_case
def _readings(case: Case) -> dict[str | Missing, _Readings]:
    found: dict[str | Missing, _Readings] = {}
    for name, gpus in by_model(case).items():
        model = found[name] = _Readings([], [], [])
        for gpu in gpus:
            degrees, draw_w = known(gpu.thermal.gpu_c), known(gpu.power.draw_w)
            if degrees is None:
                continue
            if draw_w is not None:
                model.by_power.append((draw_w, degrees))
            if _is_idle(gpu):
                model.idle.append(degrees)
                if draw_w is None:
                    model.idle_without_power.append(degrees)
        model.by_power.sort()
    return found


def _is_idle(gpu: Gpu) -> bool:
    return "idle" in (known(gpu.clocks.event_reasons) or ())
