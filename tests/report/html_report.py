"""A report with a bit of everything in it, made by hand."""

from __future__ import annotations

from gpudoctor.facts.model.measurements import Collective, PairBandwidth, ProbeProblem, Training, TrainRank
from gpudoctor.facts.model.node import KernelEvent, Node
from gpudoctor.facts.model.telemetry import Burn, GpuCounters, Series, Spread, WrongResult
from gpudoctor.facts.simulated.load import apply_faults, load_node
from gpudoctor.report.judge import Question, judge
from gpudoctor.report.model import Report, Run, SourceSummary
from tests.checks.measured import computed, copied, matrix, measured, sampled

SLOW_RANK = 2
_OPERATIONS = {"all_reduce": 480.0, "all_gather": 370.0}
_READINGS = {"utilization_pct": 98.0, "sm_mhz": 1980.0, "power_w": 640.0, "temperature_c": 60.0}


def run_of(node: Node) -> Run:
    """A run with the same text every time."""
    source = SourceSummary(node.source.kind, node.source.name, node.source.faults)
    return Run("3d8f3c1e", "2026-11-21T09:30:00+00:00", 41.2, "full", source, ("check", "--level", "full"))


def full_report() -> Report:
    """Eight GPUs, all probes; rank 2 is a straggler, one direction of peer copies is slow, one sum was wrong."""
    node = apply_faults(load_node("hgx-h100-8"), ["thermal@2"])
    facts = measured(
        node,
        collectives=tuple(
            Collective(op, 1 << power, "bf16", 20, 90.0, 1.5, rate, rate * power / 32, (1,) if power == 30 else ())
            for op, rate in _OPERATIONS.items()
            for power in (20, 26, 30)
        ),
        pairs=tuple(PairBandwidth(a, b, 1 << 28, 10, 500.0, 2.0, 380.0) for a in range(8) for b in range(a + 1, 8)),
        host_links=copied(*[53.0] * 8, h2d_together_gb_s=26.0),
        peer_links=matrix(8, 390.0, {(5, 6): 90.0}, both_ways_gb_s=700.0),
        compute=tuple(computed(rank) for rank in range(8)),
        training=_training(),
        telemetry=(sampled("train", [_READINGS] * 8),),
        burn=_burn(),
        problems=(
            ProbeProblem("compute", "error", "something went wrong", 1, "gemm", (0,), ("Traceback", "last line")),
        ),
    )
    return judge(node, facts, Question(level="full"), run=run_of(node), include_facts=True)


def _training() -> Training:
    ranks = tuple(_rank(rank, 31.0 if rank == SLOW_RANK else 20.0) for rank in range(8))
    return Training("cuda", 8, 40, 32, 12_000_000, 24_000_000, ranks, True, 0.0, True, 19.0, 5000.0, 32.2)


def _rank(rank: int, compute_ms: float) -> TrainRank:
    late_ms = compute_ms - 20.0
    share = 0.9 if late_ms else 0.05
    return TrainRank(
        *(rank, compute_ms, 0.1, compute_ms, late_ms, share, 11.0 - late_ms, 0.4, 2.0, 31.5, 6.9, None),
        memory_peak_mib=1400.0,
        weights_sha256="a" * 64,
    )


def _burn() -> Burn:
    early, late = Spread(690.0, 700.0, 705.0), Spread(600.0, 630.0, 640.0)
    return Burn(
        *(600.0, 612.0, 20),
        series=(Series("gemm bf16 8192", "TFLOP/s", SLOW_RANK, 20, early, late),),
        wrong=(WrongResult(3, 90.0, "all_reduce wrong on rank 1"),),
        wrong_count=7,
        counted_s=600.0,
        counters=(GpuCounters(0, None, "0000:18:00.0", {"ecc_corrected": 2}),),
        kernel_events=(KernelEvent("xid", "NVRM: Xid (PCI:0000:3b:00): 63", 63),),
    )
