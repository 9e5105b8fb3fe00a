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
