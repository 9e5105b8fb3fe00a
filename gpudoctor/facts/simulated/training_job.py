"""A simulated training job: the readings of a simulated node's GPUs as a pure function of time.

A torchrun job with one rank per GPU starts at 0 s and saves a checkpoint every 90 s. A slow GPU makes all others wait:
their utilisation stays high in the collectives, while power and traffic fall.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, floor
from zlib import crc32

import msgspec

from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.links import lanes_gb_s
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.nvml.codes import LOST
from gpudoctor.facts.stream.messages import ProcessTick

PERIOD_S, CHECKPOINT_S = 90.0, 5.0
_POWER_S, _HEAT_S = 2.0, 25.0  # time constants of power and temperature
_NOISE_S = 3.0
_SLOWING = frozenset({"hw-slowdown", "sw-thermal", "hw-thermal", "hw-power-brake"})
_HOT_C = 80
_PCIE_SHARE, _NVLINK_SHARE, _MEMORY_SHARE = 0.8, 0.28, 0.74
_FULL_CLOCK = 0.95  # share of the maximum clock that a busy GPU sustains
_FIRST_PID = 4_190_000


def is_lost(gpu: Gpu) -> bool:
    """Whether the driver no longer reaches this GPU."""
    return any(error.code == LOST for error in gpu.errors)


class SimulatedJob(msgspec.Struct, frozen=True):
    """The job on a node: the GPUs of its ranks (NVML indices), and the speed that the slowest GPU permits."""

    ranks: tuple[int, ...]
    stalled: bool
    speed: float
    nvlink_gb_s: float
    pcie_gb_s: float


def job_of(node: Node) -> SimulatedJob:
    """The job that fits the node: it runs on the large GPUs without MIG that compute jobs may use."""
    usable = [gpu for gpu in node.gpus if _fits(gpu)]
    most = max((known(gpu.memory_total_mib) or 0 for gpu in usable), default=0)
    members = [gpu for gpu in usable if (known(gpu.memory_total_mib) or 0) >= most / 2]
    alive = [gpu for gpu in members if not is_lost(gpu)]
    return SimulatedJob(
        ranks=tuple(sorted(gpu.index for gpu in alive)),
        stalled=len(alive) < len(members),
        speed=min((_clock_share(gpu) for gpu in alive), default=1.0),
        nvlink_gb_s=min((_nvlink_gb_s(gpu) for gpu in alive), default=0.0) if len(alive) > 1 else 0.0,
        pcie_gb_s=min((pcie_gb_s(gpu) for gpu in alive), default=0.0),
    )


def _fits(gpu: Gpu) -> bool:
    settings = gpu.settings
    return settings.mig_enabled is not True and settings.compute_mode != "prohibited"


def _is_idle(gpu: Gpu) -> bool:
    """Whether the GPU is idle in the facts, so that its clocks and its link will speed up."""
    reasons = known(gpu.clocks.event_reasons)
    return (known(gpu.utilization.gpu_pct) or 0) < 50 if reasons is None else "idle" in reasons


def _limit_share(gpu: Gpu) -> float:
    limit, default = known(gpu.power.limit_w), known(gpu.power.default_limit_w)
    return limit / default if limit and default else 1.0


def _clock_share(gpu: Gpu) -> float:
    """The share of the maximum SM clock that the GPU sustains under load."""
    now, most = known(gpu.clocks.sm_mhz), known(gpu.clocks.sm_max_mhz)
    slowed = not _SLOWING.isdisjoint(known(gpu.clocks.event_reasons) or ())
    if now and most and now < 0.9 * most and (slowed or not _is_idle(gpu)):
        return now / most
    capped = _limit_share(gpu)
    return _FULL_CLOCK if capped >= 0.9 else 0.5 + 0.5 * capped


def _nvlink_gb_s(gpu: Gpu) -> float:
    """Line rate of the active links per direction."""
    links = known(gpu.nvlinks) or ()
    return sum(known(link.speed_gb_s) or 0.0 for link in links if link.is_up)


def _generation(gpu: Gpu) -> int | None:
    """The link's generation under load."""
    now, most = known(gpu.pcie.generation), known(gpu.pcie.generation_max)
    return most if most is not None and _is_idle(gpu) else now


