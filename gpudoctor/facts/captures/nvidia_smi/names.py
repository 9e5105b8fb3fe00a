"""What nvidia-smi and its relatives call each value of a GPU, in every form: a reader has no names of its own.

Source: dumps of drivers 390 to 610, nvidia-smi(1), `nvidia-smi --help-query-gpu`, DCGM's field ids.
"""

from __future__ import annotations

import re
from collections import defaultdict

# A row is LEAF KIND PATH [OTHER NAME ...]; it goes on in indented lines:
#   LEAF  the leaf of Gpu; "-" if the value is only a part of one, see query_gpu. Of several rows the first known counts
#   KIND  how its text is read, see values
#   PATH  where the text of `nvidia-smi -q` has it
#   other names: with slashes in `-q -x`; with dots in `--query-gpu`, if it is not PATH with dots for the slashes;
#         with a prefix in the table of plain nvidia-smi (`table.`), dmon (`dmon.`), `dcgmi dmon` (`dcgmi.`),
#         dcgm-exporter (`DCGM_`) and /proc (`proc.`)
# {a,b} makes two rows, one with the first of each such choice, one with the second:
#   clocks.{sm,memory}_mhz whole clocks/{sm,memory} =
#   clocks.sm_mhz whole clocks/sm, clocks.memory_mhz whole clocks/memory
_TABLE = """
uuid text gpu_uuid uuid
name text product_name gpu_name name proc.model
brand text product_brand
architecture text product_architecture
pci_{device,subsystem}_id pci_id pci/{device,sub_system}_id pci/pci_{device,sub_system}_id
pci_subsystem_id pci_id pci/sub_system_id pci.sub_device_id
serial text serial_number serial gpu_serial
vbios text vbios_version proc.video_bios
board_part_number text board_part_number
minor_number whole minor_number proc.device_minor
module_id whole platform_info/module_id platforminfo/module_id
module_id whole module_id gpu_module_id
memory_{total,reserved,used,free}_mib whole fb_memory_usage/{total,reserved,used,free} memory.{total,reserved,used,free}
memory_{total,used}_mib whole fb_memory_usage/{total,used} table.{total,used}
memory_{used,free}_mib whole fb_memory_usage/{used,free} DCGM_FI_DEV_FB_{USED,FREE}
memory_used_mib whole fb_memory_usage/used dmon.fb dcgmi.FBUSD
utilization.{gpu,memory}_pct whole utilization/{gpu,memory} utilization/{gpu,memory}_util
    dmon.{sm,mem} dcgmi.{GPUTL,MCUTL} DCGM_FI_DEV_{GPU,MEM_COPY}_UTIL
utilization.gpu_pct whole utilization/gpu table.util

pcie.{generation,generation_max,device_generation_max,host_generation_max} whole
    pci/gpu_link_info/pcie_generation/{current,max,device_max,host_max}
    pci/pci_gpu_link_info/pcie_gen/{current,max,max_device,max_host}_link_gen pcie.link.gen.{current,max,gpumax,hostmax}
pcie.generation whole pci/gpu_link_info/pcie_generation/current pcie.link.gen.gpucurrent
pcie.{width,width_max} whole pci/gpu_link_info/link_width/{current,max}
    pci/pci_gpu_link_info/link_widths/{current,max}_link_width pcie.link.width.{current,max}
pcie.replays whole pci/replays_since_reset pci/replay_counter DCGM_FI_DEV_PCIE_REPLAY_COUNTER
pcie.replay_rollovers whole pci/replay_number_rollovers pci/replay_rollover_counter

fabric.state hyphened fabric/state
fabric.status lower fabric/status
fabric.clique_id whole fabric/cliqueid fabric/clique_id
fabric.cluster_uuid text fabric/clusteruuid fabric/cluster_uuid
fabric.health_{summary,bandwidth} lower fabric/health/{summary,bandwidth}
fabric.{route_unhealthy,access_timeout_recovery} flag fabric/health/{route_unhealthy,access_timeout_recovery}
fabric.incorrect_configuration lower fabric/health/incorrect_configuration

ecc.{enabled,pending} flag ecc_mode/{current,pending} ecc_mode/{current,pending}_ecc ecc.mode.{current,pending}
- - ecc_errors/{volatile,aggregate}/single_bit/total ecc.errors.corrected.{volatile,aggregate}.total
    DCGM_FI_DEV_ECC_SBE_{VOL,AGG}_TOTAL
- - ecc_errors/{volatile,aggregate}/double_bit/total ecc.errors.uncorrected.{volatile,aggregate}.total
    DCGM_FI_DEV_ECC_DBE_{VOL,AGG}_TOTAL
- - ecc_errors/aggregate/{single,double}_bit/total dmon.{sbecc,dbecc}
- - ecc_errors/{volatile,aggregate}/sram_correctable ecc.errors.corrected.{volatile,aggregate}.sram
- - ecc_errors/{volatile,aggregate}/dram_correctable ecc.errors.corrected.{volatile,aggregate}.dram
    ecc.errors.corrected.{volatile,aggregate}.device_memory
- - ecc_errors/{volatile,aggregate}/sram_uncorrectable ecc.errors.uncorrected.{volatile,aggregate}.sram
- - ecc_errors/{volatile,aggregate}/dram_uncorrectable ecc.errors.uncorrected.{volatile,aggregate}.dram
    ecc.errors.uncorrected.{volatile,aggregate}.device_memory
ecc.sram_threshold_exceeded flag ecc_errors/aggregate/sram_threshold_exceeded
memory_repair.{channel,tpc}_repair_pending flag ecc_errors/{channel,tpc}_repair_pending
memory_repair.unrepairable flag ecc_errors/unrepairable_memory
memory_repair.remapped_{corrected,uncorrected} whole remapped_rows/{correctable,uncorrectable}_error
    remapped_rows/remapped_row_{corr,unc} remapped_rows.{correctable,uncorrectable}
    DCGM_FI_DEV_{CORRECTABLE,UNCORRECTABLE}_REMAPPED_ROWS
memory_repair.remap_pending flag remapped_rows/pending remapped_rows/remapped_row_pending
memory_repair.remap_failed flag remapped_rows/remapping_failure_occurred
    remapped_rows/remapped_row_failure remapped_rows.failure DCGM_FI_DEV_ROW_REMAP_FAILURE
memory_repair.banks_{max,high,partial,low,no}_spare whole
    remapped_rows/bank_remap_availability_histogram/{max,high,partial,low,none}
    remapped_rows/row_remapper_histogram/row_remapper_histogram_{max,high,partial,low,none}
    remapped_rows.histogram.{max,high,partial,low,none}
memory_repair.retired_{single,double}_bit whole retired_pages/{single,double}_bit_ecc
    retired_pages/{multiple_single,double}_bit_retirement/retired_count
    retired_pages.{single_bit_ecc,double_bit}.count retired_pages.{sbe,dbe}
memory_repair.retirement_pending flag retired_pages/pending_page_blacklist
    retired_pages/pending retired_pages/pending_retirement retired_pages/pending_blacklist retired_pages.pending

clocks.{graphics,sm,memory}_mhz whole clocks/{graphics,sm,memory} clocks/{graphics,sm,mem}_clock
    clocks.current.{graphics,sm,memory} clocks.{gr,sm,mem}
clocks.{sm,memory}_mhz whole clocks/{sm,memory} DCGM_FI_DEV_{SM,MEM}_CLOCK
clocks.{graphics,memory}_mhz whole clocks/{graphics,memory} dmon.{pclk,mclk} dcgmi.{SMCLK,MMCLK}
clocks.{graphics,sm,memory}_max_mhz whole max_clocks/{graphics,sm,memory} max_clocks/{graphics,sm,mem}_clock
    clocks.max.{graphics,sm,memory} clocks.max.{gr,sm,mem}
clocks.{application,default}_graphics_mhz whole {applications,default_applications}_clocks/graphics
    {applications,default_applications}_clocks/graphics_clock
    clocks.{applications,default_applications}.graphics clocks.{applications,default_applications}.gr
clocks.{application,default}_memory_mhz whole {applications,default_applications}_clocks/memory
    {applications,default_applications}_clocks/mem_clock
    clocks.{applications,default_applications}.memory clocks.{applications,default_applications}.mem
clocks.performance_state p_state performance_state pstate table.perf
throttle_times.{sw_power_cap,sync_boost}_us whole clocks_event_reasons_counters/{sw_power_capping,sync_boost}
    clocks_event_reasons_counters/clocks_event_reasons_counters_{sw_power_cap,sync_boost}
    clocks_event_reasons_counters.{sw_power_cap,sync_boost}
throttle_times.{sw,hw}_thermal_us whole clocks_event_reasons_counters/{sw,hw}_thermal_slowdown
    clocks_event_reasons_counters/clocks_event_reasons_counters_{sw,hw}_therm_slowdown
throttle_times.hw_power_brake_us whole clocks_event_reasons_counters/hw_power_braking
    clocks_event_reasons_counters/clocks_event_reasons_counters_hw_power_brake
    clocks_event_reasons_counters.hw_power_brake_slowdown

thermal.gpu_c whole temperature/gpu_current_temp
    temperature/gpu_temp temperature.gpu table.temp dmon.gtemp dmon.temp dcgmi.TMPTR DCGM_FI_DEV_GPU_TEMP
thermal.memory_c whole temperature/memory_current_temp
    temperature/memory_temp temperature.memory dmon.mtemp dcgmi.MMTMP DCGM_FI_DEV_MEMORY_TEMP
thermal.{slowdown,shutdown,max_operating}_c whole temperature/gpu_{slowdown,shutdown,max_operating}_temp
    temperature/gpu_temp_{slow,max,max_gpu}_threshold
thermal.memory_max_c whole temperature/memory_max_operating_temp temperature/gpu_temp_max_mem_threshold
thermal.margin_c whole temperature/gpu_t_limit_temp temperature/gpu_temp_tlimit temperature.gpu.tlimit
thermal.{slowdown,shutdown,max_operating}_margin_c whole
    temperature/gpu_{slowdown,shutdown,max_operating}_t_limit_temp
    temperature/gpu_temp_{slow,max,max_gpu}_tlimit_threshold
power.draw_w number power_readings/average_power_draw power.draw.average
power.draw_w number power_readings/power_draw
    power.draw table.draw dmon.pwr dcgmi.POWER DCGM_FI_DEV_POWER_USAGE
power.draw_w number power_readings/instantaneous_power_draw power_readings/instant_power_draw power.draw.instant
power.limit_w number power_readings/enforced_power_limit enforced.power.limit
power.limit_w number power_readings/current_power_limit table.limit
power.limit_w number power_readings/power_limit power.limit
power.requested_limit_w number power_readings/requested_power_limit
power.requested_limit_w number power_readings/power_limit
power.{default,min,max}_limit_w number power_readings/{default,min,max}_power_limit power.{default,min,max}_limit

settings.persistence flag persistence_mode
settings.compute_mode compute_mode compute_mode table.compute
settings.mig_{enabled,pending} flag mig_mode/{current,pending} mig_mode/{current,pending}_mig mig.mode.{current,pending}
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
_CHOICE = re.compile(r"\{([^}]*)\}")
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
    """The rows of the table, one for each choice."""
    found = []
    for row in _TABLE.strip().replace("\n    ", " ").splitlines():
        parts = _CHOICE.split(row)  # every second one is a choice
        for at in range(max((len(part.split(",")) for part in parts[1::2]), default=1)):
            found.append("".join(part.split(",")[at] if n % 2 else part for n, part in enumerate(parts)).split())
    return [row for row in found if row]


def _leaves() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Each leaf of Gpu: how it is read, and its names in -q and -q -x, the best first."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for leaf, kind, *names in _rows():
        known = [name for name in names if name.islower() and "." not in name]
        # newer drivers have several sections of power
        newer = [f"gpu_{name}" for name in known if name.startswith("power_readings/")]
        found[leaf] = (kind, tuple(dict.fromkeys([*found.get(leaf, ("", ()))[1], *newer, *known])))
    found.pop("-")
    return found


LEAVES = _leaves()
# any name of a value -> its path in -q; a field of --query-gpu is called like its path, too, with dots for the slashes
PATHS = {name: path for _, _, path, *names in _rows() for name in (path.replace("/", "."), *names)}


# The rest is about the labels in the text of -q alone. They distinguish a part of it from prose, and give the level of
# a line if the indentation is lost.
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
_ONE_PLACE = {name: next(iter(places)) for name, places in _PLACES.items() if len(places) == 1}
# every label, of values and of sections
NAMES = frozenset(_PLACES)
# the sections that stand in one place only, so that their label tells their level
SECTIONS = frozenset(name for path in _PRINTED for name in path[:-1] if name in _ONE_PLACE)
# label -> the one section that it stands in, whose line may be lost: of sections, and of values whose name is long
# enough to tell
PARENTS = {
    name: place
    for name, place in _ONE_PLACE.items()
    if place and (name in SECTIONS or ("_" in name and name not in _COMMON))
} | {name: REASON_SECTIONS[:1] for name in REASONS if "_" in name}
# the values that tell by their label alone where they stand
LABELS = frozenset(name for name, places in _PLACES.items() if () in places or name in PARENTS) - SECTIONS
