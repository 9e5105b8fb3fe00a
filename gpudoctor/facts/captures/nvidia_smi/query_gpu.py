"""One GPU of an `nvidia-smi -q` dump, XML or text, as facts; old and new field names are both accepted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar, get_args

import msgspec

from gpudoctor.facts.captures import ABSENT
from gpudoctor.facts.captures.nvidia_smi.query_health import (
    clocks_of,
    ecc_of,
    memory_repair_of,
    power_of,
    thermal_of,
    throttle_times_of,
)
from gpudoctor.facts.captures.nvidia_smi.values import Values
from gpudoctor.facts.model.gpu import (
    ComputeMode,
    Fabric,
    Gpu,
    GpuProcess,
    MigInstance,
    PcieLink,
    Settings,
    Utilization,
    Virtualization,
)
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.nvml.codes import RECOVERY_ACTIONS, errors_in_dump

_VIRTUALIZATION: dict[str, Virtualization] = {
    "none": "none",
    "pass-through": "passthrough",
    "vgpu": "vgpu",
    "host vgpu": "host-vgpu",
    "host vsga": "host-vsga",
}


# the result of the GPU's registration with the fabric: its error words are the value, not a failed read
_FABRIC_STATUS = "fabric/status"
_COMPUTE_MODES: dict[str, ComputeMode] = {mode: mode for mode in get_args(ComputeMode)}

W = TypeVar("W")


class GpuDump(msgspec.Struct):
    """A GPU's section as normalised path -> text, and its two lists. `lists_mig`: instances would be listed if any."""

    bus_id: str
    values: dict[str, str] = {}
    processes: list[dict[str, str]] = []
    mig_devices: list[dict[str, str]] = []
    lists_mig: bool = True


def gpu_from(dump: GpuDump, index: int) -> Gpu:
    """The facts of one GPU; values that are not in the section are `ABSENT`."""
    v = Values(dump.values)
    return Gpu(
        index=index,
        bus_id=dump.bus_id,
        uuid=v.text("uuid", "gpu_uuid"),
        name=v.text("product_name"),
        brand=v.text("product_brand"),
        architecture=v.text("product_architecture"),
        pci_device_id=_pci_id(v.text("pci/pci_device_id", "pci/device_id")),
        pci_subsystem_id=_pci_id(v.text("pci/pci_sub_system_id", "pci/sub_system_id")),
        serial=v.text("serial", "serial_number"),
        vbios=v.text("vbios_version"),
        board_part_number=v.text("board_part_number"),
        minor_number=v.whole("minor_number"),
        module_id=v.whole("platforminfo/module_id", "platform_info/module_id", "gpu_module_id", "module_id"),
        errors=errors_in_dump(item for item in dump.values.items() if item[0] != _FABRIC_STATUS),
        recovery_action=_recovery(v),
        memory_total_mib=v.whole("fb_memory_usage/total"),
        memory_reserved_mib=v.whole("fb_memory_usage/reserved"),
        memory_used_mib=v.whole("fb_memory_usage/used"),
        memory_free_mib=v.whole("fb_memory_usage/free"),
        pcie=_pcie(v),
        fabric=_fabric(v),
        ecc=ecc_of(v),
        memory_repair=memory_repair_of(v),
        clocks=clocks_of(v),
        throttle_times=throttle_times_of(v),
        thermal=thermal_of(v),
        power=power_of(v),
        settings=_settings(v, dump),
        processes=_processes(v, dump.processes),
        utilization=Utilization(
            gpu_pct=v.whole("utilization/gpu_util", "utilization/gpu"),
            memory_pct=v.whole("utilization/memory_util", "utilization/memory"),
        ),
    )


def _pcie(v: Values) -> PcieLink:
    generation, width = "pci/pci_gpu_link_info/pcie_gen/", "pci/pci_gpu_link_info/link_widths/"
    in_text, width_in_text = "pci/gpu_link_info/pcie_generation/", "pci/gpu_link_info/link_width/"
    return PcieLink(
        generation=v.whole(generation + "current_link_gen", in_text + "current"),
        generation_max=v.whole(generation + "max_link_gen", in_text + "max"),
        device_generation_max=v.whole(generation + "max_device_link_gen", in_text + "device_max"),
        host_generation_max=v.whole(generation + "max_host_link_gen", in_text + "host_max"),
        width=v.whole(width + "current_link_width", width_in_text + "current"),
        width_max=v.whole(width + "max_link_width", width_in_text + "max"),
        replays=v.whole("pci/replay_counter", "pci/replays_since_reset"),
        replay_rollovers=v.whole("pci/replay_rollover_counter", "pci/replay_number_rollovers"),
        path=ABSENT,
    )


