"""The readers of what host tools print: lsmod, dkms, ibstat, systemctl, scontrol, kubectl, docker, ulimit ..."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.captures.benchmarks import BENCHMARK_READERS
from gpudoctor.facts.captures.dcgm import DCGM_READERS
from gpudoctor.facts.captures.monitor import MONITOR_READERS
from gpudoctor.facts.captures.reader import Block, Part, TextReader
from gpudoctor.facts.captures.readers import HOST_READERS
from gpudoctor.facts.model.driver import DkmsBuild, Driver, FabricManager, LoadFailure
from gpudoctor.facts.model.missing import NOT_READ, Missing, known
from gpudoctor.facts.model.node import Host, Network, Node
from tests.facts.host_texts import PORTS, dkms_status, ibstat, ibstatus, ibv_devinfo, proc_limits, ulimit_a
from tests.facts.kernel_words import AER, LOST, OFF_BUS, STAMPS, SWITCH
from tests.narrowed import missing, present

READERS = {reader.name: reader for reader in HOST_READERS}


def reader_of(text: str, command: str = "") -> TextReader:
    """The first reader that takes the first line, or the command."""
    first = text.split("\n")[0]
    return next(r for r in HOST_READERS if r.begins(first) or (r.after is not None and command and r.after(command)))


def read(text: str, command: str = "", name: str | None = None) -> Node:
    reader = reader_of(text, command) if name is None else READERS[name]
    lines = text.split("\n")
    whole_end = lines[-1] == ""
    lines = lines[:-1] if whole_end else lines
    missed = [line for line in lines[1:] if line.strip() and not (reader.begins(line) or reader.goes_on(line))]
    assert missed == [], "a line of its own tool that it passes over"
    return reader.read(Block(lines, command=command, whole_end=whole_end)).node


# --- round trips --------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [ibstat, ibstatus, ibv_devinfo])
def test_the_ports_of_an_rdma_tool_come_back(write: Any) -> None:
    told = present(read(write(PORTS)).network.rdma_ports)
    leaves = ["device", "port", "state", "physical_state", "link_layer", "rate_gbit_s"]
    leaves += {ibstat: ["adapter", "firmware"], ibv_devinfo: ["firmware"]}.get(write, [])
    assert [[getattr(port, leaf) for leaf in leaves] for port in told] == [
        [getattr(port, leaf) for leaf in leaves] for port in PORTS
    ]


@pytest.mark.parametrize("write", [ibstat, ibstatus, ibv_devinfo])
def test_a_text_of_ports_that_is_cut_anywhere_tells_nothing_else(write: Any) -> None:
    text = write(PORTS)
    whole = {(port.device, port.port): port for port in known(read(text).network.rdma_ports) or ()}
    for end in range(20, len(text)):
        if "\n" not in text[:end]:
            continue
        for port in known(read_cut(text[:end]).network.rdma_ports) or ():
            same = whole[port.device, port.port]
            for leaf in ("state", "rate_gbit_s"):
                value = getattr(port, leaf)
                # a figure or a state never becomes another one
                assert isinstance(value, Missing) or value == getattr(same, leaf), end


@pytest.mark.parametrize(
    "text",
    [
        # no type and no firmware
        "CA 'rdmap16s27'\n\tCA type: \n\tNumber of ports: 1\n\tFirmware version: \n\tPort 1:\n\t\tState: Active\n"
        "\t\tPhysical state: LinkUp\n\t\tRate: 100\n\t\tBase lid: 0\n\t\tLink layer: Unknown\n",
        "hca_id:\trdmap16s27\n\ttransport:\t\t\tunspecified (4)\n\tfw_ver:\t\t\t\t0.0.0.0\n\t\tport:\t1\n"
        "\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\t\t\tlink_layer:\t\tUnspecified\n",
    ],
    ids=["ibstat", "ibv_devinfo"],
)
def test_an_elastic_fabric_adapter_is_known_by_its_lack_of_a_link_layer(text: str) -> None:
    (port,) = known(read(text).network.rdma_ports) or ()
    assert (port.device, port.state, port.link_layer, port.is_efa) == ("rdmap16s27", "ACTIVE", "Unknown", True)


def read_cut(text: str) -> Node:
    lines = text.split("\n")
    reader = reader_of(text)
    block = Block([line for line in lines if line], whole_end=text.endswith("\n"))
    return reader.read(block).node


BUILDS = (DkmsBuild("550.54.15", "6.8.0-45-generic", "installed"), DkmsBuild("570.124.06", None, "added"))


@pytest.mark.parametrize("separator", ["/", ", "])
def test_dkms_builds_come_back(separator: str) -> None:
    assert read(dkms_status(BUILDS, separator)).driver.dkms == BUILDS


@pytest.mark.parametrize("write", [ulimit_a, proc_limits])
@pytest.mark.parametrize("memlock", [64, 8192, None])
def test_limits_come_back(write: Any, memlock: int | None) -> None:
    host = Host(memlock_kib=memlock, open_files=1048576, processes=None)
    assert read(write(host)).host == host


@pytest.mark.parametrize(
    ("command", "answer", "leaf", "value"),
    [
        ("ulimit -l", "unlimited", "memlock_kib", None),
        ("bash -c 'ulimit -n'", "", "", None),
        ("ulimit -n", "1024", "open_files", 1024),
        ("ulimit -HSl", "64", "memlock_kib", 64),
        ("ulimit -Hl", "unlimited", "memlock_kib", NOT_READ),  # the soft limit is the one in force
        ("ulimit -n; ulimit -l", "1024", "memlock_kib", NOT_READ),
        ("ulimit -Su", "4096", "processes", 4096),
    ],
)
def test_one_limit_is_known_by_its_command(command: str, answer: str, leaf: str, value: int | None) -> None:
    reader = READERS["ulimit"]
    assert reader.after is not None
    if not leaf:
        assert not reader.after("echo ulimit")
        return
    assert reader.after(command)
    assert getattr(reader.read(Block([answer], command=command)).node.host, leaf) == value


# --- the module ---------------------------------------------------------------------------------


def test_modules_that_are_loaded() -> None:
    text = "Module                  Size  Used by\nnvidia_uvm  1540096  2\nnvidia  56713216  45 nvidia_uvm\n"
    text += "nvidia_peermem         16384  0\n"
    node = read(text)
    assert (node.driver.module_loaded, node.network.peermem_loaded) == (True, True)
    for users, registered in (("", False), (" ib_uverbs,nvidia_peermem", True)):
        network = read(f"{text}ib_core               413696  2{users}\n").network
        assert network == Network(peermem_loaded=True, peermem_registered=registered)
    assert read("nouveau              2306048  3\n").driver == Driver(nouveau_loaded=True)
    # a list without it may be cut: nothing is concluded
    assert read("Module                  Size  Used by\nxfs 1540096 2\n") == Node()


def test_the_module_on_the_disk() -> None:
    text = (
        "filename:       /lib/modules/6.8.0-45-generic/updates/dkms/nvidia.ko\nalias:          char-major-195-*\n"
        "version:        550.54.15\nlicense:        NVIDIA\nvermagic:       6.8.0-45-generic SMP mod_unload\n"
    )
    assert read(text).driver.disk_version == "550.54.15"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("modprobe: ERROR: could not insert 'nvidia': Required key not available", "signature-rejected"),
        ("insmod: ERROR: could not insert module nvidia.ko: Invalid module format", "other-kernel"),
        ("modprobe: ERROR: could not insert 'nvidia': Exec format error", "other-kernel"),
        ("modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.8.0-45-generic", "build-failed"),
        ("modinfo: ERROR: Module nvidia not found.", "build-failed"),
        ("modprobe: ERROR: could not insert 'nvidia': No such device", "refused"),
        ("Error! Your kernel headers for kernel 6.8.0-45-generic cannot be found.", "build-failed"),
        ("Error! Bad return status for module build on kernel: 6.8.0-45-generic (x86_64)", "build-failed"),
        ('docker: Error response from daemon: could not select device driver "nvidia" with capabilities: [[gpu]].',
         "no-container-runtime"),
        ("docker: Error response from daemon: unknown or invalid runtime name: nvidia.", "no-container-runtime"),
        ('  Warning  FailedCreatePodSandBox  kubelet  no runtime for "nvidia" is configured', "no-container-runtime"),
    ],
)  # fmt: skip
def test_each_error_of_loading_has_its_cause(line: str, cause: Any) -> None:
    assert read(line + "\n").driver.load_failures == (LoadFailure(cause, line.strip()),)


def test_errors_of_other_modules_are_none() -> None:
    for line in ("modprobe: FATAL: Module zfs not found in directory /lib/modules/6.8", "ERROR: could not open file"):
        assert not any(reader.begins(line) for reader in HOST_READERS)


@pytest.mark.parametrize(
    ("words", "code"),
    [("nvml error: driver not loaded: unknown", 9), ("nvml error: driver/library version mismatch: unknown", 18)],
)
def test_a_container_that_does_not_start_tells_what_nvml_said(words: str, code: int) -> None:
    line = f"nvidia-container-cli: initialization error: {words}"
    assert read(f"docker: Error response from daemon: OCI runtime create failed: {line}\n").driver.init_code == code


def test_the_running_kernel_and_secure_boot() -> None:
    uname = "Linux box 6.8.0-45-generic #45-Ubuntu SMP PREEMPT_DYNAMIC Fri Aug 30 2024 x86_64 x86_64 GNU/Linux\n"
    assert read(uname).host == Host(kernel="6.8.0-45-generic", machine="x86_64")
    assert read("6.8.0-45-generic\n", "uname -r").host == Host(kernel="6.8.0-45-generic")
    assert read("SecureBoot enabled\n").host == Host(secure_boot=True)


@pytest.mark.parametrize("kind", ["NVIDIA UNIX x86_64 Kernel Module ", "NVIDIA UNIX Open Kernel Module for x86_64 "])
def test_the_version_of_either_kernel_module(kind: str) -> None:
    text = f"NVRM version: {kind} 550.54.15  Release Build\nGCC version:  gcc version 13.2.0\n"
    assert read(text).driver == Driver(module_version="550.54.15", module_loaded=True)


# --- services and schedulers --------------------------------------------------------------------

_MISMATCH = "fabric manager NVIDIA GPU driver interface version 550.54.14 don't match with driver version 550.54.15."
SERVICE = f"""\
× nvidia-fabricmanager.service - NVIDIA fabric manager service
     Loaded: loaded (/lib/systemd/system/nvidia-fabricmanager.service; enabled; preset: enabled)
     Active: failed (Result: exit-code) since Wed 2024-10-02 10:11:12 UTC; 1h ago
    Process: 901 ExecStart=/usr/bin/nv-fabricmanager -c fabricmanager.cfg (code=exited, status=1/FAILURE)
        CPU: 12ms

