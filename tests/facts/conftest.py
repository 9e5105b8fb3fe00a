"""What the tests of the readers share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.facts.nvml_nodes import make_root


@pytest.fixture
def no_process_stays() -> Iterator[None]:
    """Fails a test after which a child of this process is left."""
    before = set(psutil.Process().children(recursive=True))
    yield
    assert set(psutil.Process().children(recursive=True)) <= before, "a collector was left behind"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with the driver's files, to read below."""
    return make_root(tmp_path / "root")
