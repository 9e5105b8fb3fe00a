"""The host and the job on the GPUs, and whether the job uses its GPUs evenly."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median_high

from gpudoctor.facts.model.missing import known
from gpudoctor.facts.stream.messages import HostTick
from gpudoctor.report.tables.table import cell
from gpudoctor.text.grouped import grouped
from gpudoctor.text.output import printable
from gpudoctor.text.units import MIB, gib_number, gib_text, option_ranges, rounded_duration_text
from gpudoctor.tui.panes.pane import DrawnLines
from gpudoctor.tui.state import State
from gpudoctor.tui.widgets.lines import Row, Run, cut, length, row

# as in train.utilization and train.memory, so that screen and verdict agree
APART_PCT = 20.0
APART_SHARE, APART_MIB = 0.02, 256.0
STEADY_PCT = 20.0  # NVML's value jumps by 10 from one second to the next under constant load
LOOKED_BACK_S = 60.0
_LEAST_SAMPLES = 5


class HostLines(DrawnLines):
    """A line on the machine and one on the job."""

    def _draw(self, state: State, width: int, height: int) -> None:
        self.show_rows(host_rows(state, width)[:height])


def host_rows(state: State, width: int) -> list[Row]:
    """Two rows, machine and job; a dash for what could not be read, shorter words if the width is too small."""
    job = _job(state, short=False)
    return [cut(_host(state), width), cut(job if length(job.runs) <= width else _job(state, short=True), width)]


def _host(state: State) -> Row:
    host = state.host or HostTick()
    facts = state.node.host if state.node is not None else None
    cpus = host.cpus or (known(facts.cpus_usable) if facts else None)
    busy = "-" if host.cpu_pct is None else f"{host.cpu_pct:.0f} %"
    total = host.ram_total_mib or (known(facts.ram_mib) if facts else None)
    cost_ms = state.tick.cost_ms if state.tick is not None else None
    runs: list[Run | str] = [
        (" CPU ", "dim"),
        f"{busy} of {cpus if cpus is not None else '-'}",
        ("   RAM ", "dim"),
        f"{_gib(host.ram_used_mib)}/{_gib(total)} GiB",
        ("   load ", "dim"),
        cell(host.load_1min, ".1f"),
    ]
    if cost_ms is not None:
        runs += [("   watch ", "dim"), f"{cost_ms:.1f} ms" if cost_ms < 10 else f"{cost_ms:.0f} ms", " a tick"]
    return row(*runs)


def _gib(mib: float | None) -> str:
    return "-" if mib is None else gib_number(mib * MIB, 0)


def _job(state: State, *, short: bool) -> Row:
    if state.processes is None:
        return row((" processes not read", "dim"))
    computing = [process for process in state.processes if "C" in process.kind or "M" in process.kind]
    if not computing:
        return row((" no job on the GPUs", "dim"))
    jobs = grouped(((process.job, process.user), process) for process in computing)
    (job, user), held = max(jobs.items(), key=lambda each: (each[0][0] is not None, len(each[1])))
    gpus = sorted({process.gpu for process in held})
    ranks = len({process.rank for process in held if process.rank is not None})
    name = printable(job or held[0].name or "a process")
    by = f" by {printable(user)}" if user else ""
    many = f", {ranks} ranks" if ranks > 1 else f", {len(held)} processes" if len(held) > 1 else ""
    more = f" (and {len(jobs) - 1} more)" if len(jobs) > 1 else ""
    runs: list[Run | str] = [" ", (f"{name}{by}", "strong"), f"{many} on GPU {option_ranges(gpus)}{more}"]
    if len(gpus) > 1:
        runs += [": ", *_balance(state, gpus, short=short)]
    return row(*runs)


def _balance(state: State, gpus: list[int], *, short: bool) -> list[Run | str]:
    """Similar utilisation, balanced memory, little fluctuation; each only if no reading is missing.

    Beside a lost GPU, which may have been the job's, nothing is balanced: the others wait for it at 100 %.
    """
    if state.lost:
        waiting = "" if short else ", they may only wait for it"
        return [(f"GPU {option_ranges(sorted(state.lost))} lost{waiting}", "fail")]
    parts: list[Run | str] = []
    for part in (_utilization(state, gpus), _memory(state, gpus), _steadiness(state, gpus)):
        if part is not None:
            text, style = part
            if short:
                text = text.replace("utilisation", "util").replace("memory", "mem").partition(" over")[0]
                text = text.partition(" (")[0] if style == "ok" else text
            parts += [", ", (text, style)] if parts else [(text, style)]
    return parts


def _readings(state: State, gpus: Iterable[int], name: str) -> dict[int, float] | None:
    """The reading of each of these GPUs; None if any is missing, because the rest alone proves nothing."""
    read: dict[int, float] = {}
    for gpu in gpus:
        tick = state.latest.get(gpu)
        if gpu in state.lost or tick is None or name not in tick.readings:
            return None
        read[gpu] = tick.readings[name]
    return read


def _utilization(state: State, gpus: list[int]) -> Run | None:
    read = _readings(state, gpus, "utilization_pct")
    if read is None:
        return "utilisation not read on every GPU", "dim"
    low, high = min(read.values()), max(read.values())
    if high - low <= APART_PCT:
        between = f"{low:.0f}" if round(low) == round(high) else f"{low:.0f}-{high:.0f}"
        return f"utilisation alike ({between} %)", "ok"
    outlier = max(read, key=lambda gpu: abs(read[gpu] - median_high(read.values())))
    rest = [value for gpu, value in read.items() if gpu != outlier]
    others = max(rest) if read[outlier] < max(rest) else min(rest)
    return f"utilisation uneven (GPU {outlier} {read[outlier]:.0f} %, others to {others:.0f} %)", "warn"


def _memory(state: State, gpus: list[int]) -> Run | None:
    read = _readings(state, gpus, "memory_used_mib")
    if read is None:
        return None
    low, high = min(read.values()), max(read.values())
    if high - low <= max(APART_MIB, APART_SHARE * median_high(read.values())):
        return f"memory balanced ({gib_text(high * MIB)})", "ok"
    return f"memory uneven ({gib_number(low * MIB)} to {gib_text(high * MIB)})", "warn"


def _steadiness(state: State, gpus: list[int]) -> Run | None:
    """The range of utilisation within the last minute, on the GPU where it is largest."""
    end_s = state.tick.at_s if state.tick is not None else 0.0
    swings: dict[int, float] = {}
    seen_s = LOOKED_BACK_S
    for gpu in gpus:
        recent, first_s = [], end_s
        for at_s, value in reversed(state.history.get((gpu, "utilization_pct"), ())):
            if at_s < end_s - LOOKED_BACK_S:
                break
            recent.append(value)
            first_s = at_s
        if len(recent) < _LEAST_SAMPLES:
            return None
        swings[gpu] = max(recent) - min(recent)
        seen_s = min(seen_s, end_s - first_s)
    most = max(swings, key=lambda gpu: swings[gpu])
    if swings[most] <= STEADY_PCT:
        return f"steady over {rounded_duration_text(seen_s)}", "ok"
    return f"fluctuates by {swings[most]:.0f} % (GPU {most}) over {rounded_duration_text(seen_s)}", "warn"
