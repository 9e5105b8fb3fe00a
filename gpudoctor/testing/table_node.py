"""The table of NVML's answers about a `Node`, call by call, in NVML's numbers and structs (nvml.h)."""

from __future__ import annotations

import math
import re
from typing import Any

from gpudoctor.checks.core.condemning import condemning
from gpudoctor.facts.model.gpu import Gpu, GpuPair
from gpudoctor.facts.model.missing import UNSUPPORTED, Missing, known
from gpudoctor.facts.model.node import Driver, Node
from gpudoctor.facts.nvml import codes
from gpudoctor.testing.nvml_table import NEVER, SYSTEM, UNKNOWN, NvmlTable, code_of, number_of
from gpudoctor.testing.table_gpu import add_gpu, version_of
from gpudoctor.testing.table_links import add_fields, add_links

_NOT_LOADED = 9
MIG_IDS = 1000
_WORTH_PLAYING_S = 1.0
# our readers use pynvml's name, which stands for several functions of the library
_OTHER_NAMES = {"nvmlDeviceGetMemoryInfo": ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2")}


def answers_of(node: Node, call_latency_ms: float = 0.0) -> bytes:
    """The table for the C library: see `NvmlTable.written`. A call that did not return in the facts never returns.

    The time that waking the GPUs took is divided among them, and a slowest call of a second or more is
    as slow again.
    """
    table = NvmlTable()
    _add_waits(table, node)
    for call in node.driver.unanswered:
        name = re.sub(r"(RunningProcesses)_v[23]$", r"\1", call.call)
        for each in _OTHER_NAMES.get(name, (name,)) if _is_name(name) else ():
            # a call that crashed the driver's library fails instead
            table.refuse(each, SYSTEM if call.gpu is None else call.gpu, NEVER if call.hangs else UNKNOWN)
    add_node(table, node)
    table.latency(call_latency_ms)
    return table.written()


def add_node(table: NvmlTable, node: Node) -> None:
    """Add all answers of this node's driver."""
    _add_driver(table, node.driver, node)
    for gpu in node.gpus:
        _add_errors(table, gpu)
        table.put("nvmlDeviceGetHandleByIndex", gpu.index, "i", gpu.index)
        table.put_handle("nvmlDeviceGetHandleByUUID", gpu.uuid, gpu.index)
        for bus_id in (gpu.bus_id, f"0000{gpu.bus_id}", gpu.bus_id.partition(":")[2]):
            table.put_handle("nvmlDeviceGetHandleByPciBusId", bus_id, gpu.index)
        add_gpu(table, gpu)
        add_fields(table, gpu, version_of_driver(node.driver))
        add_links(table, gpu)
        _add_instances(table, gpu)
    _add_pairs(table, node)


def branch_of(node: Node) -> int:
    """The driver's branch (535), which decides what functions the library has; 999 (all) if it is not known."""
    version = version_of_driver(node.driver)
    return version[0] if version and version[0] > 0 else UNKNOWN


def _add_waits(table: NvmlTable, node: Node) -> None:
    start_s = known(node.driver.start_s) or 0.0
    for gpu in node.gpus:
        if known(gpu.settings.persistence) is False and 0 < start_s < math.inf:
            table.wait("device", gpu.index, start_s / len(node.gpus))
    stalled = re.fullmatch(r"(\w{1,80}) on GPU ([0-9]{1,6})", known(node.driver.slowest_call) or "", re.ASCII)
    took_s = known(node.driver.slowest_call_s) or 0.0
    if stalled and _WORTH_PLAYING_S <= took_s < math.inf:
        for each in _OTHER_NAMES.get(stalled[1], (stalled[1],)):
            table.wait(each, int(stalled[2]), took_s)


def _is_name(call: str) -> bool:
    # facts may be untrusted, and a name must not add lines to the table
    return call.isascii() and call.isidentifier()


def version_of_driver(driver: Driver) -> tuple[int, ...]:
    return tuple(int(part) for part in str(known(driver.library_version) or "").split(".") if part.isdecimal())


def _add_driver(table: NvmlTable, driver: Driver, node: Node) -> None:
    code: Any = known(driver.init_code)
    if driver.module_loaded is False or (code is None and not node.gpus):
        code = _NOT_LOADED
    if code:
        table.refuse("nvmlInit", SYSTEM, code)
    else:
        table.put("nvmlInit", SYSTEM, "")
    for number, text in codes.ERROR_WORDS.items():
        table.put_text("nvmlErrorString", number, text)
    version = driver.library_version
    table.put_text("nvmlSystemGetDriverVersion", SYSTEM, version)
    table.put_text("nvmlSystemGetNVMLVersion", SYSTEM, version if isinstance(version, Missing) else f"12.{version}")
    numbers = re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,2})", str(known(driver.cuda_version) or ""))
    cuda = int(numbers[1]) * 1000 + int(numbers[2]) * 10 if numbers else UNSUPPORTED
    table.put("nvmlSystemGetCudaDriverVersion", SYSTEM, "i", cuda)
    count = known(driver.device_count)
    table.put("nvmlDeviceGetCount", SYSTEM, "I", len(node.gpus) if count is None else count)
    secret = node.gpus[0].settings.confidential_compute if node.gpus else False
    table.put("nvmlSystemGetConfComputeState", SYSTEM, "3I", 0, secret, 0)
    for text in driver.handle_errors:
        # "index 3: GPU is lost (15)", "GPU 3: nvmlDeviceGetHandleByIndex: insufficient permissions (4)"
        named = re.match(r"(?:index|GPU) ([0-9]{1,6}): .*?(?:\(([0-9]{1,3})\))?$", text)
        if named:
            table.refuse("nvmlDeviceGetHandleByIndex", int(named[1]), int(named[2] or UNKNOWN))
    for index in range(min(count or 0, 1024)):
        if all(gpu.index != index for gpu in node.gpus):
            table.refuse("nvmlDeviceGetHandleByIndex", index, UNKNOWN)


