"""What may be shown to strangers: what names a person, a machine or a part is replaced, the same way everywhere."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from gpudoctor.facts.gpu import system_program
from gpudoctor.facts.missing import known
from gpudoctor.facts.node import Node
from gpudoctor.facts.private_words import REDACTED, PrivateWords, names_someone

T = TypeVar("T")

# GPU-, MIG- and bare UUIDs: the same one gets the same stand-in everywhere, so relations stay
_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_PREFIXED = re.compile(r"\b(GPU-|MIG-)([0-9a-fA-F][0-9a-fA-F-]*)")
_SECRET_KEYS = {"serial", "hostname", "user", "board_part_number", "torch_location"}
# words that are compared or looked up, never free text; a host may be called like one of them
_VOCABULARY = {
    *("kind", "schema", "status", "level", "id", "check", "op", "unit", "verdict", "explained_by", "explains"),
    *("bus_id", "brand", "architecture", "compute_capability", "pci_device_id", "pci_subsystem_id", "vbios"),
    *("device_id", "pci_class", "vendor_id", "cpu_affinity", "cpus", "cpus_usable_list", "event_reasons", "profile"),
    *("library_version", "module_version", "cuda_version", "version", "torch", "torch_cuda", "nccl", "python"),
    *("kernel", "os_name", "machine", "driver", "cuda", "faults", "collected_at", "started_at"),
}


def redacted(node: Node) -> Node:
    """The node without serials, host names, users, process names, addresses; UUIDs as consistent stand-ins.

    Kernel lines lose `pid=` and `name=`; variables that name hosts or files lose their values, and
    paths outside of the distribution's own what they lead to. Bus ids stay: they name slots. The
    node is judged as before.
    """
    return Redaction(node).node


class Redaction:
    """One node's secrets and their stand-ins, to take them out of everything that was said of this node.

    `node` is the node itself without them; `of` does the same to a report, `text` to a line.
    """

    def __init__(self, node: Node) -> None:
        self._words = PrivateWords(node)
        self._stand_ins: dict[str, str] = {}
        for gpu in node.gpus:
            self._stand_in_of(known(gpu.uuid))
            for mig in known(gpu.settings.mig_instances) or ():
                self._stand_in_of(known(mig.uuid))
        self._uuids = [uuid for gpu in node.gpus if (uuid := known(gpu.uuid))]
        self.node = self.of(node)

    def of(self, thing: T) -> T:
        """A copy of a struct (facts, report, measurements) without the secrets, of the same type."""
        raw = self._value(msgspec.to_builtins(thing), "")
        return msgspec.convert(raw, type(thing))

    def text(self, text: str) -> str:
        """Free text without the secrets."""
        return self._words.taken_out(_UUID.sub(lambda match: self._uuid(match.group()), text))

    def _stand_in_of(self, uuid: str | None) -> str:
        """The stand-in of a whole `uuid` leaf; one of another form than usual is a private word."""
        if uuid is None:
            return ""
        if _UUID.search(uuid):
            return _UUID.sub(lambda match: self._uuid(match.group()), uuid)
        if uuid not in self._stand_ins:
            head = uuid[:4] if uuid.startswith(("GPU-", "MIG-")) else ""
            self._stand_ins[uuid] = f"{head}{self._next()}"
            self._words.add(uuid, self._stand_ins[uuid])
        return self._stand_ins[uuid]

    def _uuid(self, uuid: str) -> str:
        uuid = uuid.lower()
        if set(uuid) <= {"0", "-"}:
            return uuid
        if uuid not in self._stand_ins:
            self._stand_ins[uuid] = self._next()
        return self._stand_ins[uuid]

    def _next(self) -> str:
        return f"{len(self._stand_ins) + 1:08x}-0000-0000-0000-000000000000"

    def _value(self, value: Any, key: str) -> Any:
        if isinstance(value, dict):
            return self._mapping(value, key)
        if key == "argv":
            return [REDACTED] if value else []
        if isinstance(value, (list, tuple)):
            return [self._value(item, key) for item in value]
        if not isinstance(value, str) or key in _VOCABULARY:
            return value
        if key in _SECRET_KEYS:
            return REDACTED
        return self._stand_in_of(value) if key == "uuid" else self.text(value)

    def _mapping(self, raw: dict[str, Any], key: str) -> dict[str, Any]:
        made = {name: self._value(value, name) for name, value in raw.items()}
        if "missing" in raw:
            made = {name: self.text(value) if name == "missing" else value for name, value in raw.items()}
        elif key == "variables":
            made = self._variable(raw)
        elif self._names_someone(raw, key) and isinstance(raw.get("name"), str):
            # a desktop's program is no stray job: its name is judged, and names nobody
            made["name"] = (key == "processes" and system_program(raw["name"])) or REDACTED
        elif "index" in raw or "matched_by" in raw:
            made |= {"name": raw["name"]} if "name" in raw else {}  # a model's or a profile's name
        return made

    def _names_someone(self, raw: dict[str, Any], key: str) -> bool:
        """Whether this struct's `name` is that of a process, a host, or a file that a person named."""
        if key == "source":
            return raw.get("kind", "facts") != "simulated" and bool(raw.get("name"))
        return key in ("processes", "host")

    def _variable(self, raw: dict[str, Any]) -> dict[str, Any]:
        name, value = raw["name"], raw["value"]
        if names_someone(name):
            return {**raw, "value": REDACTED if value else value}
        return {**raw, "value": _PREFIXED.sub(self._shortened, self.text(value))}

    def _shortened(self, match: re.Match[str]) -> str:
        """A UUID of which only the start is written, as CUDA_VISIBLE_DEVICES takes it: it stays as clear as it was."""
        word, head, rest = match[0], match[1], match[2]
        if _UUID.fullmatch(rest):
            return word
        meant = [uuid for uuid in self._uuids if uuid.startswith(word)]
        if len(meant) == 1:
            return self._stand_in_of(meant[0])
        return f"{head}0000" if meant else f"{head}ffffffff"
