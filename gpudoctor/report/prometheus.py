"""The report as Prometheus text for node_exporter's textfile collector, and whether the collector reads the file."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple, get_args

from gpudoctor.checks.core.finding import WORST_FIRST, Finding, Status, worst
from gpudoctor.checks.core.subject import Subject
from gpudoctor.facts.system.services import NodeExporter
from gpudoctor.report.model import Report, Verdict, suppressed_in
from gpudoctor.text.grouped import grouped
from gpudoctor.text.units import GIB, KIB, MIB

# suffixes that Prometheus reserves for other types of metric than gauges
_RESERVED = ("total", "count", "sum", "bucket", "info", "created")
# a check's unit -> the base unit, and the factors that convert to it: times, divided by
# https://prometheus.io/docs/practices/naming/#base-units
_BASE: dict[str | None, tuple[str, float, float]] = {
    "C": ("celsius", 1, 1),
    "W": ("watts", 1, 1),
    "s": ("seconds", 1, 1),
    "ms": ("seconds", 1, 1e3),
    "us": ("seconds", 1, 1e6),
    "minutes": ("seconds", 60, 1),
    "hours": ("seconds", 3600, 1),
    "days": ("seconds", 86400, 1),
    "B": ("bytes", 1, 1),
    "KiB": ("bytes", KIB, 1),
    "MiB": ("bytes", MIB, 1),
    "GiB": ("bytes", GIB, 1),
    "MB/s": ("bytes_per_second", 1e6, 1),
    "GB/s": ("bytes_per_second", 1e9, 1),
    "Gbit/s": ("bytes_per_second", 1e9, 8),
    "GT/s": ("transfers_per_second", 1e9, 1),
    "TFLOP/s": ("flop_per_second", 1e12, 1),
    "MHz": ("hertz", 1e6, 1),
    "per minute": ("per_second", 1, 60),
    "%": ("ratio", 1, 100),
    "share": ("ratio", 1, 1),
    None: ("number", 1, 1),  # a code such as an Xid's, a loss
}
Labels = dict[str, str]
Sample = tuple[Labels, float]

VERDICTS: tuple[str, ...] = get_args(Verdict)


class MetricUnit(NamedTuple):
    """The suffix of a metric's name, and the factors that convert a number to the metric's unit."""

    suffix: str
    times: float = 1
    divided_by: float = 1

    def convert(self, value: float) -> float:
        return value * self.times / self.divided_by


def metric_unit(unit: str | None) -> MetricUnit:
    """The base unit of a check's unit; counted things (lanes, open files) are units themselves."""
    if unit in _BASE:
        return MetricUnit(*_BASE[unit])
    text = re.sub(r"[^a-z0-9]+", "_", (unit or "").lower()).strip("_")
    if not text:
        return MetricUnit(*_BASE[None])
    return MetricUnit(f"{text}_unit" if text.rpartition("_")[2] in _RESERVED else text)


class Family(NamedTuple):
    """One gauge; all its samples have the same label names."""

    name: str
    text: str
    samples: tuple[Sample, ...]


