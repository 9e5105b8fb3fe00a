"""What `kubectl apply -k` would send for each folder of contrib/kubernetes: valid, complete, and nothing else."""

from __future__ import annotations

import base64
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.kubernetes.manifests import COMPONENTS, FOLDER, OVERLAYS, Manifest, built, manifests
from tests.needs import needs
from tests.subprocesses import completed

OLDEST, NEWEST = "1.25", "1.37"
# Kubernetes, Pod Security Standards: volumes that the restricted level allows
_RESTRICTED_VOLUMES = {"configMap", "downwardAPI", "emptyDir", "persistentVolumeClaim", "projected", "secret"}
_README = (FOLDER / "README.md").read_text()


def test_every_folder_is_built_or_added_here() -> None:
    kustomizations = {path.parent.name for path in FOLDER.glob("*/kustomization.yaml")}

    assert kustomizations == {"base", *OVERLAYS, *COMPONENTS}


@pytest.mark.wide(every=4)
@needs("kubectl")
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_an_overlay_gives_is_valid(schemas: Any, overlay: str, version: str) -> None:
    for manifest in built(FOLDER / overlay):
        assert schemas.validate(manifest.data, version, strict=True) == version, manifest.name


@needs("kubectl")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_starts_one_thing_and_what_it_needs_is_there_or_named(overlay: str) -> None:
    objects = built(FOLDER / overlay)
    running = [each.name for each in objects if each.pods]
    secrets, config_maps = set(), set()
    for pod in (template["spec"] for each in objects for template in each.pods):
        for volume in pod["volumes"]:
            config_maps |= {volume["configMap"]["name"]} if "configMap" in volume else set()
            secrets |= {volume["secret"]["secretName"]} if "secret" in volume else set()
        for variable in (v for container in pod["containers"] for v in container.get("env", [])):
            secrets |= {variable["valueFrom"]["secretKeyRef"]["name"]} if "secretKeyRef" in str(variable) else set()

    assert len(running) == (overlay != "node-problem-detector")
    assert {f"ConfigMap/{name}" for name in config_maps} <= {each.name for each in objects}
    kustomization = (FOLDER / overlay / "kustomization.yaml").read_text()
    assert all(f"create secret generic {name} --from-literal=token=" in kustomization for name in secrets)


