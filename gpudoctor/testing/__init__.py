"""A fake NVIDIA driver for tests: run your GPU code against healthy and broken nodes, on a machine without a GPU.

`FakeNvml` replaces pynvml, `Fault` is a scripted fault of it, `load` returns the facts of a node. Programs in C get the
same answers from a library (`run_program`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpudoctor.testing.fake_nvml import FakeNvml, load
    from gpudoctor.testing.fake_nvml import ScriptedFault as Fault

__all__ = ["FakeNvml", "Fault", "load"]


# lazy: pytest imports this package in every run of every project that has gpudoctor installed
def __getattr__(name: str) -> Any:
    if name in __all__:
        from gpudoctor.testing import fake_nvml

        return getattr(fake_nvml, {"Fault": "ScriptedFault"}.get(name, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
