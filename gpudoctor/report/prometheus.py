"""The report as a Prometheus text file for node_exporter's textfile collector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpudoctor.checks.finding import Finding, Status, worst
from gpudoctor.checks.run import CheckResult
from gpudoctor.report.report import Report

Labels = dict[str, str]
Sample = tuple[Labels, float]

# conventions of the field: base units, `_seconds`, `_bytes_per_second`; a state set has every state
STATES = tuple(status.value for status in Status)


def render_prometheus(report: Report) -> str:
    """Metrics with low cardinality: no pids, no messages. A simulated node carries simulated="true"."""
    mark = {"simulated": "true"} if report.simulated else {}
    families: tuple[tuple[str, str, Iterable[Sample]], ...] = (
        ("gpudoctor_check_status", "Status of each check on each GPU (state set).", _statuses(report)),
        # no number of faults where nothing was judged: 0 would look healthy
        ("gpudoctor_faults", "Faults: failed findings that nothing else explains.", _faults(report)),
        ("gpudoctor_gpu_info", "The GPUs of the node.", _gpus(report)),
        ("gpudoctor_collective_busbw_bytes_per_second", "Measured bus bandwidth.", _collectives(report)),
        ("gpudoctor_ddp_compute_seconds", "Compute time of a DDP step on each rank.", _ranks(report)),
        ("gpudoctor_run_exit_code", "Exit code of the run.", [({}, report.exit_code)]),
        ("gpudoctor_run_duration_seconds", "Duration of the run.", [({}, report.run.duration_s)]),
        ("gpudoctor_run_timestamp_seconds", "When the run started, Unix time.", _started(report)),
    )
    lines: list[str] = []
    for name, text, samples in families:
        samples = list(samples)
        if samples:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
            lines += [f"{name}{_labels({**labels, **mark})} {_number(value)}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _faults(report: Report) -> Iterator[Sample]:
    if report.error is None:
        yield {}, len(report.faults)


def _statuses(report: Report) -> Iterator[Sample]:
    for result in report.checks:
        by_gpu = _by_gpu(result)
        uuids = {str(gpu.index): gpu.uuid or "" for gpu in report.gpus}
        for gpu, findings in by_gpu.items():
            status = worst(finding.status for finding in findings)
            for state in STATES:
                labels = {"check": result.id, "gpu": gpu, "uuid": uuids.get(gpu, ""), "status": state}
                yield labels, 1 if status.value == state else 0


def _by_gpu(result: CheckResult) -> dict[str, list[Finding]]:
    groups: dict[str, list[Finding]] = {}
    for finding in result.findings:
        gpu = "" if finding.subject.gpu is None else str(finding.subject.gpu)
        groups.setdefault(gpu, []).append(finding)
    return groups


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
