"""`ibstat`, `ibstatus`, `ibv_devinfo`, `mlxlink` and `rdma link`: the RDMA ports of a host."""

from __future__ import annotations

import re
from typing import Any

from gpudoctor.facts.captures.reader import Block, Part, TextReader
from gpudoctor.facts.model.node import Network, Node, RdmaPort

_DEVICE = r"(?P<device>[\w.-]{1,40})"
_IBSTAT = re.compile(rf"CA '{_DEVICE}'\s*$")
_IBSTAT_MORE = re.compile(r"CA '|[ \t]+[\w ()]{1,40}:")
_IBSTATUS = re.compile(rf"Infiniband device '{_DEVICE}' port (?P<port>\d{{1,3}}) status:")
_DEVINFO = re.compile(rf"hca_id:\s*{_DEVICE}\s*$")
_DEVINFO_MORE = re.compile(r"hca_id:|[ \t]+[\w \[\]-]{1,40}:|\s+GID\[")
_MLXLINK = re.compile(r"Operational Info\s*$")
_MLXLINK_MORE = re.compile(
    r"-{4,}\s*$|(?:Operational|Supported|Troubleshooting|Tool|Module|Counters) Info\w*\s*$"
    r"|(?:State|Physical state|Speed|Width|FEC|Loopback Mode|Auto Negotiation|Enabled Link Speed.{0,30}"
    r"|Supported (?:Cable|Link) Speed.{0,30}|Status Opcode|Group Opcode|Recommendation|Firmware Version|MFT Version"
    r"|(?:Raw|Effective|Symbol) .{0,40}|Link Down Counter|Time Since Last Clear .{0,20})\s*:(?:\s|$)"
)
_MLXLINK_DEVICE = re.compile(rf"mlxlink\b.*?(?:-d|--device)[ =]{_DEVICE}")
_RDMA_LINK = re.compile(
    rf"(?:\d{{1,4}}/\d{{1,4}}: |link ){_DEVICE}/(?P<port>\d{{1,3}}):? (?P<told>.{{0,100}}\bstate \w.{{0,200}})$"
)
_KEY = re.compile(r"[\w ()/.-]{1,45}")
_NUMBER = re.compile(r"(\d{1,5}(?:\.\d{1,3})?)")
_PORT_LINE = re.compile(r"\s*[Pp]ort:?\s*(\d{1,3}):?\s*$")
# the tools' words, and those of sysfs -> sysfs' words; a word that was cut off matches none of them
_STATES = {
    "active": "ACTIVE",
    "down": "DOWN",
    "init": "INIT",
    "initializing": "INIT",
    "armed": "ARMED",
    "port_active": "ACTIVE",
    "port_down": "DOWN",
    "port_init": "INIT",
    "port_armed": "ARMED",
}
_PHYSICAL = {
    "linkup": "LinkUp",
    "link_up": "LinkUp",
    "polling": "Polling",
    "disabled": "Disabled",
    "sleep": "Sleep",
    "linkerrorrecovery": "LinkErrorRecovery",
    "portconfigurationtraining": "PortConfigurationTraining",
}
# for an EFA, sysfs contains Unknown, and ibv_devinfo prints Unspecified
_LAYERS = {"infiniband": "InfiniBand", "ethernet": "Ethernet", "unknown": "Unknown", "unspecified": "Unknown"}
_LANES = re.compile(r"(\d{1,2})X")


class _Ports:
    """Collects the ports of a text leaf by leaf."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, int], dict[str, Any]] = {}

    def put(self, device: str, port: int, **leaves: Any) -> None:
        self._told.setdefault((device, port), {}).update(leaves)

    def part(self) -> Part:
        ports = tuple(
            RdmaPort(device, port, **leaves) for (device, port), leaves in sorted(self._told.items()) if leaves
        )
        return Part(Node(network=Network(rdma_ports=ports))) if ports else Part()


def read_ibstat(block: Block) -> Part:
    """`ibstat`: state, rate and link layer of every port; the adapter's type and firmware."""
    ports = _Ports()
    device, port = "", 0
    of_device: dict[str, Any] = {}
    for line in block.lines:
        if begin := _IBSTAT.match(line):
            device, port, of_device = begin["device"], 0, {}
        elif number := _PORT_LINE.match(line):
            port = int(number[1])
            ports.put(device, port, **of_device)
        elif (told := _field(line)) and device:
            key, value = told
            if key == "ca type" and value:
                of_device["adapter"] = value
            elif key == "firmware version" and value:
                of_device["firmware"] = value
            elif port:
                ports.put(device, port, **_port_leaf(key, value))
    return ports.part()


