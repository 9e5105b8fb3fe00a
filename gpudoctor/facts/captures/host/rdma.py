"""`ibstat`, `ibstatus`, `ibv_devinfo`, `mlxlink`, `rdma link` and /sys: the RDMA ports of a host."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from msgspec.structs import replace

from gpudoctor.facts.captures.reader import Block, Part, TextReader, key_value, text_reader
from gpudoctor.facts.captures.text_statements import from_tool
from gpudoctor.facts.model.node import Network, Node, RdmaPort
from gpudoctor.facts.model.reported import Loudness

_DEVICE = r"(?P<device>[\w.-]{1,40})"
_DEVICE_LINE = re.compile(
    rf"(?:CA '|hca_id:\s*|Infiniband device '){_DEVICE}(?:' port (?P<port>\d{{1,3}}) status:|'?\s*$)"
)
_MLXLINK_DEVICE = re.compile(rf"mlxlink\b.*?(?:-d|--device)[ =]{_DEVICE}")
_RECOMMENDATION = re.compile(r"\s*Recommendation\s*:\s*(?!No issue was observed|N/A|None\s*$)([A-Za-z].{0,200})")
_LINK_UP = re.compile(r"\s*State\s*:\s*Active\b")
_RDMA_LINK = re.compile(
    rf"(?:\d{{1,4}}/\d{{1,4}}: |link ){_DEVICE}/(?P<port>\d{{1,3}}):? (?P<told>.{{0,100}}\bstate \w.{{0,200}})$"
)
# grep "" /sys/class/infiniband/*/ports/*/{state,rate,phys_state}
_SYSFS = re.compile(
    rf"(?:/sys/class/infiniband/)?{_DEVICE}/ports/(?P<port>\d{{1,3}})/(?P<key>state|phys_state|rate|link_layer):(?P<value>.{{1,60}})$"
)
_NUMBER = re.compile(r"(\d{1,5}(?:\.\d{1,3})?)")
_PORT_LINE = re.compile(r"\s*[Pp]ort:?\s*(\d{1,3}):?\s*$")
# the tools' words, and those of sysfs -> sysfs' words; a word that was cut off matches none of them
_STATES = {"active": "ACTIVE", "down": "DOWN", "init": "INIT", "initializing": "INIT", "armed": "ARMED"}
_STATES |= {f"port_{word}": state for word, state in _STATES.items()}
_PHYSICAL = ("LinkUp", "Polling", "Disabled", "Sleep", "LinkErrorRecovery", "PortConfigurationTraining")
# for an EFA, sysfs contains Unknown, and ibv_devinfo prints Unspecified
_LAYERS = {"infiniband": "InfiniBand", "ethernet": "Ethernet", "unknown": "Unknown", "unspecified": "Unknown"}
# the leaf of each key, and its words
_WORDS = {
    "state": ("state", _STATES),
    "phys_state": ("physical_state", {"link_up": "LinkUp"} | {word.lower(): word for word in _PHYSICAL}),
    "link_layer": ("link_layer", _LAYERS),
}
_WORDS |= {"physical_state": _WORDS["phys_state"]}
_OF_DEVICE = {"ca type": "adapter", "firmware version": "firmware", "fw_ver": "firmware"}
_NUMBERED = re.compile(r"^\d{1,3}: ")
_Told = defaultdict[tuple[str, int], dict[str, Any]]  # device and port: leaves
# what ibstat prints below a device, pasted without its indentation
_UNINDENTED = (
    r"(?:CA type|Number of ports|(?:Firmware|Hardware) version|(?:Node|System image|Port) GUID|Port \d{1,3}"
    r"|(?:Physical )?[Ss]tate|Rate|(?:Base|SM) lid|LMC|Capability mask|Link layer): ?\S{0,40}(?: 0x\w+)?\s*$"
)


@text_reader("ibstat", _DEVICE_LINE.match, rf"[ \t]+[\w ()\[\]-]{{1,40}}:|\s+GID\[|{_UNINDENTED}")
def read_ports(block: Block) -> Part:
    """`ibstat`, `ibstatus`, `ibv_devinfo` and `mlxlink -d mlx5_0`: a line for each device and port, then "key: value".

    Only the RDMA device in the command identifies the port of `mlxlink`. `ibstatus` prints a number before its words
    ("4: ACTIVE"), the others after them or not at all.
    """
    ports: _Told = defaultdict(dict)
    named = _MLXLINK_DEVICE.search(block.command)
    device, port = (named["device"], 1) if named is not None else ("", 0)
    of_device: dict[str, Any] = {}
    rate: dict[str, float] = {}
    for line in block.lines:
        if begin := _DEVICE_LINE.match(line):
            device, port, of_device, rate = begin["device"], int(begin["port"] or 0), {}, {}
        elif number := _PORT_LINE.match(line):
            port, rate = int(number[1]), {}
            ports[device, port] |= of_device
        elif (reported := key_value(line)) and device:
            key, value = reported[0].lower(), reported[1]
            if key in _OF_DEVICE and value:
                of_device[_OF_DEVICE[key]] = value
            elif key in ("active_width", "active_speed") and (number := _NUMBER.match(value)):
                rate[key] = float(number[1])
            elif leaf := _port_leaf(key, _NUMBERED.sub("", value)):
                # the line of the port was left out: `ibstat | grep State`
                implied = "state" in leaf and "state" in ports.get((device, port), {})
                port = port + 1 if implied else port or 1
                ports[device, port] |= of_device | leaf
            if port and len(rate) == 2:
                ports[device, port]["rate_gbit_s"] = rate["active_width"] * rate["active_speed"]
    return _part(ports)


@text_reader(
    "mlxlink",
    r"Operational Info\s*$",
    r"-{4,}\s*$|(?:Operational|Supported|Troubleshooting|Tool|Module|Counters) Info\w*\s*$"
    r"|(?:State|Physical state|Speed|Width|FEC|Loopback Mode|Auto Negotiation|Enabled Link Speed.{0,30}"
    r"|Supported (?:Cable|Link) Speed.{0,30}|Status Opcode|Group Opcode|Recommendation|Firmware Version|MFT Version"
    r"|(?:Raw|Effective|Symbol) .{0,40}|Link Down Counter|Time Since Last Clear .{0,20})\s*:(?:\s|$)",
)
def read_mlxlink(block: Block) -> Part:
    """The port, and what mlxlink itself concludes of it: a port may be up with a bad cable."""
    bad = [found[1].strip() for found in block.matches(_RECOMMENDATION)]
    named = _MLXLINK_DEVICE.search(block.command)
    place = f"{named['device']}: " if named else ""
    loudness: Loudness = "warning" if any(block.matches(_LINK_UP)) else "unread"  # it may be meant to be down
    reported = tuple(from_tool("mlxlink", f"{place}{text}", loudness) for text in bad)
    if not named or not named["device"].startswith("mlx"):
        return Part(notes=("mlxlink: the text does not say which port it is of",), reported=reported)
    return replace(read_ports.read(block), reported=reported)


@text_reader("rdma link", _RDMA_LINK.match)
def read_rdma_link(block: Block) -> Part:
    """`rdma link`: the state of every port, and its network interface."""
    ports: _Told = defaultdict(dict)
    for found in block.matches(_RDMA_LINK):
        fields = found["told"].split()
        pairs = dict(zip(fields[::2], fields[1::2], strict=False))
        leaves = {"interface": pairs["netdev"][:40]} if "netdev" in pairs else {}
        for key in ("state", "physical_state"):
            leaves |= _port_leaf(key, pairs.get(key, ""))
        ports[found["device"], int(found["port"])] |= leaves
    return _part(ports)


@text_reader("/sys/class/infiniband", _SYSFS.match)
def read_sysfs(block: Block) -> Part:
    """The files of the ports in /sys/class/infiniband, each with its path before it."""
    ports: _Told = defaultdict(dict)
    for found in block.matches(_SYSFS):
        value = _NUMBERED.sub("", found["value"].strip())
        ports[found["device"], int(found["port"])] |= _port_leaf(found["key"], value)
    return _part(ports)


def _part(found: _Told) -> Part:
    ports = tuple(RdmaPort(device, port, **leaves) for (device, port), leaves in sorted(found.items()) if leaves)
    return Part(Node(network=Network(rdma_ports=ports))) if ports else Part()


def _port_leaf(key: str, value: str) -> dict[str, Any]:
    """The leaf in one line of a port; empty for a line that is not kept, or cut off after its colon."""
    word = value.split(" (")[0].strip()
    leaf, values = _WORDS.get(key.replace(" ", "_"), ("", {}))
    if word.lower() in values:
        return {leaf: values[word.lower()]}
    if key == "rate" and (number := _NUMBER.match(word)):
        return {"rate_gbit_s": float(number[1])}
    return {}


RDMA_READERS: tuple[TextReader, ...] = (read_ports, read_rdma_link, read_sysfs, read_mlxlink)
