"""slurmctld's records of the nodes; drains a node, unless too many of its partition are, until it passes again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import Enum

import msgspec

from gpudoctor.lazy import lazy_pattern
from gpudoctor.process.command import CommandLateError, run_command

# every reason that gpudoctor sets begins so, and only such drains are undone
PREFIX = "gpudoctor:"
REASON_LENGTH = 100
# A failure of these is of settings, programs or services: a check without load shows that it is gone. A GPU that fell
# off the bus or an uncorrectable memory error is gone from a check without load after a reset, repaired or not.
_NOT_OF_HARDWARE = ("driver", "host", "storage", "env", "topology", "data", "gpu.settings", "gpu.in-use")
_FAILED = lazy_pattern(r"FAIL (([a-z]+)\.[a-z0-9-]+)")
# slurmd ends a health check after 60 s, and three of these calls may follow a check
_DEADLINE_S = 5.0
_BYTES_MAX = 64 << 20
_FIELD = {name: lazy_pattern(rf"(?:^| ){name}=(\S+)") for name in ("NodeName", "State", "Gres", "Partitions")}
# newer versions of Slurm write more fields after it
_SIGNED_REASON = lazy_pattern(r"(.*) \[([^\[\]]*@[^\[\]]*)\](?: [A-Z]\w*=.*)?")
Say = Callable[[str], None]

# how often, and how far apart, a node that may stay drained checks whether the others have undrained themselves
_LOOKS, _PAUSE_S = 4, 0.3


class NodeRecord(msgspec.Struct, frozen=True):
    """One node in slurmctld's records. `since` is who set the reason and when, as Slurm writes it: `root@2026-...`."""

    name: str
    state: str
    gres: str = ""
    partitions: tuple[str, ...] = ()
    reason: str = ""
    since: str = ""

    @property
    def out_of_service(self) -> bool:
        """Whether it takes no jobs. Judged by the state: Slurm keeps the reason after the node is back in service."""
        return any(word in self.state for word in ("DRAIN", "DOWN", "FAIL"))

    @property
    def has_jobs(self) -> bool:
        """Whether jobs run on it, or end."""
        return any(word in self.state for word in ("ALLOC", "MIX", "COMPLETING", "DRAINING"))

    @property
    def is_ours(self) -> bool:
        """Whether it is out of service because a hook of gpudoctor drained it."""
        return self.out_of_service and self.reason.startswith(PREFIX)


def read_nodes(name: str | None = None) -> tuple[NodeRecord, ...]:
    """The record of one node, or of all; empty if slurmctld does not answer."""
    shown = _scontrol("-a", "-o", "show", "node", *(() if name is None else (name,))) or ""
    return tuple(record for line in shown.splitlines() if (record := parse_node(line)) is not None)


def read_node(name: str) -> NodeRecord | None:
    """The record of one node; None if slurmctld does not answer."""
    return next((record for record in read_nodes(name) if record.name == name), None)


def parse_node(line: str) -> NodeRecord | None:
    """Parse one line of `scontrol -o show node`; None if it is not a node's."""
    # the reason is free text and may contain NAME=VALUE
    head, _, reason = line.partition(" Reason=")
    found = {field: match[1] for field, pattern in _FIELD.items() if (match := pattern.search(head))}
    if "NodeName" not in found or "State" not in found:
        return None
    signed = _SIGNED_REASON.fullmatch(reason)
    return NodeRecord(
        found["NodeName"],
        found["State"],
        found.get("Gres", ""),
        tuple(found.get("Partitions", "").split(",")) if found.get("Partitions") else (),
        signed[1] if signed else reason,
        signed[2] if signed else "",
    )


def set_drain(name: str, reason: str) -> bool:
    """Drain the node; False if slurmctld refuses or does not answer."""
    return _scontrol("update", f"nodename={name}", "state=drain", f"reason={reason}") is not None


def undo_drain(name: str) -> bool:
    """Undrain the node; False if slurmctld refuses or does not answer."""
    return _scontrol("update", f"nodename={name}", "state=undrain") is not None


def drain_reason(why: str) -> str:
    """The reason of a drain: one line of at most 100 plain characters, without quotes."""
    plain = "".join(c for c in f"{PREFIX} {why}" if " " <= c <= "~" and c not in "\"'`\\")
    return plain[:REASON_LENGTH]


