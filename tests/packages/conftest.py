"""The output of `make packages`: tests that install it run with `make test-packages` only."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from gpudoctor import __version__
from tests.packages.project_files import ROOT

DEB_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}


@pytest.fixture(scope="session")
def built() -> Callable[[str], Path]:
    """A file of dist/ by its name, in which {machine} and {deb} are this processor; skips unless requested."""
    if os.environ.get("GPUDOCTOR_PACKAGES") != "1":
        pytest.skip("takes a minute, and what was built before: make packages test-packages")

    def find(name: str) -> Path:
        machine = platform.machine()
        deb = DEB_ARCHITECTURE.get(machine, machine)
        path = ROOT / "dist" / name.format(version=__version__, machine=machine, deb=deb)
        assert path.is_file(), "make packages builds it"
        return path

    return find
