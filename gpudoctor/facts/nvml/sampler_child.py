"""The sampling process: makes a few driver calls at intervals, and sleeps most of the time.

One thread for all GPUs: several would only queue for the driver's lock, which the ranks need too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, TypeVar, cast

import msgspec
from msgspec.structs import asdict

from gpudoctor.facts.model.missing import Missing, if_known
from gpudoctor.facts.nvml.channel import DriverOrder, SharedCallTrace, Slot
from gpudoctor.facts.nvml.client import MAX_COUNT, MAX_MHZ, MAX_MW, DriverError, NvmlClient, in_range, prefer
from gpudoctor.facts.nvml.collector_child import line_writer, load, serve_and_exit
from gpudoctor.facts.nvml.gpu import (
    PCIE_REPLAY,
    POLICY_POWER,
    POLICY_SYNC_BOOST,
    POLICY_THERMAL,
    POWER_INSTANT,
    event_reasons,
    read_memory,
    read_utilization,
    throttle_fields,
    throttle_times,
)
from gpudoctor.facts.nvml.read_node import version_numbers
from gpudoctor.facts.nvml.samples import EVENTS, NAMES, Sample, SamplerLine
from gpudoctor.process.pipes import ready

T = TypeVar("T")

_ECC_CORRECTED, _ECC_UNCORRECTED = 3, 4  # NVML field ids: volatile totals
_COUNTER_FIELDS = {"pcie_replays": PCIE_REPLAY, "ecc_corrected": _ECC_CORRECTED, "ecc_uncorrected": _ECC_UNCORRECTED}
# readings that take one call, by the names of `READINGS`
_ASK: dict[str, Callable[[NvmlClient], float | Missing]] = {
    "utilization_pct": lambda client: read_utilization(client).gpu_pct,
    "sm_mhz": lambda client: client.number(0, MAX_MHZ, "nvmlDeviceGetClockInfo", 1),
    "memory_mhz": lambda client: client.number(0, MAX_MHZ, "nvmlDeviceGetClockInfo", 2),
    "temperature_c": lambda client: client.number(-50, 200, "nvmlDeviceGetTemperature", 0),
    "memory_used_mib": lambda client: cast("int | Missing", read_memory(client)["memory_used_mib"]),
    "pcie_generation": lambda client: client.number(1, 8, "nvmlDeviceGetCurrPcieLinkGeneration"),
    "pcie_width": lambda client: client.number(1, 32, "nvmlDeviceGetCurrPcieLinkWidth"),
}
_SLOW = ("temperature_c", "memory_mhz", "memory_used_mib", "pcie_width")
# The ranks need the driver more: rest four times as long as a round took. But a training run of 3 s is sampled too, and
# train.utilization needs five rounds of it even if each of 8 GPUs takes 10 ms for each of 6 calls: there the rest
# shrinks to a fifth of a round. Only one call is in the driver at a time, so a rank waits for at most one.
_REST, _LEAST_REST = 4.0, 0.2
_PERIOD_S = 0.55


class SampleOrder(DriverOrder, frozen=True, kw_only=True):
    """`stop`: a descriptor that ends when sampling should stop; `gpus`: NVML index and UUID of each."""

    stop: int
    gpus: tuple[tuple[int, str], ...]
    interval_s: float


class GpuSampler:
    """Samples one GPU cheaply: unsupported readings are not tried again, and slow ones are read in turn."""

    def __init__(self, client: NvmlClient, driver: tuple[int, ...]) -> None:
        self._client = client
        self._driver = driver
        self._refused: set[str] = set()
        timers = throttle_fields(driver) or (POLICY_THERMAL,)
        self._fast = [(field, 0) for field in (POWER_INSTANT, POLICY_POWER, POLICY_SYNC_BOOST, *timers)]
        self._slow: tuple[Callable[[], None], ...] = (
            *(partial(self._take, name) for name in _SLOW),
            lambda: self._counted.update(self._counters()),
        )
        self._turn = 0

    def sample(self, whole: bool) -> Sample:
        """The fast readings, and one of the slow ones in turn, or all of them if `whole`."""
        client, gpu = self._client, self._client.gpu or 0
        self._readings: dict[str, float] = {}
        self._unread: dict[str, Missing] = {}
        at_s = monotonic()
        fields = client.fields(self._fast)
        self._take("power_w", lambda: self._power(fields[POWER_INSTANT, 0]))
        self._take("sm_mhz")
        self._take("utilization_pct")
        self._take("pcie_generation")  # each GPU's link may be loaded for less than a second
        events = self._events()
        self._counted: dict[str, int] = {}
        if whole:
            for read in self._slow:
                read()
        else:
            self._slow[self._turn]()
            self._turn = (self._turn + 1) % len(self._slow)
        times = asdict(throttle_times(fields, self._driver))
        # by the names of the reasons: sw_power_cap_us is the time of sw-power-cap
        timers_ms = {
            leaf.removesuffix("_us").replace("_", "-"): us / 1000
            for leaf, us in times.items()
            if not isinstance(us, Missing)
        }
        return Sample(at_s, gpu, self._readings, events, timers_ms, self._counted, self._unread)

    def _take(self, name: str, ask: Callable[[], float | Missing] | None = None) -> None:
        """Read it, by `ask` or by the table above, unless it was refused before."""
        if name in self._refused:
            return
        value = self._known(name, _ASK[name](self._client) if ask is None else ask())
        if value is not None:
            self._readings[name] = value

    def _known(self, name: str, value: T | Missing) -> T | None:
        """The value; None if it is Missing: it is noted as unread, and not asked for again unless it only failed."""
        if not isinstance(value, Missing):
            return value
        self._unread[name] = value
        if value.kind != "failed":
            self._refused.add(name)
        return None

    def _power(self, instant_mw: Any) -> float | Missing:
        """The current power; older drivers have only the mean over a second."""
        value = in_range(instant_mw, 0, MAX_MW, f"power (field {POWER_INSTANT})")
        if isinstance(value, Missing):
            value = prefer(value, self._client.number(0, MAX_MW, "nvmlDeviceGetPowerUsage"))
        return if_known(value, lambda mw: round(mw / 1000, 1))

    def _events(self) -> tuple[str, ...] | None:
        if EVENTS in self._refused:
            return None
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        return self._known(EVENTS, event_reasons(self._client.first(*names)))

    def _counters(self) -> dict[str, int]:
        field_ids = {name: field for name, field in _COUNTER_FIELDS.items() if name not in self._refused}
        fields = self._client.fields([(field, 0) for field in field_ids.values()]) if field_ids else {}
        counted: dict[str, int] = {}
        for name, field in field_ids.items():
            value = self._known(name, in_range(fields[field, 0], 0, MAX_COUNT, f"{name} (field {field})"))
            if value is not None:
                counted[name] = value
        return counted


def sample_until(
    stopped: Callable[[float], bool],
    send: Callable[[SamplerLine], None],
    nvml: Any,
    gpus: tuple[tuple[int, str], ...],
    interval_s: float,
    trace: Slot | None = None,
) -> None:
    """Sample the GPUs (NVML index and UUID) until `stopped(seconds)`, which waits that long, returns true.

    The first and last sample of each GPU are whole ones, so that counters can be compared. A round starts every
    `interval_s`, or later if the driver is slow (see `_rest_s`).
    """
    client = NvmlClient(nvml, trace)
    try:
        client.call("nvmlInit")
    except DriverError as error:
        send(SamplerLine(failure=f"the sampler could not start the driver's library: {error}"))
        return
    driver = version_numbers(client.ask_of(None, "nvmlSystemGetDriverVersion"))
    samplers = []
    for index, uuid in gpus:
        own = client.for_gpu(index, trace)
        try:
            own.handle = own.call("nvmlDeviceGetHandleByUUID", uuid)
        except DriverError as error:
            send(SamplerLine(sample=Sample(monotonic(), index, unread=dict.fromkeys(NAMES, error.missing))))
            continue
        samplers.append(GpuSampler(own, driver))
    first, over = True, False
    while not over:
        started_s = monotonic()
        for sampler in samplers:
            send(SamplerLine(sample=sampler.sample(whole=first)))
        over = stopped(_rest_s(monotonic() - started_s, interval_s))
        first = False
    for sampler in samplers:
        send(SamplerLine(sample=sampler.sample(whole=True)))
    send(SamplerLine(end=True))
    client.close()


def _rest_s(busy_s: float, interval_s: float) -> float:
    """How long to leave the driver alone after a round that took `busy_s`."""
    fair_s = min(busy_s * _REST, max(_PERIOD_S - busy_s, busy_s * _LEAST_REST))
    return max(interval_s - busy_s, fair_s)


def main(argument: str) -> None:
    """Sample as ordered and end the process; never returns."""
    serve_and_exit(serve, msgspec.json.decode(argument, type=SampleOrder))


def serve(order: SampleOrder) -> None:
    """Sample until the pipe `stop` is closed."""

    def stopped(wait_s: float) -> bool:
        return bool(ready([order.stop], wait_s))

    slot = SharedCallTrace(order.trace).slot(0)
    sample_until(stopped, line_writer(order.out), load(order.nvml), order.gpus, order.interval_s, slot)