Oct 02 10:11:12 box systemd[1]: Starting nvidia-fabricmanager.service - NVIDIA fabric manager service...
Oct 02 10:11:12 box nv-fabricmanager[901]: {_MISMATCH}
Oct 02 10:11:12 box systemd[1]: nvidia-fabricmanager.service: Failed with result 'exit-code'.
"""


def test_the_state_of_fabric_manager_with_its_version_and_its_error() -> None:
    told = read(SERVICE).fabric_manager
    assert (told.service, told.result, told.version) == ("failed", "exit-code", "550.54.14")
    (error,) = known(told.errors) or ()
    assert "don't match" in error
    assert "box" not in error, "the name of the host"


@pytest.mark.parametrize(
    ("text", "command", "service"),
    [
        ("Unit nvidia-fabricmanager.service could not be found.\n", "", "not-found"),
        ("inactive\n", "systemctl is-active nvidia-fabricmanager", "inactive"),
        ("active\n", "systemctl is-active nvidia-fabricmanager.service", "active"),
    ],
)
def test_the_service_alone(text: str, command: str, service: str) -> None:
    assert read(text, command).fabric_manager == FabricManager(service=service)


def test_the_persistence_daemon_is_another_service() -> None:
    assert (
        read(SERVICE.replace("nvidia-fabricmanager", "nvidia-persistenced").replace("nv-fab", "x-fab")[:300]) == Node()
    )


def test_the_errors_of_fabric_managers_log_since_its_last_start() -> None:
    text = (
        "[Oct 01 2024 10:11:12] [INFO] [tid 900] Fabric Manager version 535.54.15 is running with the options\n"
        "[Oct 01 2024 10:11:13] [ERROR] [tid 900] NVLink 3 of GPU 2 is down\n"
        "[Oct 02 2024 10:11:12] [INFO] [tid 901] Fabric Manager version 550.54.15 is running with the options\n"
        "[Oct 02 2024 10:11:13] [ERROR] [tid 901] failed to find the GPU handle 77 in the multicast team request\n"
        "[Oct 02 2024 10:11:14] [INFO] [tid 901] Successfully configured all the available NVSwitches\n"
    )
    told = read(text).fabric_manager
    assert told.version == "550.54.15"
    (error,) = present(told.errors)
    assert error.endswith("] failed to find the GPU handle 77 in the multicast team request")


def test_a_fabric_manager_without_nvswitches_keeps_the_line_that_says_so() -> None:
    nothing = "NVSwitch driver failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]"
    told = read(SERVICE.replace(_MISMATCH, nothing)).fabric_manager
    assert (told.service, told.errors) == ("failed", (nothing,))


JOURNAL = f"""\
Oct 02 10:00:00 box systemd[1]: Starting NVIDIA fabric manager service...
Oct 02 10:00:01 box nv-fabricmanager[400]: {_MISMATCH}
Oct 02 10:00:01 box systemd[1]: Failed to start NVIDIA fabric manager service.
Oct 02 10:11:12 box systemd[1]: Starting nvidia-fabricmanager.service - NVIDIA fabric manager service...
Oct 02 10:11:13 box nv-fabricmanager[901]: request to query NVSwitch device information failed with error:WARNING
Oct 02 10:11:14 box systemd[1]: nvidia-fabricmanager.service: Control process exited, code=exited, status=1/FAILURE
Oct 02 10:11:14 box systemd[1]: nvidia-fabricmanager.service: Failed with result 'exit-code'.
"""


def test_the_journal_of_fabric_manager_shows_how_its_last_start_ended() -> None:
    read_state = read(JOURNAL).fabric_manager
    assert (read_state.service, read_state.result) == ("failed", "exit-code")
    (error,) = known(read_state.errors) or ()
    assert error.startswith("request to query NVSwitch")
    started = read(
        JOURNAL + JOURNAL.splitlines()[3] + "\nOct 02 11:00:00 box systemd[1]: Started NVIDIA fabric manager service.\n"
    )
    assert started.fabric_manager == FabricManager(service="active")


def test_the_journal_of_fabric_manager_has_errors_only_where_it_says_error() -> None:
    lines = (
        "[Oct 02 2024 10:11:12] [INFO] [tid 9] start NVSwitch 0/12 error threshold configuration",
        "Option when facing GPU to NVSwitch NVLink failure = 0",
        "Abort CUDA jobs when FM exits = 1",
        error := "[Oct 02 2024 10:11:13] [ERROR] [tid 9] NVLink 3 of GPU 2 is down",
    )
    journal = "".join(f"Oct 02 10:11:12 box nv-fabricmanager[9]: {line}\n" for line in lines)
    assert read(journal).fabric_manager.errors == (error,)


SCONTROL = """\
NodeName=n1 Arch=x86_64 CoresPerSocket=56
   CPUAlloc=0 CPUEfctv=224 CPUTot=224 CPULoad=1.02
   Gres=gpu:nvidia_h100_80gb_hbm3:8(S:0-1),nvme:4
   OS=Linux 6.8.0-45-generic #45-Ubuntu SMP
   State=IDLE+DRAIN ThreadsPerCore=2 TmpDisk=0
   CfgTRES=cpu=224,mem=2000000M,billing=224,gres/gpu=6
   Reason=gpu 3 xid 79 [root@2024-10-02T10:11:12]
