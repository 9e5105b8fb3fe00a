"""A driver made of facts: pynvml's functions, answered from a `Node`, with scripted faults."""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
import pynvml

from gpudoctor.facts.node import Node
from tests.fake_nvml_answers import Answers, FakeHandle

# what a driver of the 470 branch does not have
ABSENT_IN_470 = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetGpuFabricInfo*",
    "nvmlDeviceGetMarginTemperature",
    "nvmlDeviceGetModuleId",
    "nvmlDeviceGetRepairStatus",
    "nvmlDeviceGetUnrepairableMemoryFlag*",
    "nvmlDeviceGetSramEccErrorStatus",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetAddressingMode",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration",
    "nvmlDeviceGet*RunningProcesses_v3",
    "nvmlSystemGetConfComputeState",
)
LAST_FIELD_IN_470 = 160


class Fault(msgspec.Struct, frozen=True):
    """One thing that goes wrong in calls whose name matches `call` (a glob).

    `gpu`: only on this one. `field`: only this value of nvmlDeviceGetFieldValues. `from_call`:
    from the n-th such call on. Then: answer NVML's error `code`, or `value` instead of the true
    one; hang for ever; wait `delay_s` before answering; crash the process.
    """

    call: str
    gpu: int | None = None
    field: int | None = None
    from_call: int = 1
    code: int | None = None
    value: Any = None
    hang: bool = False
    delay_s: float = 0.0
    crash: bool = False


class Script(msgspec.Struct, frozen=True):
    """A fake driver as a file: see `from_file`."""

    node: Node
    faults: tuple[Fault, ...] = ()
    absent: tuple[str, ...] = ()
    last_field: int = 400


class FakeNvml:
    """Stands in for the module pynvml; constants, structs and errors are pynvml's own.

    `absent` are globs of functions this driver does not have, `last_field` the highest field id
    it knows. `calls` counts calls by (name, GPU), `unknown` names functions that the fake does
    not know: a test of a reader should see it empty.
    """

    def __init__(
        self, node: Node, faults: tuple[Fault, ...] = (), absent: tuple[str, ...] = (), last_field: int = 400
    ) -> None:
        self.calls: Counter[tuple[str, int | None]] = Counter()
        self.unknown: set[str] = set()
        self.answers = Answers(node)
        self._faults = faults
        self._absent = absent
        self._last_field = last_field
        self._hits: Counter[tuple[int, int | None]] = Counter()
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        real = getattr(pynvml, name)  # AttributeError as the real module has it
        if not name.startswith("nvml") or not callable(real) or isinstance(real, type):
            return real
        return lambda *args: self._call(name, args)

    def _call(self, name: str, args: tuple[Any, ...]) -> Any:
        gpu = _gpu_of(name, args)
        with self._lock:
            self.calls[name, gpu] += 1
        if any(fnmatchcase(name, pattern) for pattern in self._absent):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        # the newer form of one function goes by an argument
        if name == "nvmlDeviceGetMemoryInfo" and args[1:] and "nvmlDeviceGetMemoryInfo_v2" in self._absent:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        for fault in self._matching(name, gpu):
            if fault.field is None:
                answer = _strike(fault)
                if answer is not None:
                    return answer
        if name == "nvmlDeviceGetFieldValues":
            return self._fields(*args)
        answer_to = self.answers.to(name)
        if answer_to is None:
            self.unknown.add(name)
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return answer_to(*args)

    def _matching(self, name: str, gpu: int | None) -> list[Fault]:
        found = []
        for place, fault in enumerate(self._faults):
            if fnmatchcase(name, fault.call) and fault.gpu in (None, gpu):
                with self._lock:
                    self._hits[place, gpu] += 1
                    if self._hits[place, gpu] >= fault.from_call:
                        found.append(fault)
        return found

    def _fields(self, handle: FakeHandle, wanted: list[tuple[int, int]]) -> Any:
        values = (pynvml.c_nvmlFieldValue_t * len(wanted))()
        faults = [fault for fault in self._faults if fault.field is not None and fault.gpu in (None, handle.index)]
        for value, (field, scope) in zip(values, wanted, strict=True):
            value.fieldId, value.scopeId = field, scope
            fault = next((fault for fault in faults if fault.field == field), None)
            if field > self._last_field:
                value.nvmlReturn = pynvml.NVML_ERROR_INVALID_ARGUMENT
                continue
            if fault is not None and fault.code is not None:
                value.nvmlReturn = fault.code
                continue
            try:
                number = fault.value if fault is not None else self.answers.field(handle, field, scope)
            except pynvml.NVMLError as error:
                value.nvmlReturn = error.value
                continue
            if number < 0:
                value.valueType, value.value.siVal = pynvml.NVML_VALUE_TYPE_SIGNED_INT, number
            else:
                value.valueType, value.value.ullVal = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, number
        return values


def _gpu_of(name: str, args: tuple[Any, ...]) -> int | None:
    if name == "nvmlDeviceGetHandleByIndex":
        return int(args[0])
    return args[0].index if args and isinstance(args[0], FakeHandle) else None


def _strike(fault: Fault) -> Any:
    """What the fault answers; None where the true answer follows."""
    if fault.delay_s:
        threading.Event().wait(fault.delay_s)
    if fault.hang:
        threading.Event().wait()
    if fault.crash:
        ctypes.string_at(0)
    if fault.code is not None:
        raise pynvml.NVMLError(fault.code)
    return fault.value


def from_file(path: str) -> FakeNvml:
    """The fake driver that a `Script` in a JSON file describes: for another process."""
    script = msgspec.json.decode(Path(path).read_bytes(), type=Script)
    return FakeNvml(script.node, script.faults, script.absent, script.last_field)


def write_script(path: Path, script: Script) -> str:
    """Write the script; the result is what `collect_live(nvml_module=...)` takes."""
    path.write_bytes(msgspec.json.encode(script))
    return f"tests.fake_nvml:from_file:{path}"
