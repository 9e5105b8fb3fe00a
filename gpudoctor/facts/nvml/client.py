"""The NVML client: the only module that imports pynvml; every driver call goes through `NvmlClient.call`."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from time import monotonic
from types import ModuleType
from typing import Any, TypeVar

from gpudoctor.facts.deadlines import START_CALLS
from gpudoctor.facts.model.gpu import CallError
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.nvml.channel import Slot
from gpudoctor.facts.nvml.codes import FUNCTION_NOT_FOUND, UNKNOWN, error_word, is_kept, missing_for
from gpudoctor.lazy import lazy_imports

with lazy_imports():
    from ctypes import util

    # imports half as many modules again as reading the driver, and only a shadowed nvidia-ml-py needs it
    from importlib import metadata

T = TypeVar("T")

# pynvml's structs decode what is text at every access; a node of 8 GPUs has 3,000 numbers in them
_member = object.__getattribute__
# NVML_VALUE_TYPE_* -> the member of the union that holds the value
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_FIELD_VALUES = "nvmlDeviceGetFieldValues"
# the code for a field id that an older driver does not know
_UNKNOWN_FIELD = 2

# a larger reading is invalid: NVML sets all bits of values that it does not know
MAX_COUNT = (1 << 62) - 1
MAX_MHZ = 20_000
MAX_MW = 10_000_000

Fields = Mapping[tuple[int, int], int | Missing]
_NAME = "gpudoctor_nvidia_ml_py"
_WORTH_A_LOOK_S = 1.0
_QUEUE_AGE_S = 0.05  # asked anew if it is older: what an earlier call waited for a CPU is not this one's time


class _Start:
    """A call that wakes a GPU: it holds a lock of the driver, so calls made after it began wait behind it."""

    def __init__(self) -> None:
        self.began_s = monotonic()
        self.ended_s: float | None = None


def _own_s(started_s: float, starts: list[_Start]) -> float:
    """How long a call that began then and ends now took by itself, without waiting behind calls that wake GPUs."""
    now_s = monotonic()
    ends = [now_s if start.ended_s is None else start.ended_s for start in starts if start.began_s < started_s]
    return now_s - max((started_s, *ends))


def queued_s() -> float:
    """How long this thread has been runnable without a CPU since it began; 0 if the kernel does not count that."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read(200).split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class DriverError(Exception):
    """A driver call returned an error; `code` is NVML's, or None if the answer could not be decoded."""

    def __init__(self, call: str, code: int | None, words: str) -> None:
        super().__init__(f"{call}: {words}")
        self.call = call
        self.code = code
        self.words = words

    @property
    def missing(self) -> Missing:
        return missing_for(self.code, self.call) if self.code is not None else Missing(str(self), "failed")


def load_pynvml() -> Any:
    """NVIDIA's own binding, nvidia-ml-py; importing it loads no driver library.

    An older package of the same name, which is a folder, is used only if nvidia-ml-py is not installed.
    """
    module = sys.modules.get("pynvml")
    if module is None:
        spec = PathFinder.find_spec("pynvml")
        is_folder = spec is not None and spec.submodule_search_locations is not None
    else:
        is_folder = hasattr(module, "__path__")
    if is_folder:
        module = unhidden()
        if module is not None:
            return module
    with _without_ctypes_util():
        import pynvml

        return pynvml


@contextmanager
def _without_ctypes_util() -> Iterator[None]:
    """Keep `from ctypes.util import find_library` from importing ctypes.util inside the block.

    ctypes.util imports subprocess, tempfile and 30 more modules: a fifth of what the collector does until it has read 8
    GPUs. pynvml needs it on Windows only; a binding that calls `find_library` gets the real one.
    """
    name = "ctypes.util"
    if name in sys.modules:
        yield
        return
    stand_in = ModuleType(name)
    vars(stand_in)["find_library"] = _find_library
    sys.modules[name] = stand_in
    vars(ctypes)["util"] = util  # as the import would: imported when an attribute of it is read
    try:
        yield
    finally:
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]


