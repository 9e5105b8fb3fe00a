"""Matrix products, memory bandwidth, bit-exactness and memory patterns on one rank's device."""

from __future__ import annotations

from gpudoctor.facts.measured_compute import ComputeRank
from gpudoctor.probes.messages import ComputeSample
from gpudoctor.probes.rank import Rank


def run_compute(rank: Rank) -> None:
    """Measure this rank's device, all ranks at the same time, and send one ComputeSample."""
    rank.phase("prepare compute", "compute")
    rank.send(ComputeSample(ComputeRank(rank.number)))
