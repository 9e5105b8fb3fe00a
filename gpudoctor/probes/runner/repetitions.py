"""Merges the repetitions of a run: pure functions. Only level burn has more than one repetition."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from gpudoctor.facts.model.measured_hardware import ComputeRank
from gpudoctor.facts.model.measurements import Measurements, Probe, Training, TrainRank
from gpudoctor.facts.model.missing import Fact, Missing
from gpudoctor.facts.model.telemetry import Series, Spread, WrongResult
from gpudoctor.probes.runner.rank_state import rank_list

# Drift is the last minute against the first half minute
EARLY_S, LATE_S = 30.0, 60.0

# Rows of Measurements: the probe that brings them, what identifies a row, and the fields that tell of a wrong result
_ROWS: dict[str, tuple[Probe, tuple[str, ...], tuple[str, ...]]] = {
    "collectives": ("collective", ("op", "size_bytes", "dtype"), ("wrong_ranks", "missing_ranks")),
    "pairs": ("collective", ("a", "b", "size_bytes"), ("wrong_ranks",)),
    "host_links": ("link", ("rank",), ("wrong_bytes",)),
    "peer_links": ("link", ("source", "target"), ("wrong_elements",)),
}

F = TypeVar("F", bound=Fact)
Point = tuple[float, float]  # seconds since the rendezvous of the ranks, value
Key = tuple[str, str, int | None]  # metric, unit, rank


class Repetition(msgspec.Struct, frozen=True):
    """The measurements of one repetition. `ended_s`: when all ranks had finished a probe, in s since the rendezvous."""

    measured: Measurements
    ended_s: dict[Probe, float]


def over_repetitions(repetitions: Sequence[Repetition]) -> Measurements:
    """For each probe the figures of the last repetition that all ranks completed.

    Correctness is the worst of all repetitions, unfinished ones included: a later correct result does not
    undo a wrong one.
    """
    every = [r.measured for r in repetitions]
    if len(every) == 1:
        return every[0]

    def last(probe: Probe) -> Measurements:
        return next((r.measured for r in reversed(repetitions) if probe in r.ended_s), every[0])

    folded: dict[str, Any] = {}
    for name, (probe, identity, wrong_fields) in _ROWS.items():
        rows = [row for m in every for row in getattr(m, name)]
        wrong = [row for row in rows if any(getattr(row, field) for field in wrong_fields)]
        folded[name] = _folded(getattr(last(probe), name), wrong, identity, partial(_as_wrong_as_both, wrong_fields))
    return msgspec.structs.replace(
        last("link"),
        **folded,
        compute=_folded(last("compute").compute, [c for m in every for c in m.compute], ("rank",), _computed),
        strategies=next((m.strategies for m in every if m.strategies is not None), None),
        data_loading=next((m.data_loading for m in every if m.data_loading is not None), None),
        training=_training(last("train").training, [m.training for m in every if m.training is not None]),
    )


def _folded(
    shown: Sequence[F], others: Iterable[F], identity: tuple[str, ...], fold: Callable[[F, F], F]
) -> tuple[F, ...]:
    """`shown` with `others` merged in: rows equal in the `identity` fields are folded, all others appended."""
    rows = list(shown)
    for other in others:
        same = [i for i, row in enumerate(rows) if all(getattr(row, f) == getattr(other, f) for f in identity)]
        for place in same:
            rows[place] = fold(rows[place], other)
        if not same:
            rows.append(other)
    return tuple(rows)


def _as_wrong_as_both(fields: tuple[str, ...], shown: Fact, other: Fact) -> Fact:
    """`shown` with the wrong ranks of either row, or the larger number of what is wrong."""
    worst: dict[str, Any] = {}
    for field in fields:
        one, another = getattr(shown, field), getattr(other, field)
        worst[field] = max(one, another) if isinstance(one, int) else tuple(sorted({*one, *another}))
    return msgspec.structs.replace(shown, **worst)


def _computed(shown: ComputeRank, other: ComputeRank) -> ComputeRank:
    """Equal work must give equal bits in every repetition, so a fingerprint that differs in any of them is kept."""
    differing = tuple(f for f in dict.fromkeys(other.fingerprints) if f not in shown.fingerprints)
    worse = other if _wrong_bytes(other) > _wrong_bytes(shown) else shown
    return msgspec.structs.replace(
        shown,
        fingerprints=shown.fingerprints + differing,
        pattern_bytes=worse.pattern_bytes,
        pattern_wrong_bytes=worse.pattern_wrong_bytes,
        pattern_passes=worse.pattern_passes,
    )


def _wrong_bytes(device: ComputeRank) -> int:
    return 0 if isinstance(device.pattern_wrong_bytes, Missing) else device.pattern_wrong_bytes


def _training(shown: Training | None, every: Sequence[Training]) -> Training | None:
    if shown is None:
        return None
    unequal = next((t for t in every if _weights_differ(t)), shown)
    unlearnt = next((t for t in every if not _learnt(t)), shown)
    ranks = []
    for rank in shown.ranks:
        losses = _of_rank(unlearnt, rank)
        ranks.append(
            msgspec.structs.replace(
                rank,
                weights_sha256=_of_rank(unequal, rank).weights_sha256,
                loss_first=losses.loss_first,
                loss_last=losses.loss_last,
                nonfinite_step=losses.nonfinite_step,
            )
        )
    errors = [t.gradient_error for t in every]
    failed = [e for e in errors if isinstance(e, Missing) and e.kind == "failed"]
    numbers = [e for e in errors if not isinstance(e, Missing)]
    return msgspec.structs.replace(
        shown,
        ranks=tuple(ranks),
        contribution_ok=False if any(t.contribution_ok is False for t in every) else shown.contribution_ok,
        gradient_error=failed[0] if failed else max(numbers) if numbers else shown.gradient_error,
    )


def _of_rank(training: Training, rank: TrainRank) -> TrainRank:
    return next((r for r in training.ranks if r.rank == rank.rank), rank)


def _weights_differ(training: Training) -> bool:
    """Whether ranks ended with different weights."""
    return len({rank.weights_sha256 for rank in training.ranks}) > 1


def _learnt(training: Training) -> bool:
    """Whether every loss was finite, and the mean over all ranks was lower at the end."""
    pairs = [(r.loss_first, r.loss_last) for r in training.ranks]
    rises = [last - first for first, last in pairs if first is not None and last is not None]
    return len(rises) == len(pairs) and sum(rises) < 0


def series_of(repetitions: Sequence[Repetition]) -> tuple[Series, ...]:
    """Each figure measured at least twice: its spread in the first half minute and in the last minute."""
    points: dict[Key, list[Point]] = {}
    for each in repetitions:
        for key, probe, value in _figures(each.measured):
            if probe in each.ended_s:
                points.setdefault(key, []).append((each.ended_s[probe], value))
    return tuple(_series(key, values) for key, values in points.items() if len(values) > 1)


def _series(key: Key, points: Sequence[Point]) -> Series:
    metric, unit, rank = key
    first_s, end_s = points[0][0], points[-1][0]
    early_until_s, late_from_s = EARLY_S, end_s - LATE_S
    if end_s < EARLY_S + LATE_S:
        early_until_s, late_from_s = first_s, points[-2][0]
    early = [value for at_s, value in points if at_s <= max(early_until_s, first_s)]
    late = [value for at_s, value in points if at_s > max(late_from_s, first_s)] or [points[-1][1]]
    return Series(metric, unit, rank, len(points), _spread(early), _spread(late))


def _spread(values: Sequence[float]) -> Spread:
    return Spread(min(values), statistics.median(values), max(values))


def _figures(measured: Measurements) -> Iterator[tuple[Key, Probe, float]]:
    """The figures that must stay constant during a burn, each with its probe."""
    sums = [c for c in measured.collectives if c.op == "all_reduce"]
    if sums:
        largest = max(sums, key=lambda c: c.size_bytes)
        # named by its size: with less free memory another size is the largest
        size_mib = largest.size_bytes / 2**20
        yield (f"all_reduce {size_mib:.4g} MiB {largest.dtype}", "GB/s", None), "collective", largest.busbw_gb_s
    for link in measured.host_links:
        yield ("host to device", "GB/s", link.rank), "link", link.h2d_alone_gb_s
        yield ("device to host", "GB/s", link.rank), "link", link.d2h_alone_gb_s
    for device in measured.compute:
        for gemm in device.gemms:
            yield (f"gemm {gemm.dtype} {gemm.size}", "TFLOP/s", device.rank), "compute", gemm.tflops
        if not isinstance(device.copy_gb_s, Missing):
            yield ("memory copy", "GB/s", device.rank), "compute", device.copy_gb_s
    if measured.training is not None:
        # per sample, not per step, so that figures of different batch sizes compare
        batch = measured.training.batch_per_rank
        for rank in measured.training.ranks:
            yield ("train compute a sample", "us", rank.rank), "train", rank.compute_ms * 1000 / batch
            yield ("train step a sample", "us", rank.rank), "train", rank.step_ms * 1000 / batch


def wrong_results(repetitions: Sequence[Repetition]) -> tuple[WrongResult, ...]:
    """Every incorrect result, repetition by repetition; no tolerances involved."""
    found = []
    before: dict[int, tuple[str, ...]] = {}
    for number, each in enumerate(repetitions):
        texts = [*_wrong(each.measured), *_changed_bits(each.measured, before)]
        at_s = max((*each.ended_s.values(), *repetitions[max(0, number - 1)].ended_s.values()), default=0.0)
        found += [WrongResult(number, round(at_s, 1), text) for text in texts]
    return tuple(found)


def _changed_bits(measured: Measurements, before: dict[int, tuple[str, ...]]) -> Iterator[str]:
    """Ranks whose bits differ from those of their first repetition, which are kept in `before`."""
    for device in measured.compute:
        if not device.fingerprints:
            continue
        first = before.setdefault(device.rank, device.fingerprints)
        if len(set(first) | set(device.fingerprints)) > 1:
            yield f"equal work gave different bits on rank {device.rank}"


def _wrong(measured: Measurements) -> Iterator[str]:
    for c in measured.collectives:
        if c.wrong_ranks or c.missing_ranks:
            what = "without the part of" if c.missing_ranks else "wrong on"
            yield f"{c.op} of {c.size_bytes} B {c.dtype} {what} {rank_list(c.missing_ranks or c.wrong_ranks)}"
    for pair in measured.pairs:
        if pair.wrong_ranks:
            yield f"what ranks {pair.a} and {pair.b} sent each other was wrong on {rank_list(pair.wrong_ranks)}"
    for link in measured.host_links:
        if link.wrong_bytes:
            yield f"{link.wrong_bytes} bytes came back changed from the GPU of rank {link.rank}"
    for peer in measured.peer_links:
        if peer.wrong_elements:
            yield f"{peer.wrong_elements} elements changed from rank {peer.source} to rank {peer.target}"
    for device in measured.compute:
        if _wrong_bytes(device):
            yield f"{_wrong_bytes(device)} bytes of memory changed on rank {device.rank}"
    training = measured.training
    if training is not None:
        if _weights_differ(training):
            yield "the ranks ended the train with different weights"
        if training.contribution_ok is False:
            yield "the summed gradient did not hold every rank's part"
        if not _learnt(training):
            yield "the loss of the train was not finite, or did not fall"
