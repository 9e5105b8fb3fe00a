"""Merges the strategy samples of all ranks: pure functions, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpudoctor.facts.model.measured_strategies import Strategies, StrategyRun
from gpudoctor.facts.model.measurements import Device
from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.runner import messages


def merged_strategies(
    samples: Iterable[tuple[int, messages.ProbeSample]], world_size: int, device: Device
) -> Strategies | None:
    """Every variant that any rank completed, in order of arrival; None if the strategies did not begin.

    `samples`: those of all probes, each with its rank.
    """
    shared: messages.StrategyShared | None = None
    variants: dict[tuple[str, str], dict[int, messages.StrategySample]] = {}
    not_run: dict[str, Missing] = {}
    for rank, sample in samples:
        if isinstance(sample, messages.StrategyShared):
            shared = sample
        elif isinstance(sample, messages.StrategySample):
            variants.setdefault((sample.strategy, sample.variant), {})[rank] = sample
        elif isinstance(sample, messages.StrategyLeftOut) and (
            # of several reasons prefer one of an actual attempt
            sample.strategy not in not_run or sample.why.kind == "failed"
        ):
            not_run[sample.strategy] = sample.why
    if shared is None:
        return None
    return Strategies(
        device=device,
        world_size=world_size,
        shape=shared.shape,
        steps=shared.steps,
        reference=shared.reference,
        runs=tuple(_run(strategy, variant, row) for (strategy, variant), row in variants.items()),
        not_run=not_run,
    )


def _run(strategy: str, variant: str, row: Mapping[int, messages.StrategySample]) -> StrategyRun:
    ranks = sorted(row)
    first = row[ranks[0]]
    return StrategyRun(
        strategy=strategy,
        variant=variant,
        dtype=first.dtype,
        ranks=tuple(row[rank].result for rank in ranks),
        missing_weights=first.missing_weights,
        figures=_largest(row[rank].figures for rank in ranks),
    )


def _largest(figures: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Each figure's maximum over the ranks."""
    found: dict[str, float] = {}
    for of_rank in figures:
        for name, value in of_rank.items():
            found[name] = max(value, found.get(name, value))
    return found
