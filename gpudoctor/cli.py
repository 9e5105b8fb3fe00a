"""Arguments to calls; each subcommand imports its room when it runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from gpudoctor import __version__
from gpudoctor.errors import UserError
from gpudoctor.exits import OK, catch_signals, guarded, printable, write_stdout
from gpudoctor.options import output_option, redact_option

LEVELS = ("quick", "standard", "full", "burn")
MAX_RANKS = 64
FORMATS = ("text", "json", "nagios", "prometheus", "junit", "html")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and give its exit code (0, 1, 2, 3; 128 + n for a signal)."""
    asked: list[argparse.Namespace] = []

    def run() -> int:
        catch_signals()
        given = list(sys.argv[1:] if argv is None else argv)
        args = _parsed(given)
        # an argument need not be UTF-8, a report has to be
        args.argv = [word.encode("utf-8", "backslashreplace").decode() for word in given]
        asked.append(args)
        if args.command != "check":
            return _COMMANDS[args.command](args)
        from gpudoctor.examine import check

        return check(args)

    def on_error(message: str, code: int) -> int:
        if not asked or asked[0].command != "check":
            return code
        from gpudoctor.examine import write_error

        return write_error(asked[0], message, code)

    return guarded(run, on_error)


def _parsed(given: list[str]) -> argparse.Namespace:
    parser = _parser()
    if given[:1] == ["fake-driver"] and "--" in given:
        # what stands behind -- is the program's own, and no argparse must look at it
        place = given.index("--")
        args = parser.parse_args(given[:place])
        args.program = given[place + 1 :]
    elif given[:1] == ["fake-driver"]:
        args, program = parser.parse_known_args(given)
        if program:
            raise UserError(f"fake-driver wants -- before the program, as in: -- {' '.join(program)}")
    else:
        args = parser.parse_args(given)
    for name, value in vars(args).items():
        # some versions of argparse make an empty list of `--node=--`
        if (value == [] and name in ("node", "gpu", "profile", "config", "output")) or (
            isinstance(value, list) and [] in value
        ):
            parser.error(f"argument --{name}: '--' is no value for it")
    return args


