"""The details beside the matrix of the Links pane: NVLinks, PCIe path, host copies, NUMA, network adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from textual.content import Content

from gpudoctor.checks.core.condemning import condemning
from gpudoctor.checks.core.faults import headline
from gpudoctor.checks.core.finding import PROBLEMS, Finding
from gpudoctor.facts.model.gpu import Gpu, PcieHop
from gpudoctor.facts.model.links import generation_of
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.report.model import Report, findings_of
from gpudoctor.report.tables.devices import gpu_of_rank, on_cpus, screen_name
from gpudoctor.report.tables.links import host_table, link_text, way_of
from gpudoctor.report.wording import expected_words
from gpudoctor.text.grouped import grouped
from gpudoctor.text.output import printable
from gpudoctor.text.units import ranges, short_figure
from gpudoctor.tui.labels import WORDS, worst_first
from gpudoctor.tui.panes.link_matrices import pair_of
from gpudoctor.tui.state import State
from gpudoctor.tui.widgets.lines import hanging

_LINK_DOMAINS = ("nvlink", "pcie", "topology", "link", "network")
_MATRICES = ("link.peer", "collective.pairs")
_FINDINGS_MAX = 6


def details(state: State, gpu_index: int | None, width: int) -> Content:
    """All details; `gpu_index` is the GPU whose PCIe path is shown."""
    node = state.node
    if node is None:
        return Content("")
    lines: list[Content] = [*_told(state.report, width)]
    gpu = state.gpu(gpu_index)
    if gpu is not None:
        lines += [Content(""), *_path(gpu, state.report)]
    lines += _headed("NVLink", _grouped(node, partial(_nvlink_words, state)), width)
    lines += _headed("PCIe", _grouped(node, partial(_pcie_words, state)), width)
    lines += _headed("Host copies", _host_links(node, state.report), width)
    lines += _headed("NUMA", _numa(node), width)
    lines += _headed("RDMA", _rdma(node), width)
    while lines and not lines[0].plain:
        lines.pop(0)
    return Content("\n").join(lines)


def pair_line(state: State, a: int | None, b: int | None, ranks: tuple[int, int] | None) -> str:
    """One line on a pair of GPUs or ranks: path, NVLinks, peer-to-peer status, measured rates."""
    if a is not None and a == b:
        gpu = state.gpu(a)
        return printable(f"{gpu.label}: {known(gpu.name) or '-'}") if gpu is not None else f"GPU {a}"
    parts = [*_way_between(state, a, b)]
    if ranks is not None and state.report is not None:
        parts += _measured(state.report, *ranks)
    if a is not None and b is not None:
        who = f"GPU {a} - GPU {b}"
    else:
        who = f"rank {ranks[0]} - rank {ranks[1]}" if ranks is not None else "no GPUs"
    return f"{who}: {', '.join(parts) or 'nothing is known'}"


def _way_between(state: State, a: int | None, b: int | None) -> Iterator[str]:
    """Path and peer-to-peer status of two GPUs; why they are not known if one of them is lost."""
    lost = [gpu.index for gpu in (state.gpu(a), state.gpu(b)) if gpu is not None and condemning(gpu)]
    if lost:
        yield f"not known, GPU {ranges(lost)} is lost or needs a reset"
    elif a is not None and b is not None:
        pair = pair_of(state.node, a, b)
        yield way_of(pair)
        if pair is not None:
            yield f"P2P read {known(pair.p2p_read) or '-'} write {known(pair.p2p_write) or '-'}"


def rank_of_gpu(report: Report | None, node: Node | None, gpu: int | None) -> int | None:
    """The rank that used a GPU in the last measurement."""
    launch = report.measurements.launch if report is not None else None
    if report is None or launch is None or gpu is None:
        return None
    return next((r.rank for r in launch.ranks if gpu_of_rank(report.measurements, node, r.rank) == gpu), None)


def _measured(report: Report, a: int, b: int) -> Iterator[str]:
    if a == b:
        return
    links = report.measurements.peer_links
    if link := next((link for link in links if (link.source, link.target) == (a, b)), None):
        both = known(link.both_ways_gb_s)
        reported = f"copy {short_figure(link.gb_s)} GB/s" + (
            f", both ways {short_figure(both)}" if both is not None else ""
        )
        yield reported + {True: "", False: ", CUDA P2P off", None: ""}[known(link.p2p)]
        if link.wrong_elements:
            yield f"{link.wrong_elements} elements arrived WRONG"
    if pair := next((pair for pair in report.measurements.pairs if {pair.a, pair.b} == {a, b}), None):
        yield f"sendrecv {short_figure(pair.busbw_gb_s)} GB/s each way"
        if pair.wrong_ranks:
            yield "data arrived WRONG"


def _told(report: Report | None, width: int) -> Iterator[Content]:
    """The problems found by checks of links, worst first; all findings of the checks that judge the matrices."""
    checks = report.checks if report is not None else ()
    measured = report is not None and bool(report.measurements.peer_links or report.measurements.pairs)
    found = [
        (check.id, finding)
        for check in checks
        for finding in check.findings
        if (finding.status in PROBLEMS and (check.domain in _LINK_DOMAINS or check.id in _MATRICES))
        or (measured and check.id in _MATRICES)
    ]
    found.sort(key=lambda one: (worst_first(one[1]), one[1].explained_by is not None))
    for check_id, finding in found[:_FINDINGS_MAX]:
        reported = f"{check_id}  {headline(finding)}"
        if finding.expected is not None:
            reported += f"; expected {expected_words(finding.expected)}"
        word = f"{WORDS[finding.status]:<8}"
        yield from hanging(word, reported, finding.status, width)
    if len(found) > _FINDINGS_MAX:
        yield Content(f"and {len(found) - _FINDINGS_MAX} more: see Checks")


def _headed(name: str, lines: Iterable[str], width: int) -> Iterator[Content]:
    """The lines with a name at the left of the first."""
    for number, line in enumerate(lines):
        yield from hanging(f"{'' if number else name:<12}", line, "head", width)


def _path(gpu: Gpu, report: Report | None) -> Iterator[Content]:
    """The way from the CPU to the GPU as a drawing: each port with its link and its findings, a narrow link marked."""
    yield Content.styled(f"PCIe path of GPU {gpu.index} (links now, and at most if that is more)", "head")
    hops = known(gpu.pcie.path)
    if not hops:
        why = gpu.pcie.path.reason if isinstance(gpu.pcie.path, Missing) else "no hop is visible"
        yield Content(f"  not known: {printable(why)}")
        return
    findings = _path_findings(gpu, report)
    where = known(gpu.numa_node)
    yield Content("  CPU" if where is None else f"  CPU, NUMA node {where}")
    above: PcieHop | None = None
    for number, hop in reversed(list(enumerate(hops))):
        who = f"GPU {gpu.index}" if number == 0 else "root port" if above is None else "bridge"
        now, most = _link(hop.speed_gt_s, hop.width), _link(hop.max_speed_gt_s, hop.max_width)
        narrow = "fail" if _is_narrow(hop) else ""
        # both ends of one link are narrow; between the ports of one switch is no link
        thin = _is_narrow(hop) and above is not None and above.width == hop.width
        yield Content.assemble(("   │ narrow", narrow) if thin else "   ┃")
        link = (now if now == most else f"{now} of {most}", narrow)
        parts: list[str | tuple[str, str]] = [f"  {who:<9}  {hop.bus_id:<12}  ", link]
        for check_id, finding in findings:
            if _hop_of(finding, hops) == number:
                parts += [("  " + WORDS[finding.status], finding.status), f" {check_id}"]
        if hop.acs_redirect is True:
            parts.append("  ACS redirect")
        yield Content.assemble(*parts)
        above = hop


def _is_narrow(hop: PcieHop) -> bool:
    width, most = known(hop.width), known(hop.max_width)
    return width is not None and most is not None and width < most


def _path_findings(gpu: Gpu, report: Report | None) -> list[tuple[str, Finding]]:
    return [
        (check.id, finding)
        for check in (report.checks if report is not None else ())
        if check.domain == "pcie"
        for finding in check.findings
        if finding.status in PROBLEMS and finding.subject.gpu == gpu.index
    ]


def _hop_of(finding: Finding, hops: tuple[PcieHop, ...]) -> int:
    """The index of the hop that a finding names in its readings; the GPU itself if it names no bridge."""
    reported = " ".join(
        [finding.found.text if finding.found else "", *(f"{e.source} {e.value}" for e in finding.evidence)]
    )
    named = [number for number, hop in enumerate(hops) if number and hop.bus_id in reported]
    names_gpu = hops[0].bus_id in reported
    return 0 if names_gpu or not named else named[0]


def _link(speed_gt_s: float | Missing, width: int | Missing) -> str:
    """
    >>> _link(32.0, 16), _link(Missing("?"), 8)
    ('Gen5 x16', '- x8')
    """
    speed, lanes = known(speed_gt_s), known(width)
    number = None if speed is None else generation_of(speed)
    generation = "-" if speed is None else f"Gen{number}" if number else f"{speed:g}GT/s"
    return f"{generation} x{'-' if lanes is None else lanes}"


def _grouped(node: Node, words_of: Callable[[Gpu], str]) -> Iterator[str]:
    """GPUs grouped by their text; "every GPU" for a single group."""
    groups = grouped((words_of(gpu), gpu.index) for gpu in node.gpus)
    for text, indices in groups.items():
        alone = len(groups) == 1 and len(indices) > 1
        yield f"{text}  {'every GPU' if alone else f'GPU {ranges(sorted(indices))}'}"


def _nvlink_words(state: State, gpu: Gpu) -> str:
    links = gpu.nvlinks
    if isinstance(links, Missing):
        return f"- ({links.reason})"
    if not links:
        return "none"
    up, total = sum(link.state == "active" for link in links), len(links)
    unread = sum(isinstance(link.state, Missing) for link in links)
    live = state.latest.get(gpu.index)
    if live is not None and live.links_up is not None and live.links is not None:
        up, total, unread = live.links_up, live.links, 0
    counters = []
    for name in ("crc", "replay", "recovery"):
        counts = [known(getattr(link, f"{name}_errors")) for link in links]
        read = [count for count in counts if count is not None]
        counters.append(f"{sum(read) if read else '-'} {name}")
    return f"{up}/{total} up{f' ({unread} not read)' if unread else ''}, errors: {', '.join(counters)}"


def _pcie_words(state: State, gpu: Gpu) -> str:
    """The GPU's link as the driver reports it, with the newest reading if there is one."""
    live = state.latest.get(gpu.index)
    readings = live.readings if live is not None else {}
    generation = readings.get("pcie_generation", gpu.pcie.generation)
    now = link_text(generation, readings.get("pcie_width", gpu.pcie.width))
    return f"{now} / {link_text(gpu.pcie.generation_max, gpu.pcie.width_max)} (now / at most)"


