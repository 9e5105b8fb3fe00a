"""Puts a fake driver into the module pynvml, below every program that calls it."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isfunction, unwrap
from typing import Any, Protocol

import pynvml

# how pynvml finds a function of the library, and the library
_POINTER, _LIBRARY = "_nvmlGetFunctionPointer", "_LoadNvmlLibrary"


class InstalledDriver(Protocol):
    """What answers instead of the library."""

    unknown: set[str]

    def function(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]: ...


def replace_functions(driver: InstalledDriver) -> Callable[[], None]:
    """Have pynvml answered by `driver`; what is returned puts it back as it was.

    Replaced is every function that calls the library itself. Those that only call others
    (nvmlDeviceGetPciInfo) stay as they are and so reach the replaced ones.
    """
    # before anything is replaced: an older binding may lack a name
    own = {name: real for name, real in vars(pynvml).items() if _calls_library(name, real)}
    fakes: dict[str, Any] = {name: driver.function(name, real) for name, real in own.items()}

    def pointer(name: str) -> Any:
        driver.unknown.add(name)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    # whatever still asks for the library finds an old one that lacks the function
    fakes |= {_POINTER: pointer, _LIBRARY: lambda: None}
    before = {name: getattr(pynvml, name) for name in fakes}
    vars(pynvml).update(fakes)
    return lambda: vars(pynvml).update(before)


def _calls_library(name: str, real: Any) -> bool:
    if not name.startswith("nvml") or not isfunction(real):
        return False
    # nvmlInit goes by another function; whoever scripts or counts its calls means this name
    return name == "nvmlInit" or _POINTER in unwrap(real).__code__.co_names
