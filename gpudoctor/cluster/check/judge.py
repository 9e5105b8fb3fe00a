"""Judges the results of a cluster check and makes its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from shlex import quote

from gpudoctor.checks.core.faults import Fault
from gpudoctor.checks.core.finding import Advice, Evidence, Finding, Found, fail, ok, skip, unknown, warn, worst_verdict
from gpudoctor.checks.core.subject import NODE
from gpudoctor.cluster.check.cluster_run import ClusterSession, Group, NodeProgress
from gpudoctor.cluster.check.inter_node_findings import all_reduce_findings, pair_findings
from gpudoctor.cluster.check.model import (
    SCHEMA,
    ClusterReport,
    ClusterRun,
    GroupResult,
    InterNodeResult,
    Judged,
    NodeResult,
    judged,
    node_subject,
)
from gpudoctor.cluster.check.network_findings import network_findings
from gpudoctor.facts.model.missing import known
from gpudoctor.process.exit_codes import FAILED, OK, UNKNOWN, FailOn
from gpudoctor.report.judge import REASON_LENGTH
from gpudoctor.report.model import Tool, Verdict
from gpudoctor.text.grouped import grouped

_FAULTS_SHOWN = 4


def judge_cluster(
    session: ClusterSession,
    run: ClusterRun,
    *,
    fail_on: FailOn = "fail",
    files: Mapping[str, str] | None = None,
    launcher_output: str | None = None,
) -> ClusterReport:
    """The report of a check. `files`: the nodes' report files by name; `launcher_output`: an error of the launcher."""
    checks: tuple[Judged, ...] = (
        judged("cluster.nodes", tuple(_came(session, launcher_output))),
        judged("cluster.checks", tuple(_own_checks(session.nodes, files or {}))),
        judged("cluster.network", tuple(network_findings(session.nodes, session.backend))),
        judged("cluster.all-reduce", tuple(all_reduce_findings(session))),
        judged("cluster.pairs", tuple(pair_findings(session))),
    )
    verdict = worst_verdict(check.status for check in checks)
    if run.interrupted and verdict in ("pass", "warn"):
        verdict = "unknown"
    bad = (verdict == "fail" and fail_on != "never") or (verdict == "warn" and fail_on == "warn")
    code = FAILED if bad else UNKNOWN if verdict == "unknown" else OK
    return ClusterReport(
        schema=SCHEMA,
        tool=Tool(),
        run=run,
        verdict=verdict,
        exit_code=code,
        reason=_reason(verdict, checks),
        nodes=tuple(_nodes(session, files or {})),
        between=_between(session),
        checks=checks,
        simulated=any(node.report is not None and node.report.simulated for node in session.nodes),
    )


def _came(session: ClusterSession, launcher_output: str | None) -> Iterator[Finding]:
    evidence = (Evidence("launcher", launcher_output),) if launcher_output else ()
    for name in session.missing:
        yield unknown(
            node_subject(name),
            f"did not come within {session.plan.join_limit_s:g} s",
            *evidence,
            advice=(Advice("See whether it runs, and whether this host can be reached from it."),),
        )
    for node in session.nodes:
        if node.lost is not None:
            yield unknown(
                node_subject(node.name),
                f"{node.lost}, during: {node.phase}",
                Evidence("connection", f"{node.address}: {node.lost}"),
                advice=(
                    Advice("See whether it is up and on the network.", f"ping -c 3 {node.address}"),
                    Advice("Leave it out until then.", f"sbatch --exclude={node.name}"),
                ),
            )
    boots = ((node, known(node.reach.boot_id)) for node in session.nodes if node.reach is not None)
    machines = grouped(((node.hostname, boot), node) for node, boot in boots if boot is not None)
    for (hostname, _), same in machines.items():
        if len(same) > 1:
            yield warn(
                node_subject(hostname),
                f"{len(same)} of the nodes are one machine: {', '.join(node.name for node in same)}",
                "one process of the check a machine",
                likely="the launcher put several on it, or it plays several nodes: they share GPUs and links",
            )
    for name, count in sorted(Counter(hostname for hostname, _ in machines).items()):
        if count > 1:
            yield warn(
                node_subject(name),
                f"{count} machines have this hostname",
                "a name of its own for each machine",
                likely="made of one image, and not named since",
            )
    if session.nodes and not session.missing and not any(node.lost for node in session.nodes):
        yield ok(NODE, Found(f"{len(session.nodes)} nodes came, and answered to the end", len(session.nodes), "nodes"))


