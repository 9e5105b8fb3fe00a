"""contrib/kubernetes: what an API server would accept, and what the scripts inside do."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpudoctor.checks.core.registry import registry
from gpudoctor.cli.parsers import parsed
from gpudoctor.config import load_config
from tests.cluster.manifests import FOLDER, Manifest, commands, commands_in, manifests, script_of, the
from tests.conftest import ROOT

VERSIONS = [f"1.{minor}" for minor in range(25, 38)]
PODS = [manifest for manifest in manifests() if manifest.pod]


READMES = [ROOT / "contrib" / folder / "README.md" for folder in ("kubernetes", "slurm")]


def _named(manifest: Manifest) -> str:
    return manifest.name


@pytest.fixture(scope="module")
def schemas() -> Any:
    validator = pytest.importorskip("kubernetes_validate", reason="no kubernetes-validate: pip install -e .[dev]")
    patch = pytest.MonkeyPatch()
    # it reads the megabytes of a version's definitions for each object anew
    patch.setattr(validator.utils, "schema_contents", functools.cache(validator.utils.schema_contents))
    yield validator
    patch.undo()


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_valid_for_this_version(schemas: Any, version: str) -> None:
    for manifest in manifests():
        assert schemas.validate(manifest.data, version, strict=True) == version, manifest.name


def test_the_validation_finds_a_key_that_does_not_exist(schemas: Any) -> None:
    job = the("Job/gpudoctor-check").data
    job["spec"]["template"]["spec"]["hostNetwrok"] = True

    with pytest.raises(schemas.ValidationError, match="hostNetwrok"):
        schemas.validate(job, "1.33", strict=True)


@pytest.mark.parametrize("manifest", PODS, ids=_named)
def test_the_selector_matches_the_labels_of_the_template(manifest: Manifest) -> None:
    labels = manifest.data["spec"]["template"]["metadata"]["labels"].items()
    selectors = [manifest.data["spec"]["selector"]] if "selector" in manifest.data["spec"] else []
    anti_affinity = manifest.pod.get("affinity", {}).get("podAntiAffinity", {})
    terms = anti_affinity.get("requiredDuringSchedulingIgnoredDuringExecution", [])
    selectors += [term["labelSelector"] for term in terms]

    assert (manifest.data["kind"] == "DaemonSet") <= bool(selectors)
    assert all(selector["matchLabels"].items() <= labels for selector in selectors)


@pytest.mark.parametrize("manifest", PODS, ids=_named)
def test_a_job_does_not_restart_and_a_daemon_does(manifest: Manifest) -> None:
    policy = manifest.pod.get("restartPolicy", "Always")

    assert policy == ("Never" if manifest.data["kind"] == "Job" else "Always")


@pytest.mark.parametrize("manifest", PODS, ids=_named)
def test_every_name_in_a_pod_leads_somewhere(manifest: Manifest) -> None:
    volumes = {volume["name"]: volume for volume in manifest.pod["volumes"]}
    mounted = {mount["name"] for container in manifest.containers for mount in container.get("volumeMounts", [])}
    config_maps = {volume["configMap"]["name"] for volume in volumes.values() if "configMap" in volume}
    namespace = manifest.data["metadata"].get("namespace")

    assert mounted == set(volumes)
    assert config_maps <= {
        other.data["metadata"]["name"]
        for other in manifests()
        if other.data["kind"] == "ConfigMap" and other.data["metadata"]["namespace"] == namespace
    }
    for container in manifest.containers:
        ports = {port["name"] for port in container.get("ports", [])}
        probe = container.get("livenessProbe")
        assert probe is None or probe["tcpSocket"]["port"] in ports


@pytest.mark.parametrize("file", sorted({manifest.file for manifest in PODS}))
def test_a_daemonset_brings_its_namespace_and_config_maps_and_a_job_that_is_deleted_takes_none_along(file: str) -> None:
    there = {manifest.name for manifest in manifests() if manifest.file == file}
    for manifest in (each for each in PODS if each.file == file):
        namespace = manifest.data["metadata"].get("namespace")
        maps = {v["configMap"]["name"] for v in manifest.pod["volumes"] if "configMap" in v}
        assert (f"Namespace/{namespace}" in there) == (manifest.data["kind"] == "DaemonSet")
        assert {f"ConfigMap/{name}" for name in maps} <= there


def test_what_stands_in_several_files_is_the_same_in_each() -> None:
    seen: dict[str, Manifest] = {}
    for manifest in manifests():
        assert seen.setdefault(manifest.name, manifest).data == manifest.data, manifest.file


@pytest.mark.parametrize("manifest", PODS, ids=_named)
def test_no_container_has_more_rights_than_it_needs(manifest: Manifest) -> None:
    ours = [container for container in manifest.containers if "gpudoctor" in container["image"]]

    assert ours
    for container in ours:
        rights = container["securityContext"]
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert "privileged" not in rights


@pytest.mark.parametrize("arguments", list(commands()), ids=" ".join)
def test_every_gpudoctor_command_in_a_manifest_is_one_that_it_has(arguments: list[str]) -> None:
    assert parsed(arguments).command == arguments[0]


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_every_gpudoctor_command_in_a_readme_is_one_that_it_has(readme: Path) -> None:
    text = readme.read_text()
    fenced, indented = text.split("```")[1::2], re.findall(r"^ {4}.*$", text, re.MULTILINE)
    found = list(commands_in("\n".join((*fenced, *indented))))

    assert found
    for arguments in found:
        assert parsed(arguments).command == arguments[0]


def test_what_the_daemonset_writes_is_where_node_problem_detector_looks() -> None:
    volumes = {volume["name"]: volume for volume in the("DaemonSet/gpudoctor").pod["volumes"]}

    assert volumes["results"]["hostPath"]["path"] == "/run/gpudoctor"
    assert "-o /results/verdict" in script_of(the("DaemonSet/gpudoctor"), "check")
    assert "${1:-/run/gpudoctor/verdict}" in the("ConfigMap/gpudoctor-npd").data["data"]["gpudoctor.sh"]


def test_the_daemonsets_configuration_leaves_out_what_would_judge_its_own_small_pod(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(the("ConfigMap/gpudoctor").data["data"]["config.yaml"])

    config = load_config(file, {"HOME": str(tmp_path)}, registry(), tmp_path / "none")

    assert {"host", "env", "topology.numa"} == set(config.skip)


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_every_check_that_a_readme_names_exists(readme: Path) -> None:
    ids = {check.id for check in registry()}
    domains = "|".join({check.id.partition(".")[0] for check in registry()})
    named = re.findall(rf"(?<![\w./-])(?:{domains})\.[a-z0-9-]+", " ".join(readme.read_text().split("`")[1::2]))

    assert named
    assert set(named) <= ids


def test_what_the_readme_says_is_skipped_for_lack_of_rights_is_skipped() -> None:
    seen = _gpudoctor("check", "--level", "quick", "--json", "--node", "container-2-of-8")

    skipped = {
        check["id"]
        for check in json.loads(seen.stdout)["checks"]
        if check["level"] == "quick" and any(finding["status"] == "skip" for finding in check["findings"])
    }
    table = (FOLDER / "README.md").read_text().partition("## Rights")[2]
    assert {"gpu.xid", "pcie.acs"} <= skipped
    assert {"gpu.xid", "pcie.acs"} <= set(re.findall(r"`([a-z]+\.[a-z]+)`", table))


def test_the_plugins_configuration_fits_together() -> None:
    data = the("ConfigMap/gpudoctor-npd").data["data"]
    config = json.loads(data["gpudoctor.json"])

    (condition,), (rule,) = config["conditions"], config["rules"]
    assert (rule["condition"], rule["type"]) == (condition["type"], "permanent")
    assert rule["timeout"] == config["pluginConfig"]["timeout"]  # more is refused
    assert config["pluginConfig"]["max_output_length"] == 80
    assert Path(rule["path"]).name in data


def test_the_dockerfile_installs_extras_that_exist() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    extras = text.partition("/usr/src/gpudoctor[")[2].partition("]")[0].split(",")
    project = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]

    assert extras == ["agent"]
    assert all(f"\n{extra} = [" in project for extra in extras)


def test_every_object_of_a_file_is_yaml_without_duplicate_keys() -> None:
    class Strict(yaml.SafeLoader):
        pass

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> Mapping[Any, Any]:
        keys = [loader.construct_object(key) for key, _ in node.value]
        assert len(keys) == len(set(keys)), keys
        return loader.construct_mapping(node, deep=True)

    Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    for path in FOLDER.glob("*.yaml"):
        assert list(yaml.load_all(path.read_text(), Loader=Strict))


def _gpudoctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "gpudoctor", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
