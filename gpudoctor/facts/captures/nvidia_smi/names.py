"""What nvidia-smi and its relatives call each value of a GPU, in every form: a reader has no names of its own.

Source: dumps of drivers 390 to 610, nvidia-smi(1), `nvidia-smi --help-query-gpu`, DCGM's field ids.
"""

from __future__ import annotations

from collections import defaultdict

# The leaf of Gpu, how its text is read, its path in the text of `nvidia-smi -q`, and its other names: with slashes in
# `-q -x`; in `--query-gpu`, unless only dots replace the slashes there; in tables (`table.`), `dmon.`, `dcgmi.` dmon,
# dcgm-exporter (DCGM_) and /proc (`proc.`). A leaf with several rows: the first known one counts.
# "-" in place of a leaf: a part of several, see query_gpu.
_TABLE = """
uuid text gpu_uuid uuid
name text product_name gpu_name name proc.model
brand text product_brand
architecture text product_architecture
pci_device_id pci_id pci/device_id pci/pci_device_id
pci_subsystem_id pci_id pci/sub_system_id pci/pci_sub_system_id pci.sub_device_id
serial text serial_number serial gpu_serial
vbios text vbios_version proc.video_bios
board_part_number text board_part_number
minor_number whole minor_number proc.device_minor
module_id whole platform_info/module_id platforminfo/module_id
module_id whole module_id gpu_module_id
memory_total_mib whole fb_memory_usage/total memory.total table.total
memory_reserved_mib whole fb_memory_usage/reserved memory.reserved
memory_used_mib whole fb_memory_usage/used memory.used table.used dmon.fb dcgmi.FBUSD DCGM_FI_DEV_FB_USED
memory_free_mib whole fb_memory_usage/free memory.free DCGM_FI_DEV_FB_FREE
utilization.gpu_pct whole utilization/gpu utilization/gpu_util table.util dmon.sm dcgmi.GPUTL DCGM_FI_DEV_GPU_UTIL
utilization.memory_pct whole utilization/memory utilization/memory_util dmon.mem dcgmi.MCUTL DCGM_FI_DEV_MEM_COPY_UTIL

pcie.generation whole pci/gpu_link_info/pcie_generation/current
    pci/pci_gpu_link_info/pcie_gen/current_link_gen pcie.link.gen.current pcie.link.gen.gpucurrent
pcie.generation_max whole pci/gpu_link_info/pcie_generation/max
    pci/pci_gpu_link_info/pcie_gen/max_link_gen pcie.link.gen.max
pcie.device_generation_max whole pci/gpu_link_info/pcie_generation/device_max
    pci/pci_gpu_link_info/pcie_gen/max_device_link_gen pcie.link.gen.gpumax
pcie.host_generation_max whole pci/gpu_link_info/pcie_generation/host_max
    pci/pci_gpu_link_info/pcie_gen/max_host_link_gen pcie.link.gen.hostmax
pcie.width whole pci/gpu_link_info/link_width/current
    pci/pci_gpu_link_info/link_widths/current_link_width pcie.link.width.current
pcie.width_max whole pci/gpu_link_info/link_width/max
    pci/pci_gpu_link_info/link_widths/max_link_width pcie.link.width.max
pcie.replays whole pci/replays_since_reset pci/replay_counter DCGM_FI_DEV_PCIE_REPLAY_COUNTER
pcie.replay_rollovers whole pci/replay_number_rollovers pci/replay_rollover_counter

fabric.state hyphened fabric/state
fabric.status lower fabric/status
fabric.clique_id whole fabric/cliqueid fabric/clique_id
fabric.cluster_uuid text fabric/clusteruuid fabric/cluster_uuid
fabric.health_summary lower fabric/health/summary
fabric.health_bandwidth lower fabric/health/bandwidth
fabric.route_unhealthy flag fabric/health/route_unhealthy
fabric.access_timeout_recovery flag fabric/health/access_timeout_recovery
fabric.incorrect_configuration lower fabric/health/incorrect_configuration

ecc.enabled flag ecc_mode/current ecc_mode/current_ecc ecc.mode.current
ecc.pending flag ecc_mode/pending ecc_mode/pending_ecc ecc.mode.pending
- - ecc_errors/volatile/single_bit/total ecc.errors.corrected.volatile.total DCGM_FI_DEV_ECC_SBE_VOL_TOTAL
- - ecc_errors/volatile/double_bit/total ecc.errors.uncorrected.volatile.total DCGM_FI_DEV_ECC_DBE_VOL_TOTAL
- - ecc_errors/volatile/sram_correctable ecc.errors.corrected.volatile.sram
- - ecc_errors/volatile/dram_correctable ecc.errors.corrected.volatile.dram
- - ecc_errors/volatile/sram_uncorrectable ecc.errors.uncorrected.volatile.sram
- - ecc_errors/volatile/dram_uncorrectable ecc.errors.uncorrected.volatile.dram
- - ecc_errors/aggregate/single_bit/total ecc.errors.corrected.aggregate.total dmon.sbecc DCGM_FI_DEV_ECC_SBE_AGG_TOTAL
- - ecc_errors/aggregate/double_bit/total ecc.errors.uncorrected.aggregate.total dmon.dbecc
    DCGM_FI_DEV_ECC_DBE_AGG_TOTAL
- - ecc_errors/aggregate/sram_correctable ecc.errors.corrected.aggregate.sram
- - ecc_errors/aggregate/dram_correctable ecc.errors.corrected.aggregate.dram
- - ecc_errors/aggregate/sram_uncorrectable ecc.errors.uncorrected.aggregate.sram
- - ecc_errors/aggregate/dram_uncorrectable ecc.errors.uncorrected.aggregate.dram
ecc.sram_threshold_exceeded flag ecc_errors/aggregate/sram_threshold_exceeded
memory_repair.channel_repair_pending flag ecc_errors/channel_repair_pending
memory_repair.tpc_repair_pending flag ecc_errors/tpc_repair_pending
memory_repair.unrepairable flag ecc_errors/unrepairable_memory
memory_repair.remapped_corrected whole remapped_rows/correctable_error
    remapped_rows/remapped_row_corr remapped_rows.correctable DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS
memory_repair.remapped_uncorrected whole remapped_rows/uncorrectable_error
    remapped_rows/remapped_row_unc remapped_rows.uncorrectable DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS
memory_repair.remap_pending flag remapped_rows/pending remapped_rows/remapped_row_pending
memory_repair.remap_failed flag remapped_rows/remapping_failure_occurred
    remapped_rows/remapped_row_failure remapped_rows.failure DCGM_FI_DEV_ROW_REMAP_FAILURE
memory_repair.banks_max_spare whole remapped_rows/bank_remap_availability_histogram/max
    remapped_rows/row_remapper_histogram/row_remapper_histogram_max remapped_rows.histogram.max
memory_repair.banks_high_spare whole remapped_rows/bank_remap_availability_histogram/high
    remapped_rows/row_remapper_histogram/row_remapper_histogram_high remapped_rows.histogram.high
memory_repair.banks_partial_spare whole remapped_rows/bank_remap_availability_histogram/partial
    remapped_rows/row_remapper_histogram/row_remapper_histogram_partial remapped_rows.histogram.partial
memory_repair.banks_low_spare whole remapped_rows/bank_remap_availability_histogram/low
    remapped_rows/row_remapper_histogram/row_remapper_histogram_low remapped_rows.histogram.low
memory_repair.banks_no_spare whole remapped_rows/bank_remap_availability_histogram/none
    remapped_rows/row_remapper_histogram/row_remapper_histogram_none remapped_rows.histogram.none
memory_repair.retired_single_bit whole retired_pages/single_bit_ecc
    retired_pages/multiple_single_bit_retirement/retired_count retired_pages.single_bit_ecc.count retired_pages.sbe
memory_repair.retired_double_bit whole retired_pages/double_bit_ecc
    retired_pages/double_bit_retirement/retired_count retired_pages.double_bit.count retired_pages.dbe
memory_repair.retirement_pending flag retired_pages/pending_page_blacklist
    retired_pages/pending retired_pages/pending_retirement retired_pages/pending_blacklist retired_pages.pending

clocks.graphics_mhz whole clocks/graphics clocks/graphics_clock clocks.current.graphics clocks.gr dmon.pclk dcgmi.SMCLK
clocks.sm_mhz whole clocks/sm clocks/sm_clock clocks.current.sm DCGM_FI_DEV_SM_CLOCK
clocks.memory_mhz whole clocks/memory
    clocks/mem_clock clocks.current.memory clocks.mem dmon.mclk dcgmi.MMCLK DCGM_FI_DEV_MEM_CLOCK
clocks.graphics_max_mhz whole max_clocks/graphics max_clocks/graphics_clock clocks.max.graphics clocks.max.gr
clocks.sm_max_mhz whole max_clocks/sm max_clocks/sm_clock clocks.max.sm
clocks.memory_max_mhz whole max_clocks/memory max_clocks/mem_clock clocks.max.memory clocks.max.mem
clocks.application_graphics_mhz whole applications_clocks/graphics
    applications_clocks/graphics_clock clocks.applications.graphics clocks.applications.gr
clocks.application_memory_mhz whole applications_clocks/memory
    applications_clocks/mem_clock clocks.applications.memory clocks.applications.mem
clocks.default_graphics_mhz whole default_applications_clocks/graphics
    default_applications_clocks/graphics_clock clocks.default_applications.graphics clocks.default_applications.gr
clocks.default_memory_mhz whole default_applications_clocks/memory
    default_applications_clocks/mem_clock clocks.default_applications.memory clocks.default_applications.mem
clocks.performance_state p_state performance_state pstate table.perf
throttle_times.sw_power_cap_us whole clocks_event_reasons_counters/sw_power_capping
    clocks_event_reasons_counters/clocks_event_reasons_counters_sw_power_cap clocks_event_reasons_counters.sw_power_cap
throttle_times.sync_boost_us whole clocks_event_reasons_counters/sync_boost
    clocks_event_reasons_counters/clocks_event_reasons_counters_sync_boost
throttle_times.sw_thermal_us whole clocks_event_reasons_counters/sw_thermal_slowdown
    clocks_event_reasons_counters/clocks_event_reasons_counters_sw_therm_slowdown
throttle_times.hw_thermal_us whole clocks_event_reasons_counters/hw_thermal_slowdown
    clocks_event_reasons_counters/clocks_event_reasons_counters_hw_therm_slowdown
throttle_times.hw_power_brake_us whole clocks_event_reasons_counters/hw_power_braking
    clocks_event_reasons_counters/clocks_event_reasons_counters_hw_power_brake
    clocks_event_reasons_counters.hw_power_brake_slowdown

thermal.gpu_c whole temperature/gpu_current_temp
    temperature/gpu_temp temperature.gpu table.temp dmon.gtemp dmon.temp dcgmi.TMPTR DCGM_FI_DEV_GPU_TEMP
thermal.memory_c whole temperature/memory_current_temp
    temperature/memory_temp temperature.memory dmon.mtemp dcgmi.MMTMP DCGM_FI_DEV_MEMORY_TEMP
thermal.slowdown_c whole temperature/gpu_slowdown_temp temperature/gpu_temp_slow_threshold
thermal.shutdown_c whole temperature/gpu_shutdown_temp temperature/gpu_temp_max_threshold
thermal.max_operating_c whole temperature/gpu_max_operating_temp temperature/gpu_temp_max_gpu_threshold
thermal.memory_max_c whole temperature/memory_max_operating_temp temperature/gpu_temp_max_mem_threshold
thermal.margin_c whole temperature/gpu_t_limit_temp temperature/gpu_temp_tlimit temperature.gpu.tlimit
thermal.slowdown_margin_c whole temperature/gpu_slowdown_t_limit_temp temperature/gpu_temp_slow_tlimit_threshold
thermal.shutdown_margin_c whole temperature/gpu_shutdown_t_limit_temp temperature/gpu_temp_max_tlimit_threshold
thermal.max_operating_margin_c whole temperature/gpu_max_operating_t_limit_temp
    temperature/gpu_temp_max_gpu_tlimit_threshold
power.draw_w number power_readings/average_power_draw power.draw.average
power.draw_w number power_readings/power_draw
    power.draw table.draw dmon.pwr dcgmi.POWER DCGM_FI_DEV_POWER_USAGE
power.draw_w number power_readings/instantaneous_power_draw power_readings/instant_power_draw power.draw.instant
power.limit_w number power_readings/enforced_power_limit enforced.power.limit
power.limit_w number power_readings/current_power_limit table.limit
power.limit_w number power_readings/power_limit power.limit
power.requested_limit_w number power_readings/requested_power_limit
power.requested_limit_w number power_readings/power_limit
power.default_limit_w number power_readings/default_power_limit power.default_limit
power.min_limit_w number power_readings/min_power_limit power.min_limit
power.max_limit_w number power_readings/max_power_limit power.max_limit

settings.persistence flag persistence_mode
settings.compute_mode compute_mode compute_mode
settings.mig_enabled flag mig_mode/current mig_mode/current_mig mig.mode.current
settings.mig_pending flag mig_mode/pending mig_mode/pending_mig mig.mode.pending
settings.display_attached flag display_attached display_mode
settings.display_active flag display_active
settings.addressing_mode lower addressing_mode
settings.virtualization virtualization gpu_virtualization_mode/virtualization_mode
- - gpu_recovery_action
- - gpu_reset_status/reset_required reset_status.reset_required
- - gpu_reset_status/drain_and_reset_recommended reset_status.drain_and_reset_recommended
"""
# what -q prints beside them and no fact holds; with a slash at the end, a section
_UNREAD = """
display_mode accounting_mode accounting_mode_buffer_size multigpu_board board_id gpu_part_number fru_part_number
gsp_firmware_version fan_speed
driver_model/ inforom_version/ inforom_bbx_object_flush/ gpu_operation_mode/ ibmnpu/ sparse_operation_mode/
conf_compute_protected_memory_usage/ encoder_stats/ fbc_stats/ gpu_power_readings/ gpu_memory_power_readings/
module_power_readings/ power_smoothing/ workload_power_profiles/ deferred_clocks/ max_customer_boost_clocks/
clock_policy/ voltage/ capabilities/ dram_encryption_mode/ vgpu_software_licensed_product/ grid_licensed_product/
clocks_event_reasons/ clocks_throttle_reasons/ pci/bridge_chip/ ecc_errors/aggregate_uncorrectable_sram_sources/
pci/bus_id pci/tx_throughput pci/rx_throughput pci/gpu_link_info/pcie_generation/device_current
bar1_memory_usage/total bar1_memory_usage/used bar1_memory_usage/free clocks/video max_clocks/video
utilization/encoder utilization/decoder temperature/gpu_target_temperature
ecc_errors/volatile/sram_uncorrectable_parity ecc_errors/volatile/sram_uncorrectable_sec_ded
ecc_errors/aggregate/sram_uncorrectable_parity ecc_errors/aggregate/sram_uncorrectable_sec_ded
processes/process_id processes/type processes/name processes/used_gpu_memory processes/gpu_instance_id
processes/compute_instance_id
"""
# names of the clocks' event reasons in the dumps -> in the facts, if not only hyphens differ
REASONS = {
    "idle": "idle",
    "applications_clocks_setting": "application-clocks",
    "sw_power_cap": "sw-power-cap",
    "hw_slowdown": "hw-slowdown",
    "hw_thermal_slowdown": "hw-thermal",
    "hw_power_brake_slowdown": "hw-power-brake",
    "sync_boost": "sync-boost",
    "sw_thermal_slowdown": "sw-thermal",
    "display_clock_setting": "display-clocks",
    "display_clocks_setting": "display-clocks",
}
REASON_SECTIONS = ("clocks_event_reasons", "clocks_throttle_reasons")
# so common in other texts that they do not tell that this is one of nvidia-smi
_COMMON = frozenset(
    """
    device_id sub_system_id device_max host_max device_current virtualization_mode reset_required
    incorrect_configuration process_id used_gpu_memory gpu_instance_id compute_instance_id
    """.split()  # noqa: SIM905
)


