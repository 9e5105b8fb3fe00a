"""Imports every built-in check, so that it registers: each module in a folder of gpudoctor/checks is one."""

from importlib import import_module
from pkgutil import iter_modules

from gpudoctor.checks.core.registry import DOMAINS

for domain in DOMAINS:
    folder = import_module(f"gpudoctor.checks.{domain}")
    for module in iter_modules(folder.__path__, f"{folder.__name__}."):
        import_module(module.name)
