"""The report as a Prometheus text file for node_exporter's textfile collector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, get_args

from gpudoctor.checks.core.finding import WORST_FIRST, Finding, Status, Subject, worst
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.report.model import Report, Verdict, suppressed_in

Labels = dict[str, str]
Sample = tuple[Labels, float]

# conventions of the field: base units, `_seconds`, `_bytes_per_second`; a state set has every state
STATES = tuple(status.value for status in Status)
VERDICTS: tuple[str, ...] = get_args(Verdict)


class Family(NamedTuple):
    """One metric, a gauge: every sample has the same label names."""

    name: str
    text: str
    samples: tuple[Sample, ...]


def render_prometheus(report: Report) -> str:
    """Metrics with low cardinality: no pids, no messages. A simulated node carries simulated="true"."""
    lines: list[str] = []
    for name, text, samples in families(report):
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        lines += [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def families(report: Report) -> Iterator[Family]:
    """The metrics of a report that have a sample, as `render_prometheus` writes them and the agent serves them."""
    mark = {"simulated": "true"} if report.simulated else {}
    values, thresholds = _values(report)
    every: tuple[tuple[str, str, Iterable[Sample]], ...] = (
        ("gpudoctor_verdict", "Verdict on the node (state set).", verdict_states(report.verdict)),
        ("gpudoctor_check_status", "Status of each check on each GPU (state set).", _state_sets(report)),
        ("gpudoctor_check_value", "What a check found, where that is a number.", values),
        ("gpudoctor_check_threshold", "What a check held that number against.", thresholds),
        # no number of faults where nothing was judged: 0 would look healthy
        ("gpudoctor_faults", "Faults: failed findings that nothing else explains.", _faults(report)),
        ("gpudoctor_suppressed_findings", "Findings that the configuration sets aside.", _suppressed(report)),
        ("gpudoctor_gpu_info", "The GPUs of the node.", _gpus(report)),
        ("gpudoctor_collective_busbw_bytes_per_second", "Measured bus bandwidth.", _collectives(report)),
        ("gpudoctor_ddp_compute_seconds", "Compute time of a DDP step on each rank.", _ranks(report)),
        ("gpudoctor_run_info", "Which gpudoctor judged what.", _run(report)),
        ("gpudoctor_run_exit_code", "Exit code of the run.", [({}, report.exit_code)]),
        ("gpudoctor_run_duration_seconds", "Duration of the run.", [({}, report.run.duration_s)]),
        ("gpudoctor_run_timestamp_seconds", "When the run started, Unix time.", _started(report)),
    )
    for name, text, samples in every:
        marked = tuple(({**labels, **mark}, value) for labels, value in samples)
        if marked:
            yield Family(name, text, marked)


def verdict_states(verdict: str) -> Iterator[Sample]:
    """The verdict as a state set."""
    for state in VERDICTS:
        yield {"verdict": state}, 1 if state == verdict else 0


def statuses(report: Report) -> Iterator[tuple[str, str, str, Status]]:
    """(check, GPU, UUID, status) of each check on each GPU; GPU and UUID are "" where it is about the node."""
    uuids = {str(gpu.index): gpu.uuid or "" for gpu in report.gpus}
    for result in report.checks:
        for gpu, findings in _by_gpu(result).items():
            yield result.id, gpu, uuids.get(gpu, ""), worst(finding.status for finding in findings)


def _suppressed(report: Report) -> Iterator[Sample]:
    if report.error is None:
        yield {}, suppressed_in(report.checks)


def _faults(report: Report) -> Iterator[Sample]:
    if report.error is None:
        yield {}, len(report.faults)


def _state_sets(report: Report) -> Iterator[Sample]:
    for check, gpu, uuid, status in statuses(report):
        for state in STATES:
            labels = {"check": check, "gpu": gpu, "uuid": uuid, "status": state}
            yield labels, 1 if status.value == state else 0


def _values(report: Report) -> tuple[list[Sample], list[Sample]]:
    """The numbers found, and what they were held against; of several about one subject, the worst."""
    uuids = {str(gpu.index): gpu.uuid or "" for gpu in report.gpus}
    values: list[Sample] = []
    thresholds: list[Sample] = []
    for result in report.checks:
        told: set[tuple[str, str, str]] = set()
        for finding in sorted(result.findings, key=lambda finding: WORST_FIRST.index(finding.status)):
            found, expected = finding.found, finding.expected
            if found is None or not isinstance(found.value, (int, float)):
                continue
            gpu, part, unit = _gpu_label(finding), _part(finding.subject), found.unit or ""
            if (gpu, part, unit) in told:
                continue
            told.add((gpu, part, unit))
            labels = {"check": result.id, "gpu": gpu, "uuid": uuids.get(gpu, ""), "part": part, "unit": unit}
            values.append((labels, found.value))
            if expected is not None and isinstance(expected.value, (int, float)) and expected.unit == found.unit:
                thresholds.append(({**labels, "op": expected.op or ""}, expected.value))
    return values, thresholds


def _part(subject: Subject) -> str:
    """What of the GPU or of the node it is about, where it is a part: "link 3", "GPU 1 - GPU 4", "rank 2", "mlx5_0"."""
    if subject.kind == "link":
        return f"link {subject.link}"
    if subject.kind == "rank":
        return f"rank {subject.rank}"
    return subject.label if subject.kind in ("pair", "nic", "path") else ""


def _by_gpu(result: CheckResult) -> dict[str, list[Finding]]:
    groups: dict[str, list[Finding]] = {}
    for finding in result.findings:
        groups.setdefault(_gpu_label(finding), []).append(finding)
    return groups


def _gpu_label(finding: Finding) -> str:
    return "" if finding.subject.gpu is None else str(finding.subject.gpu)


def _gpus(report: Report) -> Iterator[Sample]:
    for gpu in report.gpus:
        yield {"gpu": str(gpu.index), "uuid": gpu.uuid or "", "name": gpu.name or "", "pci_bus_id": gpu.bus_id}, 1


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


def _run(report: Report) -> Iterator[Sample]:
    yield {"version": report.tool.version, "level": report.run.level, "source": report.run.source.kind}, 1


def _started(report: Report) -> Iterator[Sample]:
    import datetime

    if report.run.started_at:
        yield {}, datetime.datetime.fromisoformat(report.run.started_at).timestamp()


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    clean = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return "".join(c for c in clean if c.isprintable())


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