def _add_errors(table: NvmlTable, gpu: Gpu) -> None:
    """Calls that failed in the facts fail again; a GPU that is lost or needs a reset fails all other calls too."""
    table.put("device", gpu.index, "")
    for error in gpu.errors:
        # the error of a single field, "nvmlDeviceGetFieldValues(82)", is in its leaf
        if _is_name(error.call):
            table.refuse(error.call, gpu.index, error.code)
    for error in condemning(gpu)[:1]:
        table.refuse("*", gpu.index, error.code)


def _add_instances(table: NvmlTable, gpu: Gpu) -> None:
    instances = gpu.settings.mig_instances
    if isinstance(instances, Missing):
        if instances.kind == "failed":
            table.refuse("nvmlDeviceGetMaxMigDeviceCount", gpu.index, code_of(instances))
        return
    table.put("nvmlDeviceGetMaxMigDeviceCount", gpu.index, "I", max(7, len(instances)))
    for place, instance in enumerate(instances):
        device = (gpu.index + 1) * MIG_IDS + place
        table.put("device", device, "")
        table.put("nvmlDeviceGetMigDeviceHandleByIndex", gpu.index, "i", device, args=(place,))
        table.put("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", device, "i", gpu.index)
        table.put_handle("nvmlDeviceGetHandleByUUID", instance.uuid, device)
        name = gpu.name if isinstance(gpu.name, Missing) else instance.profile
        table.put_text("nvmlDeviceGetName", device, name if isinstance(name, Missing) else f"{gpu.name} MIG {name}")
        table.put_text("nvmlDeviceGetUUID", device, instance.uuid)
        table.put("nvmlDeviceGetGpuInstanceId", device, "I", instance.gpu_instance)
        table.put("nvmlDeviceGetComputeInstanceId", device, "I", instance.compute_instance)
        table.put("nvmlDeviceGetAttributes_v2", device, "8IQ", 0, 0, 0, 0, 0, 0, 0, 0, instance.memory_mib)
        table.put("nvmlDeviceIsMigDeviceHandle", device, "I", 1)
        if not isinstance(instance.memory_mib, Missing):
            size = instance.memory_mib << 20
            table.put("nvmlDeviceGetMemoryInfo", device, "3Q", size, size, 0)
            table.put_versioned("nvmlDeviceGetMemoryInfo_v2", device, version_of(40, 2), "4x4Q", size, 0, size, 0)


def _add_pairs(table: NvmlTable, node: Node) -> None:
    known_pairs = {(pair.a, pair.b): pair for pair in known(node.pairs) or ()}
    for one in node.gpus:
        for other in node.gpus:
            if one.index == other.index:
                continue
            a, b = sorted((one.index, other.index))
            pair = known_pairs.get((a, b)) or GpuPair(a, b)
            level = number_of(pair.path, {number: word for number, word in codes.PATHS.items() if number})
            table.put("nvmlDeviceGetTopologyCommonAncestor", one.index, "I", level, args=(other.index,))
            for index, way in enumerate((pair.p2p_read, pair.p2p_write)):
                status = number_of(way, codes.P2P_STATUS)
                table.put("nvmlDeviceGetP2PStatus", one.index, "I", status, args=(other.index, index))
