"""Redact a node and texts about it: replace what identifies a person, a machine or a part, consistently everywhere."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from gpudoctor.facts.model.gpu import system_program
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.redaction.private_words import PrivateNames, hidden_variables, is_public_source
from gpudoctor.facts.redaction.shapes import REDACTED, is_public, shapes_taken_out
from gpudoctor.lazy import lazy_pattern

T = TypeVar("T")

# GPU-, MIG- and bare UUIDs: each gets one stand-in everywhere, which keeps references intact
_UUID = lazy_pattern(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_WHOLE = lazy_pattern(rf"(?:[A-Z]{{3}}-){{0,2}}{_UUID.pattern}(?:/\d{{1,3}}){{0,2}}")
_PREFIXED = lazy_pattern(r"\b(GPU-|MIG-)([0-9a-fA-F][0-9a-fA-F-]*)")
# in free text: a shorter one may be anything, and could be of many GPUs
_PREFIX_IN_TEXT = lazy_pattern(r"\b(GPU-|MIG-)([0-9a-fA-F]{4}[0-9a-fA-F-]*)(?!\w)")
_LEADING_NUMBER = lazy_pattern(r"\s*[+-]?\d{0,10}")
_SECRET_KEYS = {"serial", "hostname", "user", "board_part_number", "torch_location"}
# Fields whose values are compared or looked up, so they are kept even if a host has the same name -> the form of valid
# values. A value of another form is treated like any text
_WORD = lazy_pattern(r"[A-Za-z0-9_.*/=<>! -]{0,60}")
_NUMBERS = lazy_pattern(r"[0-9a-fA-Fx.:,_@|\[\]() -]{0,4096}")
_VERSION = lazy_pattern(r"[0-9]{1,6}(?:\.[0-9]{1,6}){0,4}(?:[a-z]{1,3}[0-9]{1,3})?(?:\+(?:cu|cpu|rocm)[0-9.]{0,6})?")
_TIME = lazy_pattern(r"[0-9T:.Z+-]{0,40}")
_FAULT = lazy_pattern(r"[a-z0-9-]{1,40}(?:@[0-9,.:a-z-]{1,40})?")
_VOCABULARY = {
    **dict.fromkeys(
        ("kind", "schema", "status", "level", "id", "check", "op", "unit", "verdict", "explained_by", "explains",
         "brand", "architecture", "profile", "machine", "event_reasons"),
        _WORD,
    ),
    **dict.fromkeys(
        ("bus_id", "at_bus_id", "compute_capability", "pci_device_id", "pci_subsystem_id", "vbios", "device_id",
         "pci_class", "vendor_id", "cpu_affinity", "cpus", "cpus_usable_list"),
        _NUMBERS,
    ),
    **dict.fromkeys(
        ("library_version", "module_version", "cuda_version", "version", "torch", "torch_cuda", "nccl", "python",
         "driver", "cuda", "disk_version", "firmware", "library", "module"),
        _VERSION,
    ),
    **dict.fromkeys(("collected_at", "started_at"), _TIME),
    "faults": _FAULT,
}  # fmt: skip


def redacted(node: Node) -> Node:
    """The node without serials, host names, users, process names and addresses; UUIDs become consistent stand-ins.

    Kernel lines lose the values of `pid=` and `name=`; a variable keeps its value only if it is known to identify
    nobody; paths outside the distribution's locations are replaced. Bus ids stay, since they identify slots. The
    redacted node gets the same verdict.
    """
    return Redaction(node).node


class Redaction:
    """One node's private values and their stand-ins, to redact everything about this node.

    `node` is the redacted node; `of` redacts a report, `text` a line.
    """

    def __init__(self, node: Node) -> None:
        self._words = PrivateNames(node)
        self._hidden = {(variable.name, variable.value) for variable in hidden_variables(node)}
        self._stand_ins: dict[str, str] = {}
        for gpu in node.gpus:
            self._stand_in_of(known(gpu.uuid))
            for mig in known(gpu.settings.mig_instances) or ():
                self._stand_in_of(known(mig.uuid))
        self._uuids = [uuid for gpu in node.gpus if (uuid := known(gpu.uuid))]
        self.node = self.of(node)

    def of(self, thing: T) -> T:
        """A redacted copy of a struct (facts, report, measurements), of the same type."""
        raw = self._value(msgspec.to_builtins(thing), "")
        return msgspec.convert(raw, type(thing))

    def text(self, text: str) -> str:
        return self._words.taken_out(_PREFIX_IN_TEXT.sub(self._shortened, self._uuids_taken_out(text)))

    def _uuids_taken_out(self, text: str) -> str:
        return _UUID.sub(lambda match: self._uuid(match.group()), text)

    def _stand_in_of(self, uuid: str | None) -> str:
        """The stand-in for a whole `uuid` leaf; one of unusual form is also added to the private words."""
        if uuid is None:
            return ""
        if _WHOLE.fullmatch(uuid):
            return self._uuids_taken_out(uuid)
        if uuid not in self._stand_ins:
            head = uuid[:4] if uuid.startswith(("GPU-", "MIG-")) else ""
            self._stand_ins[uuid] = f"{head}{self._next()}"
            self._words.add(uuid, self._stand_ins[uuid])
        return self._stand_ins[uuid]

    def _uuid(self, uuid: str) -> str:
        uuid = uuid.lower()
        return uuid if set(uuid) <= {"0", "-"} else self._stand_ins.setdefault(uuid, self._next())

    def _next(self) -> str:
        return f"{len(self._stand_ins) + 1:08x}-0000-0000-0000-000000000000"

    def _value(self, value: Any, key: str) -> Any:
        if isinstance(value, dict):
            return self._mapping(value, key)
        if key == "argv":
            return [REDACTED] if value else []
        if isinstance(value, (list, tuple)):
            return [self._value(item, key) for item in value]
        if not isinstance(value, str):
            return value
        if (shape := _VOCABULARY.get(key)) is not None and shape.fullmatch(value):
            return shapes_taken_out(self._uuids_taken_out(value)) if shape is _WORD else value
        if key in _SECRET_KEYS:
            return REDACTED
        return self._stand_in_of(value) if key == "uuid" else self.text(value)

    def _mapping(self, raw: dict[str, Any], key: str) -> dict[str, Any]:
        if "missing" in raw:
            return {**raw, "missing": self.text(raw["missing"])}
        if key == "variables":
            return self._variable(raw)
        made = {name: self._value(value, name) for name, value in raw.items()}
        if key == "host_events" and raw["kind"].startswith("nfs"):
            made["device"] = REDACTED if raw.get("device") else None
        elif key == "mounts" and not is_public_source(raw.get("source", ""), raw.get("fs_type", "")):
            made["source"] = REDACTED
        elif self._names_someone(raw, key) and isinstance(raw.get("name"), str):
            # a desktop program's name is judged (it is not a stray job) and identifies nobody
            made["name"] = (key == "processes" and system_program(raw["name"])) or REDACTED
        elif ("index" in raw or "matched_by" in raw) and isinstance(raw.get("name"), str):
            # the name of a GPU model or a profile: keep it even if a host has the same name
            made["name"] = shapes_taken_out(self._uuids_taken_out(raw["name"]))
        return made

    def _names_someone(self, raw: dict[str, Any], key: str) -> bool:
        """Whether this struct's `name` is that of a process, a host, or a user's file."""
        if key == "source":
            return raw.get("kind", "facts") != "simulated" and bool(raw.get("name"))
        return key in ("processes", "host")

    def _variable(self, raw: dict[str, Any]) -> dict[str, Any]:
        name, value = raw["name"], raw["value"]
        if (name, value) not in self._hidden:
            shown = self._words.cards_taken_out(self._uuids_taken_out(value))
            return {**raw, "value": _PREFIXED.sub(self._shortened, shown)}
        if name.endswith("_VISIBLE_DEVICES"):
            # CUDA reads it up to the first invalid entry: keep which one that is
            entries = (_PREFIXED.sub(self._shortened, self._entry(entry)) for entry in value.split(","))
            return {**raw, "value": ",".join(entries)}
        return {**raw, "value": REDACTED if value else value}

    def _entry(self, entry: str) -> str:
        if is_public("CUDA_VISIBLE_DEVICES", entry.strip(), ()):
            return self._uuids_taken_out(entry)
        number = _LEADING_NUMBER.match(entry)
        return f"{number[0] if number else ''}{REDACTED}"

    def _shortened(self, match: re.Match[str]) -> str:
        """The stand-in for the start of a UUID, as CUDA_VISIBLE_DEVICES accepts it, with as many matches as before."""
        word, head, rest = match[0], match[1], match[2]
        if _UUID.fullmatch(rest):
            return word
        meant = [uuid for uuid in self._uuids if uuid.startswith(word)]
        if len(meant) == 1:
            return self._stand_in_of(meant[0])
        return f"{head}0000" if meant else f"{head}ffffffff"
