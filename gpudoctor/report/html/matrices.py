"""GPU by GPU: how they are wired, and what was measured between them, as tables with figure and sign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

import msgspec

from gpudoctor.facts.model.gpu import GpuPair
from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.report.html.elements import Child, append, element, scroll, section
from gpudoctor.report.model import Report
from gpudoctor.units import figure_text, size_text

_MEANING = {
    "NV": "NV#: that many NVLinks",
    "PIX": "PIX: one PCIe switch",
    "PXB": "PXB: several PCIe switches",
    "PHB": "PHB: through the CPU's PCIe host bridge",
    "NODE": "NODE: between host bridges of one NUMA node",
    "SYS": "SYS: between NUMA nodes",
}
# of the best figure in the matrix: sign, class, least share
_STEPS = (("●", "heat4", 0.9), ("◕", "heat3", 0.7), ("◑", "heat2", 0.5), ("◔", "heat1", 0.25), ("○", "heat0", 0.0))
_DIAGONAL = "–"


def topology(report: Report) -> Element | None:
    """How each two GPUs reach each other, where the report has the facts of it."""
    facts = report.facts
    if isinstance(facts, msgspec.UnsetType) or isinstance(facts.pairs, Missing) or not facts.pairs:
        return None
    cells: dict[tuple[int, int], Element] = {}
    kinds = set()
    for pair in facts.pairs:
        word, kind = _way(pair)
        kinds.add(kind)
        off = [known(pair.p2p_read), known(pair.p2p_write)]
        note = next((f" ({each})" for each in off if each not in (None, "OK")), "")
        for place in ((pair.a, pair.b), (pair.b, pair.a)):
            cells[place] = element("td", word + note, class_=f"way {kind.lower()}")
    indices = sorted({index for place in cells for index in place})
    names = [f"GPU {index}" for index in indices]
    square = {(indices.index(a), indices.index(b)): cell for (a, b), cell in cells.items()}
    legend = [words for kind, words in _MEANING.items() if kind in kinds]
    if any("(" in "".join(cell.itertext()) for cell in cells.values()):
        legend.append("in brackets why peer-to-peer is off: CNS chipset, GNS GPU, TNS topology, DR registry key, NS, U")
    return section(
        "Topology",
        _square(names, square, "How each two GPUs reach each other"),
        element("p", "; ".join(legend), class_="legend"),
        id_="topology",
    )


def _way(pair: GpuPair) -> tuple[str, str]:
    links, path = known(pair.nvlinks), known(pair.path)
    if links:
        return f"NV{links}", "NV"
    return (path, path) if path else ("-", "none")


def bandwidths(measured: Measurements) -> list[Element]:
    """Heat maps of the copies between GPUs, and of send and receive between ranks."""
    maps = []
    if measured.peer_links:
        rates = {(link.source, link.target): link.gb_s for link in measured.peer_links}
        through_host = {(link.source, link.target) for link in measured.peer_links if link.p2p is False}
        size = size_text(measured.peer_links[0].size_bytes)
        notes = [f"{len(through_host)} of {len(rates)} directions go through the host (h)"] if through_host else []
        both = [rate for link in measured.peer_links if (rate := known(link.both_ways_gb_s)) is not None]
        notes += [f"both ways at once {figure_text(min(both))} to {figure_text(max(both))} GB/s"] if both else []
        title = f"Copies of {size} from row to column, GB/s"
        maps.append(_heat(measured, rates, title, notes, through_host))
    if measured.pairs:
        each = {(pair.a, pair.b): pair.busbw_gb_s for pair in measured.pairs}
        both_ways = {**each, **{(b, a): rate for (a, b), rate in each.items()}}
        title = f"Send and receive of {size_text(measured.pairs[0].size_bytes)} between two ranks, GB/s each way"
        maps.append(_heat(measured, both_ways, title, []))
    return maps


def _heat(
    measured: Measurements,
    rates: Mapping[tuple[int, int], float],
    title: str,
    notes: Sequence[str],
    through_host: set[tuple[int, int]] | None = None,
) -> Element:
    best = max(rates.values())
    ranks = sorted({rank for place in rates for rank in place})
    cells = {}
    for (a, b), rate in rates.items():
        share = rate / best if best > 0 else 0.0
        sign, heat = next((sign, heat) for sign, heat, least in _STEPS if share >= least)
        mark = " h" if through_host and (a, b) in through_host else ""
        cells[ranks.index(a), ranks.index(b)] = element(
            "td", figure_text(rate), element("i", f" {sign}{mark}"), class_=heat
        )
    scale = "of the best here: ● from 90 %, ◕ 70 %, ◑ 50 %, ◔ 25 %, ○ less"
    legend = "; ".join((f"best {figure_text(best)}, worst {figure_text(min(rates.values()))} GB/s", scale, *notes))
    return element(
        "div",
        element("h3", title),
        _square([rank_name(measured, rank) for rank in ranks], cells, title),
        element("p", legend, class_="legend"),
        class_="part",
    )


def rank_name(measured: Measurements, rank: int, *, long: bool = False) -> str:
    """ "GPU 5" for a rank on it ("rank 2, GPU 5" where `long`); "rank 2" for a CPU rank."""
    infos = measured.launch.ranks if measured.launch else ()
    gpu = next((info.gpu for info in infos if info.rank == rank), None)
    if gpu is None:
        return f"rank {rank}"
    return f"rank {rank}, GPU {gpu}" if long else f"GPU {gpu}"


def _square(names: Sequence[str], cells: Mapping[tuple[int, int], Element], label: str) -> Element:
    head: list[Child] = [element("td"), *(element("th", name, scope="col") for name in names)]
    made = element("table", element("thead", element("tr", *head)), class_="matrix")
    body = element("tbody")
    for row, name in enumerate(names):
        places: list[Child] = [element("th", name, scope="row")]
        for column in range(len(names)):
            blank = element("td", _DIAGONAL if row == column else "-", class_="none")
            places.append(cells.get((row, column), blank))
        append(body, element("tr", *places))
    append(made, body)
    return scroll(made, label)
