"""contrib/kubernetes as data: the objects, their pods and containers, and the gpudoctor commands inside."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.conftest import ROOT
from tests.subprocesses import completed

FOLDER = ROOT / "contrib" / "kubernetes"
SHELL = ["/bin/sh", "-c"]
# what is applied with -k, and what is only added to one of those
OVERLAYS = ("agent", "between-nodes", "load", "node-problem-detector", "textfile")
COMPONENTS = ("kernel-log", "pod-monitor")
# of other programs: their schemas are in custom_resources.yaml
CORE = ("v1", "apps/v1", "batch/v1", "rbac.authorization.k8s.io/v1")
_REDIRECTED = re.compile(r"\s+\d?>.*$")


class Manifest(NamedTuple):
    """One object of one file. `name` is Kind/name, `file` the path from contrib/kubernetes."""

    file: str
    name: str
    data: dict[str, Any]

    @property
    def pods(self) -> list[dict[str, Any]]:
        """The templates of the pods that the object leads to (metadata and spec), however deep."""
        return list(_templates(self.data))

    @property
    def pod(self) -> dict[str, Any]:
        """The spec of its only kind of pod."""
        (template,) = self.pods
        found: dict[str, Any] = template["spec"]
        return found

    @property
    def containers(self) -> list[dict[str, Any]]:
        """All containers of all its pods, the initial ones first."""
        specs = [template["spec"] for template in self.pods]
        return [each for spec in specs for each in (*spec.get("initContainers", []), *spec["containers"])]

    @property
    def is_core(self) -> bool:
        return str(self.data["apiVersion"]) in CORE


def _templates(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if isinstance(value.get("spec"), dict) and "containers" in value["spec"]:
            yield value
        else:
            for inner in value.values():
                yield from _templates(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _templates(inner)


of_file = attrgetter("file")  # the name of a test's case


def manifests() -> list[Manifest]:
    """Every object in every file that holds objects."""
    return [
        found
        for path in sorted(FOLDER.rglob("*.yaml"))
        if path.name != "kustomization.yaml" and path != FOLDER / "base" / "config.yaml"
        for found in _read(path.read_text(), str(path.relative_to(FOLDER)))
    ]


def built(folder: Path) -> list[Manifest]:
    """The objects that `kubectl apply -k` would send; mark the test with @needs("kubectl")."""
    return _read(_build(folder), folder.name)


@functools.cache
def _build(folder: Path) -> str:
    done = completed(["kubectl", "kustomize", str(folder)])
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def _read(text: str, file: str) -> list[Manifest]:
    return [
        Manifest(file, f"{data['kind']}/{data['metadata']['name']}", data)
        for data in yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if data
    ]


def the(name: str, file: str | None = None) -> Manifest:
    """The object Kind/name."""
    (found,) = [manifest for manifest in manifests() if manifest.name == name and file in (None, manifest.file)]
    return found


def script_of(manifest: Manifest, container: str) -> str:
    """The shell script that a container runs."""
    (found,) = [c for c in manifest.containers if c["name"] == container]
    assert found["command"] == SHELL
    return str(found["args"][0])


def commands() -> Iterator[list[str]]:
    """The arguments of each call of gpudoctor in a container."""
    for manifest in manifests():
        containers = manifest.containers or [manifest.data.get("spec", {}).get("trainer", {})]
        for container in containers:
            whole = [*container.get("command", []), *container.get("args", [])]
            if SHELL[0] in whole:
                yield from commands_in(whole[-1])
            elif whole[:1] == ["gpudoctor"]:
                yield whole[1:]


def commands_in(text: str) -> Iterator[list[str]]:
    """The arguments of each call of gpudoctor in a shell's lines, less redirections, pipes and comments."""
    for line in text.splitlines():
        for part in re.split(r"\s(?:\||\|\||&&)\s|;\s|\$\(|\)", line):
            words = part.strip().removeprefix("$ ").strip()
            if words.startswith("gpudoctor "):
                yield shlex.split(_REDIRECTED.sub("", words), comments=True)[1:]
