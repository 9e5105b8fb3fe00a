"""Texts of one machine as tools print them, made of a node: for round trips and for pastes of any order."""

from __future__ import annotations

import re
from collections.abc import Callable

from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import Node


def table(node: Node, layout: int = 12) -> str:
    """What plain `nvidia-smi` prints: the layouts of CUDA 10 (no MIG), 12 and 13."""
    left, middle = (31, 22) if layout < 12 else (41, 24 if layout > 12 else 22)
    widths = (left, middle, 22)
    border = "+" + "+".join("-" * width for width in widths) + "+"
    versions = (
        f"Driver Version: {known(node.driver.library_version)}     CUDA Version: {known(node.driver.cuda_version)}"
    )
    rows = ["Thu Nov 14 07:00:00 2024       ", "+" + "-" * (sum(widths) + 2) + "+"]
    rows += [f"| NVIDIA-SMI {known(node.driver.library_version)}   {versions}".ljust(sum(widths) + 3) + "|", border]

    def row(*cells: str) -> str:
        return "|" + "|".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)) + "|"

    rows += [row("GPU  Name  Persistence-M", "Bus-Id  Disp.A", "Volatile Uncorr. ECC")]
    rows += [border.replace("-", "=").replace("+", "|", 1)]
    for gpu in sorted(node.gpus, key=lambda gpu: gpu.index):
        bus_id = f"0000{gpu.bus_id.upper()}"
        ecc = "Off" if known(gpu.ecc.enabled) is False else str(known(gpu.ecc.uncorrected_volatile))
        mode = "On" if known(gpu.settings.persistence) else "Off"
        draw, limit = int(known(gpu.power.draw_w) or 0), int(known(gpu.power.limit_w) or 0)
        memory = f"{known(gpu.memory_used_mib)}MiB / {known(gpu.memory_total_mib)}MiB"
        state = f"N/A  {known(gpu.thermal.gpu_c)}C  P{known(gpu.clocks.performance_state)}  {draw}W / {limit}W"
        rows.append(row(f"  {gpu.index}  {str(known(gpu.name))[:26]}  {mode} ", f"{bus_id} Off ", f"{ecc} "))
        rows.append(row(f"{state} ", f"{memory} ", f"{known(gpu.utilization.gpu_pct)}%   Default "))
        if layout >= 11:
            rows.append(row("", "", "Disabled "))
        rows.append(border)
    rows += ["", "+" + "-" * (sum(widths) + 2) + "+", "| Processes:".ljust(sum(widths) + 3) + "|"]
    rows += ["|" + "=" * (sum(widths) + 2) + "|", "|  No running processes found".ljust(sum(widths) + 3) + "|"]
    return "\n".join([*rows, "+" + "-" * (sum(widths) + 2) + "+", ""])


def gpu_list(node: Node) -> str:
    """`nvidia-smi -L`."""
    gpus = sorted(node.gpus, key=lambda gpu: gpu.index)
    return "".join(f"GPU {gpu.index}: {known(gpu.name)} (UUID: {known(gpu.uuid)})\n" for gpu in gpus)


CSV_COLUMNS: dict[str, Callable[[Gpu], object]] = {
    "index": lambda gpu: gpu.index,
    "name": lambda gpu: known(gpu.name),
    "pci.bus_id": lambda gpu: f"0000{gpu.bus_id.upper()}",
    "uuid": lambda gpu: known(gpu.uuid),
    "temperature.gpu": lambda gpu: known(gpu.thermal.gpu_c),
    "utilization.gpu [%]": lambda gpu: f"{known(gpu.utilization.gpu_pct)} %",
    "memory.total [MiB]": lambda gpu: f"{known(gpu.memory_total_mib)} MiB",
    "memory.used [MiB]": lambda gpu: f"{known(gpu.memory_used_mib)} MiB",
    "ecc.errors.uncorrected.volatile.total": lambda gpu: known(gpu.ecc.uncorrected_volatile),
    "pcie.link.width.current": lambda gpu: known(gpu.pcie.width),
    "clocks.max.sm [MHz]": lambda gpu: f"{known(gpu.clocks.sm_max_mhz)} MHz",
}


