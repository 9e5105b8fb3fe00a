"""What a probe gave no figures for is no pass of any check that judges them."""

from __future__ import annotations

import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from tests.checks.one_check import expect, gpus, judge

CHECKS = {
    "collective": ("collective.correct", "collective.bandwidth", "collective.pairs"),
    "compute": ("compute.gemm", "compute.memory", "compute.exact", "compute.pattern"),
    "data": ("data.loader",),
    "link": ("link.host", "link.peer"),
    "storage": ("storage.read",),
    "torch": ("collective.correct", "collective.bandwidth", "collective.pairs", "burn.drift", "burn.counters"),
    "train": ("train.sync", "train.balance", "train.memory", "train.scaling", "train.utilization"),
}


@pytest.mark.parametrize(("check", "probe"), [(check, probe) for probe, checks in CHECKS.items() for check in checks])
def test_nothing_measured_is_skipped_with_the_reason_or_unknown_where_it_was_tried(check: str, probe: str) -> None:
    node = Node(gpus=gpus(4))
    expect(judge(check, Node()), Status.SKIP)
    expect(judge(check, node), Status.SKIP, "not measured in this run")
    expect(judge(check, node, Measurements(not_run={probe: Missing("GPU 1 is used")})), Status.SKIP, "GPU 1 is used")
    failed = Measurements(not_run={probe: Missing("the port was taken", "failed")})
    expect(judge(check, node, failed), Status.UNKNOWN, "the port was taken")
