"""How long a burn lasts, and what its GPUs counted meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from gpudoctor.checks.core.registry import Level
from gpudoctor.errors import UserError
from gpudoctor.facts.model.measured_burn import NOT_READ_AGAIN
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import Node
from gpudoctor.lazy_import import lazy

if TYPE_CHECKING:
    from gpudoctor.facts import collect, counter_deltas
else:
    collect = lazy("gpudoctor.facts.collect")
    counter_deltas = lazy("gpudoctor.facts.counter_deltas")

SHORTEST_BURN_S, LONGEST_BURN_S = 10.0, 86400.0
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


def burn_duration_s(asked: str | None, level: Level, usual_s: float) -> float | None:
    """How long a burn lasts: as `--duration` says, else `usual_s`; None at every other level.

    Takes plain seconds, 90s, 10m, 1h. Raise UserError for nonsense, and for a duration of no burn.
    """
    if asked is None:
        return usual_s if level == "burn" else None
    if level != "burn":
        raise UserError(f"--duration {asked}: only --level burn lasts as long as it is told to; this is {level}")
    number, unit = (asked[:-1], asked[-1]) if asked[-1:] in ("s", "m", "h") else (asked, "")
    # no float(): it takes nan, 1e9 and 1_0
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?", number):
        raise UserError(f"--duration {asked!r}: write it as 10m, 90s, 1h or in seconds")
    duration_s = float(number) * _SECONDS[unit]
    if not SHORTEST_BURN_S <= duration_s <= LONGEST_BURN_S:
        raise UserError(f"--duration {asked}: from {SHORTEST_BURN_S:g}s to {LONGEST_BURN_S / 3600:g}h can be asked for")
    return duration_s


def count_again(
    node: Node, measured: Measurements, deadline_s: float, progress: Callable[[str], None] | None
) -> Measurements:
    """After a burn of this machine's GPUs: what their counters and the kernel log say now, against `node`."""
    burn = measured.burn
    if burn is None or burn.counters != NOT_READ_AGAIN:
        return measured
    after = collect.collect_live(deadline_s=deadline_s, progress=progress)
    passed_s = known(measured.launch.total_s) if measured.launch else None
    burn = msgspec.structs.replace(
        burn,
        counted_s=burn.duration_s if passed_s is None else passed_s,
        counters=counter_deltas.counter_growth(node, after),
        kernel_events=counter_deltas.new_events(node.kernel_log, after.kernel_log, known(node.host.uptime_s)),
    )
    return msgspec.structs.replace(measured, burn=burn)
