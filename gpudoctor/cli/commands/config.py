"""`gpudoctor config`: prints the merged configuration."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from gpudoctor.lazy import lazy_imports
from gpudoctor.process.exit_codes import OK
from gpudoctor.text.output import say, write_stdout

with lazy_imports():
    from gpudoctor.api import config
    from gpudoctor.checks.core import registry


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE")
    parser.add_argument("--strict", action="store_true", help="refuse what this version does not know (exit 2)")


def run(args: argparse.Namespace) -> int:
    """Write it as YAML that is itself a valid file. Raise UserError for an invalid configuration."""
    checks = registry.all_checks()
    left_out = None if args.strict else lambda line: say(f"WARN configuration: {line}")
    write_stdout(
        config.as_yaml(config.load_config(args.config, os.environ, registry.all_checks, left_out=left_out), checks)
    )
    return OK
