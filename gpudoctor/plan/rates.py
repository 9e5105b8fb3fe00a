"""Rates of the links between GPUs, to RAM and to other nodes, and of arithmetic: measured, else specified."""

from __future__ import annotations

from math import inf

import msgspec

from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.links import lanes_gb_s
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node, RdmaPort
from gpudoctor.plan.tensor_bytes import Precision
from gpudoctor.profiles.profile import Profile
from gpudoctor.text.units import whole_mib_text

C2C_GB_S = 342


class Rate(msgspec.Struct, frozen=True):
    """A rate and its source. `measured`: on this node; else specified or measured by others.

    GB/s (1e9 bytes) per direction for links, TFLOP/s for arithmetic. `at_most`: an upper bound, such as a line
    rate, which is never reached.
    """

    value: float
    source: str
    measured: bool = False
    at_most: bool = False


def nvlinked(node: Node, gpus: tuple[Gpu, ...], profile: Profile) -> int:
    """The size of the groups of GPUs that are joined by NVLink, each with each; of the smallest if they differ.

    All of them behind NVSwitch, 2 with bridges, 1 without NVLink. If the topology was not read, a kind of
    node that always has NVSwitch is assumed to have it.
    """
    if isinstance(node.pairs, Missing):
        return len(gpus) if profile.node is not None and profile.node.nvlink_topology == "switch" else 1
    inside = {gpu.index for gpu in gpus}
    joined = {(p.a, p.b) for p in node.pairs if known(p.nvlinks) and {p.a, p.b} <= inside}
    groups: list[set[int]] = []
    for index in sorted(inside):
        home = next((g for g in groups if all((min(index, o), max(index, o)) in joined for o in g)), None)
        if home is None:
            groups.append({index})
        else:
            home.add(index)
    return min(len(group) for group in groups)


def collective_rate(
    node: Node, gpus: tuple[Gpu, ...], profile: Profile, measurements: Measurements | None
) -> Rate | str:
    """The all_reduce bus bandwidth of these GPUs for large messages: measured, the profile's, or a line rate."""
    if len(gpus) < 2:
        return "one GPU needs no link to others"
    measured = _measured(measurements, len(gpus), "all_reduce")
    if measured is not None:
        return measured
    published = _of_profile(profile, len(gpus))
    # a profile's figure is that of healthy links
    if published is not None and not _lacks_nvlinks(gpus, profile):
        return published
    if _fewest_active_nvlinks(gpus) and nvlinked(node, gpus, profile) == len(gpus):
        return nvlink_rate(gpus, profile)
    if isinstance(node.pairs, Missing) and _may_have_nvlink(gpus, profile):
        return f"whether NVLink joins these GPUs: {node.pairs.reason}"
    slowest = _slowest_pcie(gpus)
    if isinstance(slowest, str):
        return slowest
    inside = {gpu.index for gpu in gpus}
    pairs = [p for p in known(node.pairs) or () if {p.a, p.b} <= inside]
    by_host = any(known(p.p2p_read) != "OK" for p in pairs)
    how = ", and GPUs without peer-to-peer pass it twice, by way of host memory" if by_host else ""
    return Rate(slowest.value, f"{slowest.source}{how}", at_most=True)


def _lacks_nvlinks(gpus: tuple[Gpu, ...], profile: Profile) -> bool:
    """Whether a GPU has fewer active links than its model; not if none shows any, as in a virtual machine or a dump."""
    spec = profile.gpu.nvlink if profile.gpu else None
    return spec is not None and any(known(g.nvlinks) for g in gpus) and _fewest_active_nvlinks(gpus) < spec.links


def _may_have_nvlink(gpus: tuple[Gpu, ...], profile: Profile) -> bool:
    by_model = profile.gpu is None or profile.gpu.nvlink is not None
    return by_model and (_fewest_active_nvlinks(gpus) > 0 or any(isinstance(gpu.nvlinks, Missing) for gpu in gpus))


def _of_profile(profile: Profile, ranks: int) -> Rate | None:
    for row in profile.node.all_reduce if profile.node else ():
        if profile.node is not None and row.ranks == ranks:
            return Rate(row.busbw_gb_s, f"profile {profile.node.name}: {row.source}")
    return None


def gather_rate(
    gpus: tuple[Gpu, ...], profile: Profile, measurements: Measurements | None, collective: Rate | str
) -> Rate | str:
    """The bus bandwidth of all_gather and reduce_scatter: measured, else that of all_reduce without NVLS.

    NVSwitch computes the sums of all_reduce only (NVLS): 8 x H200 reach 473 GB/s with all_reduce, and 361 and 363
    GB/s with these two, as rings do (stas00/ml-engineering, network/README.md).
    """
    measured = [_measured(measurements, len(gpus), op) for op in ("all_gather", "reduce_scatter")]
    if unusable := [rate for rate in measured if isinstance(rate, str)]:
        return unusable[0]
    if rates := [rate for rate in measured if isinstance(rate, Rate)]:
        return min(rates, key=lambda rate: rate.value)
    ring = nvlink_rate(gpus, profile)
    switch = profile.node is not None and profile.node.nvswitch
    if switch and isinstance(ring, Rate) and isinstance(collective, Rate) and ring.value < collective.value:
        return ring
    return collective


def _fewest_active_nvlinks(gpus: tuple[Gpu, ...]) -> int:
    return min(sum(known(link.state) in ("active", "sleep") for link in known(g.nvlinks) or ()) for g in gpus)


