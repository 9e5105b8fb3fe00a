"""Facts that may be shown to strangers: what names a person, a machine or a part is replaced."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gpudoctor.facts.node import Node

# GPU-, MIG- and bare UUIDs: the same one gets the same stand-in everywhere, so relations stay
_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
_SECRET_KEYS = {"serial", "hostname", "user", "board_part_number", "torch_location"}
_NAMING_VARIABLES = re.compile(r"SLURM_.*(NODE|USER|ACCOUNT|HOST|JOB_NAME|DIR)|MASTER_ADDR|.*_FILE|.*_PATH|.*PLUGIN")


def redacted(node: Node) -> Node:
    """The node without serials, host names, users, process names, addresses; UUIDs as consistent stand-ins.

    Kernel lines lose `pid=` and `name=`; variables that name hosts or files lose their values.
    """
    stand_ins: dict[str, str] = {}
    host = node.host.hostname if isinstance(node.host.hostname, str) else ""
    raw = _walk(msgspec.to_builtins(node), "", stand_ins, host)
    for gpu in raw.get("gpus", ()):
        for process in gpu.get("processes", ()) if isinstance(gpu.get("processes"), list) else ():
            process["name"] = "redacted"
    variables = raw.get("environment", {}).get("variables", ())
    for variable in variables if isinstance(variables, list) else ():
        if _NAMING_VARIABLES.fullmatch(variable["name"]):
            variable["value"] = "redacted"
    return msgspec.convert(raw, Node)


def _walk(value: Any, key: str, stand_ins: dict[str, str], host: str) -> Any:
    if isinstance(value, dict):
        if "missing" in value:
            return value
        return {k: _walk(v, k, stand_ins, host) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_walk(item, key, stand_ins, host) for item in value]
    if not isinstance(value, str) or key == "kind":
        return value
    if key in _SECRET_KEYS:
        return "redacted"
    return _line(value, stand_ins, host)


def _line(text: str, stand_ins: dict[str, str], host: str) -> str:
    def stand_in(match: re.Match[str]) -> str:
        uuid = match.group().lower()
        if set(uuid) <= {"0", "-"}:
            return match.group()
        return stand_ins.setdefault(uuid, f"{len(stand_ins) + 1:08x}-0000-0000-0000-000000000000")

    text = _UUID.sub(stand_in, text)
    text = _ADDRESS.sub("0.0.0.0", text)
    text = re.sub(r"(pid=)[^,]*|(name=)[^,]*", lambda m: (m.group(1) or m.group(2)) + "redacted", text)
    return text.replace(host, "redacted") if len(host) > 2 else text
