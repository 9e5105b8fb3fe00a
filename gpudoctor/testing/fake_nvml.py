"""A fake of the module pynvml, which answers from a `Node`, with scripted faults."""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import wraps
from inspect import isfunction, signature
from pathlib import Path
from typing import Any

import msgspec
import pynvml

from gpudoctor.errors import UserError
from gpudoctor.facts.captures.source import load_source
from gpudoctor.facts.model.missing import known
from gpudoctor.facts.model.node import Node
from gpudoctor.facts.simulated.load import apply_faults
from gpudoctor.lazy import lazy_pattern
from gpudoctor.testing.pynvml_answers import FakeHandle, NvmlAnswers, replace_functions

# functions that the library answers before nvmlInit, and after an nvmlInit that failed
_BEFORE_INIT = ("nvmlInit", "nvmlInitWithFlags", "nvmlErrorString", "nvmlSystemGetNVMLVersion")
_VERSION = lazy_pattern(r"_v\d+$")


def load(source: Node | str | Path, faults: Iterable[str] = ()) -> Node:
    """The facts of `source`, which is a `Node` or anything that `--node` takes, with faults of the fault kit applied.

    The caller's environment variables are not added to a simulated node, so tests give the same result everywhere.
    Raise UserError, one line, for a source that cannot be read and for a fault that is unknown or
    cannot happen there.
    """
    node = source if isinstance(source, Node) else load_source(str(source), environ={}).node
    return apply_faults(node, (faults,) if isinstance(faults, str) else faults)


class ScriptedFault(msgspec.Struct, frozen=True):
    """A fault in calls whose name matches `call` (a glob; with or without NVML's _v2, _v3).

    `gpu`: only for this GPU. `field`: only for this value of nvmlDeviceGetFieldValues. `from_call`:
    from the n-th such call on. The call then returns NVML's error `code`, or `value` instead of the true
    one; or hangs; or waits `delay_s` before it answers; or crashes the process.
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
    """The arguments of `FakeNvml` in a file: see `from_file`."""

    node: Node
    faults: tuple[ScriptedFault, ...] = ()
    absent: tuple[str, ...] = ()
    last_field: int = 400


class FakeNvml:
    """Replaces the module pynvml; constants, structs and errors are pynvml's own.

    `source` is a `Node` or anything that `--node` takes: the name of a simulated node, a file of
    facts, a capture. `faults` are scripted ones (`ScriptedFault`) and names of the fault kit ("gpu-lost@2"),
    which change the facts first; a call that did not return according to the facts hangs. `absent` are
    globs of functions that this driver does not have, `last_field` the highest field id it knows.

    Pass it to code that takes the module as an argument; `install` (or `with`) puts it into
    pynvml itself. `node` are the facts it answers from. `calls` counts calls by (name, GPU),
    `unknown` names functions that the fake does not know and answered with
    NVMLError_FunctionNotFound. Raise UserError for a source that cannot be read, for an
    unknown fault and for one that would have no effect.
    """

    def __init__(
        self,
        source: Node | str | Path,
        faults: Iterable[ScriptedFault | str] | ScriptedFault = (),
        absent: tuple[str, ...] = (),
        last_field: int = 400,
    ) -> None:
        faults = (faults,) if isinstance(faults, str | ScriptedFault) else tuple(faults)
        wrong = [fault for fault in faults if not isinstance(fault, str | ScriptedFault)]
        if wrong:
            raise UserError(f"a fault is a name of the fault kit, as gpu-lost@2, or a Fault, not {wrong[0]!r}")
        self.node = load(source, [fault for fault in faults if isinstance(fault, str)])
        for fault in faults:
            if isinstance(fault, ScriptedFault):
                _refuse_idle(fault, self.node)
        self.calls: Counter[tuple[str, int | None]] = Counter()
        self.unknown: set[str] = set()
        self.answers = NvmlAnswers(self.node)
        self._faults = (*(fault for fault in faults if isinstance(fault, ScriptedFault)), *_recorded(self.node))
        self._absent = absent
        self._last_field = last_field
        self._hits: Counter[tuple[int, int | None]] = Counter()
        self._lock = threading.Lock()
        self._restore: Callable[[], None] | None = None
        self._sessions = 0
        self._let_go = threading.Event()

    def install(self) -> FakeNvml:
        """Replace pynvml's module-level functions until `uninstall`, for every caller in this process.

        While installed, calls before nvmlInit raise NVMLError_Uninitialized, as in the library. Names that were
        imported from pynvml before (`from pynvml import *`) are answered too; child processes are not.
        """
        if self._restore is None:
            self._sessions = 0
            self._restore = replace_functions(self.function, self.unknown)
        return self

    def uninstall(self) -> None:
        """Restore pynvml. Calls that hang in a thread end with NVMLError_Timeout."""
        if self._restore is not None:
            self._restore()
            self._restore = None
            self._let_go.set()
            self._let_go = threading.Event()

    def __enter__(self) -> FakeNvml:
        return self.install()

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    def __getattr__(self, name: str) -> Any:
        real = getattr(pynvml, name)  # the same AttributeError as the real module
        if not name.startswith("nvml") or not callable(real) or isinstance(real, type):
            return real
        return self.function(name, real)

    def function(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """The replacement for this function of pynvml; takes its arguments by position or by name."""

        parameters = signature(real)  # before the real function calls this one

        @wraps(real)  # `unwrap` finds the real function if one fake is installed over another
        def asked(*args: Any, **named: Any) -> Any:
            return self._call(name, parameters.bind(*args, **named).args if named else args)

        asked.__signature__ = parameters  # type: ignore[attr-defined]
        return asked

    def _call(self, name: str, args: tuple[Any, ...]) -> Any:
        gpu = _gpu_of(name, args)
        with self._lock:
            self.calls[name, gpu] += 1
        if self._restore is not None and not self._sessions and name not in _BEFORE_INIT:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        if any(fnmatchcase(name, pattern) for pattern in self._absent):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        # an argument selects the newer version of this function
        if name == "nvmlDeviceGetMemoryInfo" and args[1:] and "nvmlDeviceGetMemoryInfo_v2" in self._absent:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        for fault in self._matching(name, gpu):
            if fault.field is None:
                answer = self._trigger(fault)
                if answer is not None:
                    return answer
        if name == "nvmlDeviceGetFieldValues":
            return self._fields(*args)
        answer_to = self.answers.to(name)
        if answer_to is None:
            self.unknown.add(name)
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        answer = answer_to(*args)
        if name in ("nvmlInit", "nvmlInitWithFlags", "nvmlShutdown"):
            with self._lock:
                self._sessions = max(self._sessions + (-1 if name == "nvmlShutdown" else 1), 0)
        return answer

    def _matching(self, name: str, gpu: int | None) -> list[ScriptedFault]:
        found = []
        for place, fault in enumerate(self._faults):
            if _is_named(name, fault.call) and fault.gpu in (None, gpu):
                with self._lock:
                    self._hits[place, gpu] += 1
                    if self._hits[place, gpu] >= fault.from_call:
                        found.append(fault)
        return found

    def _trigger(self, fault: ScriptedFault) -> Any:
        """The fault's answer; None if the true answer follows."""
        if fault.delay_s:
            threading.Event().wait(fault.delay_s)
        if fault.hang:
            self._let_go.wait()
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        if fault.crash:
            ctypes.string_at(0)
        if fault.code is not None:
            raise pynvml.NVMLError(fault.code)
        return fault.value

    def _fields(self, handle: FakeHandle, expected: list[Any]) -> Any:
        """The values of `wanted`, of which each is (field id, scope) or a field id."""
        values = (pynvml.c_nvmlFieldValue_t * len(expected))()
        striking = [
            fault
            for place, fault in enumerate(self._faults)
            if fault.field is not None and self._hits[place, handle.index] >= max(fault.from_call, 1)
        ]
        for value, asked in zip(values, expected, strict=True):
            field, scope = asked if isinstance(asked, tuple | list) else (asked, 0)
            value.fieldId, value.scopeId = field, scope
            fault = next((fault for fault in striking if fault.field == field), None)
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


