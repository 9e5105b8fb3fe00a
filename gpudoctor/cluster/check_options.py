"""Options."""

from __future__ import annotations

import argparse


def add_check_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""


def add_rank_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