def _host_links(node: Node, report: Report | None) -> Iterator[str]:
    links = report.measurements.host_links if report is not None else ()
    if report is None or not links:
        return
    reported = {f.subject.rank: f.status for f in findings_of(report, "link.host") if f.status in PROBLEMS}
    yield (
        "GB/s"
        + f"{'to GPU':>14}{'to host':>9}"
        + "   (all at once)"
        + ("   CPU ranks, not judged" if on_cpus(report.measurements) else "")
    )
    name = partial(screen_name, report.measurements, node)
    for link, row in zip(links, host_table(report.measurements, name, short_figure).rows, strict=True):
        line = "{:<9}{:>9}{:>9}   ({}, {})".format(*row)
        word = WORDS[reported[link.rank]] if link.rank in reported else ""
        wrong = f"{link.wrong_bytes} bytes came back WRONG" if link.wrong_bytes else ""
        yield "  ".join(part for part in (line, word, wrong) if part)


def _numa(node: Node) -> Iterator[str]:
    if node.gpus:
        yield ", ".join(_grouped(node, lambda gpu: _numa_words(gpu.numa_node)))


def _numa_words(where: int | Missing | None) -> str:
    if isinstance(where, Missing):
        return f"- ({where.reason})"
    return "one node" if where is None else f"node {where}"


