"""NVLinks, the NVSwitch fabric, and how two GPUs reach each other, read from NVML."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping
from ctypes import Structure, byref, c_uint, c_uint8, c_uint32, sizeof
from typing import Any, cast

from gpudoctor.facts.model.gpu import Fabric, Gpu, GpuPair, LinkState, NvLink
from gpudoctor.facts.model.missing import UNSUPPORTED, Missing, fill, if_known, known
from gpudoctor.facts.model.node import short_bus_id
from gpudoctor.facts.nvml import codes
from gpudoctor.facts.nvml.client import MAX_COUNT, DriverError, Fields, NvmlClient, in_range, prefer

_MAX_LINKS = 36
# field ids with the link as scope (driver 525 and newer)
_REPLAY, _RECOVERY, _CRC, _SPEED, _STATE, _VERSION = 161, 162, 163, 164, 165, 166
# Blackwell counts these instead: receive errors, recovery events
_NEWER = {_CRC: 208, _RECOVERY: 215}
# older drivers: one id per link; first id of links 0-5 and of links 6-11
_OLDER = {_SPEED: (84, 132), _CRC: (32, 96), _REPLAY: (46, 108), _RECOVERY: (53, 114)}
_INVALID_ARGUMENT = 2
_HIDDEN = "ffffffff"
_UP = ("active", "sleep")
_VERSION_MISMATCH = 25
_UUID_BYTES = 16
_COMMON: list[tuple[str, Any]] = [
    ("clusterUuid", c_uint8 * _UUID_BYTES),
    ("status", c_uint),
    ("cliqueId", c_uint32),
    ("state", c_uint8),  # one byte and padding; pynvml declares 32 bits
]


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
    fields = _with_other_ids(client, fields, numbers)
    up = [link for link in numbers if states[link] in _UP]
    common: Any = UNSUPPORTED
    if up and isinstance(fields[_VERSION, up[0]], Missing):
        # older drivers: all links of a GPU have the same version, so one call is enough
        common = client.ask("nvmlDeviceGetNvLinkVersion", up[0])
    ends = _remote_ends(client, up, switch_links)
    links = []
    for link, state in enumerate(states):
        version, speed = prefer(fields[_VERSION, link], common), fields[_SPEED, link]
        if link not in up:
            why = state if isinstance(state, Missing) else Missing(f"the link is {state}")
            ends[link] = (why, why)
            version, speed = (why if isinstance(v, Missing) or v == 0 else v for v in (version, speed))
        speed_mb_s = in_range(speed, 1, 1_000_000, "NVLink speed")
        links.append(
            NvLink(
                link=link,
                state=state,
                version=codes.word(version, codes.LINK_VERSIONS),
                # as nvidia-smi prints it
                speed_gb_s=if_known(speed_mb_s, lambda mb_s: round(mb_s / 1000, 3)),
                remote_kind=ends[link][0],
                remote_bus_id=ends[link][1],
                crc_errors=_errors(fields, _CRC, link),
                replay_errors=_errors(fields, _REPLAY, link),
                recovery_errors=_errors(fields, _RECOVERY, link),
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
    return in_range(count, 0, _MAX_LINKS, "NVLink count (field 91)") or UNSUPPORTED


def _state(client: NvmlClient, value: Any, link: int) -> LinkState | Missing:
    call = "nvmlDeviceGetNvLinkState"
    if isinstance(value, Missing):
        value = prefer(value, client.ask(call, link))
    return cast("LinkState | Missing", codes.known_word(value, codes.LINK_STATES, call))


def _with_other_ids(client: NvmlClient, fields: Fields, numbers: range) -> Fields:
    """The fields, with those that are unsupported read under the ids of older drivers and of Blackwell."""
    others: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for kind, first in _OLDER.items():
        for link in numbers:
            value = fields[kind, link]
            if isinstance(value, Missing) and value.kind == "unsupported":
                others[kind, link] = [(first[link // 6] + link % 6, 0)] if link < 12 else []
                others[kind, link] += [(_NEWER[kind], link)] if kind in _NEWER else []
    other_ids = [place for places in others.values() for place in places]
    answers = client.fields(other_ids) if other_ids else {}
    found = dict(fields)
    for key, places in others.items():
        for place in places:
            found[key] = prefer(found[key], answers[place])
    return found


def _errors(fields: Fields, kind: int, link: int) -> int | Missing:
    return in_range(fields[kind, link], 0, MAX_COUNT, f"NVLink errors (field {kind})")


def _remote_ends(client: NvmlClient, up: list[int], switch_links: Any) -> dict[int, tuple[Any, Any]]:
    """Kind and bus id of the other end of each link that is up."""
    to_switch = known(switch_links)
    if up and to_switch is not None and to_switch >= len(up):
        return dict.fromkeys(up, ("switch", Missing("not asked: the link leads to a switch", "not_asked")))
    # if field 147 is 0 there is no switch, and only POWER9 has CPUs at the end of an NVLink
    direct = to_switch == 0 and platform.machine() != "ppc64le"
    return {link: _remote_end(client, link, direct) for link in up}


def _remote_end(client: NvmlClient, link: int, direct: bool) -> tuple[Any, str | Missing | None]:
    info = client.ask("nvmlDeviceGetNvLinkRemotePciInfo", link)
    if not isinstance(info, Missing) and str(info.busId).lower().startswith(_HIDDEN):
        return "switch", None
    where = if_known(info, lambda read: short_bus_id(str(read.busId)))
    if direct:
        return "gpu", where
    call = "nvmlDeviceGetNvLinkRemoteDeviceType"
    kind = client.ask(call, link)
    if kind == 0xFF:  # NVML's own "unknown"
        kind = UNSUPPORTED
    return codes.known_word(kind, codes.LINK_ENDS, call), where


def read_pair(client: NvmlClient, one: Gpu, other: Gpu, handles: tuple[Any, Any]) -> GpuPair:
    """How two GPUs reach each other, in three calls; `handles` are those of `one` and `other`."""
    if other.index < one.index:
        one, other, handles = other, one, handles[::-1]

    def ask(call: str, labels: Mapping[int, str], *args: int) -> Any:
        # not `client.ask`: an error of a pair must not count against the GPU whose thread makes the call
        try:
            return codes.known_word(client.call(call, *handles, *args), labels, call)
        except DriverError as error:
            return error.missing

    return GpuPair(
        a=one.index,
        b=other.index,
        path=ask("nvmlDeviceGetTopologyCommonAncestor", codes.PATHS),
        nvlinks=count_links(one, other),
        # pynvml's NVML_P2P_CAPS_INDEX_READ is a tuple by mistake: 0 is read, 1 is write
        p2p_read=ask("nvmlDeviceGetP2PStatus", codes.P2P_STATUS, 0),
        p2p_write=ask("nvmlDeviceGetP2PStatus", codes.P2P_STATUS, 1),
    )


def count_links(one: Gpu, other: Gpu) -> int | Missing:
    """Links between two GPUs that are up: those that lead to the other GPU, else the links to switches both have."""
    ways = []
    for gpu, far in ((one, other), (other, one)):
        if isinstance(gpu.nvlinks, Missing):
            return 0 if gpu.nvlinks.kind == "unsupported" else gpu.nvlinks
        ends: Counter[str | None] = Counter()
        for link in gpu.nvlinks:
            if isinstance(link.state, Missing) and link.state.kind != "unsupported":
                return link.state
            if link.is_up and link.remote_kind == "switch":
                ends["switch"] += 1
            elif link.is_up:
                if isinstance(link.remote_bus_id, Missing):
                    return link.remote_bus_id
                ends[link.remote_bus_id] += 1
        ways.append((ends["switch"], ends[far.bus_id]))
    (switch_a, direct_a), (switch_b, direct_b) = ways
    return min(direct_a, direct_b) or min(switch_a, switch_b)


# The NVSwitch fabric. The structs of nvml.h are declared here: those of pynvml before 12.570 have a wrong size, and
# their names differ between releases


class _FabricInfo(Structure):
    _fields_ = _COMMON


class _FabricInfoV2(Structure):
    _fields_ = [("version", c_uint), *_COMMON, ("healthMask", c_uint32)]


class _FabricInfoV3(Structure):
    _fields_ = [("version", c_uint), *_COMMON, ("healthMask", c_uint32), ("healthSummary", c_uint8)]


_FORMS: tuple[tuple[str, type[Structure], int], ...] = (
    ("nvmlDeviceGetGpuFabricInfoV", _FabricInfoV3, sizeof(_FabricInfoV3) | 3 << 24),
    ("nvmlDeviceGetGpuFabricInfoV", _FabricInfoV2, sizeof(_FabricInfoV2) | 2 << 24),
    ("nvmlDeviceGetGpuFabricInfo", _FabricInfo, 0),
)


def read_fabric(client: NvmlClient) -> Fabric:
    """The fabric, by the newest struct that the driver knows; every leaf is unsupported if there is no fabric."""
    missing = UNSUPPORTED
    for call, made, version in _FORMS:
        info = made(version=version) if version else made()
        try:
            client.call(call, client.handle, byref(info))
        except DriverError as error:
            missing = error.missing
            if error.code in (codes.FUNCTION_NOT_FOUND, _VERSION_MISMATCH):
                continue
            client.note(error)
            break
        return _fabric(info)
    return fill(Fabric(), missing)


def _fabric(info: Any) -> Fabric:
    if info.state == 0:
        return fill(Fabric(), UNSUPPORTED)
    done = info.state == 3
    mask = getattr(info, "healthMask", 0)
    not_done = Missing("the fabric is not completed")
    flags = {1: True, 2: False}
    return Fabric(
        state=codes.word(info.state, codes.FABRIC_STATES),
        # the status is valid only once the state is completed
        status=codes.error_word(info.status) if done else not_done,
        clique_id=info.cliqueId if done else not_done,
        cluster_uuid=_dashed(bytes(info.clusterUuid).hex()) if done else not_done,
        health_summary=codes.word(getattr(info, "healthSummary", 0) or UNSUPPORTED, codes.FABRIC_HEALTH),
        health_bandwidth={1: "degraded", 2: "full"}.get(mask & 3, UNSUPPORTED),
        route_unhealthy=flags.get(mask >> 4 & 3, UNSUPPORTED),
        access_timeout_recovery=flags.get(mask >> 6 & 3, UNSUPPORTED),
        incorrect_configuration=codes.word(mask >> 8 & 0xF or UNSUPPORTED, codes.FABRIC_CONFIGURATION),
    )


def _dashed(uuid: str) -> str:
    return "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))
