"""GPU faults that depend on the node, so that a list of leaves in faults.yaml cannot express them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gpudoctor.facts.deadlines import CALL
from gpudoctor.facts.model.gpu import CallError, GpuProcess
from gpudoctor.facts.model.links import GT_S
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node, Unanswered
from gpudoctor.facts.simulated.edits import (
    Target,
    change,
    each,
    each_hop,
    each_pair,
    on_slot,
    pattern,
    put_all,
    target_gpu,
    without_target,
)
from gpudoctor.facts.simulated.load import put

_STALL_S = 7.0
_OWN_MIB = 4_096  # of the memory of a GPU that runs a job
_OF_THE_LIMIT = 0.7  # and of the power it may draw
_WARMER_C = 15


@pattern("without-gpu")
def _without_gpu(node: Node, target: Target) -> Node:
    """The driver no longer counts the GPU; NVML renumbers the GPUs after it."""
    node = without_target(node, target)
    order = {index: new for new, index in enumerate(sorted(gpu.index for gpu in node.gpus))}
    node = each(node, lambda gpu: replace(gpu, index=order[gpu.index]))
    node = each_pair(node, lambda pair: replace(pair, a=order[pair.a], b=order[pair.b]))
    return put(node, "driver.device_count", len(node.gpus))


@pattern("drained")
def _drained(node: Node, target: Target) -> Node:
    bus_id = target_gpu(node, target).bus_id
    drained = (*(known(node.driver.drained_gpus) or ()), bus_id)
    return put(_without_gpu(node, target), "driver.drained_gpus", drained)


@pattern("off-pci")
def _off_pci(node: Node, target: Target) -> Node:
    missing = target_gpu(node, target).bus_id
    if devices := known(node.pci.nvidia_devices):
        node = put(node, "pci.nvidia_devices", tuple(device for device in devices if device.bus_id != missing))
    return _without_gpu(node, target)


@pattern("lost")
def _lost(node: Node, target: Target) -> Node:
    """About 25 getters fail with 15; identity, PCIe, NVLink and throttle reasons keep returning old values."""
    calls = tuple(f"nvmlDeviceGet{what}" for what in ("Temperature", "PowerUsage", "MemoryInfo_v2", "EccMode"))
    hop = {
        "width": Missing("current_link_width reads '63'", "failed"),
        "speed_gt_s": Missing("current_link_speed reads 'Unknown'", "failed"),
    }
    lost = target.gpu
    node = each(node, lambda g: each_hop(g, lambda at, h: h if at else replace(h, **hop)) if g.index == lost else g)
    leaves = (
        *("thermal.gpu_c", "thermal.memory_c", "thermal.margin_c", "power.draw_w"),
        *("memory_used_mib", "memory_free_mib", "ecc.enabled", "ecc.pending", "ecc.uncorrected_volatile"),
        *("utilization.gpu_pct", "utilization.memory_pct", "processes"),
    )
    node = change(node, target, dict.fromkeys(leaves, Missing("GPU is lost (15)", "failed")))
    return change(node, target, {"errors": tuple(CallError(call, 15, "GPU is lost") for call in calls)})


@pattern("stall")
def _stall(node: Node, target: Target) -> Node:
    """One call takes long and then returns; if it takes longer than a reader waits, it looks like a hang."""
    took_s = target.seconds or _STALL_S
    if took_s > CALL.seconds:
        return _hang(node, target)
    slowest = f"nvmlDeviceGetFieldValues on GPU {target.gpu}"
    return put_all(node, {"driver.slowest_call": slowest, "driver.slowest_call_s": took_s})


@pattern("hang")
def _hang(node: Node, target: Target) -> Node:
    """One call never returns, so the calls after it were not made."""
    call = Unanswered("nvmlDeviceGetFieldValues", target.gpu, CALL.seconds)
    node = put(node, "driver.unanswered", (*node.driver.unanswered, call))
    silent = Missing(f"nvmlDeviceGetFieldValues did not return within {CALL.seconds:g} s", "failed")
    leaves = (
        *("recovery_action", "processes", "utilization.gpu_pct", "utilization.memory_pct"),
        *("thermal.memory_c", "nvlinks"),
    )
    return change(node, target, dict.fromkeys(leaves, silent))


@pattern("hot")
def _hot(node: Node, target: Target) -> Node:
    """20 C above the other GPUs at the same power, still below the limits."""
    others = [known(gpu.thermal.gpu_c) or 30 for gpu in node.gpus if gpu.index != target.gpu]
    gpu = target_gpu(node, target)
    now = known(gpu.thermal.gpu_c) or 30
    hot = sorted(others)[len(others) // 2] + 20
    leaves: dict[str, Any] = {"thermal.gpu_c": hot}
    margin = known(gpu.thermal.margin_c)
    if margin is not None:
        leaves["thermal.margin_c"] = max(margin - (hot - now), 5)
    return change(node, target, leaves)


@pattern("overheated")
def _overheated(node: Node, target: Target) -> Node:
    """At the slowdown temperature: the hardware halves the clocks, and the counters increase."""
    thermal = target_gpu(node, target).thermal
    slowdown = known(thermal.slowdown_c)
    start = known(thermal.slowdown_margin_c)
    leaves = {
        "thermal.gpu_c": slowdown + 1 if slowdown is not None else 90,
        "throttle_times.hw_thermal_us": 93_551_200,
        "throttle_times.sw_thermal_us": 412_903_118,
    }
    if start is not None:
        leaves["thermal.margin_c"] = start - 1
    if known(thermal.memory_c) is not None:
        leaves["thermal.memory_c"] = 98
    return _slowed(change(node, target, leaves), target)


@pattern("slowed")
def _slowed(node: Node, target: Target) -> Node:
    """Busy at half the clock, as in a hardware slowdown."""
    half = (known(target_gpu(node, target).clocks.sm_max_mhz) or 1980) // 2
    return change(_at_clock(node, target, half), target, {"clocks.performance_state": 0})


def _at_clock(node: Node, target: Target, mhz: int) -> Node:
    return change(node, target, {"clocks.sm_mhz": mhz, "clocks.graphics_mhz": mhz})


@pattern("locked")
def _locked(node: Node, target: Target) -> Node:
    """All GPUs run at full clocks except this one, whose clock is locked at a fifth."""
    for gpu in node.gpus:
        node = _awake(node, Target(gpu.index))
    return _at_clock(node, target, (known(target_gpu(node, target).clocks.sm_max_mhz) or 1980) // 5)


@pattern("awake")
def _awake(node: Node, target: Target) -> Node:
    """Running the user's job: full clocks, memory and power, and a PCIe link that left its power-saving state."""
    gpu = target_gpu(node, target)
    most = known(gpu.clocks.sm_max_mhz) or 1980
    memory = known(gpu.clocks.memory_max_mhz)
    busy: dict[str, Any] = {"clocks.sm_mhz": most, "clocks.graphics_mhz": most, "clocks.performance_state": 0}
    if gpu.clocks.event_reasons == ("idle",):
        busy["clocks.event_reasons"] = ()
    if memory is not None:
        busy["clocks.memory_mhz"] = memory
    if known(gpu.utilization.gpu_pct) is not None:
        busy |= {"utilization.gpu_pct": 98, "utilization.memory_pct": 40}
    if gpu.processes == ():
        owner = GpuProcess(pid=70_000 + gpu.index, name="python3", memory_mib=_OWN_MIB, user="ada", is_own=True)
        busy["processes"] = (owner,)
        used, free = known(gpu.memory_used_mib), known(gpu.memory_free_mib)
        if used is not None and free is not None and free >= _OWN_MIB:
            busy |= {"memory_used_mib": used + _OWN_MIB, "memory_free_mib": free - _OWN_MIB}
    limit_w, draw_w = known(gpu.power.limit_w), known(gpu.power.draw_w)
    if limit_w is not None and draw_w is not None:
        busy["power.draw_w"] = max(draw_w, round(limit_w * _OF_THE_LIMIT, 1))
    if (celsius := known(gpu.thermal.gpu_c)) is not None:
        busy["thermal.gpu_c"] = celsius + _WARMER_C
    node = change(node, target, busy)
    generation = known(gpu.pcie.generation_max)
    return node if generation is None else _at_generation(node, target, generation)