"""


def said(text: str, command: str = "") -> list[tuple[str, str]]:
    """How loudly, and in which words, the text's own tool reports something."""
    reader = reader_of(text, command)
    return [(each.loudness, each.text) for each in reader.read(Block(text.split("\n"), command=command)).reported]


def test_slurms_node() -> None:
    fewer, drained = ("error", "6 of 8 GPUs of n1 are given out"), ("error", "n1 is idle+drain: gpu 3 xid 79")
    assert said(SCONTROL) == [fewer, drained]
    well = SCONTROL.replace("gres/gpu=6", "gres/gpu=8").replace("+DRAIN", "").replace("Reason=gpu 3 xid 79", "")
    assert said(well) == [("ok", "8 of 8 GPUs of n1 are given out")]
    none = SCONTROL.replace(":8(S:0-1)", ":1").replace("gres/gpu=6", "gres/gpu=0")
    assert said(none)[0] == ("error", "0 of 1 GPUs of n1 are given out"), "as loud as Kubernetes' 0 of 16"
    parked = SCONTROL.replace("gres/gpu=6", "gres/gpu=8").replace("gpu 3 xid 79", "new disk")
    assert said(parked) == [("warning", "n1 is idle+drain: new disk")]


@pytest.mark.parametrize(
    ("state", "named"),
    [
        *(("DOWN+NOT_RESPONDING", True), ("DRNG@", True), ("FAIL*", True), ("IDLE*", True), ("INVAL", True)),
        *(("MIXED", False), ("IDLE~", False), ("IDLE+POWERED_DOWN", False), ("ALLOCATED", False)),
    ],
)
def test_a_node_that_slurm_gives_no_jobs_is_named_with_its_state(state: str, named: bool) -> None:
    text = SCONTROL.replace("gres/gpu=6", "gres/gpu=8").replace("IDLE+DRAIN", state)
    away = [words for _, words in said(text) if words.startswith("n1 is ")]
    assert away == [f"n1 is {state.lower()}: gpu 3 xid 79"] * named


