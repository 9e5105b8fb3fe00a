"""`gpudoctor tui`: the live view, on this terminal or in web browsers."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpudoctor.cli import options
from gpudoctor.cli.commands.watch import interval_option
from gpudoctor.errors import UserError
from gpudoctor.lazy import lazy_imports

with lazy_imports():
    from gpudoctor.tui import start
    from gpudoctor.tui.web import serve


def add_options(parser: argparse.ArgumentParser) -> None:
    options.add_node(
        parser, "as for check; also a recorded stream of gpudoctor watch, and ssh:HOST for another machine"
    )
    options.add_fault(parser)
    interval_option(parser)
    parser.add_argument("--theme", metavar="NAME", help="dark (default), light or colour-blind; NO_COLOR is honoured")
    parser.add_argument("--config", type=Path, metavar="FILE", help="for the checks that are run")
    parser.add_argument(
        "--serve",
        nargs="?",
        const="127.0.0.1:8080",
        metavar="HOST:PORT",
        help="show it in web browsers instead, read-only (default address: 127.0.0.1:8080)",
    )
    parser.add_argument(
        "--serve-token",
        metavar="TOKEN",
        help="required from every browser, and for any address but loopback; better in GPUDOCTOR_SERVE_TOKEN, "
        "since ps shows arguments",
    )
    parser.add_argument("--read-only", action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Show the view, or serve it; return the exit code. Raise UserError before anything is drawn."""
    request = options.request_from(args, start.TuiRequest)
    if args.serve is not None:
        return serve.serve(request, args.serve, args.serve_token)
    if args.serve_token is not None:
        raise UserError("--serve-token goes with --serve")
    return start.start(request)
