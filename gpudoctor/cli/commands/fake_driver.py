"""`gpudoctor fake-driver`: runs an NVML program against the simulated driver of another node."""

from __future__ import annotations

import argparse

from gpudoctor.cli import options
from gpudoctor.errors import UserError
from gpudoctor.lazy import lazy_imports

with lazy_imports():
    from gpudoctor.testing import run_program


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gpudoctor fake-driver`; everything after `--` belongs to the program."""
    parser.usage = (
        "gpudoctor fake-driver --node SOURCE [--fault NAME[@GPU]] [--call-latency MS] -- PROGRAM [ARGUMENT ...]"
    )
    parser.epilog = (
        "The library libnvidia-ml.so.1 is built with cc, gcc, clang or $CC and kept in the cache. Exit code: the "
        "program's own; 126 it cannot be started, 127 there is none of that name, 2 gpudoctor could not do its work."
    )
    options.add_source(parser, without="")
    parser.add_argument(
        "--call-latency", metavar="MS", help="milliseconds that every call takes: 0 (default) to 60000; a real one, 2"
    )


def run(args: argparse.Namespace) -> int:
    """Run the program; return its exit code. Raise UserError if it cannot be run."""
    if args.node is None:
        raise UserError("fake-driver needs --node SOURCE, the node to simulate (see: gpudoctor nodes)")
    if not any(getattr(args, "program", [])[:1]):
        raise UserError("fake-driver needs a program after --, as in: gpudoctor fake-driver --node NAME -- nvitop -1")
    request = run_program.FakeDriverRequest(args.node, tuple(args.faults), args.call_latency, tuple(args.program))
    return run_program.run_program(request)
