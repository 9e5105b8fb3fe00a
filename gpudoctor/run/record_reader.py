"""Reads what the observer leaves of each rank: the mapped record, and the small file beside it."""

from __future__ import annotations

import json
import mmap
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from gpudoctor.run.observer import layout
from gpudoctor.run.step_series import StepSeries, TimedStep

_PHASES = len(layout.PHASES)


class Now(msgspec.Struct, frozen=True):
    """What a rank does now: steps finished, marks made, phase, since when on the monotonic clock."""

    steps: int
    marks: int
    phase: int
    since_ns: int

    @property
    def phase_name(self) -> str:
        return layout.PHASES[self.phase] if 0 <= self.phase < _PHASES else "host"


class SampledLine(msgspec.Struct, frozen=True):
    """A line of the user's code in which the training thread was found `count` times in this phase."""

    phase: str
    file: str
    line: int
    function: str
    count: int

    @property
    def text(self) -> str:
        return f"{Path(self.file).name}:{self.line} in {self.function}"


class RankRecord:
    """The record of one process, read while it grows. Raise ValueError if the file is not one (yet)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            if path.stat().st_size < layout.FILE_BYTES:
                raise ValueError("not whole yet")
            self._map = mmap.mmap(file.fileno(), layout.FILE_BYTES, prot=mmap.PROT_READ)
        magic, self.pid, self.started, self.stack_signal = layout.IDENTITY.unpack_from(self._map, layout.IDENTITY_AT)
        if magic != layout.MAGIC:
            raise ValueError("not a record yet")
        self.series = StepSeries()
        self.bad_loss: int | None = None
        self.bad_gradient: int | None = None
        self.read_steps = 0

    @property
    def identity(self) -> tuple[int, int, int, bool, int]:
        """Rank, local rank, world size (-1: not known), whether it computes on a GPU, and its ordinal."""
        rank, local, world, on_gpu, gpu = layout.PLACE.unpack_from(self._map, layout.PLACE_AT)
        return rank, local, world, bool(on_gpu), gpu

    @property
    def now(self) -> Now:
        steps, marks, phase, since_ns = layout.NOW.unpack_from(self._map, layout.NOW_AT)
        sampled, moved_ns = layout.SAMPLED.unpack_from(self._map, layout.SAMPLED_AT)
        if moved_ns > since_ns:
            phase, since_ns = sampled, moved_ns
        return Now(steps, marks, phase, since_ns)

    @property
    def ended(self) -> tuple[int, int]:
        """How Python ended (0: it has not, 1: normally, 2: by an exception), and when (ns, monotonic)."""
        how, at_ns = layout.ENDED.unpack_from(self._map, layout.ENDED_AT)
        return how, at_ns

    @property
    def collective(self) -> str:
        at = layout.COLLECTIVE_AT
        return self._map[at : at + layout.COLLECTIVE_BYTES].rstrip(b"\0").decode("utf-8", "replace")

    def read_new_steps(self) -> list[TimedStep]:
        """Take over the steps kept since the last call; those that the ring has lost meanwhile are missing."""
        written, *bad = layout.KEPT.unpack_from(self._map, layout.KEPT_AT)
        self.bad_loss, self.bad_gradient = (number - 1 if number else None for number in bad)
        found = []
        for number in range(max(self.read_steps, written - layout.STEPS_KEPT + 1), written):
            at = layout.STEPS_AT + (number % layout.STEPS_KEPT) * layout.STEP.size
            found.append(_step(layout.STEP.unpack_from(self._map, at)))
        self.read_steps = written
        for step in found:
            self.series.add(step)
        return found

    def output(self) -> bytes:
        """The kept output: its beginning and its end."""
        (total,) = layout.OUTPUT_TOTAL.unpack_from(self._map, layout.OUTPUT_TOTAL_AT)
        head_at, ring_at, size = layout.OUTPUT_HEAD_AT, layout.OUTPUT_RING_AT, layout.OUTPUT_RING_BYTES
        head = self._map[head_at : head_at + min(total, layout.OUTPUT_HEAD_BYTES)]
        after = max(0, total - layout.OUTPUT_HEAD_BYTES)
        if after <= size:
            return head + self._map[ring_at : ring_at + after]
        at = ring_at + after % size
        lost = b"\n... %d bytes of output were not kept ...\n" % (after - size)
        return head + lost + self._map[at : ring_at + size] + self._map[ring_at:at]

    def details(self) -> dict[str, Any]:
        """The small file beside the record; empty if it is not there."""
        with suppress(OSError, ValueError):
            content = json.loads(self.path.with_suffix(".json").read_bytes())
            if isinstance(content, dict):
                return content
        return {}

    def places(self) -> tuple[SampledLine, ...]:
        """Where the training thread was, most often first."""
        with suppress(msgspec.ValidationError):
            rows = msgspec.convert(self.details().get("places", []), list[tuple[str, str, int, str, int]])
            return tuple(sorted((SampledLine(*row) for row in rows), key=lambda place: -place.count))
        return ()


def _step(values: tuple[float, ...]) -> TimedStep:
    number, end_ns, *rest = values
    wall, cpu, queued = (tuple(rest[n * _PHASES : (n + 1) * _PHASES]) for n in range(3))
    rows, elements, _, _, _, memory_mib, _ = rest[3 * _PHASES :]
    return TimedStep(int(number), wall, cpu, queued, rows, elements, memory_mib, end_ns)


def find_records(folder: Path, known: set[Path]) -> list[RankRecord]:
    """The records in this folder that are not known yet."""
    found = []
    for path in sorted(folder.glob(f"*{layout.SUFFIX}")):
        if path not in known:
            with suppress(OSError, ValueError, struct.error):
                found.append(RankRecord(path))
    return found