def test_numbers_of_several_nodes_are_not_compared() -> None:
    two = SCONTROL + "\n" + SCONTROL.replace("NodeName=n1", "NodeName=n2")
    part = READERS["scontrol show node"].read(Block(two.split("\n")))
    assert ([each.text[:7] for each in part.reported], len(part.notes)) == (["n1 is i", "n2 is i"], 1)


def test_kubernetes_nodes_and_containers_are_not_mixed() -> None:
    two = KUBECTL.format(ready="True", cordoned="false") + KUBECTL.format(ready="True", cordoned="false")
    for name, text in (("kubectl describe node", two), ("docker inspect", INSPECT + INSPECT.replace("64", "65"))):
        part = READERS[name].read(Block(text.split("\n")))
        assert (part.node, len(part.notes)) == (Node(), 1)


def test_sinfo_names_the_nodes_that_get_no_jobs() -> None:
    long = "NODELIST NODES PARTITION STATE CPUS S:C:T MEMORY REASON\nn1 1 gpu* drained* 224 2:56:2 2000000 bad_gpu\n"
    assert said(long.rstrip()) == [("error", "n1 is drained*: bad_gpu")]
    reasons = "REASON        USER  TIMESTAMP           NODELIST\ngpu is gone   root  2024-10-02T10:11:12 n1"
    assert said(reasons) == [("error", "n1 is down or drained: gpu is gone")]
    many = "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\ngpu*  up  infinite  4  idle n[1-4]"
    assert said(many) == []
    # which one of them is judged is not said
    assert said(f"{many}\ngpu*  up  infinite  2  down n[5-6]") == [("unread", "n[5-6] is down: no reason given")]
    assert said(f"{many}\ngpu*  up  infinite  0  down") == []
    assert said("2  down* n[5-6]\n3  fail* n[7-9]") == [
        ("error", f"{nodes} is {state}: no reason given") for nodes, state in (("n[5-6]", "down*"), ("n[7-9]", "fail*"))
    ]
    assert said(f"{many}\ngpu*  up  infinite  2  drain n[5-6]") == [("warning", "n[5-6] is drain: no reason given")]


