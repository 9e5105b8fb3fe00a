"""contrib/kubernetes: whether an API server would accept it, and what its scripts do."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpudoctor.api.config import load_config
from gpudoctor.checks.core.registry import registry
from gpudoctor.cli.parsing import parsed
from tests.cli.conftest import Gpudoctor
from tests.conftest import ROOT
from tests.kubernetes.manifests import FOLDER, Manifest, commands, commands_in, manifests, of_file, script_of, the

VERSIONS = [f"1.{minor}" for minor in range(25, 38)]
PODS = [manifest for manifest in manifests() if manifest.pods]
READMES = [ROOT / "contrib" / folder / "README.md" for folder in ("kubernetes", "slurm")]


@pytest.mark.wide(every=4)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_valid_for_this_version(schemas: Any, version: str) -> None:
    for manifest in manifests():
        if manifest.is_core:
            assert schemas.validate(manifest.data, version, strict=True) == version, manifest.file


def test_the_validation_finds_a_key_that_does_not_exist(schemas: Any) -> None:
    job = the("Job/gpudoctor-check").data
    job["spec"]["template"]["spec"]["hostNetwrok"] = True

    with pytest.raises(schemas.ValidationError, match="hostNetwrok"):
        schemas.validate(job, "1.33", strict=True)


@pytest.mark.parametrize(
    "manifest", [m for m in PODS if m.data["kind"] == "DaemonSet" or m.data["apiVersion"] == "batch/v1"], ids=of_file
)
def test_the_selectors_match_the_labels_of_the_template(manifest: Manifest) -> None:
    (template,) = manifest.pods
    labels = template.get("metadata", {}).get("labels", {}).items()
    selectors = [manifest.data["spec"]["selector"]] if "selector" in manifest.data["spec"] else []
    anti_affinity = manifest.pod.get("affinity", {}).get("podAntiAffinity", {})
    terms = anti_affinity.get("requiredDuringSchedulingIgnoredDuringExecution", [])
    selectors += [term["labelSelector"] for term in terms]

    assert (manifest.data["kind"] == "DaemonSet") <= bool(selectors)
    assert all(selector["matchLabels"].items() <= labels for selector in selectors)


@pytest.mark.parametrize("manifest", [m for m in PODS if m.is_core], ids=of_file)
def test_a_job_does_not_restart_and_a_daemon_does(manifest: Manifest) -> None:
    policy = manifest.pod.get("restartPolicy", "Always")

    assert policy == ("Always" if manifest.data["kind"] == "DaemonSet" else "Never")


@pytest.mark.parametrize("manifest", PODS, ids=of_file)
def test_every_volume_is_mounted_and_every_port_has_its_name(manifest: Manifest) -> None:
    for template in manifest.pods:
        pod = template["spec"]
        containers = [*pod.get("initContainers", []), *pod["containers"]]
        mounted = {mount["name"] for container in containers for mount in container.get("volumeMounts", [])}
        assert mounted == {volume["name"] for volume in pod.get("volumes", [])}
        for container in containers:
            ports = {port["name"] for port in container.get("ports", [])}
            probe = container.get("livenessProbe")
            assert probe is None or probe["tcpSocket"]["port"] in ports


@pytest.mark.parametrize("manifest", PODS, ids=of_file)
def test_no_container_has_more_rights_than_it_needs(manifest: Manifest) -> None:
    ours = [container for container in manifest.containers if "train:1" not in container["image"]]

    assert ours
    for container in ours:
        rights = container["securityContext"]
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert "privileged" not in rights
    for template in manifest.pods:
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(template["spec"])


def test_what_takes_gpus_from_the_scheduler_may_run_on_tainted_gpu_nodes() -> None:
    for manifest in PODS:
        for template in manifest.pods:
            asked = [c for c in template["spec"]["containers"] if "nvidia.com/gpu" in c["resources"].get("limits", {})]
            tolerated = {each.get("key") for each in template["spec"].get("tolerations", [])}
            assert bool(asked) <= ("nvidia.com/gpu" in tolerated), manifest.file


def test_no_image_of_ours_has_a_name_that_could_be_pulled() -> None:
    images = {container["image"] for manifest in PODS for container in manifest.containers}
    images.add(the("TrainJob/gpudoctor-nodes").data["spec"]["trainer"]["image"])

    assert images == {f"registry.example.com/{each}" for each in ("gpudoctor:set-me", "kubectl:set-me", "train:1")}


@pytest.mark.parametrize("file", ["between-nodes/job.yaml", "examples/jobset.yaml"])
def test_the_number_of_nodes_is_the_same_wherever_it_stands(file: str) -> None:
    (manifest,) = [each for each in PODS if each.file == file]
    spec = manifest.data["spec"]
    job = spec if "parallelism" in spec else spec["replicatedJobs"][0]["template"]["spec"]
    (command,) = commands_in(script_of(manifest, "check"))

    assert job["completionMode"] == "Indexed"
    assert {job["parallelism"], job["completions"], parsed(command).nodes} == {job["parallelism"]}


def test_the_first_pod_is_looked_for_by_the_name_that_it_gets() -> None:
    """Kubernetes names pods of an Indexed Job JOB-INDEX, and those of a JobSet SET-REPLICATED_JOB-JOB-INDEX."""
    job, jobset = the("Job/gpudoctor-nodes", "between-nodes/job.yaml"), the("JobSet/gpudoctor-nodes")
    service, network = the("Service/gpudoctor-nodes").data, jobset.data["spec"]["network"]
    labels = job.pods[0]["metadata"]["labels"]

    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= labels.items()
    assert _variable(job, "MASTER_ADDR") == f"gpudoctor-nodes-0.{service['metadata']['name']}"
    assert job.pod["subdomain"] == service["metadata"]["name"]
    first = f"{jobset.data['metadata']['name']}-{jobset.data['spec']['replicatedJobs'][0]['name']}-0-0"
    assert _variable(jobset, "MASTER_ADDR") == f"{first}.{network['subdomain']}"


def _variable(manifest: Manifest, name: str) -> str:
    (container,) = manifest.containers
    return next(str(each["value"]) for each in container["env"] if each["name"] == name)


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
    assert "${1:-/run/gpudoctor/verdict}" in (FOLDER / "node-problem-detector" / "gpudoctor.sh").read_text()


def test_the_daemonsets_configuration_leaves_out_what_would_judge_its_own_small_pod(tmp_path: Path) -> None:
    config = load_config(FOLDER / "base" / "config.yaml", {"HOME": str(tmp_path)}, registry, tmp_path / "none")

    assert {"host", "env", "topology.numa"} == set(config.skip)


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_every_check_that_a_readme_names_exists(readme: Path) -> None:
    ids = {check.id for check in registry()}
    domains = "|".join({check.id.partition(".")[0] for check in registry()})
    named = re.findall(rf"(?<![\w./-])(?:{domains})\.[a-z0-9-]+", " ".join(readme.read_text().split("`")[1::2]))

    assert named
    assert set(named) <= ids


def test_what_the_readme_says_is_skipped_for_lack_of_rights_is_skipped(gpudoctor: Gpudoctor) -> None:
    seen = gpudoctor("check", "--level", "quick", "--json", "--node", "container-2-of-8")

    skipped = {
        check["id"]
        for check in seen.json["checks"]
        if check["level"] == "quick" and any(finding["status"] == "skip" for finding in check["findings"])
    }
    table = (FOLDER / "README.md").read_text().partition("## Rights")[2]
    assert {"gpu.xid", "pcie.acs"} <= skipped
    assert {"gpu.xid", "pcie.acs"} <= set(re.findall(r"`([a-z]+\.[a-z]+)`", table))


def test_the_plugins_configuration_fits_together() -> None:
    config = json.loads((FOLDER / "node-problem-detector" / "gpudoctor.json").read_text())

    (condition,), (rule,) = config["conditions"], config["rules"]
    assert (rule["condition"], rule["type"]) == (condition["type"], "permanent")
    assert rule["timeout"] == config["pluginConfig"]["timeout"]  # more is refused
    assert config["pluginConfig"]["max_output_length"] == 80
    assert (FOLDER / "node-problem-detector" / Path(rule["path"]).name).is_file()


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
    for path in FOLDER.rglob("*.yaml"):
        assert list(yaml.load_all(path.read_text(), Loader=Strict))
