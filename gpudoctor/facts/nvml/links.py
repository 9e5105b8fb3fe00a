"""NVLinks, and how two GPUs reach each other, read from NVML."""

from __future__ import annotations

import platform
from collections import Counter
from typing import Any, Literal, cast

from gpudoctor.facts.model.gpu import Gpu, GpuPair, LinkState, NvLink, P2pStatus, PathKind
from gpudoctor.facts.model.missing import UNSUPPORTED, Missing, known
from gpudoctor.facts.model.node import short_bus_id
from gpudoctor.facts.nvml.client import MAX_COUNT, DriverError, Fields, NvmlClient, in_range, prefer
from gpudoctor.facts.nvml.labels import (
    LINK_ENDS,
    LINK_STATES,
    LINK_VERSIONS,
    P2P_STATUS,
    PATHS,
    known_word,
    word,
)

LinkEnd = Literal["gpu", "switch", "cpu"]

_MAX_LINKS = 36
# field ids with the link as scope (driver 525 and newer)
_REPLAY, _RECOVERY, _CRC, _SPEED, _STATE, _VERSION = 161, 162, 163, 164, 165, 166
# Blackwell counts these instead
_RECEIVE_ERRORS, _RECOVERY_EVENTS = 208, 215
# older drivers: one id per link; first id of links 0-5 and of links 6-11
_OLD_SPEED, _OLD_CRC, _OLD_REPLAY, _OLD_RECOVERY = (84, 132), (32, 96), (46, 108), (53, 114)
_INVALID_ARGUMENT = 2
_HIDDEN = "ffffffff"
_UP = ("active", "sleep")


def read_links(client: NvmlClient, count: Any, switch_links: Any) -> tuple[NvLink, ...] | Missing:
    """All links of one GPU; unsupported if it has none.

    State, version, speed and errors of all links are read in one call for field values. The remote end
    has no field: it costs a call per link that is up, and is read only if links may lead to
    GPUs. `switch_links` (field 147, which nvidia-smi's matrix is based on) counts the links that
    are up and lead to a switch: if those are all, no address is read.
    """
    count = _link_count(client, count)
    if isinstance(count, Missing):
        return count
    numbers = range(count)
    kinds = (_STATE, _VERSION, _SPEED, _CRC, _REPLAY, _RECOVERY)
    fields = client.fields([(kind, link) for link in numbers for kind in kinds])
    states = [_state(client, fields[_STATE, link], link) for link in numbers]
    if all(isinstance(state, Missing) and state.kind == "unsupported" for state in states):
        return UNSUPPORTED  # MIG is on, or a board whose links are fused off
    older = _older_fields(client, fields, numbers)
    up = [link for link in numbers if states[link] in _UP]
    version: Any = UNSUPPORTED
    if up and isinstance(fields[_VERSION, up[0]], Missing):
        # older drivers: all links of a GPU have the same version, so one call is enough
        version = client.ask("nvmlDeviceGetNvLinkVersion", up[0])
    ends = _remote_ends(client, up, switch_links)
    links = []
    for link in numbers:
        state = states[link]
        if link not in up:
            ends[link] = (_not_up(state),) * 2
        speed = prefer(fields[_SPEED, link], older[_SPEED, link])
        links.append(
            NvLink(
                link=link,
                state=state,
                version=_link_version(prefer(fields[_VERSION, link], version), link in up, state),
                speed_gb_s=_speed(speed, link in up, state),
                remote_kind=ends[link][0],
                remote_bus_id=ends[link][1],
                crc_errors=_errors(fields, older, _CRC, link),
                replay_errors=_errors(fields, older, _REPLAY, link),
                recovery_errors=_errors(fields, older, _RECOVERY, link),
            )
        )
    return tuple(links)


def _link_count(client: NvmlClient, count: Any) -> int | Missing:
    if isinstance(count, Missing) and count.kind == "unsupported":
        count = 0
        for link in range(_MAX_LINKS):
            try:
                client.call("nvmlDeviceGetNvLinkState", client.handle, link)
            except DriverError as error:
                # "not supported" or "invalid argument": there is no such link
                if error.missing.kind == "unsupported" or error.code == _INVALID_ARGUMENT:
                    break
                client.note(error)
                return error.missing
            count += 1
    count = in_range(count, 0, _MAX_LINKS, "NVLink count (field 91)")
    if isinstance(count, Missing):
        return count
    return int(count) or UNSUPPORTED


def _state(client: NvmlClient, value: Any, link: int) -> LinkState | Missing:
    call = "nvmlDeviceGetNvLinkState"
    if isinstance(value, Missing):
        value = prefer(value, client.ask(call, link))
    return cast("LinkState | Missing", known_word(value, LINK_STATES, call))