@needs("kubectl")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_all_of_an_overlay_is_in_one_namespace_that_allows_its_pods(overlay: str) -> None:
    objects = built(FOLDER / overlay)
    spaces = {each.data["metadata"]["name"]: each for each in objects if each.data["kind"] == "Namespace"}
    inside = {each.data["metadata"]["namespace"] for each in objects if each.data["kind"] != "Namespace"}

    if overlay == "node-problem-detector":
        assert (inside, spaces) == ({"kube-system"}, {})
        return
    ((name, space),) = spaces.items()
    assert inside == {name}
    enforced = space.data["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    assert enforced == ("privileged" if name == "gpudoctor-privileged" else "restricted")
    wanting = [word for each in objects for word in _more_than_restricted(each)]
    assert bool(wanting) == (enforced == "privileged"), wanting


def test_the_examples_in_our_namespace_are_allowed_in_it() -> None:
    inside = [each for each in manifests() if each.data["metadata"].get("namespace") == "gpudoctor" and each.pods]

    assert len(inside) >= 5
    assert [(each.file, word) for each in inside for word in _more_than_restricted(each)] == []


def _more_than_restricted(manifest: Manifest) -> list[str]:
    """What the Pod Security Standards' restricted level would refuse."""
    found = []
    for template in manifest.pods:
        pod = template["spec"]
        for_all = pod.get("securityContext", {})
        found += [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
        found += [kind for volume in pod.get("volumes", []) for kind in set(volume) - {"name"} - _RESTRICTED_VOLUMES]
        for container in (*pod.get("initContainers", []), *pod["containers"]):
            rights = {**for_all, **container.get("securityContext", {})}
            found += ["privileged"] if rights.get("privileged") else []
            found += [] if rights.get("runAsNonRoot") and rights.get("runAsUser") else ["root"]
            found += [] if rights.get("allowPrivilegeEscalation") is False else ["escalation"]
            found += [] if "ALL" in rights.get("capabilities", {}).get("drop", []) else ["capabilities"]
            found += [] if rights.get("seccompProfile", {}).get("type") == "RuntimeDefault" else ["seccomp"]
    return found


@needs("kubectl")
def test_the_readmes_own_kustomization_puts_an_image_by_digest_everywhere(tmp_path: Path) -> None:
    objects = built(_site(tmp_path))
    images = {container["image"] for each in objects for container in each.containers}
    config = next(each for each in objects if each.data["kind"] == "ConfigMap").data["data"]["config.yaml"]

    assert {each.data["kind"] for each in objects} == {"Namespace", "ConfigMap", "DaemonSet", "PodMonitor"}
    assert all(re.fullmatch(r"[^:@]+/gpudoctor@sha256:[0-9a-f]{64}", image) for image in images), images
    assert yaml.safe_load(config)["expect"] == {"gpus": 8}


@needs("kubectl")
@pytest.mark.parametrize("overlay", ["agent", "textfile"])
def test_with_the_kernel_log_a_daemonset_is_privileged_and_so_is_its_namespace(
    schemas: Any, tmp_path: Path, overlay: str
) -> None:
    folder = _kustomization(tmp_path, {"resources": [f"../{overlay}"], "components": ["../kernel-log"]})
    objects = {each.data["kind"]: each for each in built(folder)}
    (container,) = objects["DaemonSet"].containers

    assert container["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    assert {"name": "kmsg", "mountPath": "/dev/kmsg", "readOnly": True} in container["volumeMounts"]
    assert {each.data["metadata"].get("namespace") for each in objects.values()} == {None, "gpudoctor-privileged"}
    assert objects["Namespace"].data["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "privileged"}
    for each in objects.values():
        schemas.validate(each.data, NEWEST, strict=True)


@needs("kubectl")
def test_the_kernel_log_named_last_takes_the_pod_monitor_along(tmp_path: Path) -> None:
    components = ["../pod-monitor", "../kernel-log"]
    objects = built(_kustomization(tmp_path, {"resources": ["../agent"], "components": components}))

    spaces = {each.data["kind"]: each.data["metadata"].get("namespace") for each in objects}
    assert spaces["PodMonitor"] == spaces["DaemonSet"] == spaces["ConfigMap"] == "gpudoctor-privileged"


def _site(tmp_path: Path) -> Path:
    text = next(block for block in _README.split("```yaml\n")[1:] if "kind: Kustomization" in block).partition("```")[0]
    return _kustomization(tmp_path, yaml.safe_load(text))


def _kustomization(tmp_path: Path, data: dict[str, Any]) -> Path:
    """A folder beside a copy of ours: kustomize takes no absolute path."""
    shutil.copytree(FOLDER, tmp_path / "kubernetes")
    folder = tmp_path / "kubernetes" / "site"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(data))
    return folder


def test_every_folder_and_file_that_a_kubectl_command_names_is_there() -> None:
    text = _README + "".join(path.read_text() for path in FOLDER.rglob("*.yaml"))
    named = re.findall(r"kubectl apply -([kf]) ([\w/.-]+[\w])", text.replace("contrib/kubernetes/site", ""))
    headings = ("contrib/kubernetes", "contrib/kubernetes/examples")  # of the tables
    named = [(how, path) for how, path in named if path not in headings]

    assert len(named) > 10
    for how, path in named:
        target = ROOT / path
        assert (target / "kustomization.yaml").is_file() if how == "k" else target.is_file(), path
        assert how == "f" or target.name in OVERLAYS, f"{path} is no folder to apply"


def test_what_git_does_not_keep_does_not_go_into_the_image_either() -> None:
    ignored = {line.strip("/").removeprefix("**/") for line in (ROOT / ".dockerignore").read_text().splitlines()}
    kept_out = {".git", "build", ".venv", ".coverage", ".hypothesis", "__pycache__", "*.egg-info"}

    assert kept_out <= ignored


def _shell_lines() -> list[str]:
    """The commands of the README, and of the comments at the head of the files, less what they are piped into."""
    fenced = [block.partition("```")[0] for block in _README.split("```sh\n")[1:]]
    comments = [
        line.removeprefix("#").strip()
        for path in FOLDER.rglob("*.yaml")
        for line in path.read_text().splitlines()
        if line.startswith("#   kubectl ")
    ]
    indented = re.findall(r"^ {4}(kubectl .*)$", _README, re.MULTILINE)
    lines = [line.strip() for block in fenced for line in block.splitlines()]
    return sorted({line.partition(" | ")[0] for line in (*lines, *comments, *indented) if line.startswith("kubectl ")})


def test_the_kubectl_commands_are_of_kinds_that_are_tried_here_or_want_a_server() -> None:
    """`apply` is built above; `create` runs below; the others only look at what a server has."""
    verbs = {re.sub(r" -n \S+", "", line).split()[1] for line in _shell_lines()}

    assert verbs == {"apply", "create", "wait", "logs"}


@needs("kubectl")
@pytest.mark.parametrize("line", [line for line in _shell_lines() if " create " in line])
def test_what_is_created_by_hand_is_what_the_manifests_ask_for(schemas: Any, line: str) -> None:
    done = completed(["sh", "-c", f"{line} --dry-run=client -o yaml"])

    assert (done.returncode, done.stderr) == (0, "")
    made = yaml.safe_load(done.stdout)
    schemas.validate(made, NEWEST, strict=True)
    assert made["metadata"]["name"].startswith("gpudoctor")
    if made["kind"] == "Secret":
        # an agent and a cluster check refuse a shorter one
        assert len(base64.b64decode(made["data"]["token"])) >= 16
