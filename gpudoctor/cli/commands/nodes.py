"""`gpudoctor nodes`: what can be tried: simulated nodes, faults to put on them, ranks that go wrong, example jobs."""

from __future__ import annotations

import argparse
from textwrap import wrap

import msgspec

from gpudoctor.cli import options
from gpudoctor.errors import UserError, did_you_mean
from gpudoctor.facts.simulated.load import faults, node_titles
from gpudoctor.lazy import lazy_imports
from gpudoctor.process.exit_codes import OK
from gpudoctor.text.grouped import grouped
from gpudoctor.text.output import printable, write_stdout

with lazy_imports():
    from gpudoctor.diagnose import example_jobs
    from gpudoctor.probes.runner import plan
    from gpudoctor.report import text


_HEADS = {
    "nodes": "Simulated nodes (--node NAME):",
    "faults": "Faults (--fault NAME[@GPU], without @GPU on the last one), with the check that finds them:",
    "injections": "Ranks that go wrong (gpudoctor check train --backend gloo --inject CASE):",
    "jobs": "Example jobs (gpudoctor diagnose --example NAME):",
}
_ALL_FAULTS = (
    "Faults (--fault NAME[@GPU], without @GPU on the last one); what one is, and the check that finds it: gpudoctor "
    "nodes WORD"
)
Rows = list[tuple[str, ...]]
write_error = options.write_error_object


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="WORD", help="only those with this word in name, title or check")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Write the name and title of each node, fault, injection and example job. Raise UserError if a word is in none."""
    pieces = [word.lower() for word in args.words]
    every: dict[str, Rows] = {
        "nodes": [*node_titles().items()],
        "faults": [(each.name, each.check, each.title) for each in faults()],
        "injections": [*plan.injection_titles().items()],
        "jobs": [*example_jobs.EXAMPLE_JOBS.items()],
    }
    found = {what: [row for row in rows if _has(pieces, row)] for what, rows in every.items()}
    if not any(found.values()):
        named = " or ".join(map(printable, args.words))
        names = [piece for rows in every.values() for name, *_ in rows for piece in (name, *name.split("-"))]
        near = did_you_mean(args.words[0], names)
        raise UserError(f"no simulated node, fault, injection or example job has {named} in its name or title{near}")
    if args.json:
        document = {
            what: [
                dict(zip(("name", "check", "title") if len(row) > 2 else ("name", "title"), row, strict=True))
                for row in rows
            ]
            for what, rows in found.items()
        }
        write_stdout(msgspec.json.encode(document).decode() + "\n")
        return OK
    heads = dict(_HEADS)
    if not pieces:  # all of them with their titles are 250 lines on a narrow terminal
        found["faults"], heads["faults"] = _by_domain(found["faults"]), _ALL_FAULTS
    write_stdout("\n".join(_part(heads[what], rows) for what, rows in found.items() if rows))
    return OK


def _by_domain(rows: Rows) -> Rows:
    """The names of the faults that the checks of each domain find."""
    names = grouped((check.partition(".")[0], name) for name, check, _ in rows)
    return [(domain, ", ".join(own)) for domain, own in names.items()]


def _part(head: str, rows: Rows) -> str:
    width = options.terminal_width()
    return "\n".join(wrap(head, width)) + "\n" + text.columns(rows, width=width, indent=2)


def _has(parts: list[str], row: tuple[str, ...]) -> bool:
    return not parts or any(word in " ".join(row).lower() for word in parts)
