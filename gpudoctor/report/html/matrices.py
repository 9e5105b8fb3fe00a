"""Matrices of GPUs: how they are connected, and the rates between them, as tables with figure and sign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

import msgspec

from gpudoctor.facts.model.measurements import Measurements
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.report.html.elements import Child, append, element, scroll, section
from gpudoctor.report.model import Report
from gpudoctor.report.tables.devices import rank_name
from gpudoctor.report.tables.links import Place, RateMatrix, both_ways_matrix, pair_matrix, peer_matrix, way_of
from gpudoctor.report.tables.table import NOT_KNOWN
from gpudoctor.units import figure_text, size_text

_MEANING = {
    "NV": "NV#: that many NVLinks",
    "PIX": "PIX: one PCIe switch",
    "PXB": "PXB: several PCIe switches",
    "PHB": "PHB: through the CPU's PCIe host bridge",
    "NODE": "NODE: between host bridges of one NUMA node",
    "SYS": "SYS: between NUMA nodes",
}
# (sign, class, least share of the best figure in the matrix)
_STEPS = (("●", "heat4", 0.9), ("◕", "heat3", 0.7), ("◑", "heat2", 0.5), ("◔", "heat1", 0.25), ("○", "heat0", 0.0))
_DIAGONAL = "–"


def topology(report: Report) -> Element | None:
    """How each pair of GPUs is connected; None if the report does not include these facts."""
    facts = report.facts
    if isinstance(facts, msgspec.UnsetType) or isinstance(facts.pairs, Missing) or not facts.pairs:
        return None
    cells: dict[Place, Element] = {}
    kinds = set()
    for pair in facts.pairs:
        word = way_of(pair)
        kind = "NV" if word.startswith("NV") else "none" if word == NOT_KNOWN else word
        kinds.add(kind)
        off = [known(pair.p2p_read), known(pair.p2p_write)]
        note = next((f" ({each})" for each in off if each not in (None, "OK")), "")
        for place in ((pair.a, pair.b), (pair.b, pair.a)):
            cells[place] = element("td", word + note, class_=f"way {kind.lower()}")
    indices = sorted({index for place in cells for index in place})
    legend = [words for kind, words in _MEANING.items() if kind in kinds]
    if any("(" in "".join(cell.itertext()) for cell in cells.values()):
        legend.append("in brackets why peer-to-peer is off: CNS chipset, GNS GPU, TNS topology, DR registry key, NS, U")
    return section(
        "Topology",
        _square({index: f"GPU {index}" for index in indices}, cells, "How each two GPUs reach each other"),
        element("p", "; ".join(legend), class_="legend"),
        id_="topology",
    )


def bandwidths(measured: Measurements) -> list[Element]:
    """Heat maps of copies between GPUs, and of send and receive between ranks."""
    maps = []
    if measured.peer_links:
        peer, both = peer_matrix(measured), both_ways_matrix(measured).rates.values()
        off = len(peer.through_host)
        notes = [f"{off} of {len(peer.rates)} directions go through the host (h)"] if off else []
        notes += [f"both ways at once {figure_text(min(both))} to {figure_text(max(both))} GB/s"] if both else []
        maps.append(_heat(measured, peer, f"Copies of {size_text(peer.size_bytes)} from row to column, GB/s", notes))
    if measured.pairs:
        pairs = pair_matrix(measured)
        title = f"Send and receive of {size_text(pairs.size_bytes)} between two ranks, GB/s each way"
        maps.append(_heat(measured, pairs, title, []))
    return maps


def _heat(measured: Measurements, matrix: RateMatrix, title: str, notes: Sequence[str]) -> Element:
    rates = matrix.rates
    best = max(rates.values())
    cells = {}
    for (a, b), rate in rates.items():
        share = rate / best if best > 0 else 0.0
        sign, heat = next((sign, heat) for sign, heat, least in _STEPS if share >= least)
        mark = " h" if (a, b) in matrix.through_host else ""
        cells[a, b] = element("td", figure_text(rate), element("i", f" {sign}{mark}"), class_=heat)
    scale = "of the best here: ● from 90 %, ◕ 70 %, ◑ 50 %, ◔ 25 %, ○ less"
    legend = "; ".join((f"best {figure_text(best)}, worst {figure_text(min(rates.values()))} GB/s", scale, *notes))
    return element(
        "div",
        element("h3", title),
        _square({rank: rank_name(measured, rank) for rank in matrix.ranks}, cells, title),
        element("p", legend, class_="legend"),
        class_="part",
    )


def _square(names: Mapping[int, str], cells: Mapping[Place, Element], label: str) -> Element:
    head: list[Child] = [element("td"), *(element("th", name, scope="col") for name in names.values())]
    made = element("table", element("thead", element("tr", *head)), class_="matrix")
    body = element("tbody")
    for row, name in names.items():
        places: list[Child] = [element("th", name, scope="row")]
        for column in names:
            blank = element("td", _DIAGONAL if row == column else NOT_KNOWN, class_="none")
            places.append(cells.get((row, column), blank))
        append(body, element("tr", *places))
    append(made, body)
    return scroll(made, label)
