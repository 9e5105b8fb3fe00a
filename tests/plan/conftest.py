"""The command line, as in tests/cli."""

from __future__ import annotations

from tests.cli.conftest import gpudoctor

__all__ = ["gpudoctor"]
