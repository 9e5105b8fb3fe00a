"""`gpudoctor bundle`, and what remains of a node after --redact."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpudoctor.facts.model.gpu import GpuProcess, MigInstance
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Interface, KernelEvent, Node, Variable, from_json, to_json
from gpudoctor.facts.redaction.redact import Redaction, redacted
from gpudoctor.facts.simulated.load import apply_faults, faults, load_node, node_names, put
from gpudoctor.report.judge import judge
from gpudoctor.report.model import Report
from tests.checks.simulated_nodes import packaged
from tests.cli.conftest import Gpudoctor, assert_refused

FAULT = "pcie-width-x8@3"
SECRETS = {
    "host": "hopper17",
    "domain": "hopper17.lab.example.org",
    "user": "amelie",
    "process": "/opt/amelie/llm_secret.py",
    "address": "10.20.30.41",
    "address 6": "fe80::9a03:9bff:fe12:3456",
    "hardware address": "98:03:9b:12:34:56",
    "home": "/home/amelie/run5",
    "job": "hopper[17-24]",
    "host in capitals": "HOPPER17",
    "other host of the job": "hopper18",
    "other host of the domain": "login1.lab.example.org",
    "host of no known kind": "rackA-slot9",
    "that in capitals": "RACKA-SLOT9",
    "second user": "bernd",
    "home of the second user": "/home/bernd",
    "word of a command line": "secret_plan.py",
    "scratch": "/scratch/amelie_proj",
    "pipe of MPS": "/tmp/mps_of_amelie",
    "copy of NCCL": "/data/venvs/secretproj",
    "address of AWS": "ip-10-20-30-41",
    "second address 6": "2001:db8::17",
    "network card": "98039b123456",
    "instance": "i-0abc1234def567890",
    "mail": "amelie@example.org",
    "node guid": "9803:9b03:0012:3456",
    "MIG instance": "11112222-3333-4444-5555-666677778888",
}


def named_node() -> Node:
    """A broken node that names people and machines wherever facts can."""
    node = apply_faults(load_node("hgx-h100-8", {}), [FAULT, "ecc-uncorrected@5"])
    gpus = list(node.gpus)
    processes = (
        GpuProcess(4711, SECRETS["process"], user=SECRETS["user"], memory_mib=9000),
        GpuProcess(4712, f"python3 {SECRETS['word of a command line']}", user=SECRETS["second user"], memory_mib=9000),
        GpuProcess(4713, "/usr/lib/xorg/Xorg", user="root", memory_mib=40, kind="C+G"),
    )
    gpus[1] = put(gpus[1], "processes", processes[2:])
    gpus[2] = put(gpus[2], "processes", processes)
    mig = MigInstance(f"MIG-{SECRETS['MIG instance']}", profile="1g.10gb")
    gpus[3] = put(gpus[3], "settings.mig_instances", (mig,))
    gpus[4] = put(
        gpus[4], "thermal.memory_c", Missing(f"{SECRETS['home']}: cannot be read on {SECRETS['host']}", "failed")
    )
    uuid = str(gpus[6].uuid)
    variables = (
        Variable("CUDA_VISIBLE_DEVICES", ",".join(str(gpu.uuid) for gpu in gpus[:6]) + f",{uuid},{gpus[7].uuid}"),
        Variable("MASTER_ADDR", SECRETS["domain"]),
        Variable("NCCL_TOPO_FILE", f"{SECRETS['home']}/topo.xml", path_exists=True),
        Variable("SLURM_JOB_NODELIST", SECRETS["job"]),
        Variable("NCCL_COMM_ID", f"{SECRETS['address']}:5000"),
        Variable("NCCL_HOSTID", SECRETS["host of no known kind"]),
        Variable("NCCL_SOCKET_IFNAME", f"enx{SECRETS['network card']}"),
        Variable("NCCL_OF_OURS", f"{SECRETS['mail']};{SECRETS['instance']};{SECRETS['second address 6']}"),
        Variable("CUDA_MPS_PIPE_DIRECTORY", SECRETS["pipe of MPS"]),
        Variable("CUDA_HOME", "/usr/local/cuda"),
        Variable("CUDA_OF_OURS", f"{SECRETS['scratch']}/cuda:{SECRETS['home of the second user']}"),
        Variable("TORCHELASTIC_OF_OURS", f"{SECRETS['other host of the job']}:29500"),
    )
    events = (
        KernelEvent("xid", f"Nov 21 10:00:00 {SECRETS['host']} kernel: NVRM: Xid (PCI:{gpus[5].bus_id}): 63, row of "
                    f"{uuid} at {SECRETS['address']} {SECRETS['address 6']} {SECRETS['hardware address']}, pid=4711, "
                    "name=llm_secret.py", 63, gpus[5].bus_id),
        KernelEvent("xid", f"2026-11-21T10:00:00.123456+00:00 {SECRETS['domain']} kernel: NVRM: Xid "
                    f"(PCI:{gpus[5].bus_id}): 63, pid=4712, {SECRETS['host in capitals']} "
                    f"{SECRETS['address of AWS']} {SECRETS['other host of the domain']} "
                    f"{SECRETS['node guid']} {gpus[6].serial} {mig.uuid} enx{SECRETS['network card']} "
                    f"{SECRETS['scratch']} {SECRETS['that in capitals']} {SECRETS['word of a command line']}",
                    63, gpus[5].bus_id),
    )  # fmt: skip
    node = put(node, "gpus", tuple(gpus))
    node = put(node, "host.hostname", SECRETS["domain"])
    node = put(node, "software.torch_location", f"{SECRETS['home']}/venv/torch")
    copies = (f"{SECRETS['copy of NCCL']}/lib/libnccl.so.2", "/usr/lib/x86_64-linux-gnu/libnccl.so.2")
    node = put(node, "software.nccl_copies", copies)
    card = Interface(f"enx{SECRETS['network card']}", "up")
    node = put(node, "network.interfaces", (Interface("eth0", "up"), card))
    node = put(node, "environment.variables", variables)
    node = put(node, "kernel_log.events", events)
    return put(node, "source", msgspec.structs.replace(node.source, kind="live", name=SECRETS["host"]))


def secrets_of(node: Node) -> set[str]:
    found = set(SECRETS.values())
    for gpu in node.gpus:
        found |= {str(gpu.uuid), str(gpu.uuid).removeprefix("GPU-"), str(gpu.serial)}
    return found


@pytest.fixture
def facts_file(tmp_path: Path) -> str:
    path = tmp_path / f"{SECRETS['host']}.json"
    path.write_bytes(to_json(named_node()))
    return str(path)


def unpacked(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        assert {(entry.uname, entry.gname, entry.uid) for entry in archive} == {("", "", 0)}
        return {
            Path(name).name: file.read()
            for name in archive.getnames()
            if (file := archive.extractfile(name)) is not None
        }


def statuses(report: Any) -> list[tuple[str, str, list[tuple[str, Any]]]]:
    return [
        (check["id"], check["status"], [(f["status"], f["subject"].get("gpu")) for f in check["findings"]])
        for check in report["checks"]
    ]


def test_a_bundle_holds_facts_report_log_and_versions_and_is_judged_the_same(
    gpudoctor: Gpudoctor, tmp_path: Path, facts_file: str
) -> None:
    path = tmp_path / "node.tar.gz"
    made = gpudoctor("bundle", "--node", facts_file, "-o", str(path))
    assert (made.code, made.out) == (0, f"{path}\n")
    files = unpacked(path)
    assert set(files) == {"facts.json", "report.json", "kernel.log", "versions.json", "MANIFEST"}
    for line in files["MANIFEST"].decode().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256(files[name]).hexdigest() == digest
    assert from_json(files["facts.json"]).gpus == named_node().gpus
    assert b"Xid (PCI:" in files["kernel.log"]
    assert json.loads(files["versions.json"])["driver"] == named_node().driver.library_version
    direct = gpudoctor("check", "--level", "quick", "--json", "--node", facts_file)
    again = gpudoctor("check", "--level", "quick", "--json", "--node", str(path))
    inside = json.loads(files["report.json"])
    assert direct.code == again.code == inside["exit_code"] == 1
    assert statuses(again.json) == statuses(direct.json) == statuses(inside)
    assert {(fault["check"], fault["subject"].get("gpu")) for fault in again.json["faults"]} >= {("pcie.link-width", 3)}


def test_a_redacted_bundle_names_nobody_and_is_judged_the_same(
    gpudoctor: Gpudoctor, tmp_path: Path, facts_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = gpudoctor("bundle", "--node", facts_file, "--redact")
    assert made.code == 0
    path = tmp_path / made.out.strip()
    assert path.name.startswith("gpudoctor-redacted-")
    whole = gzip.decompress(path.read_bytes())
    gpudoctor("bundle", "--node", facts_file, "-o", "plain.tar.gz")
    plain_bytes = gzip.decompress((tmp_path / "plain.tar.gz").read_bytes())
    for secret in secrets_of(named_node()):
        assert secret.encode() in plain_bytes, secret
        assert secret.encode() not in whole, secret
    files = unpacked(path)
    facts = from_json(files["facts.json"])
    report = json.loads(files["report.json"])
    # the same part has the same pseudonym in every file
    uuids = [gpu.uuid for gpu in facts.gpus]
    assert len(set(uuids)) == 8
    assert [gpu["uuid"] for gpu in report["gpus"]] == uuids
    assert facts.environment.get("CUDA_VISIBLE_DEVICES") == ",".join(map(str, uuids))
    assert str(uuids[6]).removeprefix("GPU-").encode() in files["kernel.log"]
    (mig,) = known(facts.gpus[3].settings.mig_instances) or ()
    assert str(mig.uuid).encode() in files["kernel.log"]
    assert facts.environment.get("NCCL_SOCKET_IFNAME") in [card.name for card in known(facts.network.interfaces) or ()]
    assert b"enx000000000001" in files["kernel.log"]
    # what identifies no machine or person stays
    assert facts.environment.get("CUDA_HOME") == "/usr/local/cuda"
    assert facts.software.nccl_copies == ("/redacted/libnccl.so.2", "/usr/lib/x86_64-linux-gnu/libnccl.so.2")
    assert [process.name for process in known(facts.gpus[2].processes) or ()] == ["redacted", "redacted", "xorg"]
    # slots keep their names
    assert [gpu.bus_id for gpu in facts.gpus] == [gpu.bus_id for gpu in named_node().gpus]
    assert f"Xid (PCI:{facts.gpus[5].bus_id}): 63".encode() in files["kernel.log"]
    plain = gpudoctor("check", "--level", "quick", "--json", "--node", facts_file).json
    again = gpudoctor("check", "--level", "quick", "--json", "--node", str(path))
    assert statuses(again.json) == statuses(plain) == statuses(report)
    assert again.code == 1


def test_an_error_is_redacted_too(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    shown = gpudoctor("check", "--json", "--redact", "--node", str(tmp_path / "amelie.json"))
    assert shown.code == 2
    assert "amelie" not in shown.out


@pytest.mark.wide
def test_redacted_facts_are_judged_as_before_on_every_node_with_every_fault() -> None:
    kit = faults()
    for place, name in enumerate(node_names()):
        chosen = [fault for fault in kit[place % 20 :: 20] if fault.happens_on(packaged(name))]
        for fault in (None, *chosen):
            node = apply_faults(packaged(name), [fault.name]) if fault else packaged(name)
            assert _judged(redacted(node)) == _judged(node), (name, fault and fault.name)


def _judged(node: Node) -> list[tuple[str, list[tuple[str, int | None]]]]:
    report = judge(node)
    return [(check.id, [(f.status.value, f.subject.gpu) for f in check.findings]) for check in report.checks]


def test_the_start_of_a_uuid_means_the_same_gpu_when_redacted() -> None:
    node = named_node()
    for value, kept in (("{0}", "{0}"), ("{0:.13}", "{0}"), ("GPU-", "GPU-"), ("GPU-beef", "GPU-ffffffff")):
        given = put(node, "environment.variables", (Variable("CUDA_VISIBLE_DEVICES", value.format(node.gpus[3].uuid)),))
        without = redacted(given)
        assert without.environment.get("CUDA_VISIBLE_DEVICES") == kept.format(without.gpus[3].uuid)
        assert _judged(without) == _judged(given)


def test_a_vbios_version_is_no_address() -> None:
    node = redacted(load_node("hgx-h100-8", {}))
    assert [gpu.vbios for gpu in node.gpus] == [gpu.vbios for gpu in load_node("hgx-h100-8", {}).gpus]


def test_a_host_called_like_a_gpu_model_does_not_rename_the_gpus() -> None:
    node = put(load_node("hgx-h100-8", {}), "host.hostname", "H100")
    report: Report = Redaction(node).of(judge(node))
    assert report.gpus[0].name == "NVIDIA H100 80GB HBM3"
    assert report.profile == judge(node).profile
    assert report.host.name == "redacted"


def test_nothing_is_ever_replaced(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    path = tmp_path / "there.tar.gz"
    path.write_text("mine")
    assert_refused(gpudoctor("bundle", "--node", "hgx-h100-8", "-o", str(path)), "there is one already")
    assert path.read_text() == "mine"
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    assert gpudoctor("bundle", "--node", "hgx-h100-8", "-o", str(tmp_path / "link")).code == 2
    assert not (tmp_path / "elsewhere").exists()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link", "there.tar.gz"], "no temporary file is left"


def test_it_is_named_by_host_and_date_and_written_where_one_is(
    gpudoctor: Gpudoctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    node = put(load_node("hgx-h100-8", {}), "host.hostname", "../../evil host")
    (tmp_path / "facts.json").write_bytes(to_json(node))
    made = gpudoctor("bundle", "--node", "facts.json")
    assert made.code == 0
    name = made.out.strip()
    assert name.startswith(("gpudoctor-evil-host-20", "gpudoctor-..-evil-host-20"))
    assert (tmp_path / name).is_file()


def test_a_bundle_packed_again_by_hand_is_read_and_a_changed_one_refused(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    path = tmp_path / "node.tar.gz"
    gpudoctor("bundle", "--node", "hgx-h100-8", "-o", str(path))
    files = unpacked(path)
    for change, code in (({}, 0), ({"facts.json": files["facts.json"].replace(b"Hopper", b"Ampere")}, 2)):
        again = tmp_path / f"again-{code}.tar"
        with tarfile.open(again, "w", format=tarfile.PAX_FORMAT) as archive:
            for name, data in {**files, **change}.items():
                entry = tarfile.TarInfo(f"./{name}")
                entry.size, entry.mtime = len(data), 1.5
                archive.addfile(entry, io.BytesIO(data))
        shown = gpudoctor("check", "--level", "quick", "--node", str(again))
        assert shown.code == code, shown.err
        assert ("damaged, or changed" in shown.err) == (code == 2)
