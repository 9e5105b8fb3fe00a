"""These tests start DeepSpeed and TensorFlow for real: `make test-frameworks` installs both and runs them."""

from __future__ import annotations

import importlib.util
import os

import pytest

LIBRARIES = ("torch", "deepspeed", "tensorflow")


@pytest.fixture(scope="session", autouse=True)
def libraries() -> None:
    """Skip if the libraries need not be installed; if they must be, a missing one is a failure."""
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if os.environ.get("GPUDOCTOR_FRAMEWORKS") == "1":
        assert not missing
    elif missing:
        pytest.skip(f"{', '.join(missing)} not installed: make test-frameworks")
    else:
        pytest.skip("takes minutes: make test-frameworks")
