"""What --redact leaves: 75 kinds of secret, each planted wherever facts hold text, in no output of any kind."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudoctor.checks.core.finding import Status
from gpudoctor.checks.storage.mount import mount_evidence
from gpudoctor.facts.model.gpu import Gpu, GpuProcess
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Interface, KernelEvent, Node, Storage, StorageMount, Variable, from_json, to_json
from gpudoctor.facts.model.storage import StoragePath
from gpudoctor.facts.redaction.redact import Redaction, redacted
from gpudoctor.facts.redaction.shapes import is_public, shapes_taken_out
from gpudoctor.facts.simulated.load import load_node, put
from gpudoctor.report.judge import judge
from tests.cli.conftest import Gpudoctor
from tests.facts.kernel_words import LOST, STAMPS, parse_kernel_lines
from tests.planted_secrets import SECRETS, planted

# variable -> value: no name hints at a secret, and still no value may be shown
VARIABLES = {
    "NCCL_COMM_ID": "hopper99:29400",
    "NCCL_OF_A_SITE": "amelies-key-77",
    "CUDA_CACHE_OWNER": "bernd",
    "NCCL_TOPO_FILE": "/data/cluster7/topo.xml",
    "NCCL_IB_HCA": "=secretnic_3:1",
    "NCCL_SOCKET_IFNAME": "storage-net-of-amelie",
    "NCCL_DEBUG_FILE": "/dev/shm/nccl.%h.%p",
    "TORCHELASTIC_RUN_ID": "amelie-ablation-3",
    "SLURM_JOB_NODELIST": "hopper[17-24,30],login1",
    "SLURM_GPUS_PER_NODE": "secretpart:8",
    "MASTER_ADDR": "hopper17-ib",
    "RANK": "rank-of-amelie",
    "NCCL_ALGO": "algo_of_amelie",
    "CUDA_VISIBLE_DEVICES": "0,1,amelie_gpu_7",
    "PYTORCH_CUDA_ALLOC_CONF": "site_of_amelie:1",
    "NCCL_HOSTID": "4711471147",
    "CUDA_HOME": "/usr/local/cuda-of-amelie",
}
SHOWN = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "CUDA_HOME": "/usr/local/cuda-12.8",
    "CUDA_LAUNCH_BLOCKING": "1",
    "FI_EFA_USE_DEVICE_RDMA": "1",
    "FI_PROVIDER": "efa,tcp",
    "NCCL_ALGO": "Ring,Tree",
    "NCCL_DEBUG": "INFO",
    "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1",
    "NCCL_P2P_LEVEL": "NVL",
    "NCCL_SOCKET_IFNAME": "^lo,docker0",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    "OMP_NUM_THREADS": "4,2",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:128",
    "RANK": "3",
    "SLURM_GPUS_PER_NODE": "h100:8",
    "SLURM_JOB_CPUS_PER_NODE": "64(x2)",
    "SM_CURRENT_HOST": "algo-1",
    "SM_HOSTS": '["algo-1","algo-2-abcde"]',
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
}


def node_with(text: str) -> Node:
    node = load_node("hgx-h100-8", {})
    node = put(node, "gpus", node.gpus[:2])
    gpu = put(node.gpus[0], "processes", (GpuProcess(4711, "python3", user="root", memory_mib=9000),))
    gpu = put(gpu, "thermal.memory_c", Missing("not told", "failed"))
    node = put(node, "gpus", (gpu, node.gpus[1]))
    node = put(node, "pairs", Missing("not told"))
    node = put(node, "kernel_log.events", (KernelEvent("xid", "NVRM: something", 63, gpu.bus_id),))
    node = put(node, "source", msgspec.structs.replace(node.source, kind="live", name="live", notes=("a note",)))
    raw = planted(json.loads(to_json(node)), lambda _, value: f"{value} {text}", but="variables")
    return from_json(json.dumps(raw))


@pytest.mark.wide(every=5)
@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_in_any_field_is_in_no_redacted_facts_and_no_redacted_report(secret: str) -> None:
    node = node_with(SECRETS[secret].format(secret))
    plain = to_json(node).decode()
    assert plain.count(json.dumps(secret)[1:-1]) > 60, "it stands in every field"
    redaction = Redaction(node)
    assert secret not in to_json(redaction.node).decode()
    report = redaction.of(judge(node, include_facts=True))
    assert secret not in msgspec.json.encode(report).decode()


@pytest.mark.wide(every=5)
@pytest.mark.parametrize(
    "wrapping", ["", "[pod/amelie-train-0/main] ", "amelie-train-1  | ", "amelie-kern.log:12:", "17:"]
)
def test_who_wrote_a_line_of_a_kernel_log_is_hidden_behind_every_prefix(wrapping: str) -> None:
    """A dump of syslog, journalctl or clush, through kubectl, docker compose or grep: all have names in front."""
    hosts = ("node12", "node-1.lab", "10.0.0.7")
    own = "xerxes"  # no other word of the node is like it
    healthy = load_node("hgx-h100-8", {})
    for stamp in (*STAMPS, "node12: [ 1.5] ", "[Do Nov 14 07:00:14 2024] node12-b: "):
        for host in hosts:
            stamp = stamp.replace(host, f"{own}-7")
        node = put(healthy, "kernel_log.events", parse_kernel_lines([f"{wrapping}{stamp}{LOST}"]))
        redaction = Redaction(node)
        shown = to_json(redaction.node) + msgspec.json.encode(redaction.of(judge(node, include_facts=True)))
        assert own.encode() not in shown, stamp
        assert b"amelie" not in shown, stamp
        assert b"fallen off the bus" in shown, stamp
        assert [e.kind for e in known(redaction.node.kernel_log.events) or ()] == [
            e.kind for e in known(node.kernel_log.events) or ()
        ]


@pytest.mark.wide(every=3)
@pytest.mark.parametrize("form", ["text", "json", "html", "junit", "nagios", "prometheus", "facts"])
def test_all_of_them_at_once_are_in_no_output(gpudoctor: Gpudoctor, tmp_path: Path, form: str) -> None:
    path = tmp_path / "node.json"
    path.write_bytes(to_json(node_with("; ".join(text.format(secret) for secret, text in SECRETS.items()))))
    check = ("check", "--level", "quick", "-v", "--include-facts", "--format", form)
    shown = gpudoctor(*(("facts",) if form == "facts" else check), "--redact", "--node", str(path))
    assert shown.out
    assert [secret for secret in SECRETS if secret in shown.out] == []


def with_variables(variables: dict[str, str]) -> Node:
    node = load_node("hgx-h100-8", {})
    return put(node, "environment.variables", tuple(Variable(name, value) for name, value in variables.items()))


def test_the_value_of_a_variable_is_hidden_unless_it_is_known_to_name_nobody() -> None:
    node = with_variables(VARIABLES)
    redaction = Redaction(node)
    report = redaction.of(judge(node, include_facts=True))
    shown = to_json(redaction.node).decode() + msgspec.json.encode(report).decode()
    assert [name for name, value in VARIABLES.items() if value in shown] == []
    assert "amelie" not in shown
    assert [variable.name for variable in redaction.node.environment.starting("")] == list(VARIABLES)
    assert redaction.node.environment.get("CUDA_VISIBLE_DEVICES") == "0,1,redacted"


def test_what_is_judged_and_names_nobody_stays() -> None:
    node = redacted(with_variables(SHOWN))
    assert {variable.name: variable.value for variable in node.environment.starting("")} == SHOWN


@pytest.mark.parametrize("variables", [VARIABLES, SHOWN])
def test_a_node_is_judged_the_same_without_its_secrets(variables: dict[str, str]) -> None:
    node = with_variables(variables)
    before, after = judge(node), judge(redacted(node))
    assert [(check.id, check.status) for check in after.checks] == [(check.id, check.status) for check in before.checks]


def test_the_start_of_an_interfaces_own_name_stays_and_is_judged_the_same() -> None:
    node = with_variables({"NCCL_SOCKET_IFNAME": "storage", "GLOO_SOCKET_IFNAME": "storage-net0"})
    node = put(node, "network.interfaces", (Interface("storage-net0", "up"),))
    assert redacted(node).environment.get("NCCL_SOCKET_IFNAME") == "storage"
    statuses = [{check.id: check.status for check in judge(each).checks} for each in (node, redacted(node))]
    assert statuses[0]["env.nccl"] is statuses[1]["env.nccl"] is Status.PASS


@pytest.mark.parametrize("name", ["<unknown>", "python3", "a, b", "x, GPU recov", "x, Nonfatal"])
@pytest.mark.parametrize(
    "said",
    [
        ("79", "GPU has fallen off the bus."),
        ("154", "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
        ("154", "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"),
        ("149", "NETIR_LINK_EVT Nonfatal XC0 i0 Link 04 (0x000004c6 0x00000000)"),
        ("149", "NETIR_LINK_EVT Fatal XC0 i0 Link 04 (0x000004c6 0x00000000)"),
    ],
    ids=["lost", "asks for a reset", "was reset", "not fatal", "fatal"],
)
def test_what_an_xid_says_behind_the_name_of_a_process_is_judged_the_same(said: tuple[str, str], name: str) -> None:
    before = "NVRM: Xid (PCI:0000:18:00): 95, pid=77, name=python3, Uncontained memory error"
    line = f"NVRM: Xid (PCI:0000:18:00): {said[0]}, pid='77', name={name}, {said[1]}"
    node = put(load_node("hgx-h100-8", {}), "kernel_log.events", parse_kernel_lines([before, line]))
    hidden = redacted(node)
    assert name == "<unknown>" or f"name={name}" not in to_json(hidden).decode()

    def xids(of: Node) -> list[str | None]:
        return [str(finding.found) for check in judge(of).checks if check.id == "gpu.xid" for finding in check.findings]

    assert xids(hidden) == xids(node)


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz0123456789._-/:@=, ", min_size=1, max_size=60))
def test_no_variable_that_a_site_made_up_is_shown(value: str) -> None:
    numbers = set(value) <= set("0123456789.,:- ") or value.strip().lower() in (
        "",
        "true",
        "false",
        "yes",
        "no",
        "on",
        "off",
    )
    assert not is_public("NCCL_OF_A_SITE", value, ()) or numbers or value[:-1].rstrip("kmg").replace(",", "").isdigit()
    assert not is_public("SITE_SETTING", value, ())


@pytest.mark.parametrize(
    "text",
    [
        "nvmlDeviceGetCurrPcieLinkWidth = 8 (maximum 16)",
        "/sys/bus/pci/devices/0000:ab:00.0/current_link_width = 8, max_link_width = 16",
        "31.51 GB/s each way instead of 63.02: 50% is lost; x16/x16/x8",
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "event reasons 0x0000000000000084, registers 0x1f1e1d1c 0x00000002",
        "driver 570.172.08, VBIOS 96.00.74.00.01, CUDA 12.8, NCCL 2.26.2",
        "Source: https://docs.nvidia.com/deploy/xid-errors/index.html",
        "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1 and /usr/local/cuda-12.8/lib64/libcudart.so.12",
        "/etc/modprobe.d/blacklist-nouveau.conf; /dev/nvidia0; /proc/driver/nvidia/version; /dev/shm",
        "gpudoctor check pcie.link-width --node hgx-h100-8",
        "rank3:12345 GPU3:1024 ProcessGroupNCCL.cpp:2011 [rank0]: at cuda:0",
        "GPUDOCTOR_CLUSTER_TOKEN: a token is wanted",
        "2026-11-21T10:00:00Z 12:34:56 at 60 C, 700.0 W, 1980 MHz, 80 GiB",
    ],
)
def test_what_names_nobody_is_left_as_it_is(text: str) -> None:
    assert shapes_taken_out(text) == text


def test_a_uuid_of_an_unusual_form_is_hidden_in_a_text_that_was_redacted_before_it_was_known() -> None:
    node = load_node("hgx-h100-8", {})
    redaction = Redaction(node)
    assert redaction.text("rank 3 runs on card7amelie") == "rank 3 runs on card7amelie"
    redaction.of(put(node.gpus[0], "uuid", "card7amelie"))
    assert "amelie" not in redaction.text("rank 3 runs on card7amelie")


def test_a_folder_of_a_persons_name_is_hidden_in_facts_and_findings() -> None:
    """A path of a single name has not the shape of a path; its owner's home shows in others."""
    node = load_node("hgx-h100-8", {})
    paths = tuple(StoragePath(path, ("--data",), writable=True) for path in ("/amelie", "/home/bernd/cache"))
    stale = "Stale file handle (ESTALE)"
    mount = StorageMount("/amelie", "nfs4", "network", "filer7:/exports/carla", error=stale, paths=paths)
    redaction = Redaction(put(node, "storage", Storage(mounts=(mount,))))
    shown = to_json(redaction.node) + msgspec.json.encode(redaction.of(judge(redaction.node, include_facts=True)))
    assert not [name for name in (b"amelie", b"bernd", b"carla", b"filer7") if name in shown]
    assert b"ESTALE" in shown
    assert redaction.text("/amelie and /amelie/x of bernd") == "redacted and /redacted of redacted"