def _find_library(name: str) -> str | None:
    return util.find_library(name)


class NvmlClient:
    """Calls the driver for one thread: `gpu` and its `handle`, or None for calls about the system.

    `errors` collects the errors that may condemn the whole GPU (15, 16, 999; see `facts.nvml.codes`). A function that
    the driver does not have is not called again by this client; clients of other GPUs try it themselves.
    Clients made by `for_gpu` share only the list of calls that are waking GPUs.
    `slowest_call` and `slowest_s` are of the calls that wake no GPU, without the time in which the thread had no CPU.
    """

    def __init__(self, nvml: Any, trace: Slot | None = None, gpu: int | None = None) -> None:
        self.nvml = nvml
        self.gpu = gpu
        self.handle: Any = None
        self.errors: list[CallError] = []
        self.calls = 0
        self.slowest_call = ""
        self.slowest_s = 0.0
        self._queued_s, self._queued_at_s = 0.0, float("-inf")  # of its thread, and when that was asked
        self._trace = trace
        self._absent: set[tuple[str, int]] = set()
        self._starts: list[_Start] = []

    def for_gpu(self, gpu: int, trace: Slot | None = None) -> NvmlClient:
        """A new client for the thread that reads one GPU."""
        client = NvmlClient(self.nvml, trace, gpu)
        client._starts = self._starts
        return client

    def close(self) -> None:
        """Mark in the call trace that this thread makes no more calls."""
        if self._trace is not None:
            self._trace.finish()

    def call(self, name: str, *args: Any) -> Any:
        """The driver's answer. Raise DriverError if it returns an error."""
        function = getattr(self.nvml, name, None)
        if function is None or (name, len(args)) in self._absent:
            raise DriverError(name, FUNCTION_NOT_FOUND, error_word(FUNCTION_NOT_FOUND))
        self.calls += 1
        if self._trace is not None:
            self._trace.enter(name, self.gpu)
        start = _Start() if name in START_CALLS else None
        if start is not None:
            self._starts.append(start)
        started = monotonic()
        if started - self._queued_at_s > _QUEUE_AGE_S:
            self._queued_s, self._queued_at_s = queued_s(), started
        try:
            answer = function(*args)
            # bindings before nvidia-ml-py 11.515 return text as bytes
            return answer.decode() if isinstance(answer, bytes) else answer
        except self.nvml.NVMLError as error:
            code = int(error.value)
            if code == FUNCTION_NOT_FOUND:
                # keyed by the number of arguments too: pynvml uses it to choose the library function
                self._absent.add((name, len(args)))
            raise DriverError(name, code, error_word(code)) from None
        except UnicodeDecodeError as error:
            raise DriverError(name, None, f"answered bytes that are not text ({error.object[:40]!r})") from None
        finally:
            if self._trace is not None:
                self._trace.leave()
            if start is not None:
                start.ended_s = monotonic()
            elif monotonic() - started > self.slowest_s:
                self._note_slow(name, _own_s(started, self._starts))

    def _note_slow(self, name: str, took_s: float) -> None:
        if took_s > _WORTH_A_LOOK_S:  # on a busy machine it may have been ready long before its thread got a CPU
            took_s -= min(took_s, max(0.0, queued_s() - self._queued_s))
        if took_s > self.slowest_s:
            self.slowest_call, self.slowest_s = name, took_s

    def ask(self, name: str, *args: Any) -> Any:
        """Like `call` with the GPU's handle first; errors become Missing, and those that may cost the GPU are noted."""
        return self.ask_of(self.handle, name, *args)

    def ask_of(self, handle: Any, name: str, *args: Any) -> Any:
        """Like `ask`, for another handle of this GPU (a MIG instance) or for none (a call about the system)."""
        try:
            return self.call(name, *(() if handle is None else (handle,)), *args)
        except DriverError as error:
            self.note(error)
            return error.missing

    def first(self, *names: str) -> Any:
        """The answer of the first of these functions that this driver has: newest name first."""
        answer: Any = missing_for(FUNCTION_NOT_FOUND, "")
        for name in names:
            try:
                return self.call(name, self.handle)
            except DriverError as error:
                answer = error.missing
                if error.code != FUNCTION_NOT_FOUND:
                    self.note(error)
                    break
        return answer

    def number(self, low: int, high: int, name: str, *args: Any) -> int | Missing:
        """The answer of a getter that returns one number; Missing (failed) if it is outside [low, high]."""
        return in_range(self.ask(name, *args), low, high, name)

    def fields(self, ids_and_scopes: Sequence[tuple[int, int]]) -> Fields:
        """Read many (field id, scope) in one driver call; each value has its own return code.

        An id that this driver does not know is unsupported. 15 and 16 of a single field are noted like those
        of a call; 999 of a single field costs only that field, and is in its leaf.
        """
        try:
            values = self.call(_FIELD_VALUES, self.handle, list(ids_and_scopes))
        except DriverError as error:
            self.note(error)
            return dict.fromkeys(ids_and_scopes, error.missing)
        return {key: self._field(key[0], value) for key, value in zip(ids_and_scopes, values, strict=True)}

    def _field(self, field: int, value: Any) -> int | Missing:
        name = f"{_FIELD_VALUES}({field})"
        code = int(_member(value, "nvmlReturn"))
        if code:
            if code != UNKNOWN:
                self.note(DriverError(name, code, error_word(code)))
            return missing_for(3 if code == _UNKNOWN_FIELD else code, name)
        kind = int(_member(value, "valueType"))
        member = _MEMBERS[kind] if kind < len(_MEMBERS) else ""
        answer = getattr(_member(value, "value"), member, None)
        if isinstance(answer, float) and answer.is_integer():
            answer = int(answer)
        if isinstance(answer, int):
            return answer
        return Missing(f"{name} answered {answer!r} of type {kind}, no whole number", "failed")

    def note(self, error: DriverError) -> None:
        """Keep an error that may condemn the GPU; others are left to the caller."""
        if error.code is None or not is_kept(error.code):
            return
        if not any(e.call == error.call and e.code == error.code for e in self.errors):
            self.errors.append(CallError(call=error.call, code=error.code, name=error_word(error.code)))


