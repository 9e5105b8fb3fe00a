"""The cluster report as text: one line per node, the measurements, then each problem and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from gpudoctor.checks.core.finding import PROBLEMS, Finding, Status
from gpudoctor.cluster.check.model import ClusterReport, InterNodeResult, Judged, NodeResult
from gpudoctor.report.text import STYLES, TextRows, laid_out, plain, status_word
from gpudoctor.report.wording import block_rows
from gpudoctor.text.units import mib_text, rate_text

_NODES_SHOWN = 64  # of the nodes that pass; all others are always shown
_VERDICT_WORDS = {
    "warn": "works; look at the warnings",
    "fail": "not fit to train on as it is",
    "unknown": "not known: what got no answer is not a pass",
}


def render_cluster_text(report: ClusterReport, *, width: int, color: bool, verbose: bool = False) -> str:
    """The report for `width` columns. The status is always a word too, never a colour alone."""
    return laid_out(_parts(report, verbose), width=width, color=color)


def _parts(report: ClusterReport, verbose: bool) -> Iterator[RenderableType]:
    run = report.run
    nodes = f"{len(report.nodes)} nodes"
    backend = f", {report.between.backend} between them" if report.between.backend else ""
    yield plain(f"gpudoctor {report.tool.version}   {nodes} by {run.launcher}, level {run.level}{backend}", "bold")
    if report.simulated:
        yield plain("SIMULATED nodes: made up, no verdict on real machines", "bold yellow")
    if run.insecure:
        yield plain("INSECURE: the nodes had no token; anybody on the network could have answered", "bold yellow")
    if run.interrupted:
        yield plain(f"INTERRUPTED by {run.interrupted}: what was known until then", "bold yellow")
    if report.error:
        yield plain(f"gpudoctor could not check these nodes: {report.error}")
        return
    yield Text("")
    yield _nodes(report)
    yield Text("")
    yield from (Padding(plain(line), (0, 0, 0, 2)) for line in _figures(report.between, verbose))
    for status in PROBLEMS:
        for check in report.checks:
            for finding in check.findings:
                # a node's own warning is in the node's line, and its details are in the node's report
                said_above = check.id == "cluster.checks" and status is Status.WARN
                if finding.status is status and not said_above:
                    yield from _block(check, finding)
    if verbose:
        yield from _all(report)
    yield Text("")
    counts = [f"{sum(n.verdict == v for n in report.nodes)} {v}" for v in ("pass", "warn", "fail", "unknown")]
    yield plain(f"nodes: {', '.join(counts)}.  {run.duration_s:.1f} s")
    word = plain(report.verdict.upper(), STYLES[Status(report.verdict)])
    yield Text.assemble(word, plain(f"  {_verdict_words(report)}"))


def _verdict_words(report: ClusterReport) -> str:
    """What the verdict means; if no GPUs were put under load, a pass is not called fit."""
    if report.verdict != "pass":
        return _VERDICT_WORDS[report.verdict]
    if report.between.backend == "nccl":
        return "nothing wrong on any node, nor between them"
    what = "only CPU ranks were measured" if report.between.backend else "nothing was measured"
    return f"nothing wrong on any node; {what} between them"


def _nodes(report: ClusterReport) -> TextRows:
    left_out = {node.name for node in [n for n in report.nodes if n.verdict == "pass"][_NODES_SHOWN:]}
    rows = [_node(node) for node in report.nodes if node.name not in left_out]
    if left_out:
        rows.append((status_word(Status.PASS), plain(f"{len(left_out)} more"), plain("")))
    return TextRows(rows)


def _node(node: NodeResult) -> tuple[Text, Text, Text]:
    # the verdict is shown in the first column
    text = node.reason.partition(" ")[2] if node.reason.startswith(node.verdict.upper()) else node.reason
    gpus = f"   {node.gpus} GPUs" if node.gpus else ""
    return status_word(Status(node.verdict)), plain(node.name, "bold"), plain(text + gpus)


def _figures(between: InterNodeResult, verbose: bool) -> Iterator[str]:
    if between.not_run is not None:
        yield f"between nodes: not measured, {between.not_run.reason}"
        return
    everyone = between.everyone
    if everyone is not None and everyone.busbw_gb_s is not None:
        yield (
            f"all_reduce of {mib_text(everyone.size_bytes)} over {everyone.ranks} ranks on "
            f"{len(everyone.nodes)} nodes: {rate_text(everyone.busbw_gb_s)} bus bandwidth"
        )
    rates = [pair.busbw_gb_s for pair in between.pairs if pair.busbw_gb_s is not None]
    if len(rates) == between.pairs_planned == 1:
        yield f"the pair of nodes: {rate_text(rates[0])}"
    elif rates:
        yield (
            f"{len(rates)} of {between.pairs_planned} pairs of nodes: slowest {rate_text(min(rates))}, "
            f"middle {rate_text(median(rates))}, fastest {rate_text(max(rates))}"
        )
    if verbose:
        for pair in between.pairs:
            trouble = "; ".join(f"{name}: {text}" for name, text in pair.trouble.items())
            rate = rate_text(pair.busbw_gb_s) if pair.busbw_gb_s is not None else trouble
            yield f"  {' - '.join(pair.nodes)}   {rate}" + ("   (once more, alone)" if pair.again else "")


def _block(check: Judged, finding: Finding) -> Iterator[RenderableType]:
    yield Text("")
    label = "" if finding.subject.label == "node" else f"   {finding.subject.label}"
    yield Text.assemble(status_word(finding.status), "  ", plain(check.id, "bold"), plain(label))
    rows = TextRows((plain(name, "dim"), plain(value)) for name, value in block_rows(finding, ()))
    yield Padding(rows, (0, 0, 0, 2))


def _all(report: ClusterReport) -> Iterator[RenderableType]:
    for check in report.checks:
        yield Text("")
        yield Text.assemble(status_word(check.status), "  ", plain(check.id, "bold"), "  ", plain(check.title))
        for finding in check.findings:
            text = finding.reason or (finding.found.text if finding.found else "")
            row = Text.assemble(status_word(finding.status), "  ", plain(finding.subject.label), "  ", plain(text))
            yield Padding(row, (0, 0, 0, 2))
