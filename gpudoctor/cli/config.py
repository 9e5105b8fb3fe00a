"""`gpudoctor config`: the merged configuration."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpudoctor.exits import OK, write_stdout
from gpudoctor.lazy_import import lazy

if TYPE_CHECKING:
    from gpudoctor import config, plugins
else:
    config = lazy("gpudoctor.config")
    plugins = lazy("gpudoctor.plugins")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gpudoctor config`."""
    parser.add_argument("--config", type=Path, metavar="FILE")


def run(args: argparse.Namespace) -> int:
    """Write it as YAML that can be used as a file. Raise UserError for a configuration that is wrong."""
    checks = plugins.all_checks()
    write_stdout(config.as_yaml(config.load_config(args.config, os.environ, checks), checks))
    return OK
