# ruff: noqa: N802, N815 - the names are NVML's own
"""The answers of pynvml's functions about a `Node`: rows of the table as pynvml's types; and how they replace them."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import partialmethod
from inspect import isfunction, unwrap
from types import CodeType, SimpleNamespace
from typing import Any

import msgspec
import pynvml

from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node, short_bus_id
from gpudoctor.facts.nvml import codes
from gpudoctor.testing.nvml_table import SYSTEM, NvmlTable, TableRow, code_of, handle_name
from gpudoctor.testing.table_gpu import UNKNOWN_BYTES
from gpudoctor.testing.table_links import ALL_LINKS, FIELD_VALUES
from gpudoctor.testing.table_node import MIG_IDS, add_node, version_of_driver

# pynvml's name -> the library's, if they differ
_LIBRARY_NAMES = {
    "nvmlSystemGetCudaDriverVersion_v2": "nvmlSystemGetCudaDriverVersion",
    "nvmlDeviceGetTemperatureV1": "nvmlDeviceGetTemperature",
    "nvmlDeviceGetNvLinkRemotePciInfo": "nvmlDeviceGetNvLinkRemotePciInfo_v2",
}
# functions that return a struct of pynvml
_STRUCTS = {
    "nvmlDeviceGetMemoryInfo": "c_nvmlMemory_t",
    "nvmlDeviceGetMemoryInfo_v2": "c_nvmlMemory_v2_t",
    "nvmlDeviceGetPciInfo_v3": "nvmlPciInfo_t",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": "nvmlPciInfo_t",
    "nvmlDeviceGetUtilizationRates": "c_nvmlUtilization_t",
    "nvmlDeviceGetRowRemapperHistogram": "c_nvmlRowRemapperHistogramValues",
    "nvmlDeviceGetAttributes_v2": "c_nvmlDeviceAttributes",
    "nvmlSystemGetConfComputeState": "c_nvmlConfComputeSystemState_t",
}
# functions that return a handle
_HANDLES = (
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
)
# functions that are in the table only for nodes with MIG instances, NVLinks or several GPUs
_NOT_ON_EVERY_NODE = frozenset(
    {
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetNvLinkVersion",
        "nvmlDeviceGetNvLinkRemoteDeviceType",
        "nvmlDeviceGetNvLinkRemotePciInfo_v2",
        "nvmlDeviceGetTopologyCommonAncestor",
        "nvmlDeviceGetP2PStatus",
        "nvmlDeviceGetMaxMigDeviceCount",
    }
)
# the return codes of a lookup that finds nothing; for all other functions it is _NOT_SUPPORTED
_ERROR_WITHOUT_ROW = {
    "nvmlDeviceGetHandleByIndex": 2,
    "nvmlDeviceGetHandleByUUID": 6,
    "nvmlDeviceGetHandleByPciBusId": 6,
    "nvmlDeviceGetMigDeviceHandleByIndex": 6,
}
_NOT_SUPPORTED = 3
_SENT, _RECEIVED = 138, 139  # field ids: what the NVLinks carried
_PROCESS_VALUES = 4
_BINDING_PROCESS = struct.Struct("I4xQII")
# pynvml's functions that look up a function of the library, and load the library
_REDIRECTED = "<pynvml, answered by gpudoctor's fake>"
_POINTER, _LIBRARY = "_nvmlGetFunctionPointer", "_LoadNvmlLibrary"


class FakeHandle(msgspec.Struct, frozen=True):
    """A GPU by NVML index, or one of its MIG instances."""

    index: int
    instance: int | None = None

    @property
    def device(self) -> int:
        """The device number in the table."""
        return self.index if self.instance is None else (self.index + 1) * MIG_IDS + self.instance


class NvmlAnswers:
    """`to` finds the answer to a function, `field` a field value; both raise pynvml.NVMLError like the driver.

    Traffic is not in the facts and may be set: `pcie_kb_s` by counter (0 sent, 1 received), `nvlink_kib` in total by
    GPU and field id.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.pcie_kb_s = {0: 1_250_000, 1: 2_500_000}
        self.nvlink_kib: dict[tuple[int, int], int] = {}
        self._gpus = {gpu.index: gpu for gpu in node.gpus}
        self._table = NvmlTable()
        add_node(self._table, node)

    def to(self, name: str) -> Callable[..., Any] | None:
        """The replacement for this function of pynvml; None if the fake does not know it."""
        own: Callable[..., Any] | None = getattr(self, name, None) if name.startswith("nvml") else None
        if own is not None:
            return own
        processes, _, version = name.partition("RunningProcesses")
        if version in ("_v2", "_v3"):
            return lambda handle: self._processes(f"{processes}RunningProcesses", version, handle)
        function = _LIBRARY_NAMES.get(name, name)
        if function not in self._table.functions and function not in _NOT_ON_EVERY_NODE:
            return None
        return lambda *args: self._answer(function, *args)

    def field(self, handle: FakeHandle, field: int, scope: int) -> int:
        """One value of nvmlDeviceGetFieldValues."""
        row = self._row(FIELD_VALUES, handle, field, scope)
        if field in (_SENT, _RECEIVED) and scope == ALL_LINKS:
            return self.nvlink_kib.get((handle.index, field), 0)
        return int(row.values[1])

    def _answer(self, function: str, *args: Any) -> Any:
        """The table's answer as pynvml returns it: a number, text, list or struct, or 0 if it filled an argument."""
        into = args[-1]._obj if args and hasattr(args[-1], "_obj") else None
        key = args if into is None else args[:-1]
        version = self._table.versions.get(function) if into is None else getattr(into, "version", None)
        row = self._row(function, *key, *(() if version is None else (version,)))
        if into is not None:
            data = self._packed(row)
            ctypes.memmove(ctypes.addressof(into), data, min(len(data), ctypes.sizeof(into)))
            return 0
        if function in _STRUCTS:
            return getattr(pynvml, _STRUCTS[function]).from_buffer_copy(self._packed(row))
        if function in _HANDLES:
            return self._handle(row.values[0])
        values = [_plain(value) for value in row.values[version is not None :]]
        return values if len(values) > 1 else values[0] if values else None

    def _row(self, function: str, *key: Any) -> TableRow:
        """The row of the answer; raise NVMLError if it is an error."""
        places = tuple(part.device if isinstance(part, FakeHandle) else part for part in key) or (SYSTEM,)
        row = self._table.find(function, *places) or self._table.find("*", places[0])
        if row is None:
            raise pynvml.NVMLError(_ERROR_WITHOUT_ROW.get(function, _NOT_SUPPORTED))
        code = row.code if row.missing is None else code_of(row.missing)
        if code:
            raise pynvml.NVMLError(code)
        return row

    def _packed(self, row: TableRow) -> bytes:
        code, data = row.packed()
        if code:
            raise pynvml.NVMLError(code)
        return data

    def _handle(self, device: int) -> FakeHandle:
        return FakeHandle(device) if device in self._gpus else FakeHandle(device // MIG_IDS - 1, device % MIG_IDS)

    def _processes(self, function: str, version: str, handle: FakeHandle) -> list[Any]:
        """The processes as pynvml reads them: what the driver filled, in the binding's struct."""
        values = self._row(function, handle).values
        count = len(values) // _PROCESS_VALUES
        major, minor, *_ = (*version_of_driver(self.node.driver), 0, 0)
        # drivers 535.43 to 535.86 have a larger struct (protected memory behind the rest)
        each = "I4xQIIQ" if version == "_v3" and major == 535 and 43 <= minor <= 86 else "I4xQII"
        rows = (values[at : at + _PROCESS_VALUES] for at in range(0, len(values), _PROCESS_VALUES))
        filled = b"".join(struct.pack(each, *row, *([0] if each.endswith("Q") else [])) for row in rows)
        found = (_BINDING_PROCESS.unpack_from(filled, place * _BINDING_PROCESS.size) for place in range(count))
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=None if used == UNKNOWN_BYTES else used) for pid, used, *_ in found
        ]

    # functions with special arguments, or that the C library does not have

    def nvmlInit(self) -> None:
        driver = self.node.driver
        # a machine without a driver: the library was not called, and does not exist
        nothing = 12 if driver.module_loaded is False and isinstance(driver.library_version, Missing) else 0
        code = nothing if isinstance(driver.init_code, Missing) else driver.init_code
        if code:
            raise pynvml.NVMLError(code)

    def nvmlInitWithFlags(self, _flags: int = 0) -> None:
        self.nvmlInit()

    def nvmlShutdown(self) -> None:
        pass

    def nvmlErrorString(self, code: int) -> str:
        return codes.error_word(code)

    def _named(self, function: str, name: str | bytes) -> FakeHandle:
        return self._handle(self._row(function, handle_name(_text(name))).values[0])

    nvmlDeviceGetHandleByUUID = partialmethod(_named, "nvmlDeviceGetHandleByUUID")
    nvmlDeviceGetHandleByPciBusId = partialmethod(_named, "nvmlDeviceGetHandleByPciBusId")
    nvmlDeviceGetHandleByPciBusId_v2 = nvmlDeviceGetHandleByPciBusId

    def nvmlDeviceGetHandleBySerial(self, serial: str | bytes) -> FakeHandle:
        found = next((gpu for gpu in self.node.gpus if gpu.serial == _text(serial)), None)
        if found is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return FakeHandle(found.index)

    def nvmlDeviceQueryDrainState(self, place: Any) -> int:
        return int(short_bus_id(_text(place.busId)) in (known(self.node.driver.drained_gpus) or ()))

    def nvmlDeviceGetMemoryInfo(self, handle: FakeHandle, version: int | None = None) -> Any:
        return self._answer("nvmlDeviceGetMemoryInfo_v2" if version else "nvmlDeviceGetMemoryInfo", handle)

    def nvmlDeviceGetModuleId(self, handle: FakeHandle, into: Any = None) -> int:
        """With a reference, pynvml fills it and returns the return code instead of raising it."""
        try:
            module = int(self._answer("nvmlDeviceGetModuleId", handle))
        except pynvml.NVMLError as error:
            if into is None:
                raise
            return int(error.value)
        if into is None:
            return module
        into._obj.value = module
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle: FakeHandle) -> tuple[int, ...]:
        return tuple(self._answer("nvmlDeviceGetCudaComputeCapability", handle))

    def nvmlDeviceGetPcieThroughput(self, handle: FakeHandle, counter: int) -> int:
        self._row("nvmlDeviceGetPcieThroughput", handle, counter)
        return self.pcie_kb_s[counter]

    def nvmlDeviceGetRemappedRows(self, handle: FakeHandle) -> tuple[int, ...]:
        return tuple(self.field(handle, field, 0) for field in (142, 143, 144, 145))

    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: FakeHandle) -> int:
        return self.field(handle, 31, 0)

    def _mask(self, function: str, handle: FakeHandle, size: int) -> list[int]:
        bits = self._row(function, handle).values[0]
        return [int.from_bytes(bits[at : at + 8], "little") for at in range(0, 8 * size, 8)]

    nvmlDeviceGetCpuAffinity = partialmethod(_mask, "nvmlDeviceGetCpuAffinity")

    def nvmlDeviceGetMemoryAffinity(self, handle: FakeHandle, size: int, _scope: int) -> list[int]:
        return self._mask("nvmlDeviceGetMemoryAffinity", handle, size)


