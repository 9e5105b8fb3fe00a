"""contrib/kubernetes as data: the objects, their containers, and the gpudoctor commands inside."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from tests.conftest import ROOT

FOLDER = ROOT / "contrib" / "kubernetes"
SHELL = ["/bin/sh", "-c"]
_REDIRECTED = re.compile(r"\s+\d?>.*$")


class Manifest(NamedTuple):
    """One object of one file. `name` is Kind/name."""

    file: str
    name: str
    data: dict[str, Any]

    @property
    def pod(self) -> dict[str, Any]:
        """The pod's spec; empty where the object has no pods."""
        found: dict[str, Any] = self.data.get("spec", {}).get("template", {}).get("spec", {})
        return found

    @property
    def containers(self) -> list[dict[str, Any]]:
        """All of the pod's containers, the initial ones first."""
        return [*self.pod.get("initContainers", []), *self.pod.get("containers", [])]


def manifests() -> list[Manifest]:
    """Every object in every file."""
    return [
        Manifest(path.name, f"{data['kind']}/{data['metadata']['name']}", data)
        for path in sorted(FOLDER.glob("*.yaml"))
        for data in yaml.safe_load_all(path.read_text())
    ]


def the(name: str) -> Manifest:
    """The object Kind/name."""
    return next(manifest for manifest in manifests() if manifest.name == name)


def script_of(manifest: Manifest, container: str) -> str:
    """The shell script that a container runs."""
    (found,) = [c for c in manifest.containers if c["name"] == container]
    assert found["command"] == SHELL
    return str(found["args"][0])


def commands() -> Iterator[list[str]]:
    """The arguments of each call of gpudoctor in a container."""
    for manifest in manifests():
        for container in manifest.containers:
            whole = [*container.get("command", []), *container.get("args", [])]
            if container.get("command") == SHELL:
                yield from commands_in(container["args"][0])
            elif whole[0] == "gpudoctor":
                yield whole[1:]


def commands_in(text: str) -> Iterator[list[str]]:
    """The arguments of each call of gpudoctor in a shell's lines, less redirections, pipes and comments."""
    for line in text.splitlines():
        for part in re.split(r"\s(?:\||\|\||&&|;)\s|\$\(|\)", line):
            words = part.strip().removeprefix("$ ").strip()
            if words.startswith("gpudoctor "):
                yield shlex.split(_REDIRECTED.sub("", words), comments=True)[1:]
