"""`gpudoctor nodes`: prints the simulated nodes and the faults that can be applied to them."""

from __future__ import annotations

import argparse

from gpudoctor.exit_codes import OK
from gpudoctor.facts.simulated.load import faults, node_titles
from gpudoctor.output import write_stdout


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command has no options."""


def run(args: argparse.Namespace) -> int:
    """Write the name and title of each node and fault."""
    titles = node_titles()
    width = max(len(name) for name in titles)
    lines = ["Simulated nodes (--node NAME):", *(f"  {name:<{width}}  {title}" for name, title in titles.items())]
    kit = faults()
    width = max(len(fault.name) for fault in kit)
    lines += ["", "Faults (--fault NAME[@GPU]), with the check that finds them:"]
    lines += [f"  {fault.name:<{width}}  {fault.check}: {fault.title}" for fault in kit]
    write_stdout("\n".join(lines) + "\n")
    return OK
