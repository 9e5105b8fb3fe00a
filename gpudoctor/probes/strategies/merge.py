"""The samples of all ranks of each strategy, put together: pure functions, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from gpudoctor.facts.model.measured_strategies import Strategies, StrategyRun
from gpudoctor.facts.model.measurements import Device
from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.runner import messages

_Message = messages.StrategyShared | messages.StrategySample | messages.StrategyLeftOut


class StrategySamples(msgspec.Struct):
    """All messages about strategies: samples by variant and rank, in the order in which they came."""

    shared: messages.StrategyShared | None = None
    samples: dict[tuple[str, str], dict[int, messages.StrategySample]] = {}
    left_out: dict[str, Missing] = {}

    def take(self, rank: int, message: _Message) -> None:
        """A rank has come through a variant, or not."""
        if isinstance(message, messages.StrategyShared):
            self.shared = message
        elif isinstance(message, messages.StrategySample):
            self.samples.setdefault((message.strategy, message.variant), {})[rank] = message
        elif message.strategy not in self.left_out or message.why.kind == "failed":
            # of several reasons, one that was an attempt
            self.left_out[message.strategy] = message.why


def merged_strategies(samples: StrategySamples, world_size: int, device: Device) -> Strategies | None:
    """Every variant that any rank came through; None if the strategies were not begun."""
    if samples.shared is None:
        return None
    return Strategies(
        device=device,
        world_size=world_size,
        shape=samples.shared.shape,
        steps=samples.shared.steps,
        reference=samples.shared.reference,
        runs=tuple(_run(strategy, variant, row) for (strategy, variant), row in samples.samples.items()),
        not_run=dict(samples.left_out),
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
    """Of each figure the largest that any rank has."""
    found: dict[str, float] = {}
    for of_rank in figures:
        for name, value in of_rank.items():
            found[name] = max(value, found.get(name, value))
    return found
