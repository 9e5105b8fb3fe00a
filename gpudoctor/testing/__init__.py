"""A fake NVIDIA driver for tests: your GPU code against healthy and broken nodes, on a machine without a GPU.

`FakeNvml` stands in for pynvml, `ScriptedFault` is one scripted misbehaviour of it, `load` gives the facts of a node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpudoctor.fakes.fake_nvml import FakeNvml
    from gpudoctor.fakes.fake_nvml import ScriptedFault as Fault
    from gpudoctor.fakes.nodes import load

__all__ = ["FakeNvml", "Fault", "load"]


# on demand: pytest imports this package in every run of every project that has gpudoctor installed
def __getattr__(name: str) -> Any:
    if name in ("FakeNvml", "Fault"):
        from gpudoctor.fakes.fake_nvml import FakeNvml, ScriptedFault

        return FakeNvml if name == "FakeNvml" else ScriptedFault
    if name == "load":
        from gpudoctor.fakes.nodes import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