def csv(node: Node, *, units: bool = True, header: bool = True) -> str:
    """`nvidia-smi --query-gpu=... --format=csv`, of the columns above."""

    def cell(gpu: Gpu, column: str) -> str:
        said = str(CSV_COLUMNS[column](gpu))
        return said if units else re.sub(r" (?:MiB|%|MHz)$", "", said)

    rows = [", ".join(cell(gpu, column) for column in CSV_COLUMNS) for gpu in node.gpus]
    head = [", ".join(column if units else column.partition(" ")[0] for column in CSV_COLUMNS)] if header else []
    return "".join(f"{row}\n" for row in [*head, *rows])


# a topic of `nvidia-smi -q`, of a GPU that its chassis slows down
TOPIC = """GPU 00000000:1B:00.0
    Clocks
        Graphics                          : 210 MHz
        SM                                : 210 MHz
    Clocks Throttle Reasons
        HW Slowdown                       : Active
            HW Power Brake Slowdown       : Active
"""

COLLECT_ENV = """Collecting environment information...
PyTorch version: 2.3.1+cu121
Is debug build: False
CUDA used to build PyTorch: 12.1
OS: Ubuntu 22.04.4 LTS (x86_64)
Python version: 3.10.12 (main, Mar 22 2024, 16:50:05) [GCC 11.4.0] (64-bit runtime)
Is CUDA available: True
GPU models and configuration:
GPU 0: NVIDIA A100-SXM4-80GB
GPU 1: NVIDIA A100-SXM4-80GB

Nvidia driver version: 535.129.03
Versions of relevant libraries:
[pip3] nvidia-nccl-cu12==2.20.5
GPU Topology:
        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV12    0-63            0               N/A
GPU1    NV12     X      0-63            0               N/A
"""


def dcgm_diag(pcie: str = "Pass - All", version: int = 3) -> str:
    """`dcgmi diag -r 2` of DCGM 3, or 4 with a row for each of two GPUs, and this result of the PCIe test of GPU 1."""
    border = f"+{'-' * 27}+{'-' * 48}+"

    def row(name: str, value: str) -> str:
        return f"| {name:<26}| {value:<47}|"

    def section(name: str) -> str:
        return f"+-----  {name}  {'-' * (17 - len(name))}+{'-' * 48}+"

    rows = ["Successfully ran diagnostic for group.", border, row("Diagnostic", "Result"), border.replace("-", "=")]
    rows += [section("Metadata"), row("DCGM Version", f"{version}.3.5"), row("Driver Version Detected", "550.54.15")]
    rows += [section("Deployment"), row("Denylist" if version < 4 else "software", "Pass"), section("Integration")]
    if version < 4:
        rows += [row("PCIe", pcie)]
        rows += [row("Warning", "GPU 1 Detected 11 PCIe replays per minute"), row("", "Pass it on.")] * ("Fail" in pcie)
    else:
        result = pcie.split()[0]
        rows += [row("pcie", result), row("", "GPU0: Pass"), row("", f"GPU1: {result}")]
        rows += [row("Warning: GPU1", "Detected 11 PCIe replays per minute")] * (result == "Fail")
    return "\n".join([*rows, section("Stress"), row("Targeted Power", "Skip - All"), border, ""])


def dcgm_diag_json(status: str, version: int = 3) -> str:
    """`dcgmi diag -r 1 -j` with this result of the PCIe test of GPU 1."""
    gpu = '"gpu_id" : "1"' if version < 4 else '"entity_group" : "GPU", "entity_id" : 1'
    summary = "" if version < 4 else f', "test_summary" : {{ "status" : "{status}" }}'
    return f"""{{
\t"DCGM {"GPU " if version < 4 else ""}Diagnostic" :
\t{{
\t\t"test_categories" : [ {{ "category" : "Integration", "tests" :
\t\t[
\t\t\t{{ "name" : "PCIe", "results" : [ {{ {gpu}, "status" : "{status}" }} ]{summary} }}
\t\t] }} ]
\t}}
}}
"""