def _fabric(v: Values) -> Fabric:
    return Fabric(
        state=_lower(v.text("fabric/state"), " "),
        status=_lower(v.said(_FABRIC_STATUS)),
        clique_id=v.whole("fabric/cliqueid", "fabric/clique_id"),
        cluster_uuid=v.text("fabric/clusteruuid", "fabric/cluster_uuid"),
        health_summary=_lower(v.text("fabric/health/summary")),
        health_bandwidth=_lower(v.text("fabric/health/bandwidth")),
        route_unhealthy=v.flag("fabric/health/route_unhealthy"),
        access_timeout_recovery=v.flag("fabric/health/access_timeout_recovery"),
        incorrect_configuration=_lower(v.text("fabric/health/incorrect_configuration")),
    )


def _settings(v: Values, dump: GpuDump) -> Settings:
    mig = v.flag("mig_mode/current_mig", "mig_mode/current")
    instances = tuple(_mig_instance(Values(device)) for device in dump.mig_devices)
    return Settings(
        persistence=v.flag("persistence_mode"),
        compute_mode=_one_of(_lower(v.text("compute_mode"), "_"), _COMPUTE_MODES),
        mig_enabled=mig,
        mig_pending=v.flag("mig_mode/pending_mig", "mig_mode/pending"),
        mig_instances=mig if isinstance(mig, Missing) else instances if instances or dump.lists_mig else ABSENT,
        display_attached=v.flag("display_attached", "display_mode"),
        display_active=v.flag("display_active"),
        addressing_mode=_lower(v.text("addressing_mode")),
        virtualization=_one_of(_lower(v.text("gpu_virtualization_mode/virtualization_mode")), _VIRTUALIZATION),
    )


def _mig_instance(v: Values) -> MigInstance:
    return MigInstance(
        uuid=v.text("uuid"),
        gpu_instance=v.whole("gpu_instance_id"),
        compute_instance=v.whole("compute_instance_id"),
        memory_mib=v.whole("fb_memory_usage/total"),
    )


def _processes(v: Values, listed: list[dict[str, str]]) -> tuple[GpuProcess, ...] | Missing:
    if not listed:
        reported = v.text("processes", "compute_processes")
        if isinstance(reported, Missing):
            return reported
        return () if reported.lower() == "none" else Missing(f"not understood: {reported[:60]!r}", "failed")
    found = []
    for fields in listed:
        p = Values(fields)
        pid, kind = p.whole("pid", "process_id"), p.text("type")
        if isinstance(pid, Missing):
            return pid
        found.append(
            GpuProcess(
                pid=pid,
                name=p.text("process_name", "name"),
                kind="C" if isinstance(kind, Missing) else kind,
                memory_mib=p.whole("used_memory", "used_gpu_memory"),
            )
        )
    return tuple(found)


def _recovery(v: Values) -> str | Missing:
    """The recovery action; drivers up to 565 only have two flags for it."""
    reported = v.text("gpu_recovery_action")
    if not isinstance(reported, Missing):
        action = reported.lower().removesuffix(" required").replace(" ", "-")
        action = {"reset": "gpu-reset", "reboot": "node-reboot"}.get(action, action)
        return action if action in RECOVERY_ACTIONS.values() else f"value {reported}"
    reset = v.flag("gpu_reset_status/reset_required")
    drain = v.flag("gpu_reset_status/drain_and_reset_recommended")
    if reset is True:
        return "gpu-reset"
    if drain is True:
        return "drain-and-reset"
    if reset is False and drain is False:
        return "none"
    return next((m for m in (reported, reset, drain) if isinstance(m, Missing) and m != ABSENT), ABSENT)


def _one_of(word: str | Missing, table: Mapping[str, W]) -> W | Missing:
    if isinstance(word, Missing):
        return word
    return table.get(word) or Missing(f"not understood: {word[:60]!r}", "failed")


def _pci_id(text: str | Missing) -> str | Missing:
    """NVML's packed id, the device before the vendor: 0x233010de."""
    return text if isinstance(text, Missing) else "0x" + text.lower().removeprefix("0x")


def _lower(text: str | Missing, blank: str = "-") -> str | Missing:
    """In lower case, with a hyphen for each `blank`."""
    return text if isinstance(text, Missing) else text.lower().replace(blank, "-")