def _measured(measurements: Measurements | None, ranks: int, op: str) -> Rate | str | None:
    """The bus bandwidth at the largest size measured with this many GPUs and no wrong result; None if there is none."""
    launch = measurements.launch if measurements else None
    if measurements is None or launch is None or launch.world_size != ranks:
        return None
    done = [c for c in measurements.collectives if c.op == op and not c.wrong_ranks]
    if not done:
        return None
    best = max(done, key=lambda c: c.size_bytes)
    return _found(best.busbw_gb_s, f"measured here: {op} of {whole_mib_text(best.size_bytes)}")


def _found(value: float, source: str) -> Rate | str:
    """A measured rate, or the reason that it is unusable: a broken GPU or report may give 0, and rates are divisors."""
    return Rate(value, source, measured=True) if 0 < value < inf else f"{source}, {value:g}: no rate"


def nvlink_rate(gpus: tuple[Gpu, ...], profile: Profile) -> Rate | str:
    """One direction of all NVLinks of the GPU with the fewest active ones, at the rates of NCCL's own model."""
    spec = profile.gpu.nvlink if profile.gpu else None
    active = _fewest_active_nvlinks(gpus)
    unread = all(isinstance(g.nvlinks, Missing) for g in gpus)
    if spec is None or not (active or unread):
        return "no active NVLink is known"
    each = spec.effective_gb_s or spec.gb_s_per_link * 0.8
    if unread:
        active = spec.links
    return Rate(active * each, f"{active} NVLinks of the slowest GPU, {each:g} GB/s each in NCCL's own model")


def active_ports(node: Node) -> list[RdmaPort]:
    """The active RDMA ports of the node."""
    return [p for p in known(node.network.rdma_ports) or () if "ACTIVE" in (known(p.state) or "").upper()]


def network_rate(node: Node) -> Rate | str:
    """The rate of all the node's adapters: its active RDMA ports, else the fastest interface that is up."""
    rates = [rate for p in active_ports(node) if (rate := known(p.rate_gbit_s))]
    if rates:
        return Rate(sum(rates) / 8, f"{len(rates)} active RDMA ports, {sum(rates):g} Gbit/s together", at_most=True)
    if isinstance(node.network.interfaces, Missing):
        return f"the network of this node: {node.network.interfaces.reason}"
    up = [
        (speed, i.name)
        for i in node.network.interfaces
        if known(i.state) == "up" and (speed := known(i.speed_gbit_s)) and i.name != "lo"
    ]
    if not up:
        return "no network interface with a known speed is up"
    speed, name = max(up)
    return Rate(speed / 8, f"{name}, {speed:g} Gbit/s, no active RDMA port", at_most=True)


def host_rate(gpus: tuple[Gpu, ...], measurements: Measurements | None) -> Rate | str:
    """The rate of one GPU's copies to and from RAM while all copy: the slowest measured, NVLink-C2C, or PCIe."""
    if measurements and measurements.host_links:
        links = measurements.host_links
        to_gpu = [known(link.h2d_together_gb_s) or link.h2d_alone_gb_s for link in links]
        to_host = [known(link.d2h_together_gb_s) or link.d2h_alone_gb_s for link in links]
        return _found(min(to_gpu + to_host), "measured here: copies between host and GPU")
    if any(gpu.on_c2c for gpu in gpus):
        if any("GB10" in (known(gpu.name) or "") for gpu in gpus):
            return "no figure of this GPU's NVLink-C2C is known here"
        return Rate(C2C_GB_S, "the least that others measured over Grace's NVLink-C2C (nvbandwidth#23)")
    return _slowest_pcie(gpus)


def compute_rate(
    gpus: tuple[Gpu, ...], profile: Profile, precision: Precision, measurements: Measurements | None
) -> Rate | str:
    """The rate of matrix products on the slowest GPU: measured, the best published, or the data sheet's dense rate."""
    dtype = "fp16" if precision == "fp16" else "fp32" if precision == "fp32" else "bf16"
    if measurements:
        rates = [g.tflops for rank in measurements.compute for g in rank.gemms if g.dtype == dtype]
        if rates:
            return _found(min(rates), f"measured here: {dtype} matrix products of the slowest GPU")
    model = profile.gpu
    if model is None or len({known(gpu.name) for gpu in gpus}) != 1:
        return "no profile has the arithmetic rate of these GPUs together"
    if dtype == "fp32":
        return f"no fp32 rate of {model.name} is known here"
    if model.achieved_bf16_tflops and dtype == "bf16":
        return Rate(model.achieved_bf16_tflops, f"the best that anybody measured on {model.name}", at_most=True)
    sheet = (model.fp16_tflops or model.bf16_tflops) if dtype == "fp16" else model.bf16_tflops
    if sheet is None:
        return f"no {dtype} rate of {model.name} is known here"
    return Rate(sheet, f"{model.name}'s data sheet, dense {dtype}", at_most=True)


def _slowest_pcie(gpus: tuple[Gpu, ...]) -> Rate | str:
    links: list[tuple[float, str]] = []
    for gpu in gpus:
        generation, width = known(gpu.pcie.generation_max), known(gpu.pcie.width)
        rate = lanes_gb_s(generation, width)
        if rate is None:
            return f"the PCIe link of GPU {gpu.index} is not known"
        links.append((rate, f"PCIe Gen{generation} x{width} of GPU {gpu.index}"))
    speed, name = min(links)
    if all(each == speed for each, _ in links):
        name = name.rpartition(" of ")[0]
    return Rate(speed, f"the line rate of {name}", at_most=True)
