"""One agent that many tests only look at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agent.running import FAULTY, Agent, agent


@pytest.fixture(scope="package")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """An agent on a simulated node with GPU 5's link at half its width, after its first run."""
    with agent(tmp_path_factory.mktemp("faulty"), *FAULTY) as running:
        running.after_run()
        yield running