@pytest.mark.parametrize(
    ("source", "fs_type", "options", "kept"),
    [
        ("//winfiler/share", "cifs", ("rw", "username=amelie", "domain=CARLAS", "vers=3.1.1"), "vers=3.1.1"),
        ("bucket-of-amelie", "fuse.gcsfuse", ("rw", "user_id=1000"), "user_id=1000"),
        ("tank/amelie", "zfs", ("rw", "xattr", "noacl"), "noacl"),
        ("10.50.1.1@o2ib:/carlafs", "lustre", ("rw", "flock"), "flock"),
        ("/dev/mapper/amelie-data", "ext4", ("rw", "data=ordered"), "data=ordered"),
        ("/dev/nvme0n1p1", "xfs", ("rw", "logbsize=32k"), "/dev/nvme0n1p1 on /mnt"),
    ],
)
def test_what_was_mounted_and_for_whom_is_not_shown(
    source: str, fs_type: str, options: tuple[str, ...], kept: str
) -> None:
    mount = StorageMount("/mnt", fs_type, "other", source, options, error=None, paths=(StoragePath("/mnt", ("HOME",)),))
    redaction = Redaction(Node(storage=Storage(mounts=(mount,))))
    evidence = redaction.text(mount_evidence(mount).value)
    shown = msgspec.json.encode(redaction.node).decode() + evidence
    assert not [name for name in ("amelie", "CARLAS", "carla", "winfiler", "10.50") if name in shown]
    assert kept in evidence


