"""The collector process. Only it calls the driver, so a driver can hang or crash nothing else."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from threading import Lock
from typing import Any, NoReturn, TypeVar

import msgspec

from gpudoctor.facts.nvml.channel import CollectorMessage, CollectorOrder, SharedCallTrace
from gpudoctor.facts.nvml.client import load_pynvml
from gpudoctor.facts.nvml.read_node import read_nvml
from gpudoctor.facts.system.sysfs import SysPath
from gpudoctor.process.ending import leave
from gpudoctor.process.pipes import write_all

T = TypeVar("T")


def main(argument: str) -> None:
    """Read NVML as ordered and end the process; never returns."""
    serve_and_exit(serve, msgspec.json.decode(argument, type=CollectorOrder))


def serve_and_exit(serve: Callable[[T], None], order: T) -> NoReturn:
    """Run `serve` and end the process without cleanup, since a driver call may hang."""
    faulthandler.enable(all_threads=True)  # the report names the thread that crashed
    serve(order)
    leave()


def wait_for_order(orders: int) -> None:
    """Import the driver's binding, then wait for an order and run `main`; end if the parent sends none."""
    with suppress(ImportError):  # `serve` reports it
        load_pynvml()
    argument = b""
    while part := os.read(orders, 1 << 16):
        argument += part
    if argument:
        main(argument.decode())
    leave()


def serve(order: CollectorOrder) -> None:
    nvml = load(order.nvml) if order.nvml else None
    write, lock = line_writer(order.out), Lock()

    def send(message: CollectorMessage) -> None:
        with lock:
            write(message)

    driver = read_nvml(send, nvml, SysPath(order.root), order.parent_pid, SharedCallTrace(order.trace))
    send(CollectorMessage(driver=driver, end=True))


def line_writer(descriptor: int) -> Callable[[msgspec.Struct], None]:
    encode = msgspec.json.Encoder().encode
    return lambda message: write_all(descriptor, encode(message) + b"\n")


def load(spec: str | None) -> Any:
    """The object that module:factory:argument creates; pynvml without a spec."""
    if spec is None:
        return load_pynvml()
    module, factory, argument = spec.split(":", 2)
    return getattr(import_module(module), factory)(argument)