def render_prometheus(report: Report) -> str:
    """The metrics as text: low cardinality, so no pids or messages. All of a simulated node have simulated="true"."""
    lines: list[str] = []
    for name, text, samples in families(report):
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        lines += [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def families(report: Report) -> Iterator[Family]:
    """The metrics of a report that have samples, for `render_prometheus` and the agent."""
    mark, run = {"simulated": "true"} if report.simulated else {}, report.run
    # no number of faults if nothing was judged: 0 would look healthy
    judged = report.error is None
    faults, suppressed = (len(report.faults), suppressed_in(report.checks)) if judged else (None, None)
    labels = {"version": report.tool.version, "level": run.level, "source": run.source.kind}
    started = datetime.datetime.fromisoformat(run.started_at).timestamp() if run.started_at else None
    every: tuple[tuple[str, str, Iterable[Sample]], ...] = (
        # every verdict, so that sums over nodes are 0 instead of absent
        ("gpudoctor_verdict", "Verdict on the node (state set).", verdict_states(report.verdict)),
        ("gpudoctor_check_status", "The status that each check has on each GPU.", _states(report)),
        *_numbers(report),
        ("gpudoctor_faults", "Faults: failed findings that nothing else explains.", _one(faults)),
        ("gpudoctor_suppressed_findings", "Findings that the configuration sets aside.", _one(suppressed)),
        ("gpudoctor_gpu_info", "The GPUs of the node.", _gpus(report)),
        ("gpudoctor_collective_busbw_bytes_per_second", "Measured bus bandwidth.", _collectives(report)),
        ("gpudoctor_ddp_compute_seconds", "Compute time of a DDP step on each rank.", _ranks(report)),
        ("gpudoctor_run_info", "Which gpudoctor judged what.", [(labels, 1)]),
        ("gpudoctor_run_exit_code", "Exit code of the run.", _one(report.exit_code)),
        ("gpudoctor_run_duration_seconds", "Duration of the run.", _one(run.duration_s)),
        ("gpudoctor_run_timestamp_seconds", "When the run started, Unix time.", _one(started)),
    )
    for name, text, samples in every:
        marked = tuple(({**labels, **mark}, value) for labels, value in samples)
        if marked:
            yield Family(name, text, marked)


def _one(value: float | None) -> list[Sample]:
    return [] if value is None else [({}, value)]


def verdict_states(verdict: str) -> Iterator[Sample]:
    """The verdict as a state set."""
    for state in VERDICTS:
        yield {"verdict": state}, 1 if state == verdict else 0


def statuses(report: Report) -> Iterator[tuple[str, str, str, Status]]:
    """(check, GPU, UUID, status) of each check on each GPU; GPU and UUID are "" for the node itself."""
    uuids = _uuids(report)
    for result in report.checks:
        by_gpu = grouped((_gpu_label(finding), finding.status) for finding in result.findings)
        for gpu, found in by_gpu.items():
            yield result.id, gpu, uuids.get(gpu, ""), worst(found)


def _states(report: Report) -> Iterator[Sample]:
    for check, gpu, uuid, status in statuses(report):
        yield {"check": check, "gpu": gpu, "uuid": uuid, "status": status.value}, 1


def _numbers(report: Report) -> Iterator[tuple[str, str, list[Sample]]]:
    """One metric per base unit, so that sums and means over a metric make sense.

    If a check has several numbers for one subject and base unit, it is the worst.
    """
    uuids = _uuids(report)
    values: dict[str, list[Sample]] = {}
    thresholds: dict[str, list[Sample]] = {}
    for result in report.checks:
        reported: set[tuple[str, str, str]] = set()
        for finding in sorted(result.findings, key=lambda finding: WORST_FIRST.index(finding.status)):
            found, expected = finding.found, finding.expected
            if found is None or not isinstance(found.value, (int, float)):
                continue
            gpu, part, unit = _gpu_label(finding), _part(finding.subject), metric_unit(found.unit)
            if (gpu, part, unit.suffix) in reported:
                continue
            reported.add((gpu, part, unit.suffix))
            labels = {"check": result.id, "gpu": gpu, "uuid": uuids.get(gpu, ""), "part": part}
            values.setdefault(unit.suffix, []).append((labels, unit.convert(found.value)))
            if expected is not None and isinstance(expected.value, (int, float)) and expected.unit == found.unit:
                limit = {**labels, "op": expected.op or ""}, unit.convert(expected.value)
                thresholds.setdefault(unit.suffix, []).append(limit)
    for suffix, samples in sorted(values.items()):
        yield f"gpudoctor_check_value_{suffix}", "What a check found, in the unit of the name.", samples
    for suffix, samples in sorted(thresholds.items()):
        yield f"gpudoctor_check_threshold_{suffix}", "What a check held the value against.", samples


def _uuids(report: Report) -> dict[str, str]:
    return {str(gpu.index): gpu.uuid or "" for gpu in report.gpus}


def _part(subject: Subject) -> str:
    """The part of a GPU or node, if the subject is one: "link 3", "GPU 1 - GPU 4", "rank 2", "mlx5_0"; else ""."""
    if subject.kind == "link":
        return f"link {subject.link}"
    if subject.kind == "rank":
        return f"rank {subject.rank}"
    return subject.label if subject.kind in ("pair", "nic", "path") else ""


def _gpu_label(finding: Finding) -> str:
    return "" if finding.subject.gpu is None else str(finding.subject.gpu)


def _gpus(report: Report) -> Iterator[Sample]:
    for gpu in report.gpus:
        bus_id = gpu.bus_id_read or ""
        yield {"gpu": str(gpu.index), "uuid": gpu.uuid or "", "name": gpu.name or "", "pci_bus_id": bus_id}, 1


def _collectives(report: Report) -> Iterator[Sample]:
    launch = report.measurements.launch
    for row in report.measurements.collectives:
        backend = launch.backend if launch else ""
        world = str(launch.world_size) if launch else ""
        labels = {"op": row.op, "size_bytes": str(row.size_bytes), "world_size": world, "backend": backend}
        yield labels, row.busbw_gb_s * 1e9


def _ranks(report: Report) -> Iterator[Sample]:
    training = report.measurements.training
    for rank in training.ranks if training else ():
        yield {"rank": str(rank.rank), "device": training.device if training else ""}, rank.compute_ms / 1e3


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    clean = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return "".join(c for c in clean if c.isprintable())


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def why_not_read(file: Path, exporters: Sequence[NodeExporter]) -> str | None:
    """One line with the reason if node_exporter runs and does not read the file; None if it does or does not run."""
    if not exporters:
        return None
    folder = os.path.realpath(file.parent)
    read = [place for exporter in exporters for place in exporter.folders]
    who = f"node_exporter (process {exporters[0].pid})"
    if not read:
        return f"{who} reads no folder: start it with --collector.textfile.directory={folder} for it to see {file}"
    if not any(PurePath(folder).match(os.path.realpath(place)) for place in read):
        folders = ", ".join(place[:200] for place in read[:3])
        return f"{who} reads {folders}: it does not see {file}; write there, or give it this folder"
    if file.suffix != ".prom":
        return f"{who} reads files that end in .prom: it does not see {file}"
    return None
