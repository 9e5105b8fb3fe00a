"""`lspci -vv` (or -vvv): the PCIe path of each GPU, and the NVIDIA functions on the bus."""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from gpudoctor.facts.captures import ABSENT, BUS_ID, SourceError
from gpudoctor.facts.captures.reader import Block, Part, text_reader
from gpudoctor.facts.captures.text_statements import from_tool
from gpudoctor.facts.model.gpu import Gpu, PcieHop, PcieLink
from gpudoctor.facts.model.missing import Fact, Missing, if_known
from gpudoctor.facts.model.node import Node, PciBus, PciDevice, short_bus_id

# "18:00.0 3D controller [0302]: NVIDIA Corporation GH100 [10de:2330] (rev a1)"; the numbers come with -nn
_HEADER = re.compile(rf"({BUS_ID}) ([^:\[]{{0,60}}?) ?(?:\[([0-9a-f]{{4}})\])?: (.{{0,300}})", re.I)
# "18:00.0 0302: 10de:2330 (rev a1)": the same with -n, numbers alone
_NUMBERS = re.compile(rf"({BUS_ID}) ([0-9a-f]{{4}}): ([0-9a-f]{{4}}:[0-9a-f]{{4}})\b", re.I)
# a single function, selected on the command line
_OF_ONE = rf"(?i)\blspci\b[^|;&]{{0,80}}? -\w{{0,6}}s *({BUS_ID})(?!\S)"
_IDS = re.compile(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]", re.IGNORECASE)
_BUSES = re.compile(r"\s+Bus: primary=([0-9a-f]{2}), secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})", re.I)
_SPEED = re.compile(r"Speed (\d{1,3}(?:\.\d)?)GT/s")
_WIDTH = re.compile(r"Width x(\d{1,2})")
_NUMA = re.compile(r"\s+NUMA node: (-?\d{1,4})")
_DRIVER = re.compile(r"\s+Kernel driver in use: (\S{1,60})")
# lspci's names of the relevant classes -> their numbers in sysfs
_CLASSES = {
    "vga compatible controller": "0x030000",
    "3d controller": "0x030200",
    "display controller": "0x038000",
    "pci bridge": "0x060400",
    "host bridge": "0x060000",
    "bridge": "0x068000",
    "audio device": "0x040300",
    "infiniband controller": "0x020700",
    "ethernet controller": "0x020000",
    "usb controller": "0x0c0330",
    "serial bus controller": "0x0c8000",
}
_GPU_CLASSES = ("0x0300", "0x0302")
_DEVICE_CLASSES = (*_GPU_CLASSES, "0x0680")  # 0x0680: NVSwitch; a card's audio and USB functions are left out
_OF_LAPTOPS = re.compile(r"Mobile|Max-Q|Laptop")
_WORD_OF_SPEED = re.compile(r"Speed [^,(]*(?:\(([a-z]{1,20})\))?")
_WORD_OF_WIDTH = re.compile(r"Width x\d{1,2} ?(?:\(([a-z]{1,20})\))?")
_DENIED = Missing("lspci was not run as root", "denied")


class Function(PcieHop, frozen=True):
    """One PCI function of the dump: a hop, and what else is shown of it."""

    name: str = ""
    driver: str | None = None
    off_bus: bool = False
    numa_node: int | Missing | None = ABSENT
    secondary: int = -1  # buses behind a bridge, from secondary to subordinate
    subordinate: int = -1

    @property
    def hop(self) -> PcieHop:
        return PcieHop(*(getattr(self, field) for field in PcieHop.__struct_fields__))

    @property
    def is_nvidia(self) -> bool:
        return self.vendor_id == "0x10de" or self.name.startswith("NVIDIA")

    @property
    def is_gpu(self) -> bool:
        return self.is_nvidia and isinstance(self.pci_class, str) and self.pci_class.startswith(_GPU_CLASSES)


class PciTree(Fact, frozen=True):
    """All functions of the dump."""

    functions: tuple[Function, ...]

    def of(self, bus_id: str) -> Function | None:
        return next((function for function in self.functions if function.bus_id == bus_id), None)

    @property
    def gpus(self) -> list[Function]:
        return sorted((f for f in self.functions if f.is_gpu), key=lambda f: f.bus_id)

    @property
    def nvidia_devices(self) -> tuple[PciDevice, ...]:
        return tuple(
            PciDevice(f.bus_id, f.pci_class, f.device_id, f.driver, f.numa_node, f.off_bus)
            for f in sorted(self.functions, key=lambda f: f.bus_id)
            if f.is_nvidia and not isinstance(f.pci_class, Missing) and f.pci_class.startswith(_DEVICE_CLASSES)
        )

    def path(self, bus_id: str) -> tuple[PcieHop, ...] | Missing:
        """The hops from the function to its root port, found by the bus numbers of the bridges."""
        function = self.of(bus_id)
        if function is None or function.width == ABSENT:
            return ABSENT  # a plain `lspci` lists the function, but not its link
        domain, bus = bus_id.split(":")[0], int(bus_id.split(":")[1], 16)
        above = [
            f for f in self.functions if f.bus_id.startswith(f"{domain}:") and 0 < f.secondary <= bus <= f.subordinate
        ]
        # the nearest bridge has the fewest buses behind it
        above.sort(key=lambda f: (-f.secondary, f.subordinate))
        return tuple(each.hop for each in (function, *above))

    def link(self, gpu: Gpu) -> PcieLink:
        """The GPU's link with its path, and with the lanes that lspci shows if no other dump contains them."""
        path = self.path(gpu.bus_id)
        link = replace(gpu.pcie, path=path)
        if isinstance(path, Missing) or not _is_absent(gpu.pcie.width):
            return link
        most = path[0].max_width if _is_absent(gpu.pcie.width_max) else gpu.pcie.width_max
        return replace(link, width=path[0].width, width_max=most)