NUMACTL = """available: 2 nodes (0-1)
node 0 cpus: 0 1 2 3
node 0 size: 31900 MB
node 0 free: 20000 MB
node 1 cpus: 4 5 6 7
node 1 size: 32000 MB
node 1 free: 30000 MB
node distances:
node   0   1
  0:  10  21
  1:  21  10
"""

LSCPU = """Architecture:            x86_64
  CPU op-mode(s):        32-bit, 64-bit
CPU(s):                  16
  On-line CPU(s) list:   0-6,8
Model name:              AMD EPYC 7B13
Hypervisor vendor:       KVM
NUMA node(s):            2
NUMA node0 CPU(s):       0-3
NUMA node1 CPU(s):       4-6,8
"""

DMON = """# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk
# Idx      W      C      C      %      %      %      %      %      %    MHz    MHz
    0     64     30     46      0      0      0      0      0      0   1593    210
    1     61     28      -      0      0      0      0      0      0   1593    210
    0    412     57     71     99     38      0      0      0      0   2619   1755
"""

PMON = """# gpu         pid   type     sm    mem    enc    dec    command
# Idx           #    C/G      %      %      %      %    name
    0      26351     C     97     41      -      -    python3 train.py
    1          -     -      -      -      -      -    -
"""

DCGM_DISCOVERY = """2 GPUs found.
+--------+----------------------------------------------------------------------+
| GPU ID | Device Information                                                   |
+--------+----------------------------------------------------------------------+
| 0      | Name: NVIDIA H100 80GB HBM3                                          |
|        | PCI Bus ID: 00000000:19:00.0                                         |
|        | Device UUID: GPU-11111111-2222-3333-4444-555555555555                |
+--------+----------------------------------------------------------------------+
| 1      | Name: <<<NULL>>>                                                     |
|        | PCI Bus ID: 00000000:5D:00.0                                         |
|        | Device UUID: GPU-11111111-2222-3333-4444-666666666666                |
+--------+----------------------------------------------------------------------+
0 NvSwitches found.
"""

DCGM_DMON = """#Entity   TMPTR                       POWER                       GPUTL
ID        C                           W                           %
GPU 0     41                          118.221                     100
GPU 1     43                          121.004                     N/A
"""

DCGM_HEALTH = """+---------------------------+----------------------------------------------------------+
| Health Monitor Report                                                                |
+===========================+==========================================================+
| Overall Health            | Failure                                                  |
| GPU                       |                                                          |
| -> 1                      | Failure                                                  |
|    -> Errors              |                                                          |
|       -> Memory system    | Failure                                                  |
|                           | A DBE has been detected.                                 |
+---------------------------+----------------------------------------------------------+
"""

DCGM_NVLINK = """+----------------------+
|  NvLink Link Status  |
+----------------------+
GPUs:
    gpuId 0:
        U U U D X _
    gpuId 1:
        U U U U U U
NvSwitches:
    No NvSwitches found.

Key: Up=U, Down=D, Disabled=X, Not Supported=_
"""

NCCL_TESTS = """# nThread 1 nGpus 2 minBytes 33554432 maxBytes 67108864 step: 2(factor) iters: 20 validation: 1
#
# Using devices
#  Rank  0 Group  0 Pid  26230 on     node7 device  0 [0x19] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  26230 on     node7 device  1 [0x5d] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
    33554432       8388608     float     sum      -1    191.1  175.60  175.60      0    190.0  176.60  176.60      0
    67108864      16777216     float     sum      -1    311.1  215.70  215.70      0    310.0  216.50  216.50      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 196.1
#
"""

DEVICE_QUERY = """./deviceQuery Starting...

 CUDA Device Query (Runtime API) version (CUDART static linking)

Detected 1 CUDA Capable device(s)

Device 0: "Tesla V100-SXM2-32GB"
  CUDA Driver Version / Runtime Version          12.2 / 11.8
> Peer access from Tesla V100-SXM2-32GB (GPU0) -> Tesla V100-SXM2-32GB (GPU1) : Yes

deviceQuery, CUDA Driver = CUDART, CUDA Driver Version = 12.2, CUDA Runtime Version = 11.8, NumDevs = 1
Result = PASS
"""

