"""Where NVML's functions and field ids find their answer in a `Gpu`: dotted paths of leaves."""

from __future__ import annotations

from collections.abc import Mapping

from gpudoctor.facts.nvml import labels as words

# functions that tell one leaf, as NVML has it
LEAVES = {
    "nvmlDeviceGetSerial": "serial",
    "nvmlDeviceGetVbiosVersion": "vbios",
    "nvmlDeviceGetBoardPartNumber": "board_part_number",
    "nvmlDeviceGetMinorNumber": "minor_number",
    "nvmlDeviceGetCurrPcieLinkGeneration": "pcie.generation",
    "nvmlDeviceGetMaxPcieLinkGeneration": "pcie.generation_max",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": "pcie.device_generation_max",
    "nvmlDeviceGetCurrPcieLinkWidth": "pcie.width",
    "nvmlDeviceGetMaxPcieLinkWidth": "pcie.width_max",
    "nvmlDeviceGetPcieReplayCounter": "pcie.replays",
    "nvmlDeviceGetUnrepairableMemoryFlag_v1": "memory_repair.unrepairable",
    "nvmlDeviceGetPerformanceState": "clocks.performance_state",
    "nvmlDeviceGetTemperature": "thermal.gpu_c",
    "nvmlDeviceGetTemperatureV1": "thermal.gpu_c",
    "nvmlDeviceGetMarginTemperature": "thermal.margin_c",
    "nvmlDeviceGetPersistenceMode": "settings.persistence",
    "nvmlDeviceGetDisplayMode": "settings.display_attached",
    "nvmlDeviceGetDisplayActive": "settings.display_active",
}
WORDS: dict[str, tuple[str, Mapping[int, str]]] = {
    "nvmlDeviceGetBrand": ("brand", words.BRANDS),
    "nvmlDeviceGetArchitecture": ("architecture", words.ARCHITECTURES),
    "nvmlDeviceGetComputeMode": ("settings.compute_mode", words.COMPUTE_MODES),
    "nvmlDeviceGetVirtualizationMode": ("settings.virtualization", words.VIRTUALIZATION),
    "nvmlDeviceGetAddressingMode": ("settings.addressing_mode", words.ADDRESSING),
}
WATTS = {
    "nvmlDeviceGetPowerUsage": "power.draw_w",
    "nvmlDeviceGetEnforcedPowerLimit": "power.limit_w",
    "nvmlDeviceGetPowerManagementLimit": "power.requested_limit_w",
    "nvmlDeviceGetPowerManagementDefaultLimit": "power.default_limit_w",
}
# field ids by what they tell
FIELDS = {
    1: "ecc.enabled",
    2: "ecc.pending",
    3: "ecc.corrected_volatile",
    4: "ecc.uncorrected_volatile",
    5: "ecc.corrected_aggregate",
    6: "ecc.uncorrected_aggregate",
    29: "memory_repair.retired_single_bit",
    30: "memory_repair.retired_double_bit",
    31: "memory_repair.retirement_pending",
    82: "thermal.memory_c",
    94: "pcie.replays",
    95: "pcie.replay_rollovers",
    142: "memory_repair.remapped_corrected",
    143: "memory_repair.remapped_uncorrected",
    144: "memory_repair.remap_pending",
    145: "memory_repair.remap_failed",
    193: "thermal.shutdown_margin_c",
    194: "thermal.slowdown_margin_c",
    196: "thermal.max_operating_margin_c",
}
WATT_FIELDS = {
    186: "power.draw_w",
    187: "power.min_limit_w",
    188: "power.max_limit_w",
    189: "power.default_limit_w",
    190: "power.limit_w",
    192: "power.requested_limit_w",
}
HOT = ("throttle_times.sw_thermal_us", "throttle_times.hw_thermal_us", "throttle_times.hw_power_brake_us")
SLOWED_TIMES = {74: "throttle_times.sw_power_cap_us", 75: HOT[0], 76: "throttle_times.sync_boost_us"}


def slowed_times(driver: tuple[int, ...]) -> dict[int, str]:
    """The fields that count time slowed down, by the nvml.h of that driver: those of HOT came with 575, and moved.

    On 570, and again from 580.82 on, 251 to 253 are NVML_FI_PWR_SMOOTHING_*, which no GPU of ours has.
    """
    if driver < (575,):
        return SLOWED_TIMES
    ids = (251, 252, 253) if driver < (580, 82) else (269, 270, 271)
    return SLOWED_TIMES | dict(zip(ids, HOT, strict=True))