def in_range(value: int | Missing, low: int, high: int, source: str) -> int | Missing:
    """The number, or Missing with the raw reading if it is outside [low, high].

    NVML sets all bits of values that it does not know, and broken sensors read 0 or 255.
    """
    if isinstance(value, Missing):
        return value
    if not low <= value <= high:
        return Missing(f"{source} said {value}, which cannot be", "failed")
    return value


def prefer(value: T | Missing, fallback: T | Missing) -> T | Missing:
    """The value, or else the fallback; if both are Missing, the one that is a failure."""
    if not isinstance(value, Missing):
        return value
    if isinstance(fallback, Missing) and value.kind != "unsupported":
        return value
    return fallback


# nvidia-ml-py if an older package of the same name shadows it


def unhidden() -> Any:
    """The module of the distribution nvidia-ml-py, loaded by path under another name; None if it is not installed.

    Packages `pynvml` up to 11.5.0 are a folder of that name, which Python prefers to nvidia-ml-py's
    pynvml.py beside it. They return bytes, or lack functions of newer drivers. `import pynvml` of
    other programs is not changed; the attribute `hidden_by` of the module names what shadows it.
    """
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    try:
        path = str(metadata.distribution("nvidia-ml-py").locate_file("pynvml.py"))
    except metadata.PackageNotFoundError:
        return None
    spec = spec_from_file_location(_NAME, path) if os.path.isfile(path) else None
    if spec is None or spec.loader is None:
        return None
    module: Any = module_from_spec(spec)
    sys.modules[_NAME] = module  # it looks itself up while it is loaded
    spec.loader.exec_module(module)
    module.hidden_by = hider()
    return module


def hider() -> str:
    """The package that shadows nvidia-ml-py, such as "pynvml 11.5.0"."""
    try:
        return f"pynvml {metadata.version('pynvml')}"
    except metadata.PackageNotFoundError:
        return "a folder pynvml"