class _Parser(argparse.ArgumentParser):
    """Its errors repeat what was typed, or what a script took from a file name."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = _Parser(
        prog="gpudoctor",
        description="Is this multi-GPU node fit to train on, and if not, which part is at fault?",
        epilog="exit codes: 0 no failure, 1 a failure, 2 gpudoctor could not do its work, 3 something is unknown",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gpudoctor {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _check_parser(commands)
    listing = _command(commands, "list", "every check: id, level, title")
    listing.add_argument("--json", action="store_true", help="as JSON")
    explain = _command(commands, "explain", "what a check looks at, why, its thresholds, false alarms, and the fix")
    explain.add_argument("id", metavar="ID")
    facts = _command(commands, "facts", "the facts as JSON, unjudged")
    _source_options(facts)
    redact_option(facts)
    output_option(facts, "write to FILE, atomically")
    facts.add_argument("--deadline", type=_seconds, default=None, metavar="SECONDS", help="for reading the facts (10)")
    _bundle_parser(commands)
    _watch_parser(commands)
    _tui_parser(commands)
    _fake_driver_parser(commands)
    _command(commands, "nodes", "the packaged simulated nodes and the faults that can be put on them")
    schema = _command(commands, "schema", "JSON Schema")
    schema.add_argument("of", nargs="?", choices=("report", "facts", "config"), default="report")
    config = _command(commands, "config", "the merged configuration, as YAML")
    config.add_argument("--config", type=Path, metavar="FILE")
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse.ArgumentParser:
    return commands.add_parser(name, help=text, description=text, allow_abbrev=False)


def _source_options(parser: argparse.ArgumentParser, without: str = "; without it, this machine") -> None:
    parser.add_argument(
        "--node",
        metavar="SOURCE",
        help="a facts file, an nvidia-smi dump, a directory of dumps, a bug report, a report JSON, a bundle, "
        f"a recorded watch, - for stdin, or a simulated node's name (see: gpudoctor nodes){without}",
    )
    parser.add_argument(
        "--fault", action="append", default=[], metavar="NAME[@GPU]", help="put a fault on the node; makes it SIMULATED"
    )


def _check_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    check = _command(commands, "check", "judge the node")
    check.add_argument("ids", nargs="*", metavar="ID|DOMAIN", help="only these checks (globs too); all without")
    _source_options(check)
    check.add_argument(
        "--level",
        choices=LEVELS,
        help="quick reads only; standard (default) adds collectives and a DDP train; full adds links, compute and "
        "memory; burn repeats full",
    )
    check.add_argument("--duration", metavar="TIME", help="of level burn: 90s, 10m (default), 1h, or seconds")
    check.add_argument("--skip", action="append", default=[], metavar="ID|DOMAIN", help="leave these out")
    check.add_argument("--gpu", metavar="LIST", help="judge only these GPUs: indices, UUIDs, bus ids, with commas")
    check.add_argument("--backend", choices=("auto", "nccl", "gloo"), default="auto", help="gloo: CPU ranks")
    check.add_argument("--ranks", type=_count, metavar="N", help="number of ranks (default: one a GPU; gloo: 2)")
    check.add_argument(
        "--inject", action="append", default=[], metavar="CASE", help="make a probe go wrong, to try alarms"
    )
    check.add_argument("--force", action="store_true", help="load GPUs that another process uses")
    check.add_argument("--profile", metavar="NAME|FILE", help="judge against this profile (default: matched)")
    check.add_argument("--config", type=Path, metavar="FILE")
    check.add_argument("--deadline", type=_seconds, metavar="SECONDS", help="for reading the facts (default 10)")
    check.add_argument("--format", choices=FORMATS, help="default: text")
    check.add_argument("--json", action="store_const", const="json", dest="format", help="same as --format json")
    check.add_argument(
        "--include-facts", action="store_true", help="put the facts as JSON into JSON (it can be judged again) and HTML"
    )
    output_option(check, "write the report to FILE, atomically")
    redact_option(check)
    check.add_argument("--fail-on", choices=("fail", "warn", "never"), help="what exits with 1 (default: fail)")
    check.add_argument(
        "--require", action="append", default=[], metavar="ID", help="exit 3 where this check gave no verdict"
    )
    check.add_argument("-v", "--verbose", action="store_true", help="every finding")
    check.add_argument(
        "--progress",
        action="store_true",
        help="say on stderr what goes on, as JSON lines (progress, rank, probe, left_s); ends when nobody reads them",
    )
    check.add_argument("--color", choices=("auto", "always", "never"), default="auto")


def _bundle_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    bundle = _command(commands, "bundle", "facts, a quick report, kernel lines and versions in one .tar.gz")
    _source_options(bundle)
    redact_option(bundle)
    output_option(bundle, "default: gpudoctor-HOST-DATE.tar.gz here; never replaces one; - for stdout")
    bundle.add_argument("--deadline", type=_seconds, default=None, metavar="SECONDS", help="for reading the facts (10)")


def _watch_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    watch = _command(commands, "watch", "live values as JSON lines: the facts once, then a sample at each interval")
    _source_options(watch)
    watch.add_argument(
        "--interval", type=_interval, default=1.0, metavar="SECONDS", help="between samples: 0.2 to 3600 (default 1)"
    )


def _tui_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    tui = _command(commands, "tui", "the live view, with verdicts")
    tui.add_argument(
        "--node",
        metavar="SOURCE",
        help="as for check; also a recorded stream of gpudoctor watch, and ssh:HOST for another machine",
    )
    tui.add_argument(
        "--fault", action="append", default=[], metavar="NAME[@GPU]", help="put a fault on the node; makes it SIMULATED"
    )
    tui.add_argument(
        "--interval", type=_interval, default=1.0, metavar="SECONDS", help="between samples: 0.2 to 3600 (default 1)"
    )
    tui.add_argument("--theme", metavar="NAME", help="dark (default), light or colour-blind; NO_COLOR is honoured")
    tui.add_argument("--config", type=Path, metavar="FILE", help="for the checks that are run")
    tui.add_argument(
        "--serve",
        nargs="?",
        const="127.0.0.1:8080",
        metavar="HOST:PORT",
        help="show it in web browsers instead, read-only (default address: 127.0.0.1:8080)",
    )
    tui.add_argument(
        "--serve-token",
        metavar="TOKEN",
        help="wanted of every browser; needed for any address but loopback; better in GPUDOCTOR_SERVE_TOKEN, "
        "since ps shows arguments",
    )
    tui.add_argument("--read-only", action="store_true", help=argparse.SUPPRESS)


def _fake_driver_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    fake = _command(commands, "fake-driver", "run any NVML program against a simulated node or a capture")
    fake.usage = "gpudoctor fake-driver --node SOURCE [--fault NAME[@GPU]] -- PROGRAM [ARGUMENT ...]"
    fake.epilog = (
        "The library libnvidia-ml.so.1 is built with cc, gcc, clang or $CC and kept in the cache. Exit code: the "
        "program's own; 126 it cannot be started, 127 there is none of that name, 2 gpudoctor could not do its work."
    )
    _source_options(fake, without="")


def _interval(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.2 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r}: a number of seconds from 0.2 to 3600 is wanted")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 86400:
        raise argparse.ArgumentTypeError(f"{text!r}: a number of seconds above 0 and below 86400 is wanted")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_RANKS:
        raise argparse.ArgumentTypeError(f"{text!r}: a number from 1 to {MAX_RANKS} is wanted")
    return int(text)


def _list(args: argparse.Namespace) -> int:
    from gpudoctor.plugins import all_checks

    checks = all_checks()
    if args.json:
        import msgspec

        rows = [{"id": c.id, "level": c.level, "title": c.title} for c in checks]
        write_stdout(msgspec.json.encode(rows).decode() + "\n")
        return OK
    width = max(len(c.id) for c in checks)
    write_stdout("".join(f"{c.id:<{width}}  {c.level:<8}  {c.title}\n" for c in checks))
    return OK


def _explain(args: argparse.Namespace) -> int:
    from gpudoctor.checks.registry import select
    from gpudoctor.plugins import all_checks
    from gpudoctor.report.pages import page_text

    for check in select(all_checks(), [args.id]):
        write_stdout(page_text(check))
    return OK


def _facts(args: argparse.Namespace) -> int:
    import msgspec

    from gpudoctor.examine import read_source
    from gpudoctor.facts.node import to_json
    from gpudoctor.facts.redact import redacted
    from gpudoctor.json_text import terminal_safe
    from gpudoctor.report.files import write_file

    node = read_source(args.node, args.fault, args.deadline or 10.0).node
    data = msgspec.json.format(to_json(redacted(node) if args.redact else node), indent=2)
    text = terminal_safe(data).decode() + "\n"
    if args.output is None or str(args.output) == "-":
        write_stdout(text)
    else:
        write_file(args.output, text)
    return OK


def _bundle(args: argparse.Namespace) -> int:
    from gpudoctor.bundling import bundle

    return bundle(args)


def _nodes(args: argparse.Namespace) -> int:
    from gpudoctor.facts.simulated import faults, node_titles

    titles = node_titles()
    width = max(len(name) for name in titles)
    lines = ["Simulated nodes (--node NAME):", *(f"  {name:<{width}}  {title}" for name, title in titles.items())]
    kit = faults()
    width = max(len(fault.name) for fault in kit)
    lines += ["", "Faults (--fault NAME[@GPU]), with the check that finds them:"]
    lines += [f"  {fault.name:<{width}}  {fault.check}: {fault.title}" for fault in kit]
    write_stdout("\n".join(lines) + "\n")
    return OK


def _schema(args: argparse.Namespace) -> int:
    import msgspec

    if args.of == "report":
        from gpudoctor.report.json import shipped_schema

        write_stdout(shipped_schema())
        return OK
    if args.of == "facts":
        from gpudoctor.facts.node import Node

        schema = msgspec.json.schema(Node)
    else:
        from gpudoctor.config import Config

        schema = msgspec.json.schema(Config)
    write_stdout(msgspec.json.format(msgspec.json.encode(schema), indent=2).decode() + "\n")
    return OK


def _config(args: argparse.Namespace) -> int:
    from gpudoctor.config import as_yaml, load_config
    from gpudoctor.plugins import all_checks

    checks = all_checks()
    write_stdout(as_yaml(load_config(args.config, os.environ, checks), checks))
    return OK


def _fake_driver(args: argparse.Namespace) -> int:
    if args.node is None:
        raise UserError("fake-driver wants --node SOURCE: whose driver is to be played (see: gpudoctor nodes)")
    if not any(getattr(args, "program", [])[:1]):
        raise UserError("fake-driver wants a program behind --, as in: gpudoctor fake-driver --node NAME -- nvitop -1")
    from gpudoctor.fake_driver.command import fake_driver

    return fake_driver(args)


def _watch(args: argparse.Namespace) -> int:
    from gpudoctor.watching import watch

    return watch(args)


def _tui(args: argparse.Namespace) -> int:
    if args.serve is not None:
        from gpudoctor.tui.serve import serve

        return serve(args)
    if args.serve_token is not None:
        raise UserError("--serve-token goes with --serve")
    from gpudoctor.tui.start import start

    return start(args)


_COMMANDS = {
    "list": _list,
    "explain": _explain,
    "facts": _facts,
    "bundle": _bundle,
    "nodes": _nodes,
    "fake-driver": _fake_driver,
    "watch": _watch,
    "tui": _tui,
    "schema": _schema,
    "config": _config,
}
