"""The packaged profiles as the program reads them: one JSON document, made of the YAML files that people edit.

Importing a YAML parser takes longer than judging a node, and every run would pay for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec

from gpudoctor.profiles.profile import GpuModel, NodeProfile

FOLDER = Path(__file__).parent
DOCUMENT = FOLDER / "packaged.json"


class IndexEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A line of names.yaml: NVML names of a model, and the node kinds made of so many of it."""

    names: tuple[str, ...]
    nodes: dict[int, str] = {}


class Packaged(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that is packaged: the index by GPU model, and each model and node kind as JSON by its key."""

    index: Mapping[str, IndexEntry]
    models: Mapping[str, msgspec.Raw]
    nodes: Mapping[str, msgspec.Raw]

    def model(self, key: str) -> GpuModel:
        """Raise KeyError where it is not packaged."""
        return msgspec.json.decode(self.models[key], type=GpuModel)

    def node(self, name: str) -> NodeProfile:
        """Raise KeyError where it is not packaged."""
        return msgspec.json.decode(self.nodes[name], type=NodeProfile)


@cache
def packaged() -> Packaged:
    """What DOCUMENT holds."""
    return msgspec.json.decode(DOCUMENT.read_bytes(), type=Packaged)


def packaged_from_yaml() -> str:
    """What DOCUMENT is to hold, from the YAML files; a test keeps both alike."""
    import json

    import yaml

    whole: dict[str, dict[str, object]] = {"index": {}, "models": {}, "nodes": {}}
    for family, entries in yaml.safe_load((FOLDER / "names.yaml").read_text(encoding="utf-8")).items():
        file = yaml.safe_load((FOLDER / f"{family}.yaml").read_text(encoding="utf-8"))
        for key, entry in entries.items():
            whole["index"][key] = entry
            whole["models"][key] = {**file["gpus"][key], "patterns": entry["names"]}
        for name, node in file.get("nodes", {}).items():
            whole["nodes"][name] = {**node, "name": name}
    sections = []
    for section, entries in whole.items():
        lines = (f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in entries.items())
        sections.append(f"{json.dumps(section)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{" + ",\n".join(sections) + "}\n"