def _older_fields(client: NvmlClient, fields: Fields, numbers: range) -> Fields:
    """Values that older drivers and Blackwell have under other ids, by the usual ids; unsupported for all others."""
    elsewhere: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for kind, places in ((_SPEED, _OLD_SPEED), (_CRC, _OLD_CRC), (_REPLAY, _OLD_REPLAY), (_RECOVERY, _OLD_RECOVERY)):
        for link in numbers:
            value = fields[kind, link]
            if isinstance(value, Missing) and value.kind == "unsupported":
                elsewhere[kind, link] = [(places[link // 6] + link % 6, 0)] if link < 12 else []
    for kind, newer in ((_CRC, _RECEIVE_ERRORS), (_RECOVERY, _RECOVERY_EVENTS)):
        for link in numbers:
            if (kind, link) in elsewhere:
                elsewhere[kind, link].append((newer, link))
    wanted = [place for others in elsewhere.values() for place in others]
    answers = client.fields(wanted) if wanted else {}
    found: dict[tuple[int, int], int | Missing] = {
        (kind, link): UNSUPPORTED for kind in (_SPEED, _CRC, _REPLAY, _RECOVERY) for link in numbers
    }
    for key, others in elsewhere.items():
        for place in others:
            found[key] = prefer(found[key], answers[place])
    return found


def _not_up(state: LinkState | Missing) -> Missing:
    return state if isinstance(state, Missing) else Missing(f"the link is {state}")


def _link_version(value: Any, is_up: bool, state: LinkState | Missing) -> str | Missing:
    if not is_up and (isinstance(value, Missing) or value == 0):
        return _not_up(state)
    return word(value, LINK_VERSIONS)


def _speed(value: Any, is_up: bool, state: LinkState | Missing) -> float | Missing:
    """The speed in GB/s, as nvidia-smi prints it; NVML has MB/s."""
    if not is_up and (isinstance(value, Missing) or value == 0):
        return _not_up(state)
    value = in_range(value, 1, 1_000_000, "NVLink speed")
    return value if isinstance(value, Missing) else round(value / 1000, 3)


def _errors(fields: Fields, older: Fields, kind: int, link: int) -> int | Missing:
    value = in_range(prefer(fields[kind, link], older[kind, link]), 0, MAX_COUNT, f"NVLink errors (field {kind})")
    return value if isinstance(value, Missing) else int(value)


def _remote_ends(client: NvmlClient, up: list[int], switch_links: Any) -> dict[int, tuple[Any, Any]]:
    """Kind and bus id of the other end of each link that is up."""
    to_switch = known(switch_links)
    if up and to_switch is not None and to_switch >= len(up):
        return dict.fromkeys(up, ("switch", Missing("not asked: the link leads to a switch")))
    # if field 147 is 0 there is no switch, and only POWER9 has CPUs at the end of an NVLink
    direct = to_switch == 0 and platform.machine() != "ppc64le"
    return {link: _remote_end(client, link, direct) for link in up}


def _remote_end(client: NvmlClient, link: int, direct: bool) -> tuple[LinkEnd | Missing, str | Missing | None]:
    info = client.ask("nvmlDeviceGetNvLinkRemotePciInfo", link)
    bus_id = info if isinstance(info, Missing) else str(info.busId)
    if isinstance(bus_id, str) and bus_id.lower().startswith(_HIDDEN):
        return "switch", None
    where = bus_id if isinstance(bus_id, Missing) else short_bus_id(bus_id)
    if direct:
        return "gpu", where
    call = "nvmlDeviceGetNvLinkRemoteDeviceType"
    kind = client.ask(call, link)
    if kind == 0xFF:  # NVML's own "unknown"
        kind = UNSUPPORTED
    return cast("LinkEnd | Missing", known_word(kind, LINK_ENDS, call)), where


def read_pair(client: NvmlClient, one: Gpu, other: Gpu, handles: tuple[Any, Any]) -> GpuPair:
    """How two GPUs reach each other, in three calls; `handles` are those of `one` and `other`."""
    if other.index < one.index:
        one, other, handles = other, one, handles[::-1]
    ancestor = _pair_call(client, "nvmlDeviceGetTopologyCommonAncestor", *handles)
    # pynvml's NVML_P2P_CAPS_INDEX_READ is a tuple by mistake: 0 is read, 1 is write
    read, write = (_pair_call(client, "nvmlDeviceGetP2PStatus", *handles, index) for index in (0, 1))
    return GpuPair(
        a=one.index,
        b=other.index,
        path=cast("PathKind | Missing", known_word(ancestor, PATHS, "nvmlDeviceGetTopologyCommonAncestor")),
        nvlinks=count_links(one, other),
        p2p_read=cast("P2pStatus | Missing", known_word(read, P2P_STATUS, "nvmlDeviceGetP2PStatus")),
        p2p_write=cast("P2pStatus | Missing", known_word(write, P2P_STATUS, "nvmlDeviceGetP2PStatus")),
    )


def _pair_call(client: NvmlClient, name: str, *args: Any) -> Any:
    # not `ask`: an error of a pair must not count against the GPU whose thread makes the call
    try:
        return client.call(name, *args)
    except DriverError as error:
        return error.missing


def count_links(one: Gpu, other: Gpu) -> int | Missing:
    """Links between two GPUs that are up: those that lead to the other GPU, else the links to switches both have."""
    ways = []
    for gpu, far in ((one, other), (other, one)):
        if isinstance(gpu.nvlinks, Missing):
            if gpu.nvlinks.kind == "unsupported":
                return 0
            return gpu.nvlinks
        ends: Counter[str | None] = Counter()
        for link in gpu.nvlinks:
            unread = _unread_end(link)
            if unread is not None:
                return unread
            if link.is_up:
                ends["switch" if link.remote_kind == "switch" else known(link.remote_bus_id)] += 1
        ways.append((ends["switch"], ends[far.bus_id]))
    (switch_a, direct_a), (switch_b, direct_b) = ways
    return min(direct_a, direct_b) or min(switch_a, switch_b)


def _unread_end(link: NvLink) -> Missing | None:
    """Why this link cannot be counted; None if it can be counted, or is not up."""
    if isinstance(link.state, Missing):
        return None if link.state.kind == "unsupported" else link.state
    if not link.is_up or link.remote_kind == "switch":
        return None
    if isinstance(link.remote_bus_id, Missing):
        return link.remote_bus_id
    return None
