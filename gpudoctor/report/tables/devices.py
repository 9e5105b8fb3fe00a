"""Figures of each rank and each GPU: names of ranks, the DDP train, compute, telemetry while a probe ran, and burns."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpudoctor.checks.measured.under_load import event_share, percent
from gpudoctor.facts.model.measured_hardware import ComputeRank
from gpudoctor.facts.model.measurements import Measurements, Training, TrainRank
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.model.telemetry import GpuCounters, GpuUnderLoad, Telemetry, WrongResult
from gpudoctor.report.tables.table import NOT_KNOWN, Column, Table, cell
from gpudoctor.text.units import MIB, gib_text, whole_mib_text

RankName = Callable[[int], str]
STEP_PARTS = ("compute", "wait", "data", "other")
# clock event reasons that cost speed, in short words; the others are normal on a healthy GPU
_HELD_BACK = {
    "hw-thermal": "HW thermal",
    "hw-power-brake": "HW brake",
    "sw-thermal": "SW thermal",
    "hw-slowdown": "slowdown",
    "sw-power-cap": "power cap",
}
_LEAST_SHARE = 0.01
_TITLES = ("GPU", "busy", "range", "SM clock", "power", "temp", "memory", "PCIe", "held back by")
_WIDTHS = (3, 5, 6, 8, 6, 4, 8, 5, 0)  # with two spaces before each, 79 columns including the longest reason


def plain_name(rank: int) -> str:
    """The name of a rank in the text report."""
    return f"rank {rank}"


def rank_name(measured: Measurements, rank: int, *, long: bool = False) -> str:
    """ "GPU 5" for a rank on it ("rank 2, GPU 5" if `long`); "rank 2" for a CPU rank."""
    infos = measured.launch.ranks if measured.launch else ()
    gpu = next((info.gpu for info in infos if info.rank == rank), None)
    if gpu is None:
        return f"rank {rank}"
    return f"rank {rank}, GPU {gpu}" if long else f"GPU {gpu}"


def gpu_of_rank(measured: Measurements, node: Node | None, rank: int) -> int | None:
    """NVML's index of the GPU of a rank: by UUID or bus id, else as the rank reported it; None for CPU ranks."""
    launch = measured.launch
    info = next((info for info in launch.ranks if info.rank == rank), None) if launch else None
    if info is None or info.device != "cuda":
        return None
    for gpu in node.gpus if node is not None else ():
        if (info.uuid is not None and gpu.uuid == info.uuid) or (info.bus_id is not None and gpu.bus_id == info.bus_id):
            return gpu.index
    return info.gpu if info.uuid is None and info.bus_id is None else None


def screen_name(measured: Measurements, node: Node | None, rank: int) -> str:
    """ "GPU 5", by NVML's index, for a rank on a GPU; "rank 2" for a CPU rank."""
    gpu = gpu_of_rank(measured, node, rank)
    return f"rank {rank}" if gpu is None else f"GPU {gpu}"


def on_cpus(measured: Measurements) -> bool:
    """Whether all ranks were CPU ranks."""
    launch = measured.launch
    return launch is not None and not any(info.device == "cuda" for info in launch.ranks)


def step_parts_ms(rank: TrainRank) -> tuple[float, float, float, float]:
    """Each millisecond of a timed step, in the order of `STEP_PARTS`; their sum is the fetch of data and the step.

    Compute and wait are timed apart from the step; what they leave of it is "other". It is below zero if they took
    longer apart.
    """
    return rank.compute_ms, rank.wait_ms, rank.data_ms, rank.step_ms - rank.compute_ms - rank.wait_ms


def training_words(training: Training) -> list[str]:
    """Sentences for all formats: what was trained, the time of a plain step, and what a timed step is."""
    parts = [
        f"{training.world_size} x {training.batch_per_rank} samples a step, "
        f"{training.parameters / 1e6:.2f} M parameters, {training.steps} measured steps."
    ]
    plain, rate, alone = (known(v) for v in (training.steady_step_ms, training.samples_per_s, training.solo_step_ms))
    if plain is not None and rate is not None:
        one = "" if alone is None else f"; one rank alone {alone:.2f} ms"
        parts.append(f"Plain step, back to back as a training runs it: {plain:.2f} ms, {rate:.0f} samples/s{one}.")
    return [
        *parts,
        "Timed step, each begun together: data to fetch, compute, wait for other ranks, and other: "
        "communication that compute does not hide, and the optimizer.",
    ]


