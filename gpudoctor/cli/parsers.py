"""What may be asked of each command, as argparse parsers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from gpudoctor import __version__
from gpudoctor.cli.options import output_option, redact_option, seconds
from gpudoctor.errors import UserError
from gpudoctor.exits import printable
from gpudoctor.probes.runner.launch_engine import MAX_RANKS

LEVELS = ("quick", "standard", "full", "burn")
FORMATS = ("text", "json", "nagios", "prometheus", "junit", "html")


def parsed(given: list[str]) -> argparse.Namespace:
    """The arguments of the command that was given; ends the process where they are wrong, as argparse does."""
    command = next((word for word in given if not word.startswith("-")), None)
    if given[:1] == [command] and command in _COMMANDS and command != "fake-driver":
        return _of_command(command, given)
    parser = _parser(command)
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
    _refuse_lone_dashes(args, command)
    return args


def _of_command(command: str, given: list[str]) -> argparse.Namespace:
    """As the parser of all commands would have it, without making it: that takes longer than to parse."""
    text, add_options = _COMMANDS[command]
    below = next((w for w in given if command == "plan" and w[:1] == "-" and w[1:2].isdecimal()), "")
    if below[-1:].isalpha():  # a size below nothing, which argparse would take for an option
        raise UserError(f"{printable(below)[:60]} is no size: did you mean {printable(below)[1:60]}?")
    parser = _Parser(prog=f"gpudoctor {command}", description=text, allow_abbrev=False)
    add_options(parser)
    args, strange = parser.parse_known_args(given[1:])
    if strange:
        _parser(command).error(f"unrecognized arguments: {' '.join(strange)}")
    args.command = command
    _refuse_lone_dashes(args, command)
    return args


def _refuse_lone_dashes(args: argparse.Namespace, command: str | None) -> None:
    for name, value in vars(args).items():
        # some versions of argparse make an empty list of `--node=--`
        if (value == [] and name in ("node", "gpu", "profile", "config", "output")) or (
            isinstance(value, list) and [] in value
        ):
            _parser(command).error(f"argument --{name}: '--' is no value for it")


class _Parser(argparse.ArgumentParser):
    """Its errors repeat what was typed, or what a script took from a file name."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def _parser(command: str | None) -> argparse.ArgumentParser:
    """All commands; only the one that was given gets its options, since each option costs time at every start."""
    parser: argparse.ArgumentParser = _Parser(
        prog="gpudoctor",
        description="Is this multi-GPU node fit to train on, and if not, which part is at fault?",
        epilog="exit codes: 0 no failure, 1 a failure, 2 gpudoctor could not do its work, 3 something is unknown",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gpudoctor {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (text, add_options) in _COMMANDS.items():
        of_command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        if name == command:
            add_options(of_command)
    return parser


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


def _check_options(check: argparse.ArgumentParser) -> None:
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
    check.add_argument("--ranks", type=count, metavar="N", help="number of ranks (default: one a GPU; gloo: 2)")
    check.add_argument(
        "--inject", action="append", default=[], metavar="CASE", help="make a probe go wrong, to try alarms"
    )
    check.add_argument("--force", action="store_true", help="load GPUs that another process uses")
    check.add_argument("--profile", metavar="NAME|FILE", help="judge against this profile (default: matched)")
    check.add_argument("--config", type=Path, metavar="FILE")
    check.add_argument("--deadline", type=seconds, metavar="SECONDS", help="for reading the facts (default 60)")
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


def _bundle_options(bundle: argparse.ArgumentParser) -> None:
    _source_options(bundle)
    redact_option(bundle)
    output_option(bundle, "default: gpudoctor-HOST-DATE.tar.gz here; never replaces one; - for stdout")
    bundle.add_argument("--deadline", type=seconds, default=None, metavar="SECONDS", help="for reading the facts (60)")


def _watch_options(watch: argparse.ArgumentParser) -> None:
    _source_options(watch)
    watch.add_argument(
        "--interval", type=interval, default=1.0, metavar="SECONDS", help="between samples: 0.2 to 3600 (default 1)"
    )


def _tui_options(tui: argparse.ArgumentParser) -> None:
    tui.add_argument(
        "--node",
        metavar="SOURCE",
        help="as for check; also a recorded stream of gpudoctor watch, and ssh:HOST for another machine",
    )
    tui.add_argument(
        "--fault", action="append", default=[], metavar="NAME[@GPU]", help="put a fault on the node; makes it SIMULATED"
    )
    tui.add_argument(
        "--interval", type=interval, default=1.0, metavar="SECONDS", help="between samples: 0.2 to 3600 (default 1)"
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


def _fake_driver_options(fake: argparse.ArgumentParser) -> None:
    fake.usage = (
        "gpudoctor fake-driver --node SOURCE [--fault NAME[@GPU]] [--call-latency MS] -- PROGRAM [ARGUMENT ...]"
    )
    fake.epilog = (
        "The library libnvidia-ml.so.1 is built with cc, gcc, clang or $CC and kept in the cache. Exit code: the "
        "program's own; 126 it cannot be started, 127 there is none of that name, 2 gpudoctor could not do its work."
    )
    _source_options(fake, without="")
    fake.add_argument(
        "--call-latency", metavar="MS", help="milliseconds that every call takes: 0 (default) to 60000; a real one, 2"
    )


def _list_options(listing: argparse.ArgumentParser) -> None:
    listing.add_argument("--json", action="store_true", help="as JSON")


def _explain_options(explain: argparse.ArgumentParser) -> None:
    explain.add_argument("id", metavar="ID")


def _facts_options(facts: argparse.ArgumentParser) -> None:
    _source_options(facts)
    redact_option(facts)
    output_option(facts, "write to FILE, atomically")
    facts.add_argument("--deadline", type=seconds, default=None, metavar="SECONDS", help="for reading the facts (60)")


def _schema_options(schema: argparse.ArgumentParser) -> None:
    documents = ("report", "facts", "config", "cluster", "fleet", "comparison", "plan")
    schema.add_argument("of", nargs="?", choices=documents, default="report")


def _config_options(config: argparse.ArgumentParser) -> None:
    config.add_argument("--config", type=Path, metavar="FILE")


def _no_options(_: argparse.ArgumentParser) -> None:
    return


def _cluster_options(cluster: argparse.ArgumentParser) -> None:
    from gpudoctor.cli.cluster_options import add_cluster_options

    add_cluster_options(cluster)


def _agent_options(agent: argparse.ArgumentParser) -> None:
    from gpudoctor.cli.agent_options import add_agent_options

    add_agent_options(agent)


def _baseline_options(baseline: argparse.ArgumentParser) -> None:
    from gpudoctor.cli.baseline_options import add_baseline_options

    add_baseline_options(baseline)


def _plan_options(plan: argparse.ArgumentParser) -> None:
    from gpudoctor.cli.plan_options import add_plan_options

    add_plan_options(plan)


def _diagnose_options(diagnose: argparse.ArgumentParser) -> None:
    from gpudoctor.cli.diagnose import add_diagnose_options

    add_diagnose_options(diagnose)


def interval(text: str) -> float:
    """Seconds between samples."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.2 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r}: a number of seconds from 0.2 to 3600 is wanted")
    return value


def count(text: str) -> int:
    """A number of ranks."""
    if not text.isdecimal() or not 1 <= int(text) <= MAX_RANKS:
        raise argparse.ArgumentTypeError(f"{text!r}: a number from 1 to {MAX_RANKS} is wanted")
    return int(text)


_COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "check": ("judge the node", _check_options),
    "list": ("every check: id, level, title", _list_options),
    "explain": ("what a check looks at, why, its thresholds, false alarms, and the fix", _explain_options),
    "facts": ("the facts as JSON, unjudged", _facts_options),
    "bundle": ("facts, a quick report, kernel lines and versions in one .tar.gz", _bundle_options),
    "watch": ("live values as JSON lines: the facts once, then a sample at each interval", _watch_options),
    "tui": ("the live view, with verdicts", _tui_options),
    "plan": ("which strategy trains a model here: memory, batch, communication, and how to launch it", _plan_options),
    "cluster": ("many nodes, on an existing engine: check them, or read their reports", _cluster_options),
    "agent": ("check this node on a schedule, and serve the result to Prometheus and health checks", _agent_options),
    "diagnose": ("what a failed or hanging job's logs say: what happened first, where, and why", _diagnose_options),
    "baseline": ("one node over time: save what was measured, compare with it later", _baseline_options),
    "fake-driver": ("run any NVML program against a simulated node or a capture", _fake_driver_options),
    "nodes": ("the packaged simulated nodes and the faults that can be put on them", _no_options),
    "schema": ("JSON Schema", _schema_options),
    "config": ("the merged configuration, as YAML", _config_options),
}
