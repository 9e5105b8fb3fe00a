"""Merges the loader figures of all ranks: pure functions, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gpudoctor.facts.model.measured_data import DataLoading, LoaderCopies, LoaderRates, LoaderStep


def merged_loading(found: Mapping[int, DataLoading], world_size: int) -> DataLoading | None:
    """The loading of all ranks, which ran at the same time; None unless every rank delivered."""
    if len(found) < world_size:
        return None
    row = [found[rank] for rank in range(world_size)]
    return msgspec.structs.replace(
        row[0],
        steps=tuple(_step(steps) for steps in zip(*(each.steps for each in row), strict=True)),
        copies=_copies(row),
        no_copies=next((each.no_copies for each in row if each.no_copies is not None), None),
        cpus=tuple(count for each in row for count in each.cpus),
        samples=sum(each.samples for each in row),
        unreadable=sum(each.unreadable for each in row),
        unreadable_why=next((each.unreadable_why for each in row if each.unreadable_why is not None), None),
    )


def _step(of_ranks: Sequence[LoaderStep]) -> LoaderStep:
    rates: list[LoaderRates] = []
    for step in of_ranks:
        if step.rates is None:
            return step
        rates.append(step.rates)
    shm = [each.shm_bytes for each in rates if isinstance(each.shm_bytes, int)]
    together = LoaderRates(
        samples_per_s=sum(each.samples_per_s for each in rates),
        gb_s=sum(each.gb_s for each in rates),
        slowest_rank_gb_s=min(each.slowest_rank_gb_s for each in rates),
        first_batch_s=max(each.first_batch_s for each in rates),
        shm_bytes=max(shm) if shm else rates[0].shm_bytes,  # each rank sees the use by all of them
    )
    return msgspec.structs.replace(of_ranks[0], rates=together)


def _copies(row: Sequence[DataLoading]) -> LoaderCopies | None:
    done = [each.copies for each in row if each.copies is not None]
    if len(done) < len(row):
        return None
    return LoaderCopies(
        done[0].workers, sum(each.pageable_gb_s for each in done), sum(each.pinned_gb_s for each in done)
    )
