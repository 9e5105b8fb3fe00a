"""The process that waits for the driver's events: it sleeps in the driver until one occurs, and writes a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from gpudoctor.facts.nvml.channel import DriverOrder, SharedCallTrace, Slot
from gpudoctor.facts.nvml.client import DriverError, NvmlClient
from gpudoctor.facts.nvml.collector_child import line_writer, load, serve_and_exit

# nvml.h: nvmlEventType*
_KINDS = {0x1: "single-bit ECC", 0x2: "double-bit ECC", 0x8: "Xid", 0x10: "clock"}
_TIMEOUT = 10  # NVML_ERROR_TIMEOUT: no event yet
_WAIT_MS = 60_000


class DriverEvent(msgspec.Struct, frozen=True):
    """One event of a GPU (NVML index; None if it is not known); `number` is the Xid."""

    kind: str
    gpu: int | None = None
    number: int | None = None


def wait_for_events(nvml: Any, send: Callable[[DriverEvent], None], trace: Slot | None = None) -> None:
    """Send each event of all GPUs. Return if the driver has no events, or after an error while waiting for one."""
    client = NvmlClient(nvml, trace)
    try:
        client.call("nvmlInit")
        events = client.call("nvmlEventSetCreate")
        registered = [_register(client, index, events) for index in range(client.call("nvmlDeviceGetCount"))]
    except DriverError:
        return
    while any(registered):
        try:
            event = client.call("nvmlEventSetWait_v2", events, _WAIT_MS)
            kind = _KINDS.get(event.eventType, "other")
            index = client.call("nvmlDeviceGetIndex", event.device)
        except DriverError as error:
            if error.code == _TIMEOUT:
                continue
            # a lost GPU, for one: worth a check, but not again and again
            send(DriverEvent(str(error)))
            return
        send(DriverEvent(kind, index, event.eventData if kind == "Xid" else None))


def _register(client: NvmlClient, index: int, events: Any) -> bool:
    """Register for the events that this GPU supports; False if there are none."""
    try:
        device = client.call("nvmlDeviceGetHandleByIndex", index)
        kinds = client.call("nvmlDeviceGetSupportedEventTypes", device) & sum(_KINDS)
        client.call("nvmlDeviceRegisterEvents", device, kinds, events)
    except DriverError:
        return False
    return bool(kinds)


def main(argument: str) -> None:
    """Wait as ordered and end the process; never returns."""
    serve_and_exit(serve, msgspec.json.decode(argument, type=DriverOrder))


def serve(order: DriverOrder) -> None:
    slot = SharedCallTrace(order.trace).slot(0)
    wait_for_events(load(order.nvml), line_writer(order.out), slot)
