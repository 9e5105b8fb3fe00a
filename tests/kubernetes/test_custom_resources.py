"""Objects of operators: their own fields against custom_resources.yaml, their pods against Kubernetes' schemas."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gpudoctor.cli.parsing import parsed
from gpudoctor.cluster.check.placement import job_placement
from tests.kubernetes.manifests import Manifest, commands_in, manifests, of_file, script_of, the

SCHEMAS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("custom_resources.yaml").read_text())["schemas"]
CUSTOM = [manifest for manifest in manifests() if not manifest.is_core]
NODES = 4


def _check(data: dict[str, Any]) -> None:
    jsonschema.validate(data["spec"], SCHEMAS[f"{data['apiVersion']} {data['kind']}"])


def test_there_is_a_schema_for_each_kind_and_no_other() -> None:
    assert {f"{each.data['apiVersion']} {each.data['kind']}" for each in CUSTOM} == set(SCHEMAS)


@pytest.mark.parametrize("manifest", CUSTOM, ids=of_file)
def test_its_fields_are_those_of_its_type(manifest: Manifest) -> None:
    _check(manifest.data)


@pytest.mark.parametrize("manifest", CUSTOM, ids=of_file)
def test_a_field_that_its_type_has_not_is_found(manifest: Manifest) -> None:
    data = copy.deepcopy(manifest.data)
    data["spec"]["replicaz"] = 4

    with pytest.raises(jsonschema.ValidationError, match="replicaz"):
        _check(data)


@pytest.mark.parametrize("manifest", [each for each in CUSTOM if each.pods], ids=of_file)
@pytest.mark.parametrize("version", ["1.25", "1.37"])
def test_its_pods_are_valid(schemas: Any, manifest: Manifest, version: str) -> None:
    for template in manifest.pods:
        metadata = {"name": "x", **template.get("metadata", {})}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        assert schemas.validate(pod, version, strict=True) == version


def test_the_job_in_the_jobset_is_valid(schemas: Any) -> None:
    (replicated,) = the("JobSet/gpudoctor-nodes").data["spec"]["replicatedJobs"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": replicated["template"]["spec"]}

    assert schemas.validate(job, "1.33", strict=True) == "1.33"


def test_as_many_pods_come_as_nodes_are_waited_for() -> None:
    """What the operators set in each pod, according to the sources of their controllers."""
    pytorch = the("PyTorchJob/gpudoctor-nodes").data["spec"]["pytorchReplicaSpecs"]
    volcano = the("Job/gpudoctor-nodes", "examples/volcano-job.yaml").data["spec"]
    tasks = {task["name"]: task["replicas"] for task in volcano["tasks"]}
    train = the("TrainJob/gpudoctor-nodes").data["spec"]["trainer"]
    mpi = the("MPIJob/gpudoctor-nodes").data["spec"]

    assert {role: spec["replicas"] for role, spec in pytorch.items()} == {"Master": 1, "Worker": NODES - 1}
    assert tasks == {"master": 1, "worker": NODES - 1}
    assert volcano["minAvailable"] == NODES
    # the roles that its plugin counts, and the Service that gives the first one its name
    assert volcano["plugins"]["pytorch"] == [f"--{name}={name}" for name in tasks]
    assert "svc" in volcano["plugins"]
    assert (train["numNodes"], train["numProcPerNode"]) == (NODES, 1)
    assert (mpi["mpiReplicaSpecs"]["Worker"]["replicas"], mpi["slotsPerWorker"]) == (NODES, 1)


@pytest.mark.parametrize("node", range(NODES))
def test_a_pod_finds_its_place_by_what_its_operator_tells_it(node: int) -> None:
    first = "gpudoctor-nodes-master-0"
    told = {"RANK": str(node), "WORLD_SIZE": str(NODES), "MASTER_ADDR": first, "MASTER_PORT": "23456"}
    by_variables = job_placement(told)
    (command,) = commands_in(script_of(the("JobSet/gpudoctor-nodes"), "check"))
    by_index = job_placement({"JOB_COMPLETION_INDEX": str(node), "MASTER_ADDR": first}, parsed(command).nodes)

    for place in (by_variables, by_index):
        assert place is not None
        assert (place.node, place.nodes, place.local, place.host) == (node, NODES, 0, first)


def test_pytorchs_container_has_the_name_that_its_operator_looks_for() -> None:
    assert {container["name"] for container in the("PyTorchJob/gpudoctor-nodes").containers} == {"pytorch"}


def test_prometheus_finds_the_agents_port_and_token() -> None:
    monitor = the("PodMonitor/gpudoctor-agent").data["spec"]
    agent = the("DaemonSet/gpudoctor-agent")
    (endpoint,) = monitor["podMetricsEndpoints"]
    (container,) = agent.containers
    secret = next(volume["secret"] for volume in agent.pod["volumes"] if "secret" in volume)

    assert monitor["selector"]["matchLabels"].items() <= agent.pods[0]["metadata"]["labels"].items()
    assert endpoint["port"] in {port["name"] for port in container["ports"]}
    assert endpoint["authorization"]["credentials"] == {"name": secret["secretName"], "key": "token"}
    assert "--token-file=/token/token" in container["args"]