def _rows() -> list[list[str]]:
    return [row.split() for row in _TABLE.strip().replace("\n    ", " ").splitlines() if row]


def _leaves() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Each leaf of Gpu: how it is read, and its names in the dumps, the best first."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for leaf, kind, *names in _rows():
        # newer drivers have several sections of power
        newer = [f"gpu_{name}" for name in names if name.startswith("power_readings/")]
        found[leaf] = (kind, (*found.get(leaf, ("", ()))[1], *newer, *names))
    found.pop("-")
    return found


LEAVES = _leaves()
# any name of a value -> its path in -q; a field of --query-gpu is called like its path, too, with dots for the slashes
PATHS = {name: path for _, _, path, *names in _rows() for name in (path.replace("/", "."), *names)}

# The labels in the text of -q. They distinguish a part of it from prose, and give the level of a line if the
# indentation is lost.

HEAD_LABELS = frozenset({"timestamp", "driver_version", "cuda_version", "attached_gpus"})


def _places(printed: list[list[str]]) -> dict[str, set[tuple[str, ...]]]:
    """The sections that each name stands in."""
    found: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
    for path in printed:
        for depth, name in enumerate(filter(None, path)):
            found[name].add(tuple(path[:depth]))
    return found


_REASON_PATHS = [f"{REASON_SECTIONS[0]}/{name}" for name in REASONS]
_PRINTED = [path.split("/") for path in (*(path for _, _, path, *_ in _rows()), *_UNREAD.split(), *_REASON_PATHS)]
_PLACES = _places(_PRINTED)
NAMES = frozenset(_PLACES)
_ONE_PLACE = {name: next(iter(places)) for name, places in _PLACES.items() if len(places) == 1}
SECTIONS = frozenset(name for path in _PRINTED for name in path[:-1] if name in _ONE_PLACE)
# what stands in one other section only, whose line may be lost: sections, and values whose name is long enough to tell
PARENTS = {
    name: place
    for name, place in _ONE_PLACE.items()
    if place and (name in SECTIONS or ("_" in name and name not in _COMMON))
} | {name: REASON_SECTIONS[:1] for name in REASONS if "_" in name}
LABELS = frozenset(name for name, places in _PLACES.items() if () in places or name in PARENTS) - SECTIONS
