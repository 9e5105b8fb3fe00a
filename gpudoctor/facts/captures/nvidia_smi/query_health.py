"""The parts of a GPU's `-q` section about its health: errors, clocks, temperatures, power."""

from __future__ import annotations

from gpudoctor.facts.captures import ABSENT
from gpudoctor.facts.captures.nvidia_smi.values import Values
from gpudoctor.facts.model.gpu import Clocks, Ecc, MemoryRepair, Power, Thermal, ThrottleTimes
from gpudoctor.facts.model.missing import Missing

# names of the reasons in the dumps, XML (without its prefix) and text -> names in the facts, if not only hyphens differ
_REASONS = {
    "gpu_idle": "idle",
    "applications_clocks_setting": "application-clocks",
    "sw_thermal_slowdown": "sw-thermal",
    "hw_thermal_slowdown": "hw-thermal",
    "hw_power_brake_slowdown": "hw-power-brake",
    "display_clocks_setting": "display-clocks",
    "display_clock_setting": "display-clocks",
}
REASON_SECTIONS = ("clocks_event_reasons", "clocks_throttle_reasons")


def ecc_of(v: Values) -> Ecc:
    def corrected(scope: str) -> int | Missing:
        at = f"ecc_errors/{scope}/"
        return v.total(
            v.whole(at + "sram_correctable"), v.whole(at + "dram_correctable"), v.whole(at + "single_bit/total")
        )

    def sram(scope: str) -> int | Missing:
        at = f"ecc_errors/{scope}/sram_uncorrectable"
        return v.total(v.whole(at), v.whole(at + "_parity"), v.whole(at + "_secded", at + "_sec_ded"))

    def uncorrected(scope: str) -> int | Missing:
        at = f"ecc_errors/{scope}/"
        return v.total(sram(scope), v.whole(at + "dram_uncorrectable"), v.whole(at + "double_bit/total"))

    return Ecc(
        enabled=v.flag("ecc_mode/current_ecc", "ecc_mode/current"),
        pending=v.flag("ecc_mode/pending_ecc", "ecc_mode/pending"),
        corrected_volatile=corrected("volatile"),
        uncorrected_volatile=uncorrected("volatile"),
        corrected_aggregate=corrected("aggregate"),
        uncorrected_aggregate=uncorrected("aggregate"),
        sram_uncorrected_volatile=sram("volatile"),
        sram_uncorrected_aggregate=sram("aggregate"),
        sram_threshold_exceeded=v.flag("ecc_errors/aggregate/sram_threshold_exceeded"),
    )


def memory_repair_of(v: Values) -> MemoryRepair:
    def banks(spare: str) -> int | Missing:
        return v.whole(
            f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{spare}",
            f"remapped_rows/bank_remap_availability_histogram/{spare}",
        )

    retired = "retired_pages/"
    return MemoryRepair(
        remapped_corrected=v.whole("remapped_rows/remapped_row_corr", "remapped_rows/correctable_error"),
        remapped_uncorrected=v.whole("remapped_rows/remapped_row_unc", "remapped_rows/uncorrectable_error"),
        remap_pending=v.flag("remapped_rows/remapped_row_pending", "remapped_rows/pending"),
        remap_failed=v.flag("remapped_rows/remapped_row_failure", "remapped_rows/remapping_failure_occurred"),
        banks_max_spare=banks("max"),
        banks_high_spare=banks("high"),
        banks_partial_spare=banks("partial"),
        banks_low_spare=banks("low"),
        banks_no_spare=banks("none"),
        retired_single_bit=v.whole(
            retired + "multiple_single_bit_retirement/retired_count", retired + "single_bit_ecc"
        ),
        retired_double_bit=v.whole(retired + "double_bit_retirement/retired_count", retired + "double_bit_ecc"),
        retirement_pending=v.flag(
            *(
                retired + name
                for name in ("pending_retirement", "pending_blacklist", "pending_page_blacklist", "pending")
            )
        ),
        channel_repair_pending=v.flag("ecc_errors/channel_repair_pending"),
        tpc_repair_pending=v.flag("ecc_errors/tpc_repair_pending"),
        unrepairable=v.flag("ecc_errors/unrepairable_memory"),
    )