def _text(text: str | bytes) -> str:
    """Text as such or as bytes: callers pass both, and structs differ between versions of the binding."""
    return text.decode() if isinstance(text, bytes) else text


def _plain(value: Any) -> int | str:
    return value.rstrip(b"\0").decode() if isinstance(value, bytes) else int(value)


def replace_functions(
    replacement: Callable[[str, Callable[..., Any]], Callable[..., Any]], unknown: set[str]
) -> Callable[[], None]:
    """Put `replacement(name, real)` in place of pynvml's functions; return a function that restores them.

    Replaces every function that calls the library directly. Those that only call others
    (nvmlDeviceGetPciInfo) are left and so call the replaced ones. Names that others imported before
    (`from pynvml import *`) are the real functions: until restored, these call the replacements.
    `unknown` gets the names that are looked up in the library by anything else, which sees an old one without that
    function.
    """
    # collected before anything is replaced: an older binding may lack a name
    own = {name: real for name, real in vars(pynvml).items() if _calls_library(name, real)}
    fakes: dict[str, Any] = {name: replacement(name, real) for name, real in own.items()}

    def pointer(name: str) -> Any:
        unknown.add(name)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    fakes |= {_POINTER: pointer, _LIBRARY: lambda: None}
    before = {name: getattr(pynvml, name) for name in fakes}
    redirected = [(real, *_redirect(name, real)) for name, real in _plain_functions(own)]
    vars(pynvml).update(fakes)

    def restore() -> None:
        vars(pynvml).update(before)
        for real, code, defaults in redirected:
            real.__code__, real.__defaults__ = code, defaults

    return restore


def _plain_functions(own: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The functions themselves, without decorators; not those of a fake that is installed already."""
    for name, real in own.items():
        function = unwrap(real)
        code = function.__code__
        if code.co_filename != _REDIRECTED and not code.co_freevars and function.__globals__ is vars(pynvml):
            yield name, function


def _redirect(name: str, real: Any) -> tuple[CodeType, tuple[Any, ...] | None]:
    """Have the function call whatever has its name in pynvml; return its code and defaults."""
    made: dict[str, Any] = {}
    exec(compile(f"def {name}(*a, **b): return globals()[{name!r}](*a, **b)", _REDIRECTED, "exec"), made)
    before = real.__code__, real.__defaults__
    real.__code__, real.__defaults__ = made[name].__code__, None
    return before


def _calls_library(name: str, real: Any) -> bool:
    if not name.startswith("nvml") or not isfunction(real):
        return False
    # nvmlInit calls another function, but faults and call counts use this name
    code = unwrap(real).__code__
    return name == "nvmlInit" or _POINTER in code.co_names or code.co_filename == _REDIRECTED
