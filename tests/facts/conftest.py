"""What the tests of the readers share."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest


@pytest.fixture
def no_process_stays() -> Iterator[None]:
    """Fails a test after which a child of this process is left."""
    before = set(psutil.Process().children(recursive=True))
    yield
    assert set(psutil.Process().children(recursive=True)) <= before, "a collector was left behind"