def is_of_hardware(reason: str) -> bool:
    """Whether the reason of a drain names a check that fails by a part of the node.

    >>> is_of_hardware("gpudoctor: FAIL gpu.xid GPU 3: Xid 79"), is_of_hardware("gpudoctor: FAIL host.shm 64 MiB")
    (True, False)
    """
    failed = _FAILED.search(reason)
    return failed is not None and failed[1] not in _NOT_OF_HARDWARE and failed[2] not in _NOT_OF_HARDWARE


def _scontrol(*arguments: str) -> str | None:
    """Its output; None if slurmctld refuses or does not answer."""
    try:
        done = run_command(["scontrol", *arguments], _DEADLINE_S, _BYTES_MAX)
    except (OSError, CommandLateError):
        return None
    return done.stdout if done.returncode == 0 else None


# The decision to drain.


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
    this_node = next((node for node in nodes if node.name == name), None)
    if this_node is None:
        return DrainResult.NO_ANSWER
    if this_node.out_of_service and not this_node.is_ours:
        given = this_node.reason or "no reason given"
        say(f"{reason} (node is {this_node.state} already: {given}; left alone)")
        return DrainResult.OUT_OF_SERVICE
    if this_node.is_ours and (
        this_node.reason == reason or (is_of_hardware(this_node.reason) and not is_of_hardware(reason))
    ):
        return DrainResult.OUT_OF_SERVICE  # what needs a check under load stays the reason
    if not this_node.is_ours and cap_percent and (over := above_cap(nodes, this_node, cap_percent)):
        say(f"not drained, {over}: {reason}")
        return DrainResult.REFUSED
    if not set_drain(name, reason):
        return DrainResult.NO_ANSWER
    if not this_node.is_ours and cap_percent and (over := _too_many(this_node, cap_percent)) and undo_drain(name):
        say(f"drain taken back, others were drained at the same moment, {over}: {reason}")
        return DrainResult.REFUSED
    say(f"drain: {reason}")
    return DrainResult.OUT_OF_SERVICE


def above_cap(nodes: Sequence[NodeRecord], this_node: NodeRecord, cap_percent: int) -> str | None:
    """Why the cap forbids that `this_node` is drained by gpudoctor; None if it does not.

    The cap applies to each partition of the node, and always allows one drained node per partition.
    """
    for partition in this_node.partitions:
        members, drained = _drained_of(nodes, partition)
        others = sum(node.name != this_node.name for node in drained)
        if others + 1 > _most(members, cap_percent):
            are = "is" if others == 1 else "are"
            return (
                f"GPUDOCTOR_DRAIN_CAP={cap_percent}%: {others} of {members} nodes {are} drained by gpudoctor "
                f"in partition {partition}"
            )
    return None


def _too_many(this_node: NodeRecord, cap_percent: int) -> str | None:
    """After `this_node` was drained: why it must be undrained again; None if it may stay drained."""
    over = None
    for look in range(_LOOKS):
        nodes = read_nodes()
        over = above_cap(nodes, this_node, cap_percent)
        if over is None or not _came_first(nodes, this_node, cap_percent):
            break
        if look + 1 < _LOOKS:
            time.sleep(_PAUSE_S)
    return over


def _came_first(nodes: Sequence[NodeRecord], this_node: NodeRecord, cap_percent: int) -> bool:
    """Whether it is, in each of its partitions, among the earliest drained nodes, as many as the cap allows."""
    for partition in this_node.partitions:
        members, drained = _drained_of(nodes, partition)
        in_order = [n.name for n in sorted(drained, key=lambda node: (node.since.partition("@")[2], node.name))]
        if this_node.name not in in_order[: _most(members, cap_percent)]:
            return False
    return True


def _drained_of(nodes: Sequence[NodeRecord], partition: str) -> tuple[int, list[NodeRecord]]:
    """The number of nodes in the partition, and those that gpudoctor drained."""
    members = [node for node in nodes if partition in node.partitions]
    return len(members), [node for node in members if node.is_ours]


def _most(members: int, cap_percent: int) -> int:
    return max(1, members * cap_percent // 100)
