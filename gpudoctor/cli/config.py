"""`gpudoctor config`: prints the merged configuration."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from gpudoctor.exit_codes import OK
from gpudoctor.lazy_import import lazy_imports
from gpudoctor.output import write_stdout

with lazy_imports():
    from gpudoctor import config
    from gpudoctor.checks.core import registry


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE")


def run(args: argparse.Namespace) -> int:
    """Write it as YAML that is itself a valid file. Raise UserError for an invalid configuration."""
    checks = registry.all_checks()
    write_stdout(config.as_yaml(config.load_config(args.config, os.environ, checks), checks))
    return OK
