"""The reader process of `gpudoctor watch`: reads what is due from the driver on each request.

It has one thread for all GPUs and gets no request before it has answered the last one, so that nothing piles up at the
driver's lock, for which the job's processes wait too.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from gpudoctor.facts.model.missing import UNSUPPORTED, Missing, if_known, known
from gpudoctor.facts.nvml.channel import SharedCallTrace, Slot
from gpudoctor.facts.nvml.client import MAX_COUNT, DriverError, NvmlClient, in_range
from gpudoctor.facts.nvml.collector_child import line_writer, load, serve_and_exit
from gpudoctor.facts.nvml.gpu import LINK_COUNT, POWER_INSTANT, SWITCH_LINK_COUNT
from gpudoctor.facts.nvml.links import read_links
from gpudoctor.facts.nvml.read_node import version_numbers
from gpudoctor.facts.nvml.sampler_child import GpuSampler
from gpudoctor.facts.nvml.settings import is_mps_server, joined_kinds, process_name, running
from gpudoctor.facts.stream.messages import Due, GpuTick, OnGpu, ReaderAnswer, WatchOrder, due

_ALL_LINKS = 0xFFFF_FFFF  # scope id for the sum over a GPU's links
_NVLINK = {"nvlink_tx_gb_s": (138, _ALL_LINKS), "nvlink_rx_gb_s": (139, _ALL_LINKS)}
_POWER = (POWER_INSTANT, 0)
_PCIE = {"pcie_tx_gb_s": 0, "pcie_rx_gb_s": 1}
_MAX_KB_S = 1_000_000_000
_KIB = 1024


class GpuWatcher(GpuSampler):
    """Reads one GPU. What it does not support is reported once and not read again."""

    def __init__(self, client: NvmlClient, driver: tuple[int, ...]) -> None:
        super().__init__(client, driver)
        self._wanted = [_POWER, *_NVLINK.values()]
        self._carried: dict[str, tuple[float, int]] = {}
        self._mps: dict[int, bool] = {}

    def tick(self, due: Due) -> tuple[GpuTick | None, list[OnGpu] | None]:
        """The GPU's readings (None if it no longer answers), and its processes if they are due."""
        client = self._client
        self._readings: dict[str, float] = {}
        self._unread: dict[str, Missing] = {}
        self._take("utilization_pct")
        self._take("memory_used_mib")
        self._take("temperature_c")
        self._read_fields()
        self._take("sm_mhz")
        events = self._events()
        if due.pcie:
            self._take("pcie_generation")
            self._take("pcie_width")
            for name, counter in _PCIE.items():
                self._take(name, lambda counter=counter: self._pcie_gb_s(counter))  # type: ignore[misc]
        if due.slow:
            self._take("memory_mhz")
        counters = self._counters() if due.slow else {}
        processes = self._processes() if due.slow else None
        up, count = (self._links() if due.links else None) or (None, None)
        if not self._readings and any(why.kind == "failed" for why in self._unread.values()):
            return None, None
        tick = GpuTick(client.gpu or 0, self._readings, events, counters, up, count, self._unread)
        return tick, processes

    def _read_fields(self) -> None:
        """Read the instantaneous power and the NVLink traffic since the last time, in one call."""
        at_s = monotonic()
        fields = self._client.fields(self._wanted) if self._wanted else {}
        self._wanted = [k for k in self._wanted if not isinstance(v := fields[k], Missing) or v.kind == "failed"]
        self._take("power_w", lambda: self._power(fields.get(_POWER, UNSUPPORTED)))
        for name, key in _NVLINK.items():
            if key not in fields:
                continue
            total = self._known(name, in_range(fields[key], 0, MAX_COUNT, f"{name} (field {key[0]})"))
            if total is None:
                continue
            before_s, before = self._carried.get(name, (at_s, 0))
            self._carried[name] = (at_s, int(total))
            # a counter that decreased was reset: the traffic since then is unknown
            if at_s > before_s and total >= before:
                self._readings[name] = round((total - before) * _KIB / 1e9 / (at_s - before_s), 3)

    def _pcie_gb_s(self, counter: int) -> float | Missing:
        kb_s = self._client.number(0, _MAX_KB_S, "nvmlDeviceGetPcieThroughput", counter)
        return if_known(kb_s, lambda kb_s: round(kb_s / 1e6, 3))

    def _running(self, kind: str) -> dict[int, int | Missing]:
        found = {} if kind in self._refused else running(self._client, kind, self._driver)
        if not isinstance(found, Missing):
            return found
        if found.kind != "failed":
            self._refused.add(kind)
        return {}

    def _processes(self) -> list[OnGpu] | None:
        if "processes" in self._refused:
            return None
        compute = self._known("processes", running(self._client, "Compute", self._driver))
        if compute is None:
            return None
        lists = {"C": compute, "G": self._running("Graphics")}
        if any(self._is_mps(pid) for pid in compute):
            lists["M"] = self._running("MPSCompute")
        self._mps = {pid: is_mps for pid, is_mps in self._mps.items() if pid in compute}
        gpu = self._client.gpu or 0
        return [OnGpu(gpu, pid, kind, known(memory_mib)) for pid, kind, memory_mib in joined_kinds(lists)]

    def _is_mps(self, pid: int) -> bool:
        if pid not in self._mps:
            self._mps[pid] = is_mps_server(process_name(Path("/"), pid))
        return self._mps[pid]

    def _links(self) -> tuple[int, int] | None:
        """The number of NVLinks that are up, and of all NVLinks."""
        if "nvlinks" in self._refused:
            return None
        fields = self._client.fields([(LINK_COUNT, 0), (SWITCH_LINK_COUNT, 0)])
        read = self._known("nvlinks", read_links(self._client, fields[LINK_COUNT, 0], fields[SWITCH_LINK_COUNT, 0]))
        # a link that the driver does not support is not there
        links = None if read is None else [link for link in read if link.state != UNSUPPORTED]
        if links is None or None in [self._known("nvlinks", link.state) for link in links]:
            return None
        return sum(link.is_up for link in links), len(links)


