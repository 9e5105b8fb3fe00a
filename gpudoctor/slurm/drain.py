"""Drains a node unless too many of its partition are drained already; counts passed checks until undrained."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path

import msgspec

from gpudoctor.private_folder import read_own_file
from gpudoctor.report.output_files import OutputError, write_file
from gpudoctor.slurm.node_records import NodeRecord, drain_reason, read_nodes, set_drain, undo_drain

Say = Callable[[str], None]

# how often, and how far apart, a node that may stay drained checks whether the others have undrained themselves
_LOOKS, _PAUSE_S = 4, 0.3


class DrainResult(Enum):
    """The outcome of a drain: the node takes no jobs now; the cap forbids it; slurmctld did not answer."""

    OUT_OF_SERVICE = "out of service"
    REFUSED = "refused"
    NO_ANSWER = "no answer"


def drain(name: str, why: str, cap_percent: int | None, say: Say) -> DrainResult:
    """Drain this node for `why`, unless it is already out of service for another reason or the cap forbids it.

    Each node decides by itself, so several below the cap may drain at the same moment. Each counts again after its own
    drain: the latest ones (by time of the drain, then by name) undrain themselves, and the earliest wait for that. A
    node stays drained only once it has seen a count within the cap after its own drain. So the cap may be exceeded for
    about a second, until all have counted again.
    """
    reason = drain_reason(why)
    nodes = read_nodes(None if cap_percent else name)
    own = next((node for node in nodes if node.name == name), None)
    if own is None:
        return DrainResult.NO_ANSWER
    if own.out_of_service and not own.is_ours:
        given = own.reason or "no reason given"
        say(f"{reason} (node is {own.state} already: {given}; left alone)")
        return DrainResult.OUT_OF_SERVICE
    if own.is_ours and own.reason == reason:
        return DrainResult.OUT_OF_SERVICE
    if not own.is_ours and cap_percent and (over := above_cap(nodes, own, cap_percent)):
        say(f"not drained, {over}: {reason}")
        return DrainResult.REFUSED
    if not set_drain(name, reason):
        return DrainResult.NO_ANSWER
    if not own.is_ours and cap_percent and (over := _too_many(own, cap_percent)) and undo_drain(name):
        say(f"drain taken back, others were drained at the same moment, {over}: {reason}")
        return DrainResult.REFUSED
    say(f"drain: {reason}")
    return DrainResult.OUT_OF_SERVICE


def above_cap(nodes: Sequence[NodeRecord], own: NodeRecord, cap_percent: int) -> str | None:
    """Why the cap forbids that `own` is drained by gpudoctor; None if it does not.

    The cap applies to each partition of the node, and always allows one drained node per partition.
    """
    for partition in own.partitions:
        members, drained = _drained_of(nodes, partition)
        others = sum(node.name != own.name for node in drained)
        if others + 1 > _most(members, cap_percent):
            are = "is" if others == 1 else "are"
            return (
                f"GPUDOCTOR_DRAIN_CAP={cap_percent}%: {others} of {members} nodes {are} drained by gpudoctor "
                f"in partition {partition}"
            )
    return None


def _too_many(own: NodeRecord, cap_percent: int) -> str | None:
    """After `own` was drained: why it must be undrained again; None if it may stay drained."""
    over = None
    for look in range(_LOOKS):
        nodes = read_nodes()
        over = above_cap(nodes, own, cap_percent)
        if over is None or not _came_first(nodes, own, cap_percent):
            break
        if look + 1 < _LOOKS:
            time.sleep(_PAUSE_S)
    return over


def _came_first(nodes: Sequence[NodeRecord], own: NodeRecord, cap_percent: int) -> bool:
    """Whether `own` is, in each of its partitions, among the earliest drained nodes, as many as the cap allows."""
    for partition in own.partitions:
        members, drained = _drained_of(nodes, partition)
        in_order = [n.name for n in sorted(drained, key=lambda node: (node.since.partition("@")[2], node.name))]
        if own.name not in in_order[: _most(members, cap_percent)]:
            return False
    return True


def _drained_of(nodes: Sequence[NodeRecord], partition: str) -> tuple[int, list[NodeRecord]]:
    """The number of nodes in the partition, and those that gpudoctor drained."""
    members = [node for node in nodes if partition in node.partitions]
    return len(members), [node for node in members if node.is_ours]


def _most(members: int, cap_percent: int) -> int:
    return max(1, members * cap_percent // 100)


# A node that gpudoctor drained is undrained after several passed health checks in a row.

_HEALTHY_FILE = "undrain.json"
_HEALTHY_BYTES_MAX = 1 << 16


class _HealthyChecks(msgspec.Struct, frozen=True):
    """`drain` is the reason and time of one drain: the count of another drain starts at 0."""

    drain: str
    healthy: int


def count_healthy(folder: Path, node: NodeRecord) -> int:
    """Add one passed health check to the current drain of `node` and return the count. A lost file counts as 0."""
    drain = f"{node.reason} {node.since}"
    try:
        kept = msgspec.json.decode(read_own_file(folder / _HEALTHY_FILE, _HEALTHY_BYTES_MAX), type=_HealthyChecks)
    except (OSError, ValueError, RecursionError):  # msgspec raises UnicodeDecodeError too
        kept = _HealthyChecks(drain, 0)
    healthy = kept.healthy + 1 if kept.drain == drain else 1
    try:
        write_file(folder / _HEALTHY_FILE, msgspec.json.encode(_HealthyChecks(drain, healthy)).decode())
    except OutputError:
        return 1  # the count cannot be saved and so cannot grow; with GPUDOCTOR_UNDRAIN_AFTER=1 undraining still works
    return healthy


def forget_healthy(folder: Path) -> None:
    """Reset the count to 0."""
    (folder / _HEALTHY_FILE).unlink(missing_ok=True)
