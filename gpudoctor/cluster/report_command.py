"""To be written."""

from __future__ import annotations

import argparse

from gpudoctor.errors import UserError


def cluster_report(args: argparse.Namespace) -> int:
    """Not there yet."""
    raise UserError("not there yet")
