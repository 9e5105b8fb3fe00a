"""The quick table of `gpudoctor status`: one line a GPU, and the verdict of the quick checks in the last line.

Drawn without rich, which would take longer to import than the driver takes to answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from gpudoctor.checks.core.finding import Status
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.report.gpu_health import health_of, problems_of
from gpudoctor.report.model import Report, alarms, node_words
from gpudoctor.report.tables.table import NOT_KNOWN, cell
from gpudoctor.report.wording import explained_next, verdict_words
from gpudoctor.text.grouped import grouped
from gpudoctor.text.output import printable
from gpudoctor.text.units import MIB, gib_number, ranges

_HEADINGS = ("GPU", "health", "util%", "mem GiB", "MHz", "°C", "W", "PCIe", "NVLink", "program")
_LEFT = ("health", "program")
# left out first on a narrow terminal
_DROPPED_FIRST = ("W", "MHz", "NVLink", "PCIe")
_COLORS = {"FAIL": "1;31", "unknown": "1;35", "warn": "33", "ok": "32", "PASS": "32", "WARN": "33", "UNKNOWN": "1;35"}
_GAP = 2
_LEAST_FOR_PROGRAM = 10


def status_text(report: Report, node: Node, *, width: int, color: bool) -> str:
    """The table for `width` columns. `node` has the facts that `report` judged; a missing reading is a dash."""
    lines = [line for word, text in alarms(report) for line in wrap(f"{word} {text}", width, break_on_hyphens=False)]
    host = report.host.name or report.run.source.name
    lines += wrap(" | ".join(filter(None, (host, *node_words(report, "x")))), width, break_on_hyphens=False)
    lines += _table([_cells(gpu, report) for gpu in node.gpus], width, color) if node.gpus else []
    for line in _problem_lines(report):
        lines += wrap(line, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    verdict = report.verdict.upper()
    first, *more = wrap(f"{verdict}  {verdict_words(report)}", width, break_on_hyphens=False)
    lines += [_colored(verdict, verdict, color) + first[len(verdict) :], *more]
    if checks := explained_next(report):
        lines.append(f"Next: gpudoctor explain {checks[0]}")
    return "".join(f"{line if color else printable(line)}\n" for line in lines)


def _cells(gpu: Gpu, report: Report) -> dict[str, str]:
    if gpu.errors:  # a GPU that is half lost still answers with old values
        return {**dict.fromkeys(_HEADINGS, NOT_KNOWN), "GPU": str(gpu.index), "health": health_of(report, gpu.index)}
    used, total = known(gpu.memory_used_mib), known(gpu.memory_total_mib)
    memory = "" if used is None else gib_number(used * MIB)
    return {
        "GPU": str(gpu.index),
        "health": health_of(report, gpu.index),
        "util%": cell(gpu.utilization.gpu_pct, ".0f"),
        "mem GiB": memory + (f"/{gib_number(total * MIB, 0)}" if total else "") if used is not None else NOT_KNOWN,
        "MHz": cell(gpu.clocks.sm_mhz, ".0f"),
        "°C": cell(gpu.thermal.gpu_c, ".0f"),
        "W": cell(gpu.power.draw_w, ".0f"),
        "PCIe": _pcie(gpu),
        "NVLink": _nvlinks(gpu),
        "program": printable(_programs(gpu)),
    }


def _pcie(gpu: Gpu) -> str:
    generation, width = known(gpu.pcie.generation), known(gpu.pcie.width)
    return NOT_KNOWN if generation is None or width is None else f"{generation} x{width}"


def _nvlinks(gpu: Gpu) -> str:
    links = known(gpu.nvlinks)
    return f"{sum(link.is_up for link in links)}/{len(links)}" if links else NOT_KNOWN


def _programs(gpu: Gpu) -> str:
    """The program with the most memory, its process and user, and how many more there are."""
    if isinstance(gpu.processes, Missing):
        return NOT_KNOWN
    running = sorted(gpu.processes, key=lambda p: -(known(p.memory_mib) or 0))
    if not running:
        return ""
    first = running[0]
    name = (known(first.name) or "process").rpartition("/")[2]
    user = f" ({first.user})" if known(first.user) else ""
    more = f" +{len(running) - 1}" if len(running) > 1 else ""
    return f"{name} {first.pid}{user}{more}"


def _table(rows: list[dict[str, str]], width: int, color: bool) -> Iterator[str]:
    names = list(_HEADINGS)
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}
    widths["program"] = _LEAST_FOR_PROGRAM
    for dropped in _DROPPED_FIRST:
        if sum(widths[name] + _GAP for name in names) - _GAP > width:
            names.remove(dropped)
    room = width - sum(widths[name] + _GAP for name in names if name != "program")
    if room < _LEAST_FOR_PROGRAM:
        names.remove("program")
    for row in ({name: name for name in names}, *rows):
        cells = []
        for name in names:
            cell = row[name][:room] if name == "program" else row[name]
            padded = f"{cell:<{widths[name]}}" if name in _LEFT else f"{cell:>{widths[name]}}"
            cells.append(_colored(padded, cell, color) if name == "health" else padded)
        yield (" " * _GAP).join(cells).rstrip()


def _colored(text: str, word: str, color: bool) -> str:
    code = _COLORS.get(word)
    return f"\x1b[{code}m{text}\x1b[0m" if color and code else text


def _problem_lines(report: Report) -> Iterator[str]:
    """One line for each fault, then one for each check that warns or got no answer, unless a fault explains it."""
    for fault in report.faults:
        yield f"{fault.headline} ({fault.check})"
    alike = grouped(
        ((finding.status.value, check), (gpu.index, finding.found.text if finding.found else finding.reason or ""))
        for gpu in report.gpus
        for check, finding in problems_of(report, gpu.index)
        if finding.status is not Status.FAIL and finding.explained_by is None
    )
    for (status, check), found in alike.items():
        indices, texts = zip(*found, strict=True)
        text = texts[0] + (" and the like" if len(set(texts)) > 1 else "")
        yield f"{status}: GPU {ranges(indices)}: {text} ({check})"
