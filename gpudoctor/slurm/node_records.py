"""slurmctld's records of the nodes, and the two changes that gpudoctor makes: drain and undrain."""

from __future__ import annotations

import re

import msgspec

from gpudoctor.process.command import CommandLateError, run_command

# every reason that gpudoctor sets begins so, and only such drains are undone
PREFIX = "gpudoctor:"
REASON_LENGTH = 100
# slurmd ends a health check after 60 s, and three of these calls may follow a check
_DEADLINE_S = 5.0
_BYTES_MAX = 64 << 20
_FIELD = {name: re.compile(rf"(?:^| ){name}=(\S+)") for name in ("NodeName", "State", "Gres", "Partitions")}
# newer versions of Slurm write more fields after it
_SIGNED_REASON = re.compile(r"(.*) \[([^\[\]]*@[^\[\]]*)\](?: [A-Z]\w*=.*)?")


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
    def is_ours(self) -> bool:
        """Whether it is out of service because a hook of gpudoctor drained it."""
        return self.out_of_service and self.reason.startswith(PREFIX)


def read_nodes(name: str | None = None) -> tuple[NodeRecord, ...]:
    """The record of one node, or of all; empty if slurmctld does not answer."""
    words = () if name is None else (name,)
    try:
        done = run_command(["scontrol", "-a", "-o", "show", "node", *words], _DEADLINE_S, _BYTES_MAX)
    except (OSError, CommandLateError):
        return ()
    if done.returncode != 0:
        return ()
    return tuple(record for line in done.stdout.splitlines() if (record := parse_node(line)) is not None)


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
    return _update(name, "state=drain", f"reason={reason}")


def undo_drain(name: str) -> bool:
    """Undrain the node; False if slurmctld refuses or does not answer."""
    return _update(name, "state=undrain")


def drain_reason(why: str) -> str:
    """The reason of a drain: one line of at most 100 plain characters, without quotes."""
    plain = "".join(c for c in f"{PREFIX} {why}" if " " <= c <= "~" and c not in "\"'`\\")
    return plain[:REASON_LENGTH]


def _update(name: str, *words: str) -> bool:
    try:
        return run_command(["scontrol", "update", f"nodename={name}", *words], _DEADLINE_S).returncode == 0
    except (OSError, CommandLateError):
        return False
