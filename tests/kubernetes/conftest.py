"""Kubernetes' own schemas, which validate objects and pods."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.conftest import gpudoctor as gpudoctor  # the command line, as a fixture
from tests.needs import module


@pytest.fixture(scope="session")
def schemas() -> Iterator[Any]:
    validator = module("kubernetes_validate")
    patch = pytest.MonkeyPatch()
    # it reads the megabytes of a version's definitions for each object anew
    patch.setattr(validator.utils, "schema_contents", functools.cache(validator.utils.schema_contents))
    yield validator
    patch.undo()
