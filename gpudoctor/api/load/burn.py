"""The duration of a burn, and the counter deltas of its GPUs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import msgspec

from gpudoctor.checks.core.condemning import condemning
from gpudoctor.checks.core.registry import Level
from gpudoctor.errors import UserError
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import KernelEvent, KernelLog, Node
from gpudoctor.facts.model.telemetry import NOT_READ_AGAIN, GpuCounters, counters_of
from gpudoctor.lazy import lazy_imports

with lazy_imports():
    from gpudoctor.facts import collect
    from gpudoctor.facts.kernel_log import records  # its patterns take 3 ms to compile

_GONE = Missing("the driver did not show this GPU any more after the load", "failed")
SHORTEST_BURN_S, LONGEST_BURN_S = 10.0, 86400.0
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


def counter_deltas(before: Node, after: Node) -> tuple[GpuCounters, ...]:
    """By how much each GPU's counters grew, for all GPUs of the first reading."""
    again = {gpu.bus_id: gpu for gpu in after.gpus}
    return tuple(_of_gpu(gpu, again.get(gpu.bus_id)) for gpu in before.gpus)


def _of_gpu(before: Gpu, after: Gpu | None) -> GpuCounters:
    if after is not None and known(after.uuid) not in (None, known(before.uuid)):
        after = None
    growth: dict[str, int] = {}
    unread: dict[str, Missing] = {}
    now = counters_of(after) if after is not None else {}
    for name, first in counters_of(before).items():
        second = now.get(name, _GONE)
        if isinstance(first, Missing) or isinstance(second, Missing):
            reasons = [m for m in (second, first) if isinstance(m, Missing)]
            unread[name] = next((m for m in reasons if m.kind == "failed"), reasons[0])
        elif second < first:
            unread[name] = Missing(f"went back from {first} to {second}: was the GPU reset?", "failed")
        else:
            growth[name] = second - first
    errors = condemning(after) if after is not None else ()
    return GpuCounters(before.index, known(before.uuid), before.bus_id, growth, unread, errors)


def new_events(before: KernelLog, after: KernelLog, read_s: float | None = None) -> tuple[KernelEvent, ...] | Missing:
    """The events that the kernel logged between two readings; Missing if the readings cannot be compared.

    `read_s`: seconds since boot at the first reading. The result is Missing if later lines were overwritten.
    """
    if isinstance(after.events, Missing):
        return after.events
    if isinstance(before.events, Missing):
        return before.events
    if after.truncated and after.starts_s is not None and read_s is not None and after.starts_s > read_s:
        return Missing("the kernel's ring buffer was overwritten during the load", "failed")
    if before.source != after.source and any(event.time_s is None for event in (*before.events, *after.events)):
        return Missing("read from another place after the load", "failed")
    reported = Counter(_identity(event) for event in before.events)
    fresh = []
    for event in after.events:
        reported[_identity(event)] -= 1
        if reported[_identity(event)] < 0:
            fresh.append(event)
    return tuple(fresh)


def _identity(event: KernelEvent) -> tuple[float | None, str]:
    """The kernel's timestamp and message; the prefixes of a line are different in the journal."""
    if event.time_s is None:
        return None, event.text
    return round(event.time_s, 6), records.read_line(event.text).message


def burn_duration_s(asked: str | None, level: Level, usual_s: float) -> float | None:
    """How long a burn lasts: `--duration`, else `usual_s`; None at every other level.

    Takes plain seconds, 90s, 10m, 1h. Raise UserError for an invalid duration, and for one without a burn.
    """
    if asked is None:
        return usual_s if level == "burn" else None
    if level != "burn":
        raise UserError(f"--duration {asked}: only --level burn lasts as long as it is told to; this is {level}")
    number, unit = (asked[:-1], asked[-1]) if asked[-1:] in ("s", "m", "h") else (asked, "")
    # float() alone would accept nan, 1e9 and 1_0
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?", number):
        raise UserError(f"--duration {asked!r}: write it as 10m, 90s, 1h or in seconds")
    duration_s = float(number) * _SECONDS[unit]
    if not SHORTEST_BURN_S <= duration_s <= LONGEST_BURN_S:
        raise UserError(f"--duration {asked}: from {SHORTEST_BURN_S:g}s to {LONGEST_BURN_S / 3600:g}h can be asked for")
    return duration_s


def count_again(
    node: Node, measured: Measurements, deadline_s: float, progress: Callable[[str], None] | None
) -> Measurements:
    """After a burn, read the GPUs' counters and the kernel log of this machine again and compare them with `node`."""
    burn = measured.burn
    if burn is None or burn.counters != NOT_READ_AGAIN:
        return measured
    after = collect.collect_live(deadline_s=deadline_s, progress=progress)
    passed_s = known(measured.launch.total_s) if measured.launch else None
    burn = msgspec.structs.replace(
        burn,
        counted_s=burn.duration_s if passed_s is None else passed_s,
        counters=counter_deltas(node, after),
        kernel_events=new_events(node.kernel_log, after.kernel_log, known(node.host.uptime_s)),
    )
    return msgspec.structs.replace(measured, burn=burn)
