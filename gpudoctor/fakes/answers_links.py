# ruff: noqa: N802, N815 - the names are NVML's own
"""What NVML answers about NVLinks, the fabric, and how two GPUs reach each other."""

from __future__ import annotations

from typing import Any

import pynvml

from gpudoctor.facts.model.gpu import GpuPair, NvLink
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.nvml import labels as words
from gpudoctor.fakes.reported import FakeHandle, ReportedNode, give, mw, number, nvml_bus_id, tristate


class LinkAnswers(ReportedNode):
    """One method per function of NVML."""

    # links

    def _link(self, handle: FakeHandle, link: int) -> NvLink:
        links = give(self._gpu(handle).nvlinks)
        if link >= len(links):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        found: NvLink = links[link]
        return found

    def nvmlDeviceGetNvLinkState(self, handle: FakeHandle, link: int) -> int:
        return number(self._link(handle, link).state, words.LINK_STATES)

    def nvmlDeviceGetNvLinkVersion(self, handle: FakeHandle, link: int) -> int:
        return number(self._link(handle, link).version, words.LINK_VERSIONS)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: FakeHandle, link: int) -> int:
        return number(self._link(handle, link).remote_kind, words.LINK_ENDS)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: FakeHandle, link: int) -> Any:
        bus_id = give(self._link(handle, link).remote_bus_id)
        info = pynvml.nvmlPciInfo_t()
        info.busId = b"FFFFFFFF:FF:FF.0" if bus_id is None else nvml_bus_id(bus_id)
        return info

    def nvmlDeviceGetGpuFabricInfoV(self, handle: FakeHandle, into: Any) -> int:
        fabric = self._gpu(handle).fabric
        info = into._obj
        info.state = number(fabric.state, words.FABRIC_STATES)
        if info.state == 3:
            info.status = number(fabric.status, words.ERROR_WORDS)
            info.cliqueId = give(fabric.clique_id)
            info.clusterUuid[:] = bytes.fromhex(give(fabric.cluster_uuid).replace("-", ""))
        health = known(fabric.health_summary)
        if hasattr(info, "healthSummary") and health:
            info.healthSummary = number(health, words.FABRIC_HEALTH)
        if not hasattr(info, "healthMask"):
            return 0
        info.healthMask = (
            {None: 0, "degraded": 1, "full": 2}[known(fabric.health_bandwidth)]
            | tristate(fabric.route_unhealthy) << 4
            | tristate(fabric.access_timeout_recovery) << 6
        )
        if known(fabric.incorrect_configuration) is not None:
            info.healthMask |= number(fabric.incorrect_configuration, words.FABRIC_CONFIGURATION) << 8
        return 0

    nvmlDeviceGetGpuFabricInfo = nvmlDeviceGetGpuFabricInfoV

    def _pair(self, one: FakeHandle, other: FakeHandle) -> GpuPair:
        a, b = sorted((one.index, other.index))
        found = next((pair for pair in give(self.node.pairs) if (pair.a, pair.b) == (a, b)), None)
        return found or GpuPair(a, b)

    def nvmlDeviceGetTopologyCommonAncestor(self, one: FakeHandle, other: FakeHandle) -> int:
        path = give(self._pair(one, other).path)
        return next(level for level, name in words.PATHS.items() if name == path and level)

    def nvmlDeviceGetP2PStatus(self, one: FakeHandle, other: FakeHandle, index: int) -> int:
        pair = self._pair(one, other)
        return number((pair.p2p_read, pair.p2p_write)[index], words.P2P_STATUS)


def link_field(link: NvLink, field: int) -> int:
    if field == 165:
        return number(link.state, words.LINK_STATES)
    if field == 166:
        return number(link.version, words.LINK_VERSIONS)
    if field == 164:
        return mw(link.speed_gb_s)  # MB/s
    return int(give({161: link.replay_errors, 162: link.recovery_errors, 163: link.crc_errors}[field]))