def read_ibstatus(block: Block) -> Part:
    """`ibstatus`: like `ibstat`, with numbers before the words ("4: ACTIVE")."""
    ports = _Ports()
    place: tuple[str, int] | None = None
    for line in block.lines:
        if begin := _IBSTATUS.match(line):
            place = begin["device"], int(begin["port"])
        elif (told := _field(line)) and place:
            key, value = told
            ports.put(*place, **_port_leaf(key, value.partition(": ")[2] or value))
    return ports.part()


def read_ibv_devinfo(block: Block) -> Part:
    """`ibv_devinfo`, with or without -v."""
    ports = _Ports()
    device, port = "", 0
    of_device: dict[str, Any] = {}
    speed: float | None = None
    lanes: int | None = None
    for line in block.lines:
        if begin := _DEVINFO.match(line):
            device, port, of_device, speed, lanes = begin["device"], 0, {}, None, None
        elif number := _PORT_LINE.match(line):
            port, speed, lanes = int(number[1]), None, None
            ports.put(device, port, **of_device)
        elif (told := _field(line)) and device:
            key, value = told
            if key == "fw_ver" and value:
                of_device["firmware"] = value
            elif key == "hca_id":
                continue
            elif key == "active_width" and (found := _LANES.match(value)):
                lanes = int(found[1])
            elif key == "active_speed" and (number := _NUMBER.match(value)):
                speed = float(number[1])
            elif port:
                ports.put(device, port, **_port_leaf(key, value))
            if port and speed is not None and lanes is not None:
                ports.put(device, port, rate_gbit_s=speed * lanes)
    return ports.part()


def read_mlxlink(block: Block) -> Part:
    """`mlxlink -d mlx5_0`: the state of one port, which only the RDMA device in the command identifies."""
    named = _MLXLINK_DEVICE.search(block.command)
    if named is None or not named["device"].startswith("mlx"):
        return Part(notes=("mlxlink: the text does not say which port it is of",))
    ports = _Ports()
    for line in block.lines:
        if told := _field(line):
            key, value = told
            if key in ("state", "physical state"):
                ports.put(named["device"], 1, **_port_leaf(key, value))
    return ports.part()


def read_rdma_link(block: Block) -> Part:
    """`rdma link`: the state of every port, and its network interface."""
    ports = _Ports()
    for line in block.lines:
        if found := _RDMA_LINK.match(line):
            told = found["told"].split()
            pairs = dict(zip(told[::2], told[1::2], strict=False))
            leaves = _port_leaf("state", pairs.get("state", "")) | _port_leaf(
                "phys_state", pairs.get("physical_state", "")
            )
            if "netdev" in pairs:
                leaves["interface"] = pairs["netdev"][:40]
            ports.put(found["device"], int(found["port"]), **leaves)
    return ports.part()


def _field(line: str) -> tuple[str, str] | None:
    """Key, in lower case, and value; no regular expression for the value, since a line may be megabytes of blanks."""
    key, colon, value = line.partition(":")
    key = key.strip()
    return (key.lower(), value.strip()) if colon and _KEY.fullmatch(key) else None


def _port_leaf(key: str, value: str) -> dict[str, Any]:
    """The leaf in one line of a port; empty for a line that is not kept, or cut off after its colon."""
    word = value.split(" (")[0].strip()
    if not word:
        return {}
    for leaf, keys, words in (
        ("state", ("state",), _STATES),
        ("physical_state", ("physical state", "phys state", "phys_state"), _PHYSICAL),
        ("link_layer", ("link layer", "link_layer"), _LAYERS),
    ):
        if key in keys:
            return {leaf: words[word.lower()]} if word.lower() in words else {}
    if key == "rate" and (number := _NUMBER.match(word)):
        return {"rate_gbit_s": float(number[1])}
    return {}


RDMA_READERS: tuple[TextReader, ...] = (
    TextReader("ibstat", _IBSTAT.match, _IBSTAT_MORE.match, read_ibstat),
    TextReader("ibstatus", _IBSTATUS.match, _IBSTAT_MORE.match, read_ibstatus),
    TextReader("ibv_devinfo", _DEVINFO.match, _DEVINFO_MORE.match, read_ibv_devinfo),
    TextReader("rdma link", _RDMA_LINK.match, _RDMA_LINK.match, read_rdma_link),
    TextReader("mlxlink", _MLXLINK.match, _MLXLINK_MORE.match, read_mlxlink),
)