KUBECTL = """\
Name:               n1
Roles:              worker
Labels:             nvidia.com/gpu.present=true
Taints:             <none>
Unschedulable:      {cordoned}
Conditions:
  Type              Status  LastHeartbeatTime                 LastTransitionTime                Reason        Message
  ----              ------  -----------------                 ------------------                ------        -------
  MemoryPressure    False   Wed, 02 Oct 2024 10:11:12 +0000   Wed, 02 Oct 2024 10:11:12 +0000   KubeletOk     fine
  GpuXidError       True    Wed, 02 Oct 2024 10:11:12 +0000   Wed, 02 Oct 2024 10:11:12 +0000   Xid79         lost
  Ready             {ready}    Wed, 02 Oct 2024 10:11:12 +0000   Wed, 02 Oct 2024 10:11:12 +0000   KubeletReady  ready
Capacity:
  cpu:             224
  nvidia.com/gpu:  8
Allocatable:
  nvidia.com/gpu:  7
System Info:
  Kernel Version:  6.8.0-45-generic
"""


def test_kubernetes_node() -> None:
    text = KUBECTL.format(ready="True", cordoned="false")
    fewer, condition = said(text, "kubectl describe node n1")
    assert fewer == ("error", "7 of 8 GPUs of n1 are given out")
    assert (condition[0], condition[1].startswith("n1 is GpuXidError True")) == ("error", True)
    away = said(KUBECTL.format(ready="False", cordoned="true"), "kubectl describe node n1")
    assert any(words.startswith("n1 is unschedulable") for _, words in away)
    assert any(words.startswith("n1 is Ready False") for _, words in away)
    assert not any("MemoryPressure" in words for _, words in away)


