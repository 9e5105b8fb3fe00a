"""The files in the archive of `gpudoctor bundle`: what a vendor or a bug report needs to know about a node."""

from __future__ import annotations

import platform
import time

import msgspec

from gpudoctor import __version__
from gpudoctor.checks.core.registry import all_checks
from gpudoctor.facts.captures.archives import FACTS, KERNEL, REPORT, VERSIONS
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node, to_json
from gpudoctor.facts.redaction.redact import Redaction
from gpudoctor.report.judge import Question, judge
from gpudoctor.report.model import Report, Run, SourceSummary, render_json
from gpudoctor.text.json_text import json_document
from gpudoctor.text.output import printable


def files_of(node: Node, *, redact: bool, made_s: float, argv: tuple[str, ...] = ()) -> dict[str, bytes]:
    """The files of a bundle by name: the facts, a report of level quick on them, kernel log lines, versions.

    `redact` replaces names of persons, machines and parts, consistently in all files.
    """
    report = _judged(node, made_s, argv)
    if redact:
        redaction = Redaction(node)
        node, report = redaction.node, redaction.of(report)
    return {
        FACTS: json_document(msgspec.Raw(to_json(node))).encode(),
        REPORT: render_json(report).encode(),
        KERNEL: kernel_lines(node).encode("utf-8", "backslashreplace"),
        VERSIONS: json_document(versions(node)).encode(),
    }


def kernel_lines(node: Node) -> str:
    """The kernel log lines on GPUs and their host, one per line; a comment with the reason if they were not read."""
    log = node.kernel_log
    if isinstance(log.events, Missing):
        return f"# not read: {log.events.reason}\n"
    return "".join(f"{printable(event.text)}\n" for event in log.events)


def versions(node: Node) -> dict[str, str | None]:
    """Versions of gpudoctor and of the software in the facts; None if unknown."""
    software, driver = node.software, node.driver
    return {
        "gpudoctor": __version__,
        "python of gpudoctor": platform.python_version(),
        "python": known(software.python),
        "torch": known(software.torch),
        "torch cuda": known(software.torch_cuda),
        "nccl": known(software.nccl),
        "driver": known(driver.library_version) or known(driver.module_version),
        "cuda": known(driver.cuda_version),
        "kernel": known(node.host.kernel),
    }


def _judged(node: Node, made_s: float, argv: tuple[str, ...]) -> Report:
    source = SourceSummary(node.source.kind, node.source.name, node.source.faults)
    started = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(made_s))
    run = Run("bundle", started, round(time.time() - made_s, 3), "quick", source, argv)
    return judge(node, question=Question(checks=all_checks(), level="quick"), run=run, include_facts=True)
