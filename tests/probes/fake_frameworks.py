"""Frameworks as a few lines of Python on the search path: what the outermost edge, their import, would bring."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

TORCH = """
__version__ = "2.9.0+cu128"
class version: cuda = "12.8"
class _Properties:
    def __init__(self, uuid): self.uuid = uuid
class cuda:
    class DeferredCudaCallError(Exception): pass
    uuids = ("11111111-0000-0000-0000-000000000000", "22222222-0000-0000-0000-000000000000")
    @staticmethod
    def init(): {init}
    @staticmethod
    def device_count(): return len(cuda.uuids)
    @staticmethod
    def get_device_properties(index): return _Properties(cuda.uuids[index])
"""
TENSORFLOW = """
import sys
__version__ = "2.21.0"
class test:
    @staticmethod
    def is_built_with_cuda(): return {cuda}
class config:
    @staticmethod
    def list_physical_devices(kind):
        assert kind == "GPU"
        sys.stderr.write("Cannot dlopen some GPU libraries.\\nnothing to do with it\\n")
        return ["GPU:0"] * {gpus}
"""
JAX = """
import os
__version__ = "0.10.2"
assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
class config: jax_platforms = os.environ.get("JAX_PLATFORMS")
def local_devices(backend):
    assert backend == "cuda"
    {devices}
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, sources: dict[str, str]) -> None:
    """Have these modules found first, by this process and by those that it starts."""
    for name, source in sources.items():
        package = folder / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))


def torch(init: str = "pass") -> str:
    return TORCH.format(init=init)


def tensorflow(gpus: int, cuda: bool = True) -> str:
    return TENSORFLOW.format(gpus=gpus, cuda=cuda)


def jax(devices: str = "return ['cuda:0', 'cuda:1']") -> str:
    return JAX.format(devices=devices)