def test_conditions_of_health_are_bad_if_they_are_not_true() -> None:
    rows = (
        "AcceleratedHardwareReady False {0} {0} XID79 lost",
        "KernelReady True {0} {0} KernelIsReady fine",
        "NetworkUnavailable False {0} {0} CalicoIsUp fine",
        "GpuNotReady True {0} {0} Gone lost",
    )
    more = "".join(f"  {row.format('Wed, 02 Oct 2024 10:11:12 +0000')}\n" for row in rows)
    text = KUBECTL.format(ready="True", cordoned="false").replace("  GpuXidError", f"{more}  GpuXidError")
    bad = [words.split()[2] for _, words in said(text, "kubectl describe node n1")[1:]]
    assert bad == ["AcceleratedHardwareReady", "GpuNotReady", "GpuXidError"]


PODS = """\
NAME                                  READY   STATUS                  RESTARTS      AGE
nvidia-device-plugin-daemonset-5crlk  0/1     CrashLoopBackOff        12            40m
nvidia-dcgm-exporter-8x               1/1     Running                 0             3d
nvidia-driver-daemonset-v5gqj         0/1     Init:CrashLoopBackOff   6 (2m ago)    8m
my-gpu-job                            0/1     Error                   0             1h
"""
POD = """\
Name:                 nvidia-driver-daemonset-v5gqj
Namespace:            gpu-operator
Controlled By:  DaemonSet/nvidia-driver-daemonset
Init Containers:
  k8s-driver-manager:
    Image:         nvcr.io/nvidia/cloud-native/k8s-driver-manager:v0.1.0
    State:          Waiting
      Reason:       CrashLoopBackOff
"""


def test_pods_of_gpu_software_that_do_not_run() -> None:
    """NVIDIA/gpu-operator #258: the driver's pod does not get beyond its first container."""
    assert said(PODS) == [
        ("error", "nvidia-device-plugin-daemonset-5crlk: 0/1 CrashLoopBackOff"),
        ("error", "nvidia-driver-daemonset-v5gqj: 0/1 Init:CrashLoopBackOff"),
    ]
    assert said(POD) == [("error", "nvidia-driver-daemonset-v5gqj: k8s-driver-manager waits in CrashLoopBackOff")]


# --- containers ---------------------------------------------------------------------------------

