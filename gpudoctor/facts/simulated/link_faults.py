"""Faults of NVLinks, of pairs of GPUs and of PCIe bridges that a list in faults.yaml cannot express."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from gpudoctor.facts.model.gpu import Gpu, GpuPair, NvLink
from gpudoctor.facts.model.missing import UNSUPPORTED, Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.simulated.edits import Pattern, Target, change, each, each_hop, each_pair, struck_gpu


def _links_down(node: Node, target: Target) -> Node:
    gpu = struck_gpu(node, target)
    return _with_links_down(node, gpu, range(99)) if not isinstance(gpu.nvlinks, Missing) else node


def _link_down(node: Node, target: Target) -> Node:
    return _with_links_down(node, struck_gpu(node, target), (target.link or 0,))


def _with_links_down(node: Node, gpu: Gpu, which: range | tuple[int, ...]) -> Node:
    """Links that are inactive on this GPU, and on the remote end if that is a GPU; pairs lose them too."""
    if isinstance(gpu.nvlinks, Missing):
        return node
    down = [link for link in gpu.nvlinks if link.link in which]
    node = change(
        node, Target(gpu.index), {"nvlinks": tuple(_inactive(link) if link in down else link for link in gpu.nvlinks)}
    )
    switched = any(link.remote_kind == "switch" for link in down)
    lost: dict[int, int] = {}
    for peer in node.gpus:
        ends = sum(link.remote_bus_id == peer.bus_id for link in down)
        lost[peer.index] = len(down) if switched else ends
        if ends and not isinstance(peer.nvlinks, Missing):
            back = [link.link for link in peer.nvlinks if link.remote_bus_id == gpu.bus_id][:ends]
            links = tuple(_inactive(link) if link.link in back else link for link in peer.nvlinks)
            node = change(node, Target(peer.index), {"nvlinks": links})

    def fewer(pair: GpuPair) -> GpuPair:
        if gpu.index not in (pair.a, pair.b) or isinstance(pair.nvlinks, Missing):
            return pair
        left = max(pair.nvlinks - lost[pair.b if pair.a == gpu.index else pair.a], 0)
        return (
            replace(pair, nvlinks=left)
            if left or not pair.nvlinks
            else replace(pair, nvlinks=0, p2p_read="TNS", p2p_write="TNS")
        )

    return each_pair(node, fewer)


def _inactive(link: NvLink) -> NvLink:
    return replace(link, state="inactive", speed_gb_s=UNSUPPORTED)


def _slow_link(node: Node, target: Target) -> Node:
    return _change_link(node, target, lambda link: {"speed_gb_s": (known(link.speed_gb_s) or 25.0) / 2})


def _noisy_link(node: Node, target: Target) -> Node:
    return _change_link(
        node, target, lambda link: {"crc_errors": 481_220, "replay_errors": 9_412, "recovery_errors": 64}
    )


def _change_link(node: Node, target: Target, leaves: Callable[[NvLink], Mapping[str, Any]]) -> Node:
    links = struck_gpu(node, target).nvlinks
    if isinstance(links, Missing):
        return node
    changed = tuple(replace(link, **leaves(link)) if link.link == target.link else link for link in links)
    return change(node, target, {"nvlinks": changed})


def _fewer_pair_links(node: Node, target: Target) -> Node:
    """Every link of both GPUs is up, but the driver reports fewer links between them."""

    def thinner(pair: GpuPair) -> GpuPair:
        links = known(pair.nvlinks) or 0
        struck = (pair.a, pair.b) == (target.gpu, target.other)
        return replace(pair, nvlinks=max(links - max(links // 3, 1), 0)) if struck else pair

    return each_pair(node, thinner)


def _slow_uplink(node: Node, target: Target) -> Node:
    """The switch's link to the root port trained one generation lower, which affects every GPU behind it."""
    path = struck_gpu(node, target).pcie.path
    if isinstance(path, Missing):
        return node
    slow = {hop.bus_id for hop in path[-2:]}
    half = min(known(hop.max_speed_gt_s) or 32.0 for hop in path[-2:]) / 2

    return each(
        node, lambda gpu: each_hop(gpu, lambda _, hop: replace(hop, speed_gt_s=half) if hop.bus_id in slow else hop)
    )


def _redirected(node: Node, target: Target) -> Node:
    """Every bridge redirects traffic to the root; the GPU itself is not a bridge."""
    return each(node, lambda gpu: each_hop(gpu, lambda place, hop: replace(hop, acs_redirect=True) if place else hop))


LINK_PATTERNS: dict[str, Pattern] = {
    "links-down": _links_down,
    "link-down": _link_down,
    "slow-link": _slow_link,
    "noisy-link": _noisy_link,
    "fewer-pair-links": _fewer_pair_links,
    "slow-uplink": _slow_uplink,
    "redirected": _redirected,
}
