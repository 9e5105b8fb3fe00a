"""`gpudoctor config`: the merged configuration."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from gpudoctor.exits import OK, write_stdout


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gpudoctor config`."""
    parser.add_argument("--config", type=Path, metavar="FILE")


def run(args: argparse.Namespace) -> int:
    """Write it as YAML that can be used as a file. Raise UserError for a configuration that is wrong."""
    from gpudoctor.config import as_yaml, load_config
    from gpudoctor.plugins import all_checks

    checks = all_checks()
    write_stdout(as_yaml(load_config(args.config, os.environ, checks), checks))
    return OK
