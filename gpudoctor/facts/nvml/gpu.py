"""One GPU read from NVML, in sections that each fill some leaves of `Gpu`.

At most 61 driver calls per GPU, and five more per MIG instance: everything with a field id is read
in one nvmlDeviceGetFieldValues; the getters that it replaces are called only if it fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from gpudoctor.facts.model.gpu import EVENT_REASONS, Clocks, Gpu, PcieLink, Power, Thermal, ThrottleTimes, Utilization
from gpudoctor.facts.model.missing import NOT_READ, UNSUPPORTED, Missing, if_known
from gpudoctor.facts.nvml.client import MAX_COUNT, MAX_MHZ, MAX_MW, Fields, NvmlClient, in_range, prefer
from gpudoctor.facts.nvml.codes import RECOVERY_ACTIONS, word
from gpudoctor.facts.nvml.links import read_fabric, read_links
from gpudoctor.facts.nvml.memory_health import MEMORY_HEALTH_FIELDS, read_ecc, read_inforom, read_memory_repair
from gpudoctor.facts.nvml.settings import (
    read_cpu_affinity,
    read_identity,
    read_numa_node,
    read_processes,
    read_settings,
)
from gpudoctor.facts.system.sysfs import ROOT, AnyPath

MIB_SHIFT = 20

# NVML field ids (nvml.h); all but those of `throttle_fields` have never changed
POLICY_POWER, POLICY_THERMAL, POLICY_SYNC_BOOST = 74, 75, 76
MEMORY_TEMP = 82
LINK_COUNT, SWITCH_LINK_COUNT = 91, 147
PCIE_REPLAY, PCIE_REPLAY_ROLLOVER = 94, 95
POWER_INSTANT, POWER_MIN, POWER_MAX, POWER_DEFAULT, POWER_CURRENT, POWER_REQUESTED = 186, 187, 188, 189, 190, 192
MARGIN_SHUTDOWN, MARGIN_SLOWDOWN, MARGIN_GPU_MAX = 193, 194, 196
RECOVERY_ACTION = 230  # driver 565 and newer
_DEVICE_FIELDS = (
    *MEMORY_HEALTH_FIELDS, RECOVERY_ACTION,
    POLICY_POWER, POLICY_THERMAL, POLICY_SYNC_BOOST, MEMORY_TEMP, LINK_COUNT, SWITCH_LINK_COUNT,
    PCIE_REPLAY, PCIE_REPLAY_ROLLOVER, MARGIN_SHUTDOWN, MARGIN_SLOWDOWN, MARGIN_GPU_MAX,
    POWER_INSTANT, POWER_MIN, POWER_MAX, POWER_DEFAULT, POWER_CURRENT, POWER_REQUESTED,
)  # fmt: skip


class System(msgspec.Struct, frozen=True):
    """What the GPU readers need to know about the node: driver version, confidential compute, root, own pid."""

    driver_version: tuple[int, ...] = ()
    confidential: bool | Missing = NOT_READ
    root: AnyPath = ROOT
    own_pid: int = 0


def read_gpu(client: NvmlClient, gpu: Gpu, system: System, on_part: Callable[[Gpu], None]) -> Gpu:
    """Fill the GPU section by section; `on_part` gets it after each but the last, so that a hang costs one section.

    A getter that fails costs only its own leaf.
    """
    gpu = replace(gpu, **read_identity(client, system.root, gpu.bus_id), errors=tuple(client.errors))
    on_part(gpu)
    field_ids = [(field, 0) for field in (*_DEVICE_FIELDS, *throttle_fields(system.driver_version))]
    fields = client.fields(field_ids)
    device = system.root / "sys/bus/pci/devices" / gpu.bus_id
    sections: tuple[Callable[[], dict[str, Any]], ...] = (
        lambda: {"recovery_action": word(fields[RECOVERY_ACTION, 0], RECOVERY_ACTIONS), **read_memory(client)},
        lambda: {"pcie": _pcie(client, fields)},
        lambda: {
            "ecc": read_ecc(client, fields),
            "memory_repair": read_memory_repair(client, fields),
        },
        lambda: {"clocks": _clocks(client), "throttle_times": throttle_times(fields, system.driver_version)},
        lambda: {"thermal": _thermal(client, fields), "power": _power(client, fields)},
        lambda: {"settings": read_settings(client, system.confidential)},
        lambda: {"fabric": read_fabric(client)},
        lambda: {
            "processes": read_processes(client, system.root, system.own_pid, system.driver_version),
            "utilization": read_utilization(client),
        },
        lambda: {"numa_node": read_numa_node(client, device), "cpu_affinity": read_cpu_affinity(client, device)},
        lambda: {"inforom_corrupted": read_inforom(client, gpu.processes)},
        # last: they are as long as all the others together, and each part is passed on with those before it
        lambda: {"nvlinks": read_links(client, fields[LINK_COUNT, 0], fields[SWITCH_LINK_COUNT, 0])},
    )
    for section in sections:
        gpu = replace(gpu, **section(), errors=tuple(client.errors))
        if section is not sections[-1]:
            on_part(gpu)
    return gpu


def read_memory(client: NvmlClient) -> dict[str, Any]:
    """The memory leaves. Version 2 of the struct has reserved memory apart; older drivers count it as used."""
    version = getattr(client.nvml, "nvmlMemory_v2", None)
    info = client.ask("nvmlDeviceGetMemoryInfo", version) if version else UNSUPPORTED
    if isinstance(info, Missing):
        info = prefer(info, client.ask("nvmlDeviceGetMemoryInfo"))
    if isinstance(info, Missing):
        return dict.fromkeys(("memory_total_mib", "memory_reserved_mib", "memory_used_mib", "memory_free_mib"), info)

    def mib(name: str, low: int) -> int | Missing:
        size = in_range(getattr(info, name, UNSUPPORTED), low, MAX_COUNT, f"nvmlDeviceGetMemoryInfo.{name}")
        return if_known(size, lambda size_bytes: size_bytes >> MIB_SHIFT)

    total = mib("total", 1 << MIB_SHIFT)
    leaves: dict[str, Any] = {"memory_total_mib": total}
    for name in ("reserved", "used", "free"):
        size = mib(name, 0)
        if not isinstance(size, Missing) and not isinstance(total, Missing) and size > total:
            why = f"nvmlDeviceGetMemoryInfo.{name} said {size} MiB of {total}, which cannot be"
            size = Missing(why, "failed")
        leaves[f"memory_{name}_mib"] = size
    return leaves


def _pcie(client: NvmlClient, fields: Fields) -> PcieLink:
    """`host_generation_max` is not in NVML: the hops in /sys show what the slot can do."""
    replays = in_range(fields[PCIE_REPLAY, 0], 0, MAX_COUNT, "PCIe replay counter")
    if isinstance(replays, Missing):
        replays = prefer(replays, client.number(0, 0xFFFF_FFFE, "nvmlDeviceGetPcieReplayCounter"))
    return PcieLink(
        generation=client.number(1, 8, "nvmlDeviceGetCurrPcieLinkGeneration"),
        generation_max=client.number(1, 8, "nvmlDeviceGetMaxPcieLinkGeneration"),
        device_generation_max=client.number(1, 8, "nvmlDeviceGetGpuMaxPcieLinkGeneration"),
        host_generation_max=UNSUPPORTED,
        width=client.number(1, 32, "nvmlDeviceGetCurrPcieLinkWidth"),
        width_max=client.number(1, 32, "nvmlDeviceGetMaxPcieLinkWidth"),
        replays=replays,
        replay_rollovers=in_range(fields[PCIE_REPLAY_ROLLOVER, 0], 0, MAX_COUNT, "PCIe replay rollover counter"),
    )


def _clocks(client: NvmlClient) -> Clocks:
    def mhz(call: str, clock: int, low: int = 0) -> int | Missing:
        return client.number(low, MAX_MHZ, call, clock)

    graphics, sm, memory = 0, 1, 2
    application = mhz("nvmlDeviceGetApplicationsClock", graphics)

    def setting(call: str, clock: int) -> int | Missing:
        # deprecated in newer drivers: if the first is refused, so are all four
        return if_known(application, lambda _: mhz(call, clock))

    # 32 is NVML_PSTATE_UNKNOWN, which a healthy GPU may return
    state = client.ask("nvmlDeviceGetPerformanceState")
    reasons = client.first("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    return Clocks(
        graphics_mhz=mhz("nvmlDeviceGetClockInfo", graphics),
        sm_mhz=mhz("nvmlDeviceGetClockInfo", sm),
        memory_mhz=mhz("nvmlDeviceGetClockInfo", memory),
        graphics_max_mhz=mhz("nvmlDeviceGetMaxClockInfo", graphics, 1),
        sm_max_mhz=mhz("nvmlDeviceGetMaxClockInfo", sm, 1),
        memory_max_mhz=mhz("nvmlDeviceGetMaxClockInfo", memory, 1),
        application_graphics_mhz=application,
        application_memory_mhz=setting("nvmlDeviceGetApplicationsClock", memory),
        default_graphics_mhz=setting("nvmlDeviceGetDefaultApplicationsClock", graphics),
        default_memory_mhz=setting("nvmlDeviceGetDefaultApplicationsClock", memory),
        performance_state=UNSUPPORTED if state == 32 else in_range(state, 0, 15, "nvmlDeviceGetPerformanceState"),
        event_reasons=event_reasons(reasons),
    )


def event_reasons(mask: int | Missing) -> tuple[str, ...] | Missing:
    """Names of the set bits; an unknown bit becomes "0x..."."""
    if isinstance(mask, Missing):
        return mask
    bits = (1 << place for place in range(mask.bit_length()) if mask >> place & 1)
    return tuple(EVENT_REASONS.get(bit, f"{bit:#x}") for bit in bits)


def throttle_fields(driver: tuple[int, ...]) -> tuple[int, ...]:
    """The field ids of SW thermal, HW thermal and power brake; none if they are not certain for this driver.

    According to nvml.h of each driver: on 570 the ids 251-253 are for power smoothing. They are these counters from 575
    to 580.65, and for power smoothing again from 580.82 on, where the counters are 269-271.
    """
    if driver >= (580, 82):
        return (269, 270, 271)
    return (251, 252, 253) if (575,) <= driver < (580, 66) else ()


def throttle_times(fields: Fields, driver: tuple[int, ...]) -> ThrottleTimes:
    """Throttle times; NVML has nanoseconds. Before 575 one counter covers all thermal slowdowns: `sw_thermal_us`."""

    def us(field: int) -> int | Missing:
        time_ns = in_range(fields[field, 0], 0, MAX_COUNT, f"throttle time (field {field})")
        return if_known(time_ns, lambda ns: ns // 1000)

    ids = throttle_fields(driver)
    return ThrottleTimes(
        sw_power_cap_us=us(POLICY_POWER),
        sync_boost_us=us(POLICY_SYNC_BOOST),
        sw_thermal_us=us(ids[0] if ids else POLICY_THERMAL),
        hw_thermal_us=us(ids[1]) if ids else UNSUPPORTED,
        hw_power_brake_us=us(ids[2]) if ids else UNSUPPORTED,
    )


def _thermal(client: NvmlClient, fields: Fields) -> Thermal:
    """Absolute limits are read unless the GPU reports both the margin that is left and the margin of the slowdown.

    Both are needed: drivers 535 to 565 have the margins of the limits (fields 193-196), but the call for
    the margin that is left came with NVML 12.8.
    """

    def margin(field: int) -> int | Missing:
        value = fields[field, 0]
        if not isinstance(value, Missing) and value >= 1 << 31:
            value -= 1 << (32 if value < 1 << 32 else 64)  # a negative number, returned as unsigned
        return in_range(value, -200, 200, f"temperature margin (field {field})")

    memory = fields[MEMORY_TEMP, 0]
    # boards without the sensor return 0
    memory = UNSUPPORTED if memory == 0 else in_range(memory, -50, 200, "memory temperature (field 82)")
    slowdown = margin(MARGIN_SLOWDOWN)
    gpu_c = client.number(-50, 200, "nvmlDeviceGetTemperature", 0)
    left: int | Missing = UNSUPPORTED
    if not isinstance(slowdown, Missing):
        left = client.number(-200, 200, "nvmlDeviceGetMarginTemperature")

    def limit(kind: int) -> int | Missing:
        has_margins = not isinstance(left, Missing)
        return UNSUPPORTED if has_margins else client.number(1, 200, "nvmlDeviceGetTemperatureThreshold", kind)

    return Thermal(
        gpu_c=gpu_c,
        memory_c=memory,
        shutdown_c=limit(0),
        slowdown_c=limit(1),
        memory_max_c=limit(2),
        max_operating_c=limit(3),
        margin_c=left,
        slowdown_margin_c=slowdown,
        shutdown_margin_c=margin(MARGIN_SHUTDOWN),
        max_operating_margin_c=margin(MARGIN_GPU_MAX),
    )


def _power(client: NvmlClient, fields: Fields) -> Power:
    """Field values since driver 530; before that, and for fields that fail, one getter each. NVML has mW."""

    def watts(value: Any, source: str, low: int = 1) -> float | Missing:
        return if_known(in_range(value, low, MAX_MW, source), lambda mw: round(mw / 1000, 3))

    def read(field: int, call: str, low: int = 1) -> float | Missing:
        value = watts(fields[field, 0], f"power (field {field})", low)
        return prefer(value, watts(client.ask(call), call, low)) if isinstance(value, Missing) else value

    minimum, maximum = (watts(fields[field, 0], f"power (field {field})", 0) for field in (POWER_MIN, POWER_MAX))
    if isinstance(minimum, Missing) or isinstance(maximum, Missing):
        call = "nvmlDeviceGetPowerManagementLimitConstraints"
        both = client.ask(call)
        low, high = (both, both) if isinstance(both, Missing) else both
        minimum, maximum = prefer(minimum, watts(low, call, 0)), prefer(maximum, watts(high, call, 0))
    return Power(
        draw_w=read(POWER_INSTANT, "nvmlDeviceGetPowerUsage", 0),
        limit_w=read(POWER_CURRENT, "nvmlDeviceGetEnforcedPowerLimit"),
        requested_limit_w=read(POWER_REQUESTED, "nvmlDeviceGetPowerManagementLimit"),
        default_limit_w=read(POWER_DEFAULT, "nvmlDeviceGetPowerManagementDefaultLimit"),
        min_limit_w=minimum,
        max_limit_w=maximum,
    )


def read_utilization(client: NvmlClient) -> Utilization:
    call = "nvmlDeviceGetUtilizationRates"
    rates = client.ask(call)
    if isinstance(rates, Missing):
        return Utilization(gpu_pct=rates, memory_pct=rates)
    return Utilization(gpu_pct=in_range(rates.gpu, 0, 100, call), memory_pct=in_range(rates.memory, 0, 100, call))
