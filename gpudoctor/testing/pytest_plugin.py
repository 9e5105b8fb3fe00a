"""The pytest plugin: replaces pynvml by a fake NVIDIA driver for one test, on a machine without a GPU.

pytest loads it in every project that has gpudoctor installed, so it imports nothing of gpudoctor
until a test uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from gpudoctor.facts.model.node import Node
    from gpudoctor.testing.fake_nvml import FakeNvml, ScriptedFault

DEFAULT_NODE = "hgx-h100-8"
_USAGE = "gpu_node(source='hgx-h100-8', faults=()): answer pynvml from this node, broken by these faults"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _USAGE)


@pytest.fixture
def fake_nvml(request: pytest.FixtureRequest) -> Iterator[FakeNvml]:
    """The fake driver, in pynvml for this test: the node of its marker `gpu_node`, else a healthy hgx-h100-8."""
    marker = request.node.get_closest_marker("gpu_node")
    with _made(*(marker.args if marker else ()), **(marker.kwargs if marker else {})) as fake:
        yield fake


@pytest.fixture(autouse=True)
def _gpu_node_marker(request: pytest.FixtureRequest) -> None:
    """A marked test need not request the fixture `fake_nvml`."""
    if request.node.get_closest_marker("gpu_node") is not None:
        request.getfixturevalue("fake_nvml")


@pytest.fixture
def gpu_node() -> Iterator[Callable[..., Node]]:
    """A function `gpu_node(source, faults=())` that puts a node behind pynvml until the test ends, and gives its facts.

    Called again it puts another node there.
    """
    with ExitStack() as installed:

        def put(source: Node | str | Path = DEFAULT_NODE, faults: Iterable[ScriptedFault | str] = ()) -> Node:
            fake = _made(source, faults=faults)
            installed.close()
            return installed.enter_context(fake).node

        yield put


def _made(*args: Any, **named: Any) -> FakeNvml:
    """The fake driver for the arguments of a marker or call; wrong ones fail the test with one clear line."""
    from gpudoctor.errors import UserError
    from gpudoctor.testing.fake_nvml import FakeNvml

    if len(args) > 2 or named.keys() - {"source", "faults"} or named.keys() & set(("source", "faults")[: len(args)]):
        shown = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in named.items())])
        pytest.fail(f"gpu_node takes a node and faults=[...], not ({shown}); see: pytest --markers", pytrace=False)
    asked = dict(zip(("source", "faults"), args, strict=False)) | named
    try:
        return FakeNvml(asked.get("source", DEFAULT_NODE), asked.get("faults", ()))
    except UserError as error:
        why = f"gpu_node: {error}"
    # not inside `except`: pytest would also show that error
    return pytest.fail(why, pytrace=False)
