"""CPUs, memory and limits of the host: `lscpu`, `numactl -H`, `free`, meminfo, `df`, `ulimit`, /proc/PID/limits."""

from __future__ import annotations

import re
from typing import Any

from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.captures.reader import Block, Part, TextReader, key_value, text_reader
from gpudoctor.facts.captures.text_statements import from_tool
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Host, Node, NumaNode
from gpudoctor.facts.system.sysfs import format_cpu_list, parse_cpu_list

_SIZE = re.compile(r"(\d{1,18}(?:[.,]\d{1,6})?)(B|[KMGT]i?B?)?", re.IGNORECASE)
_CELL = r"\d{1,18}(?:[.,]\d{1,6})?(?:B|[KMGTPkmgtp]i?B?)?"
# "Mem:", "Speicher:", "Partition d'échange:"; Chinese has a wide colon
_LABELLED = re.compile(r"([^\d:\uff1a|]{1,40})[:\uff1a](.{1,400})$")
_MEMINFO = re.compile(r"^(MemTotal|MemAvailable|SwapTotal|SwapFree):\s+(\d{1,15}) kB", re.MULTILINE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
# "1K-blocks", "1024-blocks", "512B-blocks"; powers of 1000 in "1MB-blocks"; "1K-Blöcke", "1K-blocs", "1K-块"
_DF_BLOCKS = re.compile(r"\b(\d{1,12})([KMGT]?)(B?)-[^\W\d]")
# in another language: names, then the share in use ("Use%", "Verw%", "已用%"), then what it is mounted on
# two blanks between columns, which a sentence has only between two sentences
_DF_HEADER = re.compile(
    r"Filesystem\s.*Mounted on$"
    r"|(?=[^|%]{0,120}?[^\s|%.!?,][ \t]{2})[^\W\d][^|%\s]{1,40}\s[^|%]{4,120}"
    r"\s[^\W\d]{2,12}%\s{1,3}[^\W\d][^|%:]{1,40}$"
)
_DF_INODES = re.compile(r"\bI(?:nod|-n)|iuse|iused", re.IGNORECASE)
_ODD = Missing("not understood", "failed")
# the file systems that every job writes to; others may be full for good, as images (ISO, AppImage) and data sets are
_DF_FULL = re.compile(rf"(?!/dev/(?:loop|sr)\d|(?:\S+\s+)?(?:squashfs|iso9660)\s)\S.*\s({_CELL})\s+100%\s+(/\S*)$")
_DF_WRITTEN = re.compile(r"/(?:run$|$|(?:tmp|var|home|root|scratch|dev/shm)(?:/|$)(?!.*(?:/snap/|\.mount_)))")
_DF_LEFT_MIB = 64  # df rounds the share up: 100% of a large disk may leave much
# the soft limit follows the unit and the option: "max locked memory           (kbytes, -l) 65536"
_ULIMIT = re.compile(r"[a-zA-Z][\w -]{2,40}\((?:[a-z0-9 -]{1,20}, )?-([A-Za-z])\)\s+(unlimited|\d{1,20})\s*$")
_PROC = re.compile(r"Max ([a-z -]{3,30}?)\s{2,}(unlimited|\d{1,20})\s+(?:unlimited|\d{1,20})(?:\s|$)")
_OPTION = r"\bulimit -(?:[HS]{1,2} ?-?)?([lnu])\s*$"
_HARD = re.compile(r"\bulimit -\w*H(?!S)(?<!SH)")
_VALUE = re.compile(r"(unlimited|\d{1,20})\s*$")
# by the option of ulimit, and by the name in /proc/PID/limits
_LEAVES = {"l": "memlock_kib", "locked memory": "memlock_kib", "n": "open_files", "open files": "open_files"}
_LEAVES |= {"u": "processes", "processes": "processes"}
_MOST_NODES = 1024

_AVAILABLE = re.compile(r"available: (\d{1,4}) nodes? \(")
_NODE = re.compile(r"node (\d{1,4}) (cpus|size|free):(.*)$")
_MB = re.compile(r"(\d{1,12}) MB")
_NODE_CPUS = re.compile(r"NUMA node(\d{1,4}) CPU\(s\)")


@text_reader(
    "free",
    r"[ \t]*total[ \t]+used[ \t]+free\b"
    # in another language: six words, the fifth with a slash ("Puffer/Cache", "tamp/cache")
    r"|[ \t]{7,40}(?:[^\W\d][^\s\d:|/]{0,15}[ \t]{2,16}){3}[^\W\d][^\s\d:|/]{0,15}[ \t]{1,16}"
    r"[^\W\d][^\s\d:|/]{0,15}/[^\W\d][^\s\d:|/]{1,15}[ \t]{1,16}[^\W\d][^\s\d:|/]{1,15}$",
    rf"\s*[^\W\d][^\d:\uff1a|]{{0,40}}[:\uff1a]\s*{_CELL}(?:\s+{_CELL}){{1,6}}\s*$|\s*-/\+ buffers",
)
def read_free(block: Block) -> Part:
    """RAM and swap from `free` in any unit and language. Raise SourceError if there is no row of the memory.

    `free` does not print its unit (except with -h), so it is derived from plausible sizes, 1 GiB to 16 TiB, and, if two
    units are possible, from the page size: all bytes are multiples of 1024, all KiB of 4. Its words are translated, but
    not its columns: the memory is the first row, the swap the first one with three columns only.
    """
    header: list[str] = []
    rows: list[tuple[str, list[str]]] = []
    for line in block.lines:
        if row := _LABELLED.match(line):
            rows.append((row[1].strip(), row[2].split()))
        elif not header:
            header = line.split()
    memory = next((cells for label, cells in rows if label == "Mem" or len(cells) > 3), None)
    if not header or memory is None:
        raise SourceError("no header and row of the memory of free")
    unit_bytes = _unit_bytes([int(cell[:18]) for cell in memory if cell.isdecimal()])
    # "available" is the last column beside "buff/cache"; before procps 3.3.10 that was "cached"
    has_available = len(memory) == len(header) and (header[-1] == "available" or "/" in header[-2])
    swap = next(
        (cells for label, cells in rows if len(cells) == 3 and label not in ("Low", "High", "Mem")), ["", "", ""]
    )
    cells = (memory[0], memory[-1] if has_available else "", swap[0], swap[2])
    return _memory(*(_mib(cell, unit_bytes) for cell in cells))


def _memory(ram: int | Missing, available: int | Missing, swap: int | Missing, swap_free: int | Missing) -> Part:
    return Part(Node(host=Host(ram_mib=ram, ram_available_mib=available, swap_mib=swap, swap_free_mib=swap_free)))


@text_reader("meminfo", r"Mem(?:Total|Free|Available):\s+\d+ kB", r"[A-Z]\w*(?:\(\w+\))?:\s+\d+(?: kB)?$")
def read_meminfo(block: Block) -> Part:
    """RAM and swap from /proc/meminfo. Raise SourceError if there is no MemTotal."""
    found = {name: int(kib) // 1024 for name, kib in _MEMINFO.findall(block.text)}
    if "MemTotal" not in found:
        raise SourceError("no MemTotal line")
    return _memory(*(found.get(name, _ODD) for name in ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")))


@text_reader(
    "df",
    # also a row without the header, as grep prints it
    rf"{_DF_HEADER.pattern}|\S+\s+\d[\d.]*[KMGT]i?\s+[\d.]+[KMGT]?i?\s+[\d.]+[KMGT]?i?\s+\d+%\s+/dev/shm$",
    r"\S.*\s\d+%\s+/\S*|\S.*\s-\s+/\S*",
)
def read_df(block: Block) -> Part:
    """The size of /dev/shm from `df` in any unit, and the file systems that are full, of space or of inodes (-i).

    Raise SourceError if the line for /dev/shm is incomplete.
    """
    inodes = re.search(r"\bdf\b[^|;&]* (?:-\w*i|--inodes)", block.command) or any(map(_DF_INODES.search, block.lines))
    unit_bytes = 1024
    host = Host()
    full: list[str] = []
    for line in block.lines:
        cells = line.split()
        if _DF_HEADER.match(line):
            unit_bytes = _block_bytes(line)
        elif cells[-1:] == ["/dev/shm"] and not inodes and host == Host():
            if len(cells) not in (6, 7):  # -T adds a column
                raise SourceError("no size in the line for /dev/shm")
            host = Host(shm_mib=_mib(cells[-5], unit_bytes), shm_free_mib=_mib(cells[-3], unit_bytes))
        if (found := _DF_FULL.match(line)) and _DF_WRITTEN.match(found[2]):
            left = 0 if found[1] == "0" else _ODD if inodes else _mib(found[1], unit_bytes)
            full += [found[2]] if isinstance(left, int) and left < _DF_LEFT_MIB else []
    text = f"no {'inodes' if inodes else 'space'} is left on {', '.join(full[:5])}"
    return Part(Node(host=host), reported=(from_tool("df", text, "warning"),) if full else ())


def _block_bytes(header: str) -> int:
    found = _DF_BLOCKS.search(header)
    if found is None:
        return 1024
    base = 1000 if found[2] and found[3] else 1024
    unit_bytes: int = base ** _POWERS[found[2].lower()]
    return int(found[1]) * unit_bytes


def _unit_bytes(numbers: list[int]) -> int:
    total = max(numbers, default=0)
    if total >= 16 * 1024**3 or (total >= 4 * 1024**3 and all(number % 1024 == 0 for number in numbers)):
        return 1
    if total >= 1024**2 and all(number % 4 == 0 for number in numbers):
        return 1024
    return 1024**3 if total < 4096 else 1024**2


def _mib(cell: str, unit_bytes: int) -> int | Missing:
    match = _SIZE.fullmatch(cell)
    if match is None:
        return _ODD
    letter = (match.group(2) or "").lower()[:1]
    if letter:
        unit_bytes = 1024 ** _POWERS.get(letter, 0)  # a B is a byte
    elif cell == "0":
        return 0
    return round(float(match.group(1).replace(",", ".")) * unit_bytes / 1024**2)


# Limits of a process.


@text_reader(
    "ulimit",
    r"(?:core file size|max locked memory|open files|max user processes|data seg size|real-time non-blocking time)"
    r"\s+\((?:[a-z0-9 -]{1,20}, )?-[A-Za-z]\)\s|Limit\s+Soft Limit\s+Hard Limit\s+Units",
    lambda line: _ULIMIT.match(line) or _PROC.match(line) or _VALUE.match(line),
    after=_OPTION,
)
def read_ulimit(block: Block) -> Part:
    """`ulimit -a`, or a single value if the command above it shows which limit it is; /proc/self/limits, in bytes.

    Hard limits (-H) are not used.
    """
    if _HARD.search(block.command):
        return Part()
    leaves: dict[str, Any] = {}
    # the values below "ulimit -n; ulimit -l" do not show which is which
    option = re.search(_OPTION, block.command) if block.command.count("ulimit") == 1 else None
    for line in block.lines:
        if found := _ULIMIT.match(line) or _PROC.match(line):
            leaf, value = _LEAVES.get(found[1]), _limit(found[2])
            if found.re is _PROC and leaf == "memlock_kib" and value is not None:
                value >>= 10  # it counts in bytes
        elif option and (alone := _VALUE.match(line)):
            leaf, value = _LEAVES[option[1]], _limit(alone[1])
        else:
            continue
        if leaf:
            leaves.setdefault(leaf, value)
    return Part(Node(host=Host(**leaves)))


def _limit(value: str) -> int | None:
    return None if value == "unlimited" else int(value)


# CPUs and NUMA nodes.


@text_reader(
    "numactl -H",
    _AVAILABLE.match,
    rf"{_NODE.pattern}|node distances:\s*$|node +\d[\d ]*$|\s+\d{{1,4}}:(?:\s+\d{{1,3}})+\s*$|No NUMA available",
)
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


@text_reader(
    "lscpu",
    r"Architecture:\s+\w{2,20}\s*$",
    r"\s{0,8}(?:CPU|Address sizes|Byte Order|On-line|Off-line|Vendor ID|BIOS|Model|Thread|Core|Cluster|Socket"
    r"|Stepping|Frequency|BogoMIPS|Flags|Virtualization|Hypervisor|Caches|L[1-4]|NUMA|Vulnerabilit|Spec|Mds|Meltdown"
    r"|Gather|Itlb|Mmio|Reg|Retbleed|Srbds|Tsx|Tsa|Vmscape|Indirect|Ghostwrite|Old microcode)"
    r"[\w()/ .-]{0,40}:(?:\s|$)",
)
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


MEMORY_READERS: tuple[TextReader, ...] = (read_free, read_meminfo, read_df)
PROCESSOR_READERS: tuple[TextReader, ...] = (_read_numactl, _read_lscpu)