def test_an_operators_reason_for_a_suppression_is_not_shown(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    rules = [("pcie.link-width", "2999-01-01"), ("gpu.ecc", "2020-01-01")]
    reason = "ticket of bernd (riser of hopper17); ordered"
    config.write_text(
        "suppress:\n" + "".join(f"  - {{check: {c}, until: {d}, reason: '{reason}'}}\n" for c, d in rules)
    )
    for form in ("text", "json", "html"):
        arguments = ("--level", "quick", "-v", "--node", "hgx-h100-8", "--fault", "pcie-width-x8@5")
        shown = gpudoctor("check", *arguments, "--redact", "--format", form, "--config", str(config)).out
        assert [name for name in ("bernd", "hopper17", "ordered") if name in shown] == []
        assert "suppressed until 2999-01-01 (redacted); was fail: PCIe" in " ".join(shown.split())
        assert "ended on 2020-01-01 (redacted): it no longer holds" in " ".join(shown.split())


def test_the_start_of_a_uuid_is_not_shown_either(gpudoctor: Gpudoctor) -> None:
    start = "GPU-01fa4e00-f"
    shown = gpudoctor("check", "--level", "quick", "-v", "--node", "hgx-h100-8", "--gpu", start, "--redact").out
    assert "judged GPU 1 of 8: --gpu GPU-" in shown
    assert start not in shown
    redaction = Redaction(with_variables({"CUDA_VISIBLE_DEVICES": f"{start},GPU-beefbeef"}))
    text = redaction.text(f"CUDA_VISIBLE_DEVICES={start},GPU-beefbeef: CUDA stops at GPU-beefbeef; GPU-3 and GPU-based")
    assert "beef" not in text
    assert start not in text
    assert text.endswith("GPU-3 and GPU-based")


def test_nodes_and_pods_that_a_scheduler_names_are_not_shown(gpudoctor: Gpudoctor, tmp_path: Path) -> None:
    pasted = tmp_path / "pasted.txt"
    pasted.write_text(
        "slurmctld: error: Setting node amelies7 state to INVAL with reason:x\n"
        "slurmctld: drain_nodes: node amelies8 state set to DRAIN\n"
        "$ sinfo -N\nNODELIST NODES PARTITION STATE\n"
        "berndbox1 1 gpu* down*\nberndbox2 1 gpu* fail\nberndbox3 1 gpu* idle\n"
        "$ kubectl get pods\nNAME READY STATUS RESTARTS AGE\n"
        "nvidia-driver-daemonset-q7x2z 0/1 CrashLoopBackOff 3 5d\nnvidia-test-of-amelie 0/1 Error 0 5d\n"
    )
    output = gpudoctor("check", "--node", str(pasted), "--redact", "--json").out
    assert not re.search("amelie|berndbox", output)
    assert "nvidia-driver-daemonset-q7x2z: 0/1 CrashLoopBackOff" in output, "the operator's own pods name nobody"


def test_a_gpu_that_has_no_name_keeps_the_reason() -> None:
    unnamed = Missing("a pasted text does not tell it", "absent")
    node = Node(gpus=(Gpu(0, "0000:3b:00.0", name=unnamed),))
    assert Redaction(node).node.gpus[0].name == unnamed
