"""CPUs and NUMA nodes of the host: `lscpu` and `numactl -H`."""

from __future__ import annotations

import re
from typing import Any

from gpudoctor.facts.captures.reader import Block, Part, TextReader, key_value, text_reader
from gpudoctor.facts.model.node import Host, Node, NumaNode
from gpudoctor.facts.system.sysfs import format_cpu_list, parse_cpu_list

_MOST_NODES = 1024

_AVAILABLE = re.compile(r"available: (\d{1,4}) nodes? \(")
_NODE = re.compile(r"node (\d{1,4}) (cpus|size|free):(.*)$")
_MB = re.compile(r"(\d{1,12}) MB")


def _read_numactl(block: Block) -> Part:
    """The nodes with their CPUs and memory; nothing if fewer are listed than there are."""
    cpus: dict[int, frozenset[int]] = {}
    memory: dict[int, int] = {}
    count = 0
    for line in block.lines:
        if found := _AVAILABLE.match(line):
            count = int(found[1])
        elif (row := _NODE.match(line)) and len(cpus) < _MOST_NODES:
            number, what, value = int(row[1]), row[2], row[3].strip()
            if what == "cpus":
                cpus[number] = frozenset(int(cpu) for cpu in value.split() if cpu.isdecimal() and len(cpu) < 6)
            elif what == "size" and (size := _MB.match(value)):
                memory[number] = int(size[1])
    if not cpus or len(cpus) != count or memory.keys() != cpus.keys():
        return Part(notes=("numactl -H: not complete, and not used",))
    # a node with memory and without CPUs is a GPU's memory (Grace) or an expansion (CXL): which, is not in the text
    nodes = tuple(
        NumaNode(number, memory[number], format_cpu_list(cpus[number])) for number in sorted(cpus) if cpus[number]
    )
    return Part(Node(host=Host(numa_nodes=nodes, cpus_total=sum(map(len, cpus.values())))))


_NODE_CPUS = re.compile(r"NUMA node(\d{1,4}) CPU\(s\)")


def _read_lscpu(block: Block) -> Part:
    leaves: dict[str, Any] = {}
    nodes: dict[int, str] = {}
    count: int | None = None
    for line in block.lines:
        name, value = key_value(line) or ("", "")
        if not value:
            continue
        if name == "Architecture":
            leaves["machine"] = value
        elif node := _NODE_CPUS.fullmatch(name):
            if len(nodes) < _MOST_NODES:
                nodes[int(node[1])] = value
        elif name == "NUMA node(s)" and value.isdecimal():
            count = int(value[:6])
        elif name == "Hypervisor vendor":
            leaves |= {"virtualization": "vm", "hypervisor": value[:100]}
        elif name == "CPU(s)" and value.isdecimal():
            leaves.setdefault("cpus_total", int(value[:6]))
        elif name == "On-line CPU(s) list" and (online := parse_cpu_list(value)):
            leaves["cpus_total"] = len(online)
    if nodes and len(nodes) == count:
        leaves["numa_nodes"] = tuple(NumaNode(number, cpus=nodes[number]) for number in sorted(nodes))
    return Part(Node(host=Host(**leaves)))


PROCESSOR_READERS: tuple[TextReader, ...] = (
    text_reader(
        "numactl -H",
        _AVAILABLE.match,
        rf"{_NODE.pattern}|node distances:\s*$|node +\d[\d ]*$|\s+\d{{1,4}}:(?:\s+\d{{1,3}})+\s*$|No NUMA available",
        _read_numactl,
    ),
    text_reader(
        "lscpu",
        r"Architecture:\s+\w{2,20}\s*$",
        r"\s{0,8}(?:CPU|Address sizes|Byte Order|On-line|Off-line|Vendor ID|BIOS|Model|Thread|Core|Cluster|Socket|Stepping"
        r"|Frequency|BogoMIPS|Flags|Virtualization|Hypervisor|Caches|L[1-4]|NUMA|Vulnerabilit|Spec|Mds|Meltdown|Gather"
        r"|Itlb|Mmio|Reg|Retbleed|Srbds|Tsx|Tsa|Vmscape|Indirect|Ghostwrite|Old microcode)[\w()/ .-]{0,40}:(?:\s|$)",
        _read_lscpu,
    ),
)
