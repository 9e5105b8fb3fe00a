"""Options."""

from __future__ import annotations

import argparse


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