def _rdma(node: Node) -> Iterator[str]:
    """Adapters by NUMA node; the facts have nothing more exact."""
    ports = node.network.rdma_ports
    if isinstance(ports, Missing):
        yield f"- ({ports.reason})"
        return
    if not ports:
        yield "none"
        return
    by_node: dict[str, dict[str, list[str]]] = {}
    for port in ports:
        where = known(port.numa_node)
        near = [gpu.index for gpu in node.gpus if where is not None and known(gpu.numa_node) == where]
        text = f"near GPU {ranges(sorted(near))} (NUMA node {where})" if near else "near no GPU, as far as is known"
        rate = known(port.rate_gbit_s)
        reported = (known(port.state) or "-") + (f" {rate:g} Gbit/s" if rate is not None else "")
        by_node.setdefault(text, {}).setdefault(reported, []).append(f"{port.device}:{port.port}")
    for text, ports_of in by_node.items():
        yield f"{text}: " + "; ".join(f"{', '.join(names)} {reported}" for reported, names in ports_of.items())
    loaded, dmabuf = known(node.network.peermem_loaded), known(node.network.dmabuf_supported)
    ways = {True: "yes", False: "no", None: "-"}
    yield f"GPUDirect: nvidia_peermem {ways[loaded]}, DMA-BUF {ways[dmabuf]}"
