"""Imports every built-in check, so that it registers: each module in a folder of gpudoctor/checks is one."""

from importlib import import_module
from pathlib import Path

from gpudoctor.checks.core.registry import DOMAINS

_CHECKS = Path(__file__).parent.parent

for domain in DOMAINS:
    for path in sorted((_CHECKS / domain).glob("[a-z]*.py")):
        import_module(f"gpudoctor.checks.{domain}.{path.stem}")
