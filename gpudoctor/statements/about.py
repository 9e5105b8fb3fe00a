"""What a message names: GPUs, devices and adapters, by the form of their names alone."""

from __future__ import annotations

import re

from gpudoctor.statements.model import About

_BUS = r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[01][0-9A-Fa-f](?:\.[0-7]|(?=:? |:?$|[,)\]]))"
# "07:10" is a time of day, and "+01:00" a zone, unless it says what it is
_TIME_OF_DAY = r"(?:[01]\d|2[0-3]):[01]\d(?!\.[0-7])"
_BUS_ID = re.compile(rf"(?<![\w:.-])(?:PCI:|GPU ?|(?!{_TIME_OF_DAY}))({_BUS})(?![\w-]|:\w)")
_PARTS = re.compile(r"(?:([0-9A-Fa-f]{4,8}):)?([0-9A-Fa-f]{2}):([01][0-9A-Fa-f])(?:\.([0-7]))?")
# as BMCs write it, in decimal
_BUS_IN_WORDS = re.compile(r"(?i)\bbus (\d{1,3}),? dev(?:ice)? (\d{1,2}),? func(?:tion)? ([0-7])\b")
_UUID = re.compile(r"\b((?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})\b")
_INDEX = re.compile(
    r"(?i)(?:(?<![\w-])(?<!\bhost )gpu(?: (?:id|index|device))?[ #:=]{0,3}(?!0\d)|\bgpus? ?\[|\bcuda:|\bdevice (?:id |ordinal |index )?#?)(\d{1,3})\b(?![:.]\d|[-,] ?\d|x|,? func(?:tion)? \d|\s?(?:of (?:the )?\d|(?:[GM]i?B|%|GPUs?)\b))"
)
_DEVICE_FILE = re.compile(r"(/dev/[\w/-]{2,60})")
_ADAPTER = re.compile(
    r"\b((?:mlx[45]|bnxt_re|irdma|efa|rdmap|hfi1|qedr|erdma|roce)[\w-]{0,20}|ib\d{1,3}|(?:ibp|ens|enp|eth|bond)\d\w{0,12})(?:[:/](\d{1,2}))?\b"
)
# a host as people name them, with a digit, a dot or a hyphen, or an address; no loopback
_HOST = r"(?P<host>(?!(?:bogon|localhost|ubuntu)\b|127\.|0\.0\.)\d{1,3}(?:\.\d{1,3}){3}|(?=[A-Za-z]+[\w-]*[\d.-])[A-Za-z][\w.-]{0,78}[\w])\b(?![(/])"
_PEER = re.compile(
    rf"(?i)\b(?:peer|remote)(?: (?:peer|host|node|process|end|address))?[ :=]{{1,9}}[\[(<]?(?!(?:rank|gpu|task|pid|fd|port|group|proc|worker|device)\w{{0,6}}[-_]?\d+\b){_HOST}"
)
_PLACE = re.compile(rf"(?i)\b(?:(?:on|at|of|with|from) (?:the )?(?:node|host|machine)s?:? |IP: ){_HOST}")
_PORT = re.compile(r"(?i)\bport[ #:=]{0,2}(\d{1,2})\b(?!\d)")


def about(message: str) -> About:
    """What the message names; a name that occurs twice with different values is left out.

    >>> about("NVRM: Xid (PCI:0000:4B:00): 79, GPU has fallen off the bus").bus_id, about("GPU 3 is lost").gpu_index
    ('0000:4b:00.0', 3)
    >>> about("ssh: connect to host gpu17 port 22: Connection refused").gpu_index, about("gpu17 is lost").gpu_index
    (None, 17)
    """
    message = _BUS_IN_WORDS.sub(_with_bus_id, message)
    bus = _one(_BUS_ID, message)
    adapter = _ADAPTER.search(message)
    port = (adapter[2] if adapter else None) or (_one(_PORT, message) if adapter else None)
    index = _one(_INDEX, message)
    return About(
        gpu_index=int(index) if index else None,
        bus_id=normal_bus_id(bus) if bus else None,
        uuid=_one(_UUID, message),
        device_file=_one(_DEVICE_FILE, message),
        adapter=adapter[1] if adapter else None,
        port=int(port) if port else None,
    )


def _with_bus_id(found: re.Match[str]) -> str:
    bus, device, function = map(int, found.groups())
    return f"{bus:02x}:{device:02x}.{function}"


def peer_in(message: str) -> str | None:
    """The host or address that a message names as the other side.

    >>> peer_in("Connection closed by remote peer n7.lan<4507>"), peer_in("  Peer host:  n7"), peer_in("reset by peer")
    ('n7.lan', 'n7', None)
    """
    found = _PEER.search(message)
    return found["host"] if found else None


def place_in(message: str) -> str | None:
    """The host or address at which it happened, as a message names it.

    >>> place_in("2 workers died at node (ID: 3c4f, IP: 10.0.0.7)"), place_in("task 3 failed on host n7"), place_in("on node 3")
    ('10.0.0.7', 'n7', None)
    """
    return _one(_PLACE, message)


def _one(pattern: re.Pattern[str], message: str) -> str | None:
    found = {match[1] for match in pattern.finditer(message)}
    return found.pop() if len(found) == 1 else None


def normal_bus_id(text: str) -> str:
    """The bus id with a domain of four digits, in lower case; other text unchanged.

    >>> normal_bus_id("00000000:03:00.0"), normal_bus_id("4B:00"), normal_bus_id("3")
    ('0000:03:00.0', '0000:4b:00.0', '3')
    """
    parts = _PARTS.fullmatch(text)
    if parts is None:
        return text
    return f"{(parts[1] or '0')[-4:].rjust(4, '0')}:{parts[2]}:{parts[3]}.{parts[4] or '0'}".lower()
