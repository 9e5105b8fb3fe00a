"""Emulated hosts for the tests of engines that need more than one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.conftest import gpudoctor as gpudoctor  # the command line, as a fixture
from tests.cluster.hosts import TOOLS, EmulationError, Hosts
from tests.needs import fixture_needs, missing


@pytest.fixture(scope="module")
@fixture_needs(*TOOLS)
def module_hosts() -> Iterator[Hosts]:
    """Four hosts and a login host for the tests of one module: for a daemon that they share."""
    hosts = Hosts(4)
    try:
        hosts.start()
    except EmulationError as error:
        missing("network namespaces", error)
    try:
        yield hosts
    finally:
        hosts.close()


@pytest.fixture
def hosts(module_hosts: Hosts) -> Iterator[Hosts]:
    """The module's hosts; links that a test slowed or cut are whole again after it."""
    yield module_hosts
    for i in range(module_hosts.count + 1):
        module_hosts.mend(i)