BANDWIDTH_TEST = """[CUDA Bandwidth Test] - Starting...
Running on...

 Device 0: NVIDIA A100-PCIE-40GB
 Quick Mode

 Host to Device Bandwidth, 1 Device(s)
 PINNED Memory Transfers
   Transfer Size (Bytes)\tBandwidth(GB/s)
   32000000\t\t\t6.2

Result = PASS

NOTE: The CUDA Samples are not meant for performance measurements. Results may vary when GPU Boost is enabled.
"""

P2P_BANDWIDTH = """[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
Device: 0, NVIDIA GeForce RTX 4090, pciBusID: 1, pciDeviceID: 0, pciDomainID:0
Device=0 CANNOT Access Peer Device=1
P2P Connectivity Matrix
     D\\D     0     1
     0\t     1     0
     1\t     0     1
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 919.39  22.11
     1  22.19 921.29
P2P=Disabled Latency Matrix (us)
   GPU     0      1
     0   1.31  12.11
     1  12.31   1.30
"""

NVBANDWIDTH = """nvbandwidth Version: v0.4
Built from Git version: v0.4.2

NOTE: This tool reports current measured bandwidth on your system.
Additional system-specific tuning may be required to achieve maximal peak bandwidth.

CUDA Runtime Version: 12020
Driver Version: 570.133.20

Device 0: NVIDIA H100 80GB HBM3

Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
          0         1
0       N/A    370.90
1    370.90       N/A

SUM device_to_device_memcpy_read_ce 741.80
"""

LSPCI_TREE = """-+-[0000:e0]-+-00.0  Advanced Micro Devices, Inc. [AMD] Starship/Matisse Root Complex
 |           \\-01.1-[e1]----00.0  Samsung Electronics Co Ltd NVMe SSD Controller PM9A1
 \\-[0000:00]-+-00.0  Advanced Micro Devices, Inc. [AMD] Starship/Matisse Root Complex
             \\-01.1-[01]--+-00.0  NVIDIA Corporation GA102 [GeForce RTX 3090]
"""

ROCM_SMI = """========================ROCm System Management Interface========================
================================================================================
GPU  Temp   AvgPwr  SCLK     MCLK     Fan     Perf  PwrCap  VRAM%  GPU%
0    30.0c  120.0W  925Mhz   1000Mhz  0%      auto  300.0W   50%    0%
================================================================================
=============================End of ROCm SMI Log ==============================
"""

TEGRASTATS = "05-12-2024 11:02:13 RAM 2511/7620MB (lfb 4x4MB) SWAP 0/3810MB (cached 0MB) CPU [3%@729] gpu@47.1C\n"

DEVICE_PLUGIN = (
    "2025/08/10 19:09:42 'nvidia.com/gpu' device marked unhealthy: GPU-11111111-2222-3333-4444-555555555555\n"
)

NCCL_LOG = """node7:1208:1208 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.7<0>
node7:1208:1208 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]
"""

IBDEV2NETDEV = "mlx5_0 port 1 ==> ibp26s0 (Down)\nmlx5_1 port 1 ==> enp27s0f0np0 (Up)\n"

NHC = "SUCCESS:  nhc:  Health check passed:  check_gpu_count: Expected 8 and found 8\n"

NVLINK_INFO = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-2222-3333-4444-555555555555)
         NVLE: disabled
         Firmware Version:
             MSE: 14:4:0
             NETIR UPHY: 7:0:0