def _own_checks(nodes: Sequence[NodeProgress], files: Mapping[str, str]) -> Iterator[Finding]:
    passed = 0
    for node in nodes:
        subject, report = node_subject(node.name), node.report
        if report is None:
            if node.lost is None or node.no_report is not None:
                yield unknown(subject, f"no report: {node.no_report or node.lost}")
            continue
        if report.verdict == "pass":
            passed += 1
            continue
        evidence = tuple(Evidence(f.check, f.headline) for f in report.faults[:_FAULTS_SHOWN])
        text = report.reason.removeprefix(f"{report.verdict.upper()} ")
        if report.verdict == "unknown":
            yield unknown(subject, text, *evidence)
            continue
        judge = fail if report.verdict == "fail" else warn
        file = files.get(node.name)
        again = f"gpudoctor check --node {quote(file)}" if file else f"ssh {node.hostname} gpudoctor check"
        steps = (Advice("See what its report says to do.", again),)
        yield judge(subject, text, "a node that passes its own check", *evidence, advice=steps)
    if passed:
        yield ok(NODE, Found(f"{passed} of {len(nodes)} nodes pass their own check", passed, "nodes"))
    elif not nodes:
        yield skip(NODE, "no node came")


def _nodes(session: ClusterSession, files: Mapping[str, str]) -> Iterator[NodeResult]:
    for node in session.nodes:
        report = node.report
        verdict: Verdict = report.verdict if report is not None else "unknown"
        reason = report.reason if report is not None else f"UNKNOWN {node.no_report or node.lost or 'no report'}"
        if node.lost is not None and verdict != "fail":  # a lost node is not a pass, whatever its report says
            verdict, reason = "unknown", f"UNKNOWN {node.lost}"
        faults: tuple[Fault, ...] = report.faults if report is not None else ()
        yield NodeResult(
            name=node.name,
            verdict=verdict,
            reason=reason,
            hostname=node.hostname,
            index=node.index,
            address=node.address,
            silence=f"{node.lost}, during: {node.phase}" if node.lost is not None else None,
            gpus=len(report.gpus) if report is not None else None,
            faults=faults,
            reach=node.reach,
            clock_offset_s=node.offset_s if node.offset_s is None else round(node.offset_s, 6),
            clock_error_s=node.error_s if node.error_s is None else round(node.error_s, 6),
            ranks=node.ranks,
            report_file=files.get(node.name),
        )
    for name in session.missing:
        yield NodeResult(name, "unknown", "UNKNOWN did not come", silence="did not come")


def _between(session: ClusterSession) -> InterNodeResult:
    return InterNodeResult(
        backend=session.backend,
        everyone=None if session.everyone is None else _group(session, session.everyone),
        pairs=tuple(_group(session, group) for group in session.pairs.values()),
        pairs_planned=session.pairs_planned,
        not_run=session.not_run if session.everyone is None else None,
    )


def _group(session: ClusterSession, group: Group) -> GroupResult:
    rate = group.busbw_gb_s
    return GroupResult(
        nodes=tuple(session.nodes[index].name for index in group.indexes),
        ranks=group.ranks,
        size_bytes=group.size_bytes,
        time_us=None if group.time_s is None else round(group.time_s * 1e6, 1),
        busbw_gb_s=None if rate is None else round(rate, 5),
        wrong_nodes=tuple(session.nodes[index].name for index in group.wrong),
        again=group.again,
        trouble={session.nodes[index].name: text for index, text in group.trouble.items()},
    )


def _reason(verdict: Verdict, checks: Sequence[Judged]) -> str:
    """One line fit for a job's comment: the verdict, and the checks and nodes with that status."""
    parts = [verdict.upper()]
    for check in checks:
        names = [f.subject.name or "" for f in check.findings if f.status.value == verdict and f.subject.name]
        if check.status.value == verdict and verdict in ("fail", "unknown", "warn"):
            parts.append(check.id.partition(".")[2] + (f" {','.join(dict.fromkeys(names))}" if names else ""))
    line = f"{parts[0]} {'; '.join(parts[1:])}".strip().replace('"', "").replace("'", "")
    return line if len(line) <= REASON_LENGTH else line[: REASON_LENGTH - 3] + "..."