def _at_generation(node: Node, target: Target, generation: int) -> Node:
    node = change(node, target, {"pcie.generation": generation})
    return each(node, lambda g: on_slot(g, {"speed_gt_s": GT_S[generation]}) if g.index == target.gpu else g)


@pattern("half-power")
def _half_power(node: Node, target: Target) -> Node:
    gpu = target_gpu(node, target)
    default = known(gpu.power.default_limit_w) or 300.0
    limit = max(round(default * 0.6), known(gpu.power.min_limit_w) or 0.0)
    return change(node, target, {"power.limit_w": limit, "power.requested_limit_w": limit})


@pattern("busy-slow-link")
def _busy_slow_link(node: Node, target: Target) -> Node:
    """Every GPU copies data; the links of the others sped up, this one stayed at generation 1."""
    for gpu in node.gpus:
        node = _awake(node, Target(gpu.index))
    return _at_generation(node, target, 1)


@pattern("other-model")
def _other_model(node: Node, target: Target) -> Node:
    """A smaller, similar model in one slot: name, memory, PCI ids, clocks and power differ."""
    gpu = target_gpu(node, target)
    limits = (f"power.{name}_w" for name in ("limit", "requested_limit", "default_limit", "max_limit"))
    clocks = ("clocks.sm_max_mhz", "clocks.graphics_max_mhz")
    memory = ("memory_total_mib", "memory_used_mib", "memory_free_mib")
    least_w = known(gpu.power.min_limit_w)
    leaves: dict[str, Any] = {
        "name": "NVIDIA RTX A6000",
        "pci_device_id": "0x223010de",
        "pci_subsystem_id": "0x145910de",
        "vbios": "94.02.5C.00.02",
        "memory_total_mib": 24_576 // 2,
        **{leaf: size // 2 for leaf in memory if (size := known(getattr(gpu, leaf))) is not None},
        **dict.fromkeys(limits, (known(gpu.power.default_limit_w) or 300.0) * 0.75),
        **({} if least_w is None else {"power.min_limit_w": least_w * 0.75}),
        **dict.fromkeys(clocks, (known(gpu.clocks.sm_max_mhz) or 1_980) - 200),
    }
    return change(node, target, leaves)


@pattern("leak")
def _leak(node: Node, target: Target) -> Node:
    """Memory in use without an owner, as left by a zombie or an invisible process."""
    return change(_with_share_used(node, target, 2), target, {"processes": ()})


@pattern("stranger")
def _stranger(node: Node, target: Target) -> Node:
    node = _with_share_used(node, target, 3)
    memory_mib = (known(target_gpu(node, target).memory_used_mib) or 0) - 40
    process = GpuProcess(pid=31_337, name="/opt/miner/bin/xmr", memory_mib=memory_mib, user="nobody")
    return change(node, target, {"processes": (process,), "utilization.gpu_pct": 99, "utilization.memory_pct": 60})


def _with_share_used(node: Node, target: Target, parts: int) -> Node:
    total = known(target_gpu(node, target).memory_total_mib) or 24_576
    return change(node, target, {"memory_used_mib": total // parts, "memory_free_mib": total - total // parts})