def _refuse_idle(fault: ScriptedFault, node: Node) -> None:
    """Raise UserError for a fault that would have no effect: the test would pass without it."""
    asked = f"Fault({fault.call!r}{'' if fault.gpu is None else f', gpu={fault.gpu}'})"
    names = [name for name, real in vars(pynvml).items() if name.startswith("nvml") and isfunction(real)]
    if not any(_is_named(name, fault.call) for name in names):
        near = get_close_matches(fault.call, names, n=2)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise UserError(f"{asked}: pynvml has no such function{hint}")
    count = known(node.driver.device_count)
    if fault.gpu is not None and fault.gpu not in range(max(len(node.gpus), count or 0)):
        raise UserError(f"{asked}: the node has {len(node.gpus)} GPUs, counted from 0")
    if fault.field is not None and fault.code is None and fault.value is None:
        raise UserError(f"{asked}: a field is struck by code= or value=")
    if fault.code is None and fault.value is None and not (fault.hang or fault.crash or fault.delay_s):
        raise UserError(f"{asked}: it says nothing of what goes wrong: code=, value=, delay_s=, hang= or crash=")


def _is_named(name: str, call: str) -> bool:
    """Whether a fault's `call` matches the function, with or without its version suffix."""
    return fnmatchcase(name, call) or _VERSION.sub("", name) == call


def _gpu_of(name: str, args: tuple[Any, ...]) -> int | None:
    if name == "nvmlDeviceGetHandleByIndex":
        return int(args[0])
    return args[0].index if args and isinstance(args[0], FakeHandle) else None


def _recorded(node: Node) -> tuple[ScriptedFault, ...]:
    """Faults for the calls that did not return when the facts were read, so that they do not return here either."""
    unknown: int = pynvml.NVML_ERROR_UNKNOWN
    return tuple(
        ScriptedFault(call.call, call.gpu, hang=True)
        if call.hangs
        else ScriptedFault(call.call, call.gpu, code=unknown)
        for call in node.driver.unanswered
    )


def from_file(path: str) -> FakeNvml:
    """The fake driver described by a `Script` in a JSON file, for another process."""
    script = msgspec.json.decode(Path(path).read_bytes(), type=Script)
    return FakeNvml(script.node, script.faults, script.absent, script.last_field)


def write_script(path: Path, script: Script) -> str:
    """Write the script; return the argument for `collect_live(nvml_module=...)`."""
    path.write_bytes(msgspec.json.encode(script))
    return f"gpudoctor.testing.fake_nvml:from_file:{path}"