def pcie_gb_s(gpu: Gpu) -> float:
    """PCIe bandwidth under load per direction, in 1e9 bytes per second."""
    return (lanes_gb_s(_generation(gpu), known(gpu.pcie.width)) or 0.0) * _PCIE_SHARE


def readings_at(gpu: Gpu, facts: Mapping[str, float], job: SimulatedJob, seconds: float) -> dict[str, float]:
    """The GPU's readings at this time after the start of the job; `facts`: those in its facts, by the same names."""
    power = gpu.power
    in_job = gpu.index in job.ranks
    saving = in_job and not job.stalled and _since_checkpoint(seconds) < 0
    full_w = _full_w(gpu, job)
    rest_w, rest_c = known(power.draw_w) or 0.0, known(gpu.thermal.gpu_c) or 30
    warm = _level(seconds, _HEAT_S) if in_job else 0.0
    busy = _level(seconds, _POWER_S) if in_job else 0.0

    def noise(name: str, spread: float) -> float:
        return (smooth_noise(f"{gpu.bus_id} {name}", seconds) - 0.5) * 2 * spread

    shown = {
        **facts,
        "temperature_c": rest_c + round(noise("temperature", 0.6) + warm * (_full_c(gpu, full_w) - rest_c)),
        "power_w": round(max(rest_w + busy * (full_w - rest_w), 0.0) * (1 + noise("power", 0.03)), 1),
    }
    if limit_w := known(power.limit_w):
        shown["power_w"] = min(shown["power_w"], round(limit_w * 1.01, 1))
    return shown | _of_the_job(gpu, job, shown, saving, noise) if in_job else shown


def _of_the_job(
    gpu: Gpu, job: SimulatedJob, shown: dict[str, float], saving: bool, noise: Callable[[str, float], float]
) -> dict[str, float]:
    """What a rank of the job on this GPU changes of these readings."""
    most_mhz = known(gpu.clocks.sm_max_mhz) or 0
    sm_mhz = _clock_share(gpu) * most_mhz * (1 + noise("clock", 0.012))
    own_mib = min(shown["memory_used_mib"] + job_memory_mib(gpu), 0.98 * (known(gpu.memory_total_mib) or 0))
    changed: dict[str, float] = {
        "utilization_pct": 100 if job.stalled else round(11 + noise("save", 8) if saving else 95 + noise("util", 4)),
        "memory_used_mib": round(own_mib),
        "sm_mhz": 15 * round(min(sm_mhz, most_mhz) / 15),
        "memory_mhz": known(gpu.clocks.memory_max_mhz) or shown["memory_mhz"],
        "pcie_generation": _generation(gpu) or 0,
    }
    if not job.stalled:
        changed |= _traffic(gpu, job, saving, noise("traffic", 0.15), noise("input", 0.2))
    return changed


def _traffic(gpu: Gpu, job: SimulatedJob, saving: bool, swing: float, input_swing: float) -> dict[str, float]:
    """Gradients over NVLink, or else PCIe, at the speed of the slowest link; data and checkpoints over PCIe."""
    pace = job.speed / _FULL_CLOCK
    most = pcie_gb_s(gpu)
    nvlink = 0.0 if saving else job.nvlink_gb_s * _NVLINK_SHARE * pace * (1 + swing)
    gradients = 0.0
    if not saving and not job.nvlink_gb_s and len(job.ranks) > 1:
        gradients = job.pcie_gb_s * 0.6 * pace * (1 + swing)
    data = 0.05 if saving else 1.8 * pace * (1 + input_swing)
    return {
        "pcie_rx_gb_s": round(min(most, gradients + data), 3),
        "pcie_tx_gb_s": round(min(most, gradients + (6.0 if saving else 0.3) * (1 + input_swing)), 3),
        "nvlink_rx_gb_s": round(nvlink, 3),
        "nvlink_tx_gb_s": round(nvlink * (1 + 0.02 * swing), 3),
    }