def clocks_of(v: Values) -> Clocks:
    state = v.text("performance_state")
    if not isinstance(state, Missing):
        level = state.removeprefix("P")
        state = level if level.isdecimal() else Missing(f"not understood: {state[:60]!r}", "failed")

    def clock(section: str, *names: str) -> int | Missing:
        return v.whole(*(f"{section}/{name}" for name in names))

    return Clocks(
        graphics_mhz=clock("clocks", "graphics_clock", "graphics"),
        sm_mhz=clock("clocks", "sm_clock", "sm"),
        memory_mhz=clock("clocks", "mem_clock", "memory"),
        graphics_max_mhz=clock("max_clocks", "graphics_clock", "graphics"),
        sm_max_mhz=clock("max_clocks", "sm_clock", "sm"),
        memory_max_mhz=clock("max_clocks", "mem_clock", "memory"),
        application_graphics_mhz=clock("applications_clocks", "graphics_clock", "graphics"),
        application_memory_mhz=clock("applications_clocks", "mem_clock", "memory"),
        default_graphics_mhz=clock("default_applications_clocks", "graphics_clock", "graphics"),
        default_memory_mhz=clock("default_applications_clocks", "mem_clock", "memory"),
        performance_state=state if isinstance(state, Missing) else int(state[:3]),
        event_reasons=_event_reasons(v),
    )


def _event_reasons(v: Values) -> tuple[str, ...] | Missing:
    """The active reasons; Missing if none could be read, or one failed."""
    paths = [f"{section}/{path}" for section in REASON_SECTIONS for path in v.under(section)]
    if not paths:
        whole = v.text(*REASON_SECTIONS)
        return whole if isinstance(whole, Missing) else ABSENT
    active: list[str] = []
    reported = False
    missing = ABSENT
    for path in paths:
        flag = v.flag(path)
        if isinstance(flag, Missing):
            if flag.kind == "failed":
                return flag
            missing = flag
            continue
        reported = True
        word = path.rpartition("/")[2]
        for prefix in ("clocks_event_reason_", "clocks_throttle_reason_"):
            word = word.removeprefix(prefix)
        if flag:
            active.append(_REASONS.get(word, word.replace("_", "-")))
    return tuple(dict.fromkeys(active)) if reported else missing


def throttle_times_of(v: Values) -> ThrottleTimes:
    at, xml = "clocks_event_reasons_counters/", "clocks_event_reasons_counters/clocks_event_reasons_counters_"
    return ThrottleTimes(
        sw_power_cap_us=v.whole(xml + "sw_power_cap", at + "sw_power_capping", at + "sw_power_cap"),
        sync_boost_us=v.whole(xml + "sync_boost", at + "sync_boost"),
        sw_thermal_us=v.whole(xml + "sw_therm_slowdown", at + "sw_thermal_slowdown"),
        hw_thermal_us=v.whole(xml + "hw_therm_slowdown", at + "hw_thermal_slowdown"),
        hw_power_brake_us=v.whole(xml + "hw_power_brake", at + "hw_power_braking", at + "hw_power_brake_slowdown"),
    )


def thermal_of(v: Values) -> Thermal:
    def limit(*names: str) -> int | Missing:
        return v.whole(*(f"temperature/{name}" for name in names))

    return Thermal(
        gpu_c=limit("gpu_temp", "gpu_current_temp"),
        memory_c=limit("memory_temp", "memory_current_temp"),
        slowdown_c=limit("gpu_temp_slow_threshold", "gpu_slowdown_temp"),
        shutdown_c=limit("gpu_temp_max_threshold", "gpu_shutdown_temp"),
        max_operating_c=limit("gpu_temp_max_gpu_threshold", "gpu_max_operating_temp"),
        memory_max_c=limit("gpu_temp_max_mem_threshold", "memory_max_operating_temp"),
        margin_c=limit("gpu_temp_tlimit", "gpu_t_limit_temp"),
        slowdown_margin_c=limit("gpu_temp_slow_tlimit_threshold", "gpu_slowdown_t_limit_temp"),
        shutdown_margin_c=limit("gpu_temp_max_tlimit_threshold", "gpu_shutdown_t_limit_temp"),
        max_operating_margin_c=limit("gpu_temp_max_gpu_tlimit_threshold", "gpu_max_operating_t_limit_temp"),
    )


def power_of(v: Values) -> Power:
    def watts(*names: str) -> float | Missing:
        return v.number(
            *(f"{section}/{name}" for section in ("gpu_power_readings", "power_readings") for name in names)
        )

    return Power(
        # the average first: it is what nvmlDeviceGetPowerUsage returns
        draw_w=watts("average_power_draw", "power_draw", "instant_power_draw", "instantaneous_power_draw"),
        limit_w=watts("enforced_power_limit", "current_power_limit", "power_limit"),
        requested_limit_w=watts("requested_power_limit", "power_limit"),
        default_limit_w=watts("default_power_limit"),
        min_limit_w=watts("min_power_limit"),
        max_limit_w=watts("max_power_limit"),
    )
