"""strategy.checkpointing on figures made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.facts.model.node import Node
from tests.checks.measured import measured
from tests.checks.one_check import judge
from tests.checks.strategy.test_strategy_data import rank, run, tried

RIGHT = {"error_rank_0": 2e-7, "error_rank_1": 0.0, "plain_kept_bytes": 8e6, "checkpointed_kept_bytes": 1e6}


def judged(figures: dict[str, float], **facts: Any) -> CheckResult:
    strategies = tried(run("checkpointing", rank(0, **facts), rank(1, **facts), figures=figures))
    return judge("strategy.checkpointing", Node(), measured(Node(), ranks=2, strategies=strategies))


def test_what_rounding_does_passes_and_less_that_is_kept_is_told() -> None:
    result = judged(RIGHT)
    assert result.status is Status.PASS
    told = [finding.found.text for finding in result.findings if finding.found is not None]
    assert told[-1] == "checkpointing: 0.954 MiB kept for the backward pass, 7.63 MiB without it"


@pytest.mark.parametrize("error", [1e-3, None])
def test_the_rank_whose_second_pass_is_not_its_first_is_named_and_nothing_that_follows(error: float | None) -> None:
    figures = {name: figure for name, figure in RIGHT.items() if name != "error_rank_1"}
    result = judged(figures if error is None else figures | {"error_rank_1": error}, weights_error=0.5)
    failed = [finding for finding in result.findings if finding.status is Status.FAIL]
    assert [finding.subject.label for finding in failed] == ["rank 1"]


def test_weights_that_deviate_though_each_pass_is_right_are_told_too() -> None:
    assert judged(RIGHT, weights_error=0.5).status is Status.FAIL


def test_no_less_that_is_kept_is_a_warning() -> None:
    assert judged(RIGHT | {"checkpointed_kept_bytes": 8e6}).status is Status.WARN
    assert judged(RIGHT | {"plain_peak_bytes": 9e6, "checkpointed_peak_bytes": 9e6}).status is Status.WARN