def training_table(training: Training, name: RankName, not_finite: str = "not finite") -> Table:
    """Medians of a timed step by rank; `not_finite` is shown for a loss that was not finite."""

    def loss(value: float | None) -> str:
        return not_finite if value is None else f"{value:.3f}"

    parts = (f"{part} ms" for part in STEP_PARTS)
    titles = ("rank", *parts, "timed step ms", "came last", "memory peak MiB", "first", "last")
    rows = (
        (
            name(rank.rank),
            *(f"{ms:.2f}" for ms in (*step_parts_ms(rank), rank.data_ms + rank.step_ms)),
            f"{rank.last_in_share:.0%}",
            cell(rank.memory_peak_mib, ".0f"),
            loss(rank.loss_first),
            loss(rank.loss_last),
        )
        for rank in training.ranks
    )
    return Table(tuple(map(Column, titles)), tuple(rows))


def compute_table(ranks: Iterable[ComputeRank], name: RankName, rate: str) -> Table:
    """Products in TFLOP/s, copy and triad in GB/s, whether repeats gave the same bits, and the memory pattern."""
    titles = ("rank", "products TFLOP/s", "copy GB/s", "triad GB/s", "repeats", "bits", "memory pattern")
    rows = (
        (
            name(each.rank),
            ", ".join(f"{gemm.dtype} {gemm.tflops:.3g}" for gemm in each.gemms) or NOT_KNOWN,
            cell(each.copy_gb_s, rate),
            cell(each.triad_gb_s, rate),
            NOT_KNOWN if not each.fingerprints else "same" if len(set(each.fingerprints)) == 1 else "NOT STEADY",
            each.fingerprints[0][:8] if each.fingerprints else NOT_KNOWN,
            _pattern(known(each.pattern_bytes), known(each.pattern_wrong_bytes)),
        )
        for each in ranks
    )
    return Table(tuple(map(Column, titles)), tuple(rows))


def _pattern(covered: int | None, wrong: int | None) -> str:
    if covered is None:
        return NOT_KNOWN
    return f"{whole_mib_text(covered)}, " + ("not compared" if wrong is None else f"{wrong} bytes wrong")


def telemetry_table(telemetry: Telemetry) -> Table:
    """A row per GPU: medians, except for PCIe and memory, where the highest value is the most useful."""
    columns = (Column(title, width, left=title == _TITLES[-1]) for title, width in zip(_TITLES, _WIDTHS, strict=True))
    return Table(tuple(columns), tuple(_cells(gpu) for gpu in telemetry.gpus))


def sample_count(telemetry: Telemetry) -> str:
    """How often the GPUs were sampled: "20", or "19 to 20" if that differs."""
    counts = [gpu.samples for gpu in telemetry.gpus] or [0]
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def _cells(gpu: GpuUnderLoad) -> tuple[str, ...]:
    def median(name: str, unit: str) -> str:
        spread = gpu.readings.get(name)
        return NOT_KNOWN if spread is None else f"{spread.median:.0f} {unit}"

    busy = gpu.readings.get("utilization_pct")
    memory, generation, width = (
        gpu.readings.get(name) for name in ("memory_used_mib", "pcie_generation", "pcie_width")
    )
    return (
        str(gpu.index),
        median("utilization_pct", "%"),
        NOT_KNOWN if busy is None else f"{busy.low:.0f}-{busy.high:.0f}",
        median("sm_mhz", "MHz"),
        median("power_w", "W"),
        median("temperature_c", "C"),
        NOT_KNOWN if memory is None else gib_text(memory.high * MIB),
        NOT_KNOWN if generation is None or width is None else f"{generation.high:.0f} x{width.high:.0f}",
        _held_back(gpu),
    )


def _held_back(gpu: GpuUnderLoad) -> str:
    """The reason that slowed the GPU longest, with its share of the time."""
    if not gpu.samples or "event_reasons" in gpu.unread:
        return NOT_KNOWN
    shares = {label: event_share(gpu, reason) for reason, label in _HELD_BACK.items()}
    longest = max(shares, key=lambda label: shares[label])
    return f"{longest} {percent(shares[longest])}" if shares[longest] >= _LEAST_SHARE else "none"


def wrong_text(wrong: WrongResult) -> str:
    """A wrong result of a burn, with its round."""
    return f"WRONG in round {wrong.round + 1} (until {wrong.at_s:.0f} s): {wrong.text}"


def growth_text(gpu: GpuCounters) -> str:
    """By how much each counter of a GPU grew during a burn; empty if none was read."""
    return ", ".join(f"{name.replace('_', ' ')} +{count}" for name, count in gpu.growth.items())
