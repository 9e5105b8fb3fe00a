"""`gpudoctor bundle`: what a vendor or an issue needs to know of a node, in one archive."""

from __future__ import annotations

import argparse
import platform
import re
import sys
import time
from pathlib import Path

import msgspec

from gpudoctor import __version__
from gpudoctor.errors import UserError
from gpudoctor.exits import OK, printable, write_stdout
from gpudoctor.facts.captures.bundle import FACTS, KERNEL, REPORT, VERSIONS, pack
from gpudoctor.facts.deadlines import COLLECTION
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node, to_json
from gpudoctor.json_text import terminal_safe
from gpudoctor.plugins import all_checks
from gpudoctor.report.json import render_json
from gpudoctor.report.judge import Question, judge
from gpudoctor.report.model import Report, Run, SourceSummary
from gpudoctor.report.output_files import write_new_file

_NO_FILE_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_HOST = 64


def bundle(args: argparse.Namespace) -> int:
    """Write the archive and say where; raise UserError where a file of that name is there already."""
    from gpudoctor.cli.check import read_source

    to_stdout = str(args.output) in ("-", "/dev/stdout")
    if to_stdout and sys.stdout is not None and sys.stdout.isatty():
        raise UserError("an archive is nothing for a terminal: -o FILE, or send it on: -o - | ...")
    made_s = time.time()
    node = read_source(args.node, args.fault, args.deadline or COLLECTION.seconds).node
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(made_s))
    archive = pack(files_of(node, redact=args.redact, made_s=made_s, argv=tuple(args.argv)), int(made_s))
    if to_stdout:
        write_stdout(archive)
        return OK
    path = args.output or Path(f"gpudoctor-{_host(node, args.redact)}-{stamp}.tar.gz")
    write_new_file(path, archive)
    write_stdout(f"{printable(str(path))}\n")
    return OK


def files_of(node: Node, *, redact: bool, made_s: float, argv: tuple[str, ...] = ()) -> dict[str, bytes]:
    """The files of a bundle by name: the facts, a quick judgement of them, kernel lines, versions.

    `redact`: each of them without what names a person, a machine or a part, the same way in all.
    """
    report = _judged(node, made_s, argv)
    if redact:
        from gpudoctor.facts.redaction.redact import Redaction

        redaction = Redaction(node)
        node, report = redaction.node, redaction.of(report)
    return {
        FACTS: terminal_safe(msgspec.json.format(to_json(node), indent=2)) + b"\n",
        REPORT: render_json(report).encode(),
        KERNEL: kernel_lines(node).encode("utf-8", "backslashreplace"),
        VERSIONS: terminal_safe(msgspec.json.format(msgspec.json.encode(versions(node)), indent=2)) + b"\n",
    }


def kernel_lines(node: Node) -> str:
    """The kernel log lines that matter here, one a line; where they were not read, why."""
    log = node.kernel_log
    if isinstance(log.events, Missing):
        return f"# not read: {log.events.reason}\n"
    return "".join(f"{printable(event.text)}\n" for event in log.events)


def versions(node: Node) -> dict[str, str | None]:
    """What runs here and what the facts say of the node; None is what is not known."""
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


def _host(node: Node, redact: bool) -> str:
    if redact:
        return "redacted"
    name = known(node.host.hostname) or node.source.name or "node"
    return _NO_FILE_NAME.sub("-", name).strip("-.")[:_LONGEST_HOST] or "node"