def _full_w(gpu: Gpu, job: SimulatedJob) -> float:
    """Steady-state power under the job; lower if the ranks wait for a slow one."""
    limit_w = known(gpu.power.limit_w) or 300.0
    if job.stalled:
        return limit_w * 0.4
    if _limit_share(gpu) < 0.9:
        return limit_w * 0.99
    return limit_w * (0.35 + 0.5 * min(job.speed / _FULL_CLOCK, 1.0))


def _full_c(gpu: Gpu, full_w: float) -> float:
    """Steady-state temperature under the job, below the slowdown limit; a GPU that is too hot stays so."""
    now_c = known(gpu.thermal.gpu_c) or 30
    if now_c >= _HOT_C:
        return now_c
    margin_c, slowdown_c = known(gpu.thermal.margin_c), known(gpu.thermal.slowdown_c)
    most_c = now_c + margin_c if margin_c is not None else slowdown_c if slowdown_c is not None else 90
    limit_w = known(gpu.power.limit_w) or 300.0
    return min(now_c + 42 * full_w / limit_w, max(most_c - 4, now_c))


def events_at(gpu: Gpu, job: SimulatedJob) -> tuple[str, ...]:
    """The clock event reasons under the job: not idle, and sw-power-cap if the power limit is low."""
    reasons = known(gpu.clocks.event_reasons) or ()
    if gpu.index not in job.ranks:
        return reasons
    reasons = tuple(reason for reason in reasons if reason != "idle")
    capped = _limit_share(gpu) < 0.9 and not job.stalled and "sw-power-cap" not in reasons
    return (*reasons, "sw-power-cap") if capped else reasons


def job_memory_mib(gpu: Gpu) -> int:
    return round((known(gpu.memory_total_mib) or 0) * _MEMORY_SHARE)


def ranks_at(gpus: Sequence[Gpu], job: SimulatedJob, seconds: float) -> tuple[ProcessTick, ...]:
    """The job's processes, which are named so that they cannot be mistaken for real ones."""
    shown = {gpu.index: gpu for gpu in gpus}
    return tuple(
        ProcessTick(
            gpu=index,
            pid=_FIRST_PID + rank,
            name="simulated-rank",
            user="simulated",
            memory_mib=None if isinstance(shown[index].memory_used_mib, Missing) else job_memory_mib(shown[index]),
            cpu_pct=round(110 + 60 * smooth_noise(f"cpu {rank}", seconds), 1),
            command=f"torchrun --nproc-per-node {len(job.ranks)} simulated_train.py",
            job="torchrun",
            rank=rank,
        )
        for rank, index in enumerate(job.ranks)
        if index in shown
    )


def _since_checkpoint(seconds: float) -> float:
    """Seconds since the last checkpoint ended; negative while one is being saved."""
    phase = seconds % PERIOD_S
    return phase - PERIOD_S if phase >= PERIOD_S - CHECKPOINT_S else phase


def _level(seconds: float, follows_s: float) -> float:
    """Response of a job that has run for long, 0 (idle) to 1, with this time constant: drops at each checkpoint."""
    since_s = _since_checkpoint(seconds)
    if since_s < 0:
        return exp(-(since_s + CHECKPOINT_S) / follows_s)
    if seconds < PERIOD_S:
        return 1.0
    return 1 - (1 - exp(-CHECKPOINT_S / follows_s)) * exp(-since_s / follows_s)


def smooth_noise(seed: str, seconds: float) -> float:
    """Deterministic noise from 0 to 1, smooth in time."""
    place = seconds / _NOISE_S
    step = floor(place)
    low, high = (crc32(f"{seed} {at}".encode()) / 0xFFFF_FFFF for at in (step, step + 1))
    return low + (high - low) * (place - step)
