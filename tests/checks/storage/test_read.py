from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.model.measured_hardware import StorageRate, StorageRead
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Node
from gpudoctor.report.text_figures import figure_lines
from tests.checks.one_check import expect, gpus, judge

IN_RAM = Missing("tmpfs is in RAM", "unsupported")
NOT_KNOWN = Missing("zfs reads through a cache of its own", "failed")


def rate(pattern: Any, gb_s: float, readers: int = 1) -> StorageRate:
    return StorageRate(pattern, readers, 1 << 20, gb_s, reads=100, seconds=1.0, p50_us=900.0, p99_us=4000.0)


def reading(sequential: float, at_random: float, **leaves: Any) -> StorageRead:
    rates = (rate("sequential", sequential / 2), rate("sequential", sequential, 4), rate("random", at_random))
    return replace(StorageRead("/data", files=9, method="direct", cold=True, rates=rates), **leaves)


@pytest.mark.parametrize(
    ("read", "need", "status", "word"),
    [
        (reading(2.0, 1.0), None, Status.PASS, "feeds 3.3 GPUs that train ResNet-50 on JPEGs (300 MB/s each), 100 on"),
        (reading(2.0, 0.079), None, Status.WARN, "reads are random waits for data"),
        (reading(0.01, 0.01), None, Status.WARN, "sequential and random"),
        (reading(2.0, 1.0), 0.1, Status.PASS, "800 MB/s: --need 100 MB/s a GPU x 8 GPUs"),
        (reading(2.0, 1.0), 0.125, Status.PASS, "1.00 GB/s"),
        (reading(2.0, 1.0), 0.126, Status.WARN, "random"),
        (reading(2.0, 1.0), 0.25, Status.WARN, "random"),
        (reading(2.0, 1.0), 0.26, Status.FAIL, "the GPUs wait for data"),
        (reading(2.0, 1.0, cold=NOT_KNOWN), 0.1, Status.UNKNOWN, "perhaps from RAM"),
        (reading(2.0, 1.0, cold=NOT_KNOWN), 0.3, Status.FAIL, "wait for data"),
        (reading(2.0, 1.0, cold=NOT_KNOWN), None, Status.UNKNOWN, "cache of its own"),
        (reading(20.0, 20.0, cold=IN_RAM), 0.1, Status.SKIP, "in RAM"),
        (reading(2.0, 1.0, own_file=True), 9.0, Status.WARN, "written for it just now"),
        (reading(2.0, 1.0, own_file=True, cold=NOT_KNOWN), None, Status.SKIP, "cache of its own"),
        (reading(2.0, 0.011, own_file=True), None, Status.PASS, "written for it just now"),
        (reading(2.0, 1.0, rates=(rate("sequential", 2.0),)), 0.1, Status.UNKNOWN, "not every pattern"),
        (reading(2.0, 1.0, failure=Missing("stuck", "failed")), 0.1, Status.UNKNOWN, "stuck"),
        (reading(2.0, 1.0, failure=Missing("no file", "absent")), 0.1, Status.UNKNOWN, "no file"),
        (reading(2.0, 1.0, failure=Missing("no room", "absent"), own_file=True), 0.1, Status.SKIP, "no room"),
        (reading(2.0, 1.0, failure=Missing("full", "failed"), own_file=True), 0.1, Status.UNKNOWN, "full"),
        (reading(2.0, 1.0, failure=Missing("denied", "denied")), 0.1, Status.SKIP, "denied"),
        (
            reading(2.0, 1.0, rates=(*reading(2.0, 1.0).rates, replace(rate("random", 0.1), lost_reads=3))),
            None,
            Status.PASS,
            "3 reads, of files that vanished",
        ),
        (reading(2.0, 1.0, left_out=("random, 64 readers: too slow",)), None, Status.PASS, "64 readers"),
    ],
)
def test_a_rate_is_judged_against_what_all_gpus_need(
    read: StorageRead, need: float | None, status: Status, word: str
) -> None:
    expect(judge("storage.read", Node(gpus=gpus(8)), Measurements(storage=(read,), data_need_gb_s=need)), status, word)


def test_without_a_gpu_the_need_is_that_of_one() -> None:
    measured = Measurements(storage=(reading(2.0, 1.0),), data_need_gb_s=1.0)
    assert judge("storage.read", Node(), measured).status is Status.PASS


def test_each_path_has_its_own_verdict() -> None:
    slow, fast = reading(0.001, 0.001), replace(reading(2.0, 1.0), path="/fast")
    result = judge("storage.read", Node(), Measurements(storage=(slow, fast)))
    assert [(f.subject.name, f.status) for f in result.findings] == [("/data", Status.WARN), ("/fast", Status.PASS)]


def test_the_figures_of_each_path_stand_in_the_text() -> None:
    lines = figure_lines(Measurements(storage=(reading(2.0, 0.25), StorageRead("/none"))))
    assert lines[0] == "Read from /data, readers together:"
    assert [line.split() for line in lines[1:]] == [
        ["pattern", "readers", "a", "read", "MB/s", "p50", "p99"],
        ["sequential", "1", "1", "MiB", "1000", "900", "us", "4.0", "ms"],
        ["sequential", "4", "1", "MiB", "2000", "900", "us", "4.0", "ms"],
        ["random", "1", "1", "MiB", "250", "900", "us", "4.0", "ms"],
    ]
