"""The report as text: one line per domain, then each problem, then what to run next."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from io import StringIO
from itertools import groupby, zip_longest
from shlex import quote
from shutil import get_terminal_size

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpudoctor.checks.core.finding import PROBLEMS, WORST_FIRST, Status, worst
from gpudoctor.checks.core.registry import LEVELS
from gpudoctor.checks.core.runner import CheckResult
from gpudoctor.checks.driver.responsive import WAKING
from gpudoctor.exits import is_terminal
from gpudoctor.facts.captures import ABSENT
from gpudoctor.report.model import Report, alarms, held_words, is_above, node_words, profile_words, suppressed_in
from gpudoctor.report.text_blocks import STYLES, grouped_label, plain, problems, status_word
from gpudoctor.report.text_figures import figure_lines

NARROWEST = 40


def render_text(report: Report, *, width: int, color: bool, verbose: bool = False) -> str:
    """The whole report for `width` columns; with or without colour, the status is always there as a word."""
    return laid_out(_parts(report, verbose), width=width, color=color)


def laid_out(parts: Iterable[RenderableType], *, width: int, color: bool) -> str:
    """The parts below each other for `width` columns, ending in a newline; trailing blanks are removed."""
    console = Console(
        file=StringIO(),
        width=max(width, NARROWEST),
        force_terminal=color,
        no_color=not color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    with console.capture() as captured:
        console.print(Group(*parts))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _parts(report: Report, verbose: bool) -> Iterator[RenderableType]:
    yield from _head(report)
    yield Text("")
    yield _domains(report, verbose)
    if verbose:
        yield from _findings(report)
    figures = figure_lines(report.measurements)
    if figures:
        yield Text("")
        yield from (Padding(plain(line), (0, 0, 0, 2)) for line in figures)
    yield from problems(report)
    yield Text("")
    yield from _tail(report)


def _head(report: Report) -> Iterator[Text]:
    source = report.run.source
    if not report.simulated and source.kind != "live":
        yield plain(f"Read from {source.kind} {source.name}: that machine, not this one")
    for word, text in alarms(report):
        yield plain(f"{word} {text}", "bold yellow")
    parts = (f"gpudoctor {report.tool.version}", report.host.name or source.name, *node_words(report, "x"))
    yield plain(" | ".join(parts), "bold")
    against = profile_words(report.profile)
    against = f"{against[:1].upper()}{against[1:]}" if report.profile.name == "none" else f"Judged against {against}"
    yield plain(f"{against}. {len(report.checks)} checks, level {report.run.level}.")
    for note in report.run.notes:
        yield plain(f"Note: {note}")


def _domains(report: Report, verbose: bool) -> RenderableType:
    table = Table.grid(padding=(0, 2), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    higher = [r for r in report.checks if is_above(r, report.run.level)]
    asked = (r for r in report.checks if r not in higher)
    for domain, group in groupby(asked, key=lambda result: result.domain):
        results = list(group)
        status = worst(result.status for result in results)
        table.add_row(status_word(status), plain(domain), plain(domain_words(results, status)))
    if higher:
        counts = Counter(r.level for r in higher)
        where = ", ".join(f"{level} ({counts[level]})" for level in LEVELS if counts[level])
        words = f"{_count_of(len(higher))} of level {where}: asked for {report.run.level}"
        table.add_row(status_word(Status.SKIP), plain("higher"), plain(words))
    return Padding(table, (0, 0, 0, 2))


def _count_of(count: int) -> str:
    return f"{count} {'check' if count == 1 else 'checks'}"


def domain_words(results: list[CheckResult], status: Status) -> str:
    """ "3 of 4 ok: link-width fail (GPU 5)" or "7 checks" or "5 checks: why they were skipped"."""
    looked = [r for r in results if r.status is not Status.SKIP]
    skipped = len(results) - len(looked)
    if status is Status.SKIP:
        reasons = list(dict.fromkeys(_reason(r) for r in results))
        others = len(reasons) - 1
        more = f" (and {others} more reason{'s' * (others > 1)})" if others else ""
        return f"{_count_of(len(results))}: {reasons[0]}{more}"
    bad = [r for r in looked if r.status is not Status.PASS]
    tail = f", {skipped} skipped" if skipped else ""
    if not bad:
        summary = _worth_seeing(results)
        return f"{_count_of(len(looked))}{tail}" + (f"   {summary}" if summary else "")
    ok = len(looked) - len(bad)
    return f"{ok} of {len(looked)} ok{tail}   {'; '.join(_by_subject(bad))}"


def _by_subject(bad: list[CheckResult]) -> list[str]:
    """ "GPU 2: lost, xid and 9 more" for each GPU (or set of GPUs) with a problem, worst first."""
    groups: dict[str, list[str]] = {}
    for result in sorted(bad, key=lambda r: WORST_FIRST.index(r.status)):
        label = grouped_label(f.subject for f in result.findings if f.status is result.status)
        groups.setdefault(label, []).append(result.id.partition(".")[2])
    lines = []
    for label, names in groups.items():
        more = f" and {len(names) - 3} more" if len(names) > 4 else ""
        shown = ", ".join(names if not more else names[:3])
        lines.append(f"{shown}{more}" if label == "node" else f"{label}: {shown}{more}")
    return lines


def _worth_seeing(results: list[CheckResult]) -> str:
    """A figure that is shown even if all is well: "144 of 144 links up", or how long the driver took to wake."""
    nodes = (f for r in results for f in r.findings if f.subject.kind == "node" and f.found)
    seen = (f for f in nodes if f.found and (f.found.unit == "links" or any(e.source == WAKING for e in f.evidence)))
    return next((f.found.text for f in seen if f.found), "")


def _reason(result: CheckResult) -> str:
    return next((f.reason for f in result.findings if f.reason), "nothing to judge")


def _findings(report: Report) -> Iterator[RenderableType]:
    for result in report.checks:
        yield Text("")
        yield Text.assemble(status_word(result.status), "  ", plain(result.id, "bold"), "  ", plain(result.title))
        for finding in result.findings:
            text = finding.reason or (finding.found.text if finding.found else "")
            row = Table.grid(padding=(0, 2))
            row.add_column(no_wrap=True)
            row.add_column(no_wrap=True, max_width=28)
            row.add_column(overflow="fold", ratio=1)
            row.add_row(status_word(finding.status), plain(finding.subject.label), plain(text))
            yield Padding(row, (0, 0, 0, 2))


def _tail(report: Report) -> Iterator[Text]:
    counts = report.counts
    faults = f"{len(report.faults)} {'fault' if len(report.faults) == 1 else 'faults'}"
    gpus = grouped_label(fault.subject for fault in report.faults)
    on = f" on {gpus}" if gpus and gpus != "node" else ""
    failed = f" ({_count_of(counts.fail)} failed)" if counts.fail else ""
    yield plain(
        f"{faults}{on}{failed}, {counts.passed} passed, {counts.warn} {'warning' if counts.warn == 1 else 'warnings'}, "
        f"{counts.skip} skipped, {counts.unknown} unknown.  {report.run.duration_s:.1f} s"
    )
    word = plain(report.verdict.upper(), STYLES[Status(report.verdict)])
    suppressed = suppressed_in(report.checks)
    aside = f"; {suppressed} suppressed by the configuration" if suppressed else ""
    yield Text.assemble(word, plain(f"  {verdict_words(report)}{aside}"))
    if more := also_paste(report):
        yield plain(more)
    worst_check = next((r.id for status in PROBLEMS for r in report.checks if r.status is status), "")
    if worst_check:
        again = f"gpudoctor check {worst_check.partition('.')[0]} -v{_same_node(report.run.argv)}"
        yield plain(f"Next:  gpudoctor explain {worst_check}  |  {again}")


# the command whose output is missing from a capture, by domain; for the kernel log, by check
_COMMANDS = {
    "gpu.xid": "dmesg",
    "gpu": "nvidia-smi -q",
    "pcie": "lspci -vvv (as root)",
    "nvlink": "nvidia-smi nvlink -s",
    "topology": "nvidia-smi topo -m",
    "host": "free -m; df -m /dev/shm",
    "env": "env",
    "network": "ibstat",
}
_MOST_COMMANDS = 3


def also_paste(report: Report) -> str:
    """ "To judge nvlink, also paste: nvidia-smi nvlink -s"; "" if the capture has something for every domain."""
    if report.run.source.kind != "capture":
        return ""
    asked = [result for result in report.checks if not is_above(result, report.run.level)]
    parts = []
    for place, command in _COMMANDS.items():
        results = [result for result in asked if place in (result.id, result.domain)]
        skipped = bool(results) and all(result.status is Status.SKIP for result in results)
        if skipped and any(_reason(result).endswith(ABSENT.reason) for result in results):
            parts.append(f"{place}: {command}")
    if not parts:
        return ""
    if len(parts) == 1:
        name, _, command = parts[0].partition(": ")
        return f"To judge {name}, also paste: {command}"
    return f"To judge more, also paste: {' | '.join(parts[:_MOST_COMMANDS])}"


def verdict_words(report: Report) -> str:
    """What the verdict means; a node is only called fit if its GPUs were put under load."""
    training = report.measurements.training
    if report.verdict == "pass" and training is not None and training.device == "cuda":
        return "fit to train on"
    looked = f"the {_count_of(report.counts.passed)} that could look"
    aside = ""
    if report.run.source.kind == "capture":
        looked = held_words(report.checks, report.run.level)
        asked = [result for result in report.checks if not is_above(result, report.run.level)]
        if 2 * sum(result.status is not Status.SKIP for result in asked) < len(asked):
            aside = f", in {looked}"
    words = {
        "pass": f"nothing wrong in {looked}; no GPU was put under load",
        "warn": f"works; look at the warnings{aside}",
        "fail": "not fit to train on",
    }
    return words.get(report.verdict, "not known: what got no answer is not a pass")


def _same_node(argv: tuple[str, ...]) -> str:
    """The options of this run that select the node, quoted for a shell, for the command to run next."""
    kept = []
    for word, value in zip_longest(argv, argv[1:], fillvalue=""):
        if word in ("--node", "--fault", "--gpu", "--profile", "--config"):
            kept.append(f"{word} {quote(value)}")
        elif word.startswith(("--node=", "--fault=", "--gpu=", "--profile=", "--config=")):
            kept.append(quote(word))
    return "".join(f" {option}" for option in kept)


def terminal_width() -> int:
    """COLUMNS, else the width of the terminal, else 100."""
    return get_terminal_size((100, 24)).columns


def output_color(asked: str, *, to_file: bool) -> bool:
    """Whether to use colour: by --color, then NO_COLOR and FORCE_COLOR, then on terminals; in files by --color only."""
    if asked != "auto":
        return asked == "always"
    if to_file or os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal(sys.stdout) and os.environ.get("TERM") != "dumb"
