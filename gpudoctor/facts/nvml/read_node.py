"""Reads the whole node through NVML: no GPU waits for a slow one, each result is passed on as soon as it is known."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from ctypes import CDLL
from functools import partial
from time import monotonic
from typing import Any, TypeAlias

from msgspec.structs import replace

from gpudoctor.facts.model.driver import on_gpu
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, if_known, known
from gpudoctor.facts.model.node import Driver, short_bus_id
from gpudoctor.facts.nvml.channel import CollectorMessage, SharedCallTrace
from gpudoctor.facts.nvml.client import DriverError, NvmlClient, in_range, load_pynvml
from gpudoctor.facts.nvml.gpu import System, read_gpu
from gpudoctor.facts.nvml.kernel_module import read_kernel_module
from gpudoctor.facts.nvml.links import read_pair
from gpudoctor.facts.system.pci import BUS_ID
from gpudoctor.facts.system.sysfs import ROOT, AnyPath, key_values, list_names, present, read_text

Send: TypeAlias = Callable[[CollectorMessage], None]

_GPUS = "proc/driver/nvidia/gpus"
_LIBRARY_NOT_FOUND = 12
_MOST_GPUS = 1024  # more than any machine has
_ALONE_S, _ALONE_GPUS = 0.01, 2  # a driver that answers at once shows more GPUs than these in this time
_INIT, _COUNT, _HANDLE = "nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"


def read_nvml(
    send: Send,
    nvml: Any = None,
    root: AnyPath = ROOT,
    own_pid: int = 0,
    trace: SharedCallTrace | None = None,
) -> Driver:
    """Send everything that NVML has, as soon as it is known and from any thread; return the driver with its statistics.

    `nvml` is a module with pynvml's functions (default: pynvml). It is not called if the
    kernel module is not loaded. `own_pid`: processes that descend from it are gpudoctor's own. Slot 0 of the call trace
    is that of the first thread, then comes one per GPU.
    """
    driver = read_kernel_module(root)
    send(CollectorMessage(driver=driver))
    if driver.module_loaded is False:
        return driver
    nvml = nvml or load_pynvml()
    client = NvmlClient(nvml, trace.slot(0) if trace else None)
    began_s = monotonic()
    driver = _initialise(client, replace(driver, binding_hidden_by=getattr(nvml, "hidden_by", None)))
    send(CollectorMessage(driver=driver))
    if driver.init_code != 0:
        return replace(driver, **_statistics([client]))
    driver, count = _system(client, driver)
    send(CollectorMessage(driver=driver))
    state = client.ask_of(None, "nvmlSystemGetConfComputeState")
    confidential = if_known(state, lambda state: bool(state.ccFeature != 0))
    system = System(version_numbers(driver.library_version), confidential, root, own_pid)
    node = _Readers(send, client, system, trace)
    node.run(count)
    driver = replace(driver, start_s=node.started_s - began_s, **_statistics(node.clients))
    # sent before each step that may hang in the kernel module, so that the rest is not lost
    send(CollectorMessage(driver=driver))
    hidden = read_hidden_gpus(root, node.bus_ids)
    if isinstance(hidden, Missing):
        return replace(driver, denied_gpus=hidden, excluded_gpus=hidden, drained_gpus=hidden)
    driver = replace(
        driver,
        denied_gpus=tuple(bus_id for bus_id, reported in hidden.items() if is_denied(root, reported)),
        excluded_gpus=tuple(bus_id for bus_id, reported in hidden.items() if is_excluded(reported)),
    )
    send(CollectorMessage(driver=driver))
    return replace(driver, drained_gpus=tuple(bus_id for bus_id in hidden if _is_drained(client, bus_id)))


def read_hidden_gpus(root: AnyPath, shown: Container[str]) -> dict[str, dict[str, str]] | Missing:
    """`information` of each GPU that the kernel module drives and NVML does not show, by bus id.

    The kernel module may take its locks to produce it, so this must run in the collector process.
    """
    names = list_names(root / _GPUS)
    if isinstance(names, Missing):
        return names
    hidden = {}
    for name in names:
        bus_id = short_bus_id(name)
        if BUS_ID.fullmatch(name.lower()) and bus_id not in shown:
            hidden[bus_id] = key_values(known(read_text(root / _GPUS / name / "information")) or "")
    return hidden


def is_denied(root: AnyPath, information: dict[str, str]) -> bool:
    """Whether the GPU's /dev/nvidiaN may not be opened.

    access(2) checks only the permission, including the device cgroup, and never opens the file: that would
    wake the GPU, or hang on a broken one.
    """
    minor = information.get("Device Minor", "")
    file = root / "dev" / f"nvidia{minor}"
    # the driver's library opens it for reading and writing
    return minor.isdecimal() and present(file) and not os.access(file, os.R_OK | os.W_OK)


def is_excluded(information: dict[str, str]) -> bool:
    """Whether the kernel module holds the GPU without using it (NVreg_ExcludedGpus; up to driver 455: Blacklisted)."""
    return "Yes" in (information.get("GPU Excluded"), information.get("Blacklisted"))


def _is_drained(client: NvmlClient, bus_id: str) -> bool:
    """Whether an operator drained it, so that the driver hides it from every process that starts later.

    A GPU whose query fails counts as not drained: it is missing for another reason.
    """
    domain, bus, device = bus_id.partition(".")[0].split(":")
    place = client.nvml.nvmlPciInfo_t()
    place.domain, place.bus, place.device = int(domain, 16), int(bus, 16), int(device, 16)
    place.busId = f"{domain:0>8}:{bus}:{device}.0".upper().encode()
    place.busIdLegacy = f"{domain[-4:]}:{bus}:{device}.0".upper().encode()
    try:
        return bool(client.call("nvmlDeviceQueryDrainState", place) == 1)
    except DriverError:
        return False


def _initialise(client: NvmlClient, driver: Driver) -> Driver:
    started = monotonic()
    try:
        client.call(_INIT)
    except DriverError as error:
        took_s = monotonic() - started
        code = error.code if error.code is not None else Missing(str(error), "failed")
        text = error.words
        version: str | Missing = Missing("the library could not be loaded")
        if code == _LIBRARY_NOT_FOUND:
            text += _why_not_loadable()
        else:
            version = client.ask_of(None, "nvmlSystemGetNVMLVersion")
            # NVML 12.535.104.05 belongs to driver 535.104.05
            version = if_known(version, lambda text: str(text).partition(".")[2])
        return replace(driver, init_code=code, init_error=text, init_s=took_s, library_version=version)
    return replace(driver, init_code=0, init_s=monotonic() - started)


def _why_not_loadable() -> str:
    """The loader's message, which pynvml drops: "cannot open", "file too short" (an empty library)."""
    try:
        CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return f": {error}"
    return ""


