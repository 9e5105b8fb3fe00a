"""`nvidia-smi nvlink` with --status, -e or -R: the links of each GPU."""

from __future__ import annotations

import re

import msgspec

from gpudoctor.facts.captures import ABSENT, SourceError
from gpudoctor.facts.captures.nvidia_smi.values import missing_word
from gpudoctor.facts.model.gpu import NvLink
from gpudoctor.facts.model.missing import UNSUPPORTED, Missing
from gpudoctor.facts.model.node import short_bus_id

_GPU = re.compile(r"GPU (\d{1,4}): (.{0,200}?) ?\(UUID: ([^)\s]{1,80})\)")
_LINK = re.compile(r"Link (\d{1,3}):\s*(.{0,200})")
_SPEED = re.compile(r"(\d{1,6}(?:\.\d{1,6})?) GB/s")
_ERRORS = re.compile(r"(Replay|Recovery|CRC)(?: FLIT)? Errors?:\s*(\S.{0,60})?", re.IGNORECASE)
_REMOTE = re.compile(r"Remote Device ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])")
_COUNTERS = {"replay": "replay_errors", "recovery": "recovery_errors", "crc": "crc_errors"}
_ALL_INACTIVE = Missing("nvidia-smi says that all links are inactive, but not how many there are", "absent")
_HIDDEN = "ffff:ff:ff."  # a switch that does not show its address


class LinkDump(msgspec.Struct):
    """One GPU of the dump. `links` by number; empty for a GPU without NVLink."""

    index: int
    name: str
    uuid: str
    links: dict[int, NvLink] = {}
    all_inactive: bool = False

    @property
    def nvlinks(self) -> tuple[NvLink, ...] | Missing:
        if self.all_inactive and not self.links:
            return _ALL_INACTIVE
        if not self.links:
            return UNSUPPORTED
        return tuple(self.links[number] for number in sorted(self.links))


def parse_nvlink(text: str) -> list[LinkDump]:
    """The GPUs in the dump's order. Raise SourceError where it names none, or ends inside one.

    `--status`, `-e` and `-R` may stand in one text; what a link's lines do not tell is
    `ABSENT`. Where nvidia-smi says only that all links are inactive, a peer of the same model
    tells how many those are; without such a peer the links are Missing.
    """
    gpus: dict[tuple[int, str], LinkDump] = {}
    current: LinkDump | None = None
    blocks: list[_Block] = []
    last = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        last = line or last
        header = _GPU.match(line)
        if header is not None:
            index, uuid = int(header.group(1)), header.group(3)
            current = gpus.setdefault((index, uuid), LinkDump(index, header.group(2), uuid))
            blocks.append(_Block(current.name, number))
            continue
        if current is None:
            continue
        if "all links are inactive" in line.lower():
            current.all_inactive = True
            continue
        link = _LINK.match(line)
        if link is None:
            continue
        told = link.group(2).strip()
        blocks[-1].count(told, number)
        place = int(link.group(1))
        known_so_far = current.links.get(place) or _unread_link(place)
        current.links[place] = _with(known_so_far, told)
    if not gpus:
        raise SourceError("no line like 'GPU 0: NAME (UUID: GPU-...)'")
    if _LINK.match(last) or _GPU.match(last):
        _refuse_cut(blocks)
    found = list(gpus.values())
    for gpu in found:
        if gpu.all_inactive and not gpu.links:
            peer = next((other for other in found if other.links and other.name == gpu.name), None)
            for number in peer.links if peer else ():
                gpu.links[number] = msgspec.structs.replace(_unread_link(number), state="inactive")
    return found


class _Block(msgspec.Struct):
    """A GPU's header and the lines of links below it: one option's answer for that GPU."""

    name: str
    last_line: int
    option: str | None = None  # None as long as no link tells
    lines: int = 0

    def count(self, told: str, line: int) -> None:
        self.option = self.option or ("errors" if _ERRORS.match(told) else "remote" if _REMOTE.match(told) else "state")
        self.lines += 1
        self.last_line = line


def _refuse_cut(blocks: list[_Block]) -> None:
    """nvidia-smi lists every link of a GPU, up or down: fewer lines than a like GPU's are a text cut off."""
    last = blocks[-1]
    # the remote ends of links that are down may be left out
    if last.option == "remote":
        return
    like = [b.lines for b in blocks[:-1] if b.name == last.name and (last.option or b.option) == b.option]
    if last.lines < max(like, default=0):
        raise SourceError(
            f"cut off after line {last.last_line}: {last.lines} lines of links for the last GPU, "
            f"{max(like)} for one of the same model before it"
        )


def merge_links(one: LinkDump, other: LinkDump) -> None:
    """Add to `one` what `other`, a dump with another option, knows of the same links."""
    for number, link in other.links.items():
        mine = one.links.get(number)
        if mine is None:
            one.links[number] = link
            continue
        news = {
            field: value
            for field in NvLink.__struct_fields__
            if not isinstance(value := getattr(link, field), Missing) and isinstance(getattr(mine, field), Missing)
        }
        one.links[number] = msgspec.structs.replace(mine, **news)


def _unread_link(number: int) -> NvLink:
    return NvLink(
        link=number,
        state=ABSENT,
        version=ABSENT,
        speed_gb_s=ABSENT,
        remote_kind=ABSENT,
        remote_bus_id=ABSENT,
        crc_errors=ABSENT,
        replay_errors=ABSENT,
        recovery_errors=ABSENT,
    )


def _with(link: NvLink, told: str) -> NvLink:
    speed = _SPEED.match(told)
    if speed is not None:
        return msgspec.structs.replace(link, state="active", speed_gb_s=float(speed.group(1)))
    word = told.strip("<>").lower()
    if word in ("inactive", "disabled", "sleep"):
        return msgspec.structs.replace(link, state=word)
    remote = _REMOTE.match(told)
    if remote is not None:
        bus_id = short_bus_id(remote.group(1))
        if _HIDDEN in bus_id:
            return msgspec.structs.replace(link, remote_kind="switch", remote_bus_id=None)
        return msgspec.structs.replace(link, remote_bus_id=bus_id)
    refused = missing_word(told)
    if refused is not None and refused is not ABSENT:
        return msgspec.structs.replace(link, state=refused)
    count = _ERRORS.match(told)
    if count is not None:
        value = (count.group(2) or "").strip()
        number: int | Missing = Missing(f"not understood: {value[:40]!r}", "failed")
        if value.isdecimal():
            number = int(value[:18])
        elif value.strip("[]").upper() in ("N/A", ""):
            number = UNSUPPORTED
        return msgspec.structs.replace(link, **{_COUNTERS[count.group(1).lower()]: number})
    return link
