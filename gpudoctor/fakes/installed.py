"""Puts a fake driver into the module pynvml, for all code in this process."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isfunction, unwrap
from typing import Any, Protocol

import pynvml

# pynvml's functions that look up a function of the library, and load the library
_POINTER, _LIBRARY = "_nvmlGetFunctionPointer", "_LoadNvmlLibrary"


class InstalledDriver(Protocol):
    """The fake that answers instead of the library."""

    unknown: set[str]

    def function(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]: ...


def replace_functions(driver: InstalledDriver) -> Callable[[], None]:
    """Have `driver` answer pynvml's functions; return a function that restores them.

    Replaces every function that calls the library directly. Those that only call others
    (nvmlDeviceGetPciInfo) are left and so call the replaced ones.
    """
    # collected before anything is replaced: an older binding may lack a name
    own = {name: real for name, real in vars(pynvml).items() if _calls_library(name, real)}
    fakes: dict[str, Any] = {name: driver.function(name, real) for name, real in own.items()}

    def pointer(name: str) -> Any:
        driver.unknown.add(name)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    # any other access to the library sees an old one that lacks the function
    fakes |= {_POINTER: pointer, _LIBRARY: lambda: None}
    before = {name: getattr(pynvml, name) for name in fakes}
    vars(pynvml).update(fakes)
    return lambda: vars(pynvml).update(before)


def _calls_library(name: str, real: Any) -> bool:
    if not name.startswith("nvml") or not isfunction(real):
        return False
    # nvmlInit calls another function, but faults and call counts use this name
    return name == "nvmlInit" or _POINTER in unwrap(real).__code__.co_names
