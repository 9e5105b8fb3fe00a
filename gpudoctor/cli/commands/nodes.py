"""`gpudoctor nodes`: what can be tried: simulated nodes, faults to put on them, ranks that go wrong, example jobs."""

from __future__ import annotations

import argparse
from textwrap import wrap

import msgspec

from gpudoctor.cli.options import terminal_width
from gpudoctor.cli.parsing import nearest_words
from gpudoctor.errors import UserError
from gpudoctor.facts.simulated.load import faults, node_titles
from gpudoctor.lazy import lazy_imports
from gpudoctor.process.exit_codes import OK
from gpudoctor.text.output import printable, write_stdout

with lazy_imports():
    from gpudoctor.diagnose import example_jobs
    from gpudoctor.probes.runner import plan
    from gpudoctor.report import text


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="WORD", help="only those with this word in name, title or check")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Write the name and title of each node and fault. Raise UserError if a word is in none."""
    pieces = [word.lower() for word in args.words]
    nodes = [row for row in node_titles().items() if _has(pieces, row)]
    kit = [(each.name, each.check, each.title) for each in faults()]
    kit = [row for row in kit if _has(pieces, row)]
    jobs = [row for row in example_jobs.EXAMPLE_JOBS.items() if _has(pieces, row)]
    injections = [row for row in plan.injection_titles().items() if _has(pieces, row)]
    if pieces and not nodes and not kit and not jobs and not injections:
        named = " or ".join(map(printable, args.words))
        known = (
            *node_titles(),
            *(each.name for each in faults()),
            *example_jobs.EXAMPLE_JOBS,
            *plan.injection_titles(),
        )
        near = nearest_words(args.words[0], [piece for name in known for piece in (name, *name.split("-"))])
        raise UserError(f"no simulated node, fault, injection or example job has {named} in its name or title{near}")
    if args.json:
        document = {
            "nodes": [{"name": name, "title": title} for name, title in nodes],
            "faults": [{"name": name, "check": check, "title": title} for name, check, title in kit],
            "jobs": [{"name": name, "title": title} for name, title in jobs],
            "injections": [{"name": name, "title": title} for name, title in injections],
        }
        write_stdout(msgspec.json.encode(document).decode() + "\n")
        return OK
    width = terminal_width()
    parts = []
    if nodes:
        parts.append("Simulated nodes (--node NAME):\n" + text.columns(nodes, width=width, indent=2))
    if kit and not pieces:  # all of them with their titles are 250 lines on a narrow terminal
        domains = dict.fromkeys(check.partition(".")[0] for _, check, _ in kit)
        rows = [(each, ", ".join(name for name, check, _ in kit if check.startswith(f"{each}."))) for each in domains]
        head = "Faults (--fault NAME[@GPU]); what one is, and the check that finds it: gpudoctor nodes WORD"
        parts.append("\n".join(wrap(head, width)) + "\n" + text.columns(rows, width=width, indent=2))
    elif kit:
        head = "Faults (--fault NAME[@GPU]), with the check that finds them:\n"
        parts.append(head + text.columns(kit, width=width, indent=2))
    if injections:
        head = "Ranks that go wrong (gpudoctor check train --backend gloo --inject CASE):\n"
        parts.append(head + text.columns(injections, width=width, indent=2))
    if jobs:
        head = "Example jobs (gpudoctor diagnose --example NAME):\n"
        parts.append(head + text.columns(jobs, width=width, indent=2))
    write_stdout("\n".join(parts))
    return OK


def _has(parts: list[str], row: tuple[str, ...]) -> bool:
    return not parts or any(word in " ".join(row).lower() for word in parts)


def write_error(args: argparse.Namespace, message: str, code: int) -> int:
    """Write the error as a JSON object if JSON was requested; return the exit code."""
    if args.json:
        write_stdout(msgspec.json.encode({"error": printable(message)}).decode() + "\n")
    return code
