"""The labels of `nvidia-smi -q`: what tells a part of a dump from prose, and a level where the indentation is lost.

Source: dumps of drivers 390 to 610, and the man page nvidia-smi(1).
"""

from __future__ import annotations

HEAD_LABELS = frozenset({"timestamp", "driver_version", "cuda_version", "attached_gpus"})
# sections of a GPU, and those inside of them
_TOP = """
mig_mode driver_model inforom_version inforom_bbx_object_flush gpu_operation_mode gpu_virtualization_mode
gpu_reset_status ibmnpu pci clocks_throttle_reasons clocks_event_reasons clocks_event_reasons_counters
sparse_operation_mode fb_memory_usage conf_compute_protected_memory_usage bar1_memory_usage utilization
encoder_stats fbc_stats ecc_mode ecc_errors retired_pages remapped_rows temperature power_readings
gpu_power_readings gpu_memory_power_readings module_power_readings power_smoothing workload_power_profiles
clocks applications_clocks default_applications_clocks deferred_clocks max_clocks max_customer_boost_clocks
clock_policy voltage fabric capabilities platform_info processes dram_encryption_mode
"""
_INNER = {
    **dict.fromkeys(("volatile", "aggregate", "aggregate_uncorrectable_sram_sources"), ("ecc_errors",)),
    **dict.fromkeys(("gpu_link_info", "bridge_chip"), ("pci",)),
    **dict.fromkeys(("pcie_generation", "link_width"), ("pci", "gpu_link_info")),
    "bank_remap_availability_histogram": ("remapped_rows",),
    "health": ("fabric",),
}
_SINGLE = """
product_name product_brand product_architecture display_mode display_attached display_active persistence_mode
addressing_mode accounting_mode accounting_mode_buffer_size serial_number gpu_uuid minor_number vbios_version
multigpu_board board_id board_part_number gpu_part_number fru_part_number module_id gsp_firmware_version
fan_speed performance_state gpu_recovery_action compute_mode
"""
# values that only one section has: the section, where the line of its name is lost
_OF_SECTION = {
    ("temperature",): """gpu_current_temp gpu_t_limit_temp gpu_shutdown_temp gpu_slowdown_temp gpu_max_operating_temp
        memory_current_temp memory_max_operating_temp gpu_shutdown_t_limit_temp gpu_slowdown_t_limit_temp
        gpu_max_operating_t_limit_temp gpu_target_temperature""",
    ("gpu_power_readings",): """power_draw average_power_draw instantaneous_power_draw current_power_limit
        requested_power_limit default_power_limit min_power_limit max_power_limit enforced_power_limit power_limit""",
    ("clocks_event_reasons",): """applications_clocks_setting sw_power_cap hw_slowdown hw_thermal_slowdown sync_boost
        hw_power_brake_slowdown sw_thermal_slowdown display_clock_setting""",
    ("remapped_rows",): "correctable_error uncorrectable_error remapping_failure_occurred",
    ("retired_pages",): "single_bit_ecc double_bit_ecc pending_page_blacklist",
    ("pci",): "replays_since_reset replay_number_rollovers tx_throughput rx_throughput bus_id",
    ("fabric",): "cliqueid clusteruuid",
}

# values that stand in several sections
CHILDREN = frozenset(
    """
graphics sm memory video total used free reserved gpu encoder decoder max current pending device_max device_current
host_max none high partial low sram_correctable sram_uncorrectable sram_uncorrectable_parity
sram_uncorrectable_sec_ded dram_correctable dram_uncorrectable sram_threshold_exceeded idle state status
virtualization_mode process_id type name used_gpu_memory gpu_instance_id compute_instance_id
""".split()  # noqa: SIM905
)

PARENTS: dict[str, tuple[str, ...]] = {
    **_INNER,
    **{name: section for section, names in _OF_SECTION.items() for name in names.split()},
}
SECTIONS = frozenset((*_TOP.split(), *_INNER))
LABELS = frozenset((*_SINGLE.split(), *(name for names in _OF_SECTION.values() for name in names.split())))
# where a section's own line stands if the lines are indented
INDENTS: dict[str, int] = {
    **dict.fromkeys((*_TOP.split(), *_SINGLE.split()), 4),
    **{name: 4 + 4 * len(parents) for name, parents in _INNER.items()},
}