"""


GPUSTAT = """[0] NVIDIA RTX A6000     | 38\u00b0C,   0 % |   341 / 49140 MB | user(337M)
[1] NVIDIA RTX A6000     | 39'C,   3 % |   341 / 49140 MB |
"""

MIG_LIST = """+-------------------------------------------------------+
| GPU instances:                                        |
| GPU   Name             Profile  Instance   Placement  |
|                          ID       ID       Start:Size |
|=======================================================|
|   0  MIG 3g.20gb          9        1          0:4     |
+-------------------------------------------------------+
"""

IP = """2: ens1f0np0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc mq state UP group default qlen 1000
    link/ether 00:00:5e:00:53:01 brd ff:ff:ff:ff:ff:ff
    inet 192.0.2.7/24 brd 192.0.2.255 scope global ens1f0np0
"""

PERFQUERY = """# Port extended counters: Lid 5 port 1 (CapMask: 0x5300)
PortSelect:......................1
SymbolErrorCounter:..............812
"""

CUDA_WARNING = (
    "torch/cuda/__init__.py:128: UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). "
    "Error 802: system not yet initialized (Triggered internally at CUDAFunctions.cpp:108.)\n"
)

RDMA_LINK = """link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev enp1s0f0np0
1/1: mlx5_1/1: subnet_prefix fe80:0000:0000:0000 lid 13399 state DOWN physical_state POLLING
"""

COMPUTE_APPS = """gpu_uuid, pid, process_name, used_gpu_memory [MiB]
GPU-11111111-2222-3333-4444-555555555555, 4711, python3, with a comma, 130004 MiB
GPU-11111111-2222-3333-4444-555555555555, 4712, [Not Found], [N/A]
GPU-11111111-2222-3333-4444-666666666666, 4713, python3, 12 MiB
"""

PROC_INFORMATION = """Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 10
GPU UUID: \t GPU-11111111-2222-3333-4444-555555555555
Video BIOS: \t ??.??.??.??.??
Bus Type: \t PCIe
Bus Location: \t 0000:19:00.0
Device Minor: \t 5
GPU Excluded:\t No
"""


def dcgm_exporter(gpu: int, **fields: float) -> str:
    """Metrics of dcgm-exporter with the values of these fields of one GPU."""
    labels = f'gpu="{gpu}",UUID="GPU-1111111{gpu}-2222-3333-4444-555555555555",modelName="NVIDIA H100 80GB HBM3"'
    return "".join(
        f"# HELP DCGM_FI_DEV_{field} it.\n# TYPE DCGM_FI_DEV_{field} gauge\nDCGM_FI_DEV_{field}{{{labels}}} {value}\n"
        for field, value in fields.items()
    )


def kubectl_status(capacity: int, allocatable: int, quote: str = "") -> str:
    """A part of `kubectl get node -o yaml`, or json (`quote`)."""

    def entry(name: str, gpus: int) -> str:
        brace, end, comma = (" {", "\n    }", ",") if quote else ("", "", "")
        rows = f'\n      {quote}cpu{quote}: "48"{comma}\n      {quote}nvidia.com/gpu{quote}: "{gpus}"'
        return f"    {quote}{name}{quote}:{brace}{rows}{end}\n"

    return entry("allocatable", allocatable) + entry("capacity", capacity)


# texts that are recognised, and no figure of which is judged
NOT_JUDGED = {
    "dcgmi diag": dcgm_diag(),
    "nccl-tests": NCCL_TESTS,
    "deviceQuery": DEVICE_QUERY,
    "bandwidthTest": BANDWIDTH_TEST,
    "p2pBandwidthLatencyTest": P2P_BANDWIDTH,
    "nvbandwidth": NVBANDWIDTH,
    "lspci -t": LSPCI_TREE,
    "AMD's tool": ROCM_SMI,
    "tegrastats": TEGRASTATS,
    "a log of NCCL": NCCL_LOG,
    "ibdev2netdev": IBDEV2NETDEV,
    "node health check (NHC)": NHC,
    "ip": IP,
    "perfquery": PERFQUERY,
    "gpustat": GPUSTAT,
    "nvidia-smi mig": MIG_LIST,
}
READ = (NUMACTL, LSCPU, DMON, PMON, DCGM_DISCOVERY, DCGM_DMON, DCGM_NVLINK, NVLINK_INFO, RDMA_LINK, PROC_INFORMATION)
