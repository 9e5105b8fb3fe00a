"""The metrics of dcgm-exporter, as Prometheus reads them: the readings of each GPU, by the labels of its series."""

from __future__ import annotations

import re

from gpudoctor.facts.captures import BUS_ID, MOST_GPUS, clipped
from gpudoctor.facts.captures.nvidia_smi.query_dump import numbered
from gpudoctor.facts.captures.nvidia_smi.query_gpu import GpuDump, gpu_from
from gpudoctor.facts.captures.reader import Block, Part, TextReader
from gpudoctor.facts.model.node import short_bus_id

_SERIES = re.compile(
    r"(DCGM_FI_[A-Z0-9_]{3,80})\{(.{1,4000})\} (-?\d{1,20}(?:\.\d{1,20})?(?:e[+-]?\d{1,2})?)(?: \d{1,16})?\s*$"
)
_LABEL = re.compile(r'(\w{1,60})="((?:[^"\\]|\\.){0,300})"')
_COMMENT = re.compile(r"# (?:HELP|TYPE) DCGM_FI_")
# field of DCGM -> path of the same value in nvidia-smi -q
_PATHS = {
    "DCGM_FI_DEV_GPU_TEMP": "temperature/gpu_current_temp",
    "DCGM_FI_DEV_MEMORY_TEMP": "temperature/memory_current_temp",
    "DCGM_FI_DEV_POWER_USAGE": "power_readings/power_draw",
    "DCGM_FI_DEV_GPU_UTIL": "utilization/gpu",
    "DCGM_FI_DEV_MEM_COPY_UTIL": "utilization/memory",
    "DCGM_FI_DEV_SM_CLOCK": "clocks/sm",
    "DCGM_FI_DEV_MEM_CLOCK": "clocks/memory",
    "DCGM_FI_DEV_FB_USED": "fb_memory_usage/used",
    "DCGM_FI_DEV_FB_FREE": "fb_memory_usage/free",
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": "ecc_errors/volatile/single_bit/total",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "ecc_errors/volatile/double_bit/total",
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": "ecc_errors/aggregate/single_bit/total",
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": "ecc_errors/aggregate/double_bit/total",
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": "remapped_rows/correctable_error",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": "remapped_rows/uncorrectable_error",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": "remapped_rows/remapping_failure_occurred",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "pci/replays_since_reset",
}
_FLAGS = ("DCGM_FI_DEV_ROW_REMAP_FAILURE",)
_SEVERAL = "dcgm-exporter: the metrics of several nodes in one text: show those of the node that is judged"
_EXACT = 1e15
_XID = "DCGM_FI_DEV_XID_ERRORS"


def _read(block: Block) -> Part:
    gpus: dict[int, GpuDump] = {}
    reported: list[str] = []
    hosts: set[str] = set()
    for line in block.lines:
        series = _SERIES.match(line)
        labels = dict(_LABEL.findall(series[2])) if series is not None else {}
        # the series of a MIG instance are not those of its GPU
        if series is None or not labels.get("gpu", "").isdecimal() or "GPU_I_ID" in labels:
            continue
        index = int(labels["gpu"][:6])
        if index not in gpus and len(gpus) >= MOST_GPUS:
            continue
        bus_id = labels.get("pci_bus_id", "")
        named = short_bus_id(bus_id) if re.fullmatch(BUS_ID, bus_id) else f"unknown-{index}"
        hosts.add(clipped(labels.get("Hostname", "")))
        gpu = gpus.setdefault(index, GpuDump(named, {}))
        values, uuid = gpu.values, clipped(labels.get("UUID", ""))
        if len(hosts) > 1 or gpu.bus_id != named or values.get("uuid", uuid) != uuid:
            return Part(reported=(_SEVERAL,))
        values |= {"product_name": clipped(labels.get("modelName", "")), "uuid": uuid}
        field, number = series[1], series[3]
        if field == _XID and float(number):
            reported.append(f"dcgm-exporter: the last Xid of GPU {index} is {float(number):.0f} (see dmesg)")
        elif field in _PATHS:
            value = float(number)
            whole = str(int(value)) if value.is_integer() and abs(value) < _EXACT else number
            values[_PATHS[field]] = ("Yes" if float(number) else "No") if field in _FLAGS else whole
    if not gpus:
        return Part(notes=("dcgm-exporter: no series of a GPU",))
    made = {index: gpu_from(gpu, index) for index, gpu in gpus.items()}
    return Part(smi=(numbered(made, "dcgm-exporter"),), reported=tuple(reported))


DCGM_EXPORTER = TextReader(
    "dcgm-exporter",
    lambda line: _SERIES.match(line) or _COMMENT.match(line),
    _COMMENT.match,
    _read,
)