def _system(client: NvmlClient, driver: Driver) -> tuple[Driver, int]:
    cuda = client.ask_of(None, "nvmlSystemGetCudaDriverVersion_v2")
    # a thread is started per GPU: an impossible count must not start millions
    count = in_range(client.ask_of(None, _COUNT), 0, _MOST_GPUS, _COUNT)
    driver = replace(
        driver,
        library_version=client.ask_of(None, "nvmlSystemGetDriverVersion"),
        cuda_version=if_known(cuda, lambda number: f"{number // 1000}.{number % 1000 // 10}"),
        device_count=count,
    )
    return driver, 0 if isinstance(count, Missing) else count


def version_numbers(version: Any) -> tuple[int, ...]:
    if isinstance(version, Missing):
        return ()
    return tuple(int(part) for part in str(version).split(".") if part.isdigit())


def _statistics(clients: list[NvmlClient]) -> dict[str, Any]:
    slowest = max(clients, key=lambda client: client.slowest_s)
    none = None if slowest.slowest_call else Missing("no call was made")
    return {
        "calls": sum(client.calls for client in clients),
        "slowest_call": none or on_gpu(slowest.slowest_call, slowest.gpu),
        "slowest_call_s": none or slowest.slowest_s,
    }


def _started(target: Callable[[], None]) -> threading.Thread | None:
    """The running thread; None if a limit on this container's processes forbids another one."""
    # daemon: a thread inside a hung call must not keep the process alive
    thread = threading.Thread(target=target, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


class _Readers:
    """The threads that read the GPUs, and the GPUs that are done.

    One thread reads them in turn: it is the fastest way to ask a driver that answers at once, since several threads
    would hand Python's lock to and fro at every call. As soon as it begins fewer than `_ALONE_GPUS` in `_ALONE_S`,
    every GPU that nobody has begun gets a thread of its own, so that none waits for a slow one or for one that hangs. A
    thread that finishes a GPU reads the pairs with all that were finished before: every pair is read once.
    """

    def __init__(self, send: Send, client: NvmlClient, system: System, trace: SharedCallTrace | None) -> None:
        self._send = send
        self._system = system
        self._trace = trace
        self.clients = [client]
        self.bus_ids: set[str] = set()
        self.started_s = monotonic()  # when the last GPU returned its handle
        self._left: deque[int] = deque()
        self._done: list[tuple[Gpu, Any]] = []
        self._lock = threading.Lock()

    def run(self, count: int) -> None:
        first = self.clients[0]
        for index in range(count):
            self.clients.append(first.for_gpu(index, self._trace.slot(index + 1) if self._trace else None))
        self._left.extend(range(count))
        threads = []
        if count and (thread := _started(self._read_in_turn)):
            threads.append(thread)
            left = count + _ALONE_GPUS
            while thread.is_alive() and left - len(self._left) >= _ALONE_GPUS:
                left = len(self._left)
                thread.join(_ALONE_S)
        for index in self._take():
            if thread := _started(partial(self._read, index)):
                threads.append(thread)
            else:
                self._left.append(index)
                break
        first.close()
        self._read_in_turn()
        for thread in threads:
            thread.join()

    def _take(self) -> Iterator[int]:
        """The GPUs that nobody has begun, one after another."""
        with suppress(IndexError):
            while True:
                yield self._left.popleft()

    def _read_in_turn(self) -> None:
        for index in self._take():
            self._read(index)

    def _read(self, index: int) -> None:
        client = self.clients[index + 1]
        threading.current_thread().name = f"GPU {index}"
        try:
            self._read_gpu(client, index)
        finally:
            client.close()

    def _read_gpu(self, client: NvmlClient, index: int) -> None:
        try:
            try:
                client.handle = client.call(_HANDLE, index)
            finally:
                self.started_s = monotonic()
            pci = client.call("nvmlDeviceGetPciInfo_v3", client.handle)
        except DriverError as error:
            code = "" if error.code is None else f" ({error.code})"
            # which call failed decides what it costs: see `codes.no_handle_cost`
            call = "" if error.call == _HANDLE else f"{error.call}: "
            self._send(CollectorMessage(handle_error=(index, f"{call}{error.words}{code}")))
            return
        gpu = Gpu(
            index=index,
            bus_id=short_bus_id(str(pci.busId)),
            pci_device_id=f"0x{pci.pciDeviceId:08x}",
            pci_subsystem_id=f"0x{pci.pciSubSystemId:08x}",
        )
        self.bus_ids.add(gpu.bus_id)
        self._send(CollectorMessage(gpu=gpu))
        gpu = read_gpu(client, gpu, self._system, lambda part: self._send(CollectorMessage(gpu=part)))
        self._send(CollectorMessage(gpu=gpu, done=True))
        with self._lock:
            earlier = tuple(self._done)
            self._done.append((gpu, client.handle))
        for other, handle in earlier:
            self._send(CollectorMessage(pairs=(read_pair(client, gpu, other, (client.handle, handle)),)))