class Watcher:
    """Reads all GPUs. Raise DriverError if the driver's library does not start."""

    def __init__(
        self,
        nvml: Any,
        gpus: tuple[tuple[int, str | None], ...] = (),
        interval_s: float = 1.0,
        trace: Slot | None = None,
    ) -> None:
        self._interval_s = interval_s
        self._trace = trace
        self._client = NvmlClient(nvml, trace)
        self._client.call("nvmlInit")
        self._driver = version_numbers(self._client.ask_of(None, "nvmlSystemGetDriverVersion"))
        self._gpus = gpus or tuple((index, None) for index in range(self._client.call("nvmlDeviceGetCount")))
        self._watchers: dict[int, GpuWatcher] = {}
        self._number = 0

    def answer(self) -> ReaderAnswer:
        """The next answer, with everything that is due from every GPU that answers."""
        started_s = monotonic()
        number, self._number = self._number, self._number + 1
        ticks: list[GpuTick] = []
        processes: list[OnGpu] | None = None
        for place, (index, uuid) in enumerate(self._gpus):
            now = due(number, self._interval_s, place)
            watcher = self._watchers.get(index)
            if watcher is None:
                # if a GPU could not be opened, try again at the (slow) rate of the links
                watcher = self._opened(index, uuid) if now.links else None
                if watcher is None:
                    continue
                self._watchers[index] = watcher
            tick, found = watcher.tick(now)
            if tick is not None:
                ticks.append(tick)
            if found is not None:
                processes = [*(processes or ()), *found]
        cost_ms = round((monotonic() - started_s) * 1000, 2)
        return ReaderAnswer(tuple(ticks), None if processes is None else tuple(processes), cost_ms)

    def _opened(self, index: int, uuid: str | None) -> GpuWatcher | None:
        client = self._client.for_gpu(index, self._trace)
        try:
            if uuid is None:
                client.handle = client.call("nvmlDeviceGetHandleByIndex", index)
            else:
                client.handle = client.call("nvmlDeviceGetHandleByUUID", uuid)
        except DriverError:
            return None
        return GpuWatcher(client, self._driver)


def main(argument: str) -> None:
    """Run the reader with a JSON `WatchOrder`, then end the process; never returns."""
    serve_and_exit(serve, msgspec.json.decode(argument, type=WatchOrder))


def serve(order: WatchOrder) -> None:
    """Answer requests until the descriptor `requests` is closed, or the driver does not start."""
    nvml, send = load(order.nvml), line_writer(order.out)
    watcher: Watcher | None = None
    trace = SharedCallTrace(order.trace).slot(0)
    while os.read(order.requests, 1):
        if watcher is None:
            try:
                watcher = Watcher(nvml, order.gpus, order.interval_s, trace)
            except DriverError as error:
                send(ReaderAnswer(failure=f"the driver's library did not start: {error}"))
                return
        send(watcher.answer())