def _is_absent(value: object) -> bool:
    return isinstance(value, Missing) and value.kind == "absent"


def parse_lspci(text: str) -> PciTree:
    """Read the dump. Raise SourceError if it contains no function."""
    functions: dict[str, Function] = {}
    header: re.Match[str] | None = None
    body: list[str] = []
    for line in (*text.splitlines(), "end"):
        if not line or line[0].isspace():
            body.append(line)
            continue
        if header is not None:
            function = _function(header, body)
            functions.setdefault(function.bus_id, function)
        header, body = _HEADER.match(_NUMBERS.sub(r"\1 [\2]: Device \3 [\3]", line)), []
    if not functions:
        raise SourceError("no line like '18:00.0 3D controller: NVIDIA Corporation ...'")
    return PciTree(tuple(functions.values()))


def _function(header: re.Match[str], body: list[str]) -> Function:
    bus_id, text, number, name = header.groups()
    bus_id = short_bus_id(bus_id if bus_id.count(":") == 2 else f"0000:{bus_id}")
    ids = _IDS.search(name)
    pci_class = f"0x{number.lower()}00" if number else _CLASSES.get(text.lower(), ABSENT)
    vendor_id = f"0x{ids[1].lower()}" if ids else "0x10de" if name.startswith("NVIDIA") else ABSENT
    device_id = f"0x{ids[2].lower()}" if ids else ABSENT
    links: dict[str, str] = {}
    found: dict[str, Any] = {}
    acs: bool | None = None
    denied = False
    for line in body:
        label = line.strip()
        if label.startswith(("LnkCap:", "LnkSta:")):
            links.setdefault(label[:6], label)
        elif label.startswith("ACSCtl:"):
            acs = "ReqRedir+" in label or "CmpltRedir+" in label
        elif "<access denied>" in label:
            denied = True
        elif buses := _BUSES.match(line):
            found |= {"secondary": int(buses[2], 16), "subordinate": int(buses[3], 16)}
        elif numa := _NUMA.match(line):
            found["numa_node"] = int(numa[1]) if int(numa[1]) >= 0 else None
        elif driver := _DRIVER.match(line):
            found["driver"] = driver[1]
    missing = _DENIED if denied else ABSENT
    can, now = links.get("LnkCap"), links.get("LnkSta")
    return Function(
        bus_id,
        vendor_id,
        device_id,
        pci_class,
        speed_gt_s=_figure(now, _SPEED, "speed", missing),
        max_speed_gt_s=_figure(can, _SPEED, "speed", missing),
        width=if_known(_figure(now, _WIDTH, "width", missing), int),
        max_width=if_known(_figure(can, _WIDTH, "width", missing), int),
        width_downgraded=_downgraded(now, _WORD_OF_WIDTH),
        speed_downgraded=_downgraded(now, _WORD_OF_SPEED),
        acs_redirect=acs if acs is not None else _DENIED if denied else False if can else ABSENT,
        name=_IDS.sub("", name).partition(" (rev ")[0].strip(),
        # a laptop's GPU is powered off while nothing uses it
        off_bus="(rev ff)" in name and not _OF_LAPTOPS.search(name),
        **found,
    )


def _downgraded(line: str | None, word: re.Pattern[str]) -> bool | Missing:
    """What lspci prints after the link's speed or width: "downgraded", "ok", or nothing (older versions)."""
    found = word.search(line) if line is not None else None
    return {"downgraded": True, "ok": False}.get(found[1] or "", ABSENT) if found else ABSENT


def _figure(line: str | None, pattern: re.Pattern[str], what: str, missing: Missing) -> float | Missing:
    """The number in a line about the link; `missing` if there is no such line."""
    if line is None:
        return missing
    found = pattern.search(line)
    return float(found[1]) if found else Missing(f"lspci shows no link {what}", "failed")


@text_reader(
    "lspci",
    rf"{_NUMBERS.pattern}|(?:[0-9a-f]{{4,8}}:)?[0-9a-f]{{2}}:[0-9a-f]{{2}}\.[0-7] "
    r"[A-Z0-9][^:\n]{2,60}(?:bridge|Bridge|controller|device|accelerators)[^:\n]{0,20}: ",
    r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] |[ \t]+\S",
    after=_OF_ONE,
)
def read_lspci(block: Block) -> Part:
    """Lines without a header line, as grep prints them, belong to the function in the command."""
    text, asked = block.text, re.search(_OF_ONE, block.command)
    if asked is not None and not any(map(_HEADER.match, block.lines)):
        text = f"{asked[1]} PCI device: \n{text}"
    tree = parse_lspci(text)
    return Part(Node(pci=PciBus(nvidia_devices=tree.nvidia_devices)), pci_tree=tree)


@text_reader("lspci | grep ACSCtl", r"\s{0,80}ACSCtl:\s+SrcValid[+-]")
def read_acs(block: Block) -> Part:
    """`lspci -vvv | grep ACSCtl`, without the functions: NVIDIA's advice is to see "SrcValid-" everywhere."""
    on = sum("SrcValid+" in line or "Redir+" in line for line in block.lines)
    text = f"ACS is on (SrcValid+) in {on} of {len(block.lines)} functions; which bridges they are is not in this text"
    return Part(reported=(from_tool("lspci", text, "warning"),) if on else (), notes=("lspci: only ACSCtl is shown",))
