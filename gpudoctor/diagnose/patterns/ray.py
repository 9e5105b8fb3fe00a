"""Lines of Ray: which process is which rank, and that an actor or a node has died."""

from __future__ import annotations

import re

from gpudoctor.diagnose.events import Event

_WORKER = re.compile(
    r"\(ip=(?P<ip>[\w.:]+), pid=(?P<pid>\d+)\) world_rank=(?P<rank>\d+), local_rank=(?P<local_rank>\d+)"
)
# above the traceback of another process
_RAISED_IN = re.compile(r"ray::\S.{0,300} \(pid=(?P<pid>\d{1,10}), ip=(?P<ip>[0-9a-fA-F.:]{3,45})\b")
_SNIPPET = re.compile(r"\[Rank (\d+) Error Snippet\]")
_FIELD = re.compile(r"\s*(?P<name>pid|ip|name|node_ip|hostname)(?:: |=)'?(?P<value>[^',\s]+)")
_CONTEXT = re.compile(r"world_rank=(\d+)")
_ACTOR_INDEX = re.compile(r"\w+_0:(\d+)$")  # on the first node only its place is its rank
_DIED = re.compile(
    r"Worker exit type: SYSTEM_ERROR|worker process has died|A worker died or was killed while executing"
)
_NODE_DIED = re.compile(
    r"[Tt]he actor(?:'s node| is dead because its (?:owner )?node)? has died|its node has died|node .{0,160}has been marked dead"
)
_ADDRESS = re.compile(r"and (?:ip|address): (?P<ip>[0-9a-fA-F.:]{3,45})\b")
_BEGINS = re.compile(r"The actor died unexpectedly|ActorDiedError|A worker health check failed|Worker info: Worker\(")


_DEAD_WORKER = re.compile(r"Worker IP address: (?P<ip>[0-9a-fA-F.:]{3,45}) .{0,80}Worker PID: (?P<pid>\d{1,10})\b")


class RayReader:
    """Collects the fields of a report on a dead actor up to the line that states its death."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}
        self._open = 0
        self.rank: int | None = None
        self.raised_in: dict[str, str] = {}

    def read(self, text: str) -> Event | None:
        """A worker's rank and process, or the death of an actor or node."""
        if found := _WORKER.search(text):
            return Event(
                role="fact",
                what="process",
                rank=int(found["rank"]),
                local_rank=int(found["local_rank"]),
                pid=int(found["pid"]),
                ip=found["ip"],
            )
        if "ray::" in text and (found := _RAISED_IN.search(text)):
            self.raised_in = found.groupdict()
        if found := _SNIPPET.search(text):
            self.rank, self._said, self._open = int(found[1]), {}, 0
            return None
        if _BEGINS.search(text):
            if not self._open:
                self._said = {}
            self._open = 40
        if self._open:
            self._open -= 1
            if field := _FIELD.match(text):
                self._said[field["name"]] = field["value"]
            if context := _CONTEXT.search(text):
                self._said["rank"] = context[1]
        if _NODE_DIED.search(text):
            if address := _ADDRESS.search(text):
                self._said["ip"] = address["ip"]
            return self._death("node_lost")
        if _DIED.search(text):
            if worker := _DEAD_WORKER.search(text):
                self._said |= worker.groupdict()
            event = self._death("process_died_unknown")
            if "WARNING" in text:  # the driver may go on without that worker, or have ended it itself
                event.role, event.strength, event.detail["vague"] = "echo", 1, 1
            return event
        return None

    def _death(self, what: str) -> Event:
        reported, self._said, self._open = self._said, {}, 0
        index = _ACTOR_INDEX.search(reported.get("name", ""))
        rank = reported.get("rank") or (index[1] if index else None)
        return Event(
            role="cause",
            what=what,
            strength=2,
            rank=int(rank) if rank is not None else None,
            pid=int(reported["pid"]) if reported.get("pid", "").isdecimal() else None,
            ip=reported.get("ip") or reported.get("node_ip"),
            host=reported.get("hostname"),
            detail={"by": "ray", "address": reported.get("ip") or reported.get("node_ip") or ""},
        )
