"""A process that reads the driver as gpudoctor does and records the duration of each call and the field values.

It wraps pynvml where the readers expect it, so that it records exactly the calls that they make.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import msgspec

from gpudoctor.facts.model.node import Driver
from gpudoctor.facts.nvml.channel import CollectorMessage
from gpudoctor.facts.nvml.client import load_pynvml
from gpudoctor.facts.nvml.fake_driver_context import read_fake_driver_context
from gpudoctor.facts.nvml.read_node import read_nvml
from gpudoctor.process.ending import leave

HANGS_S = 60.0  # limit of one call: without persistence mode 16 GPUs wake one after the other in 48 s
CHILD = (__name__, f"{HANGS_S:g}")
_TURN_S = 0.2
_saying = threading.Lock()
_FIELDS = "nvmlDeviceGetFieldValues"
# field ids of the slowdown time counters in both generations of drivers: which ones does this driver have?
_THROTTLE_IDS = (251, 252, 253, 269, 270, 271)
_BYTES = {1: 4, 5: 4, 6: 2}  # NVML_VALUE_TYPE_*: unsigned and signed int, unsigned short
# (field id, getter, its arguments, index into its result): the same value in two ways
_TWINS: tuple[tuple[int, str, tuple[int, ...], int | None], ...] = (
    (1, "nvmlDeviceGetEccMode", (), 0),
    (2, "nvmlDeviceGetEccMode", (), 1),
    (3, "nvmlDeviceGetTotalEccErrors", (0, 0), None),
    (4, "nvmlDeviceGetTotalEccErrors", (1, 0), None),
    (5, "nvmlDeviceGetTotalEccErrors", (0, 1), None),
    (6, "nvmlDeviceGetTotalEccErrors", (1, 1), None),
    (94, "nvmlDeviceGetPcieReplayCounter", (), None),
    (187, "nvmlDeviceGetPowerManagementLimitConstraints", (), 0),
    (188, "nvmlDeviceGetPowerManagementLimitConstraints", (), 1),
    (189, "nvmlDeviceGetPowerManagementDefaultLimit", (), None),
    (190, "nvmlDeviceGetEnforcedPowerLimit", (), None),
    (192, "nvmlDeviceGetPowerManagementLimit", (), None),
)


class Call(msgspec.Struct, frozen=True):
    """One driver call: its thread ("GPU 3", "MainThread"), duration, and NVML's return code."""

    name: str
    thread: str
    ms: float
    code: int


class DriverAnswer(msgspec.Struct, frozen=True):
    """One raw value of nvmlDeviceGetFieldValues: return code, NVML's value type, the union's bytes in hex."""

    thread: str
    field: int
    scope: int
    code: int
    type: int
    value: str


class Twin(msgspec.Struct, frozen=True):
    """One value read by field id and by getter; None if that way failed."""

    gpu: int
    field: int
    getter: str
    by_field: int | None
    by_getter: int | None


class DriverReading(msgspec.Struct):
    """One reading of the driver. `unread`: GPUs not read completely, and why; `hung`: calls that did not return."""

    seconds: float = 0.0
    driver: Driver = Driver()
    read: list[int] = []
    unread: dict[int, str] = {}
    hung: list[str] = []
    calls: list[Call] = []
    answers: list[DriverAnswer] = []
    twins: list[Twin] = []

    def take(self, message: CollectorMessage) -> None:
        """What the reader sends."""
        if message.driver is not None:
            self.driver = message.driver
        if message.gpu is not None and message.done:
            self.read.append(message.gpu.index)
        if message.handle_error is not None:
            index, error = message.handle_error
            self.unread[index] = error


def where(thread: str) -> str:
    """The GPU of a thread's calls as text; "" for the main thread, whose calls concern the system."""
    return f" on {thread}" if thread.startswith("GPU") else ""


class _Noted:
    """pynvml with functions that record their calls."""

    def __init__(self, nvml: Any, reading: DriverReading) -> None:
        self._nvml = nvml
        self._reading = reading
        self._begun: dict[str, tuple[str, float]] = {}

    def hung(self, limit_s: float) -> list[str]:
        """The calls that have been running for longer than the limit."""
        now = perf_counter()
        late = [(name, who) for who, (name, begun) in list(self._begun.items()) if now - begun > limit_s]
        return [f"{name}{where(who)} did not return in {limit_s:g} s" for name, who in late]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._nvml, name)
        if not name.startswith("nvml") or not callable(found) or isinstance(found, type):
            return found

        def noted(*args: Any) -> Any:
            who = threading.current_thread().name
            began, code = perf_counter(), 0
            self._begun[who] = (name, began)
            try:
                answer = found(*args)
            except self._nvml.NVMLError as error:
                code = int(error.value)
                raise
            finally:
                del self._begun[who]
                self._reading.calls.append(Call(name, who, round((perf_counter() - began) * 1e3, 4), code))
            if name == _FIELDS:
                self._reading.answers += [_answer(value) for value in answer]
            return answer

        return noted


def main(call_limit: str) -> None:
    """Read and write the `DriverReading` as JSON to stdout; `call_limit`: seconds that one call may take."""
    reading = DriverReading()
    simulated = read_fake_driver_context(os.environ)
    nvml = _Noted(load_pynvml(), reading)
    threading.Thread(target=_watch, args=(nvml, reading, float(call_limit)), daemon=True).start()
    began = perf_counter()
    reading.driver = read_nvml(reading.take, nvml, simulated.root if simulated else Path("/"))
    reading.seconds = round(perf_counter() - began, 4)
    for index in sorted(reading.read):
        _ask_again(nvml, reading, index)
    _say(reading)


def _watch(nvml: _Noted, reading: DriverReading, limit_s: float) -> None:
    """End the process when a call exceeds the limit: its thread will never return."""
    while not (hung := nvml.hung(limit_s)):
        sleep(_TURN_S)
    reading.hung = hung
    _say(reading)


def _say(reading: DriverReading) -> None:
    with _saying:
        sys.stdout.buffer.write(msgspec.json.encode(reading))
        sys.stdout.flush()
        leave()


def _ask_again(nvml: Any, reading: DriverReading, index: int) -> None:
    threading.current_thread().name = f"GPU {index}"
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        values = nvml.nvmlDeviceGetFieldValues(handle, [*(twin[0] for twin in _TWINS), *_THROTTLE_IDS])
    except nvml.NVMLError as error:
        reading.unread[index] = f"{_FIELDS}: {error}"
        return
    for (field, getter, args, part), value in zip(_TWINS, values, strict=False):
        by_field = None if value.nvmlReturn else _number(value)
        by_getter = _asked(nvml, getter, (handle, *args), part)
        reading.twins.append(Twin(index, field, getter, by_field, by_getter))


def _asked(nvml: Any, getter: str, args: tuple[Any, ...], part: int | None) -> int | None:
    try:
        answer = getattr(nvml, getter)(*args)
    except (nvml.NVMLError, AttributeError):
        return None
    return int(answer if part is None else answer[part])


def _number(value: Any) -> int:
    # all machines with this driver are little-endian; the rest of the union after a smaller member is undefined
    return int.from_bytes(bytes(value.value)[: _BYTES.get(int(value.valueType), 8)], "little")


def _answer(value: Any) -> DriverAnswer:
    return DriverAnswer(
        threading.current_thread().name,
        int(value.fieldId),
        int(value.scopeId),
        int(value.nvmlReturn),
        int(value.valueType),
        bytes(value.value).hex(),
    )