INSPECT = """\
        "HostConfig": {
            "Memory": 34359738368,
            "NanoCpus": 4000000000,
            "IpcMode": "private",
            "ShmSize": 67108864,
            "Ulimits": [
                {
                    "Name": "memlock",
                    "Hard": 65536,
                    "Soft": 65536
                }
            ],
"""


def test_what_a_container_was_given() -> None:
    host = read(INSPECT).host
    assert (host.shm_mib, host.memlock_kib, host.memory_limit_mib, host.cpu_quota) == (64, 64, 32768, 4.0)
    assert isinstance(read(INSPECT.replace("private", "host")).host.shm_mib, Missing), "the host's /dev/shm is used"
    assert read(INSPECT.replace("65536", "-1")).host.memlock_kib is None
    assert read(INSPECT.replace("34359738368", "0")).host.memory_limit_mib is None


# --- beside each other --------------------------------------------------------------------------

OTHERS = (
    *(stamp + line for stamp in STAMPS if stamp for line in (LOST, SWITCH, OFF_BUS, AER)),
    *(
        "Failed to initialize NVML: Unknown Error",
        "NVIDIA-SMI has failed because it couldn't communicate with the driver.",
    ),
    *("Unable to determine the device handle for GPU 0000:34:00.0: Unknown Error", "No devices were found"),
    *("WARNING: infoROM is corrupted at gpu 0000:34:00.0", "GPU 0: NVIDIA H100 (UUID: GPU-1)", "Timestamp     : Wed"),
    *("==============NVSMI LOG==============", "| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15 |"),
    *('{"MESSAGE":"NVRM: Xid (PCI:0000:34:00): 79","_TRANSPORT":"kernel"}', "NVRM: Xid (PCI:0000:34:00): 79, lost"),
    *("GPU0\t X \tNV18\t0-55", "01:00.0 3D controller: NVIDIA Corporation GH100 (rev ff)", "NCCL_DEBUG=INFO"),
)


by_reader = pytest.mark.parametrize(
    "reader", [*HOST_READERS, *DCGM_READERS, *BENCHMARK_READERS, *MONITOR_READERS], ids=lambda reader: reader.name
)


@by_reader
def test_no_reader_takes_the_line_of_another_tool(reader: TextReader) -> None:
    own = {"lspci": "01:00.0", "environment": "NCCL"}.get(reader.name, "\0")
    taken = [line for line in OTHERS if not line.startswith(own) and (reader.begins(line) or reader.goes_on(line))]
    assert taken == []


@pytest.mark.wide(every=5)
@by_reader
@pytest.mark.parametrize(
    "text", ["", "\0", "x" * 5000, "Port 1:", "\t\tRate: ", '"ShmSize": 99999999999999999999', ": : :"]
)
def test_nonsense_tells_nothing_and_breaks_nothing(reader: TextReader, text: str) -> None:
    try:
        part = reader.read(Block([text, text], command="ulimit -n"))
    except SourceError:
        return
    assert isinstance(part, Part)
    assert not part.node.gpus


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("fabric manager log", f"[Jan 01 2025 10:00:00] [INFO] {'x' * 1_000_000}"),
        ("ibstat", f"CA 'mlx5_0'\n\tPort 1:\n\t\tState: a{' ' * 1_000_000}b"),
    ],
)
def test_a_line_of_a_megabyte_takes_no_time_but_in_proportion(name: str, line: str) -> None:
    assert READERS[name].read(Block(line.split("\n"))).notes == ()


def test_a_figure_in_a_last_line_without_an_end_is_not_believed() -> None:
    block = Block(["max locked memory           (kbytes, -l) 819"], whole_end=False)
    assert READERS["ulimit"].read(block).node == Node()
    whole = msgspec.structs.replace(block, whole_end=True)
    assert READERS["ulimit"].read(whole).node.host == Host(memlock_kib=819)
    ports = READERS["ibstat"].read(
        Block(["CA 'mlx5_0'", "\tPort 1:", "\t\tState: Active", "\t\tRate: 40"], whole_end=False)
    )
    (port,) = present(ports.node.network.rdma_ports)
    missing(port.rate_gbit_s)
