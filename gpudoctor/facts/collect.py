"""Reads the live machine: the driver in a child process with deadlines, everything else meanwhile in this one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from gpudoctor.facts.deadlines import CALL, COLLECTION, START, Patience
from gpudoctor.facts.model.gpu import Gpu, GpuPair
from gpudoctor.facts.model.missing import Missing, fill
from gpudoctor.facts.model.node import Driver, Node, Source
from gpudoctor.facts.nvml.collector_ahead import dismiss_ahead
from gpudoctor.facts.nvml.fake_driver_context import AROUND, read_fake_driver_context
from gpudoctor.facts.nvml.kernel_module import read_kernel_module
from gpudoctor.facts.system.sysfs import ROOT, AnyPath
from gpudoctor.lazy import lazy_imports

with lazy_imports():
    from gpudoctor.facts.kernel_log import live as kernel_log
    from gpudoctor.facts.nvml import collector as nvml_collector
    from gpudoctor.facts.system import environment, network, pci, services, storage
    from gpudoctor.facts.system import host as live_host

if TYPE_CHECKING:
    from gpudoctor.facts.nvml.collector import CollectorResult

_DriverFacts = tuple[Driver, tuple[Gpu, ...], "tuple[GpuPair, ...] | Missing"]

# how long the parent waits for its own listener thread beyond the deadline
_SLACK_S = 1.0
_NOT_LOOKED_FOR = Missing("not looked for")
_HIDDEN_BINDING = (
    "other Python programs get {} instead of NVIDIA's own binding, nvidia-ml-py, and misread this driver: "
    "pip uninstall pynvml"
)


def collect_live(
    root: AnyPath = ROOT,
    deadline_s: float = COLLECTION.seconds,
    call_deadline_s: float = CALL.seconds,
    progress: Callable[[str], None] | None = None,
    nvml_module: str | None = None,
    on_interrupt: Callable[[Node], None] | None = None,
    start_deadline_s: float = START.seconds,
    data: Sequence[str] = (),
) -> Node:
    """The facts of this machine, returned no later than the deadline for the driver.

    The driver is called only in a collector process. A call that takes longer than
    `call_deadline_s` (nvmlInit and the handle lookup: `start_deadline_s`) becomes an `Unanswered`;
    what was read before is kept, and the leaves that were not reached are Missing (failed) and name
    that call. Neither pynvml nor torch is imported here. `progress` gets an occasional line for the
    user. `nvml_module`, as module:factory:argument, replaces pynvml in tests. Under
    `gpudoctor fake-driver` the node is the simulated one, and marked SIMULATED. On any exception in
    this process (such as one raised by a signal handler) the collector is ended first, and
    `on_interrupt` gets what was known so far. `data` are absolute paths that training reads from.
    """
    simulated = read_fake_driver_context(os.environ) if os.fspath(root) == ROOT else None
    if simulated is not None:
        root = simulated.root
    driver = read_kernel_module(root)
    patience = Patience(deadline_s, call_deadline_s, start_deadline_s)
    collector = None
    driver_facts: _DriverFacts = (driver, (), Missing("the driver is not loaded"))
    stop: BaseException | None = None
    around: dict[str, Any] = {}
    if driver.module_loaded is not False:
        try:
            collector = nvml_collector.Collector(root, nvml_module)
        except OSError as error:  # a limit on processes or open files, or the Python binary was removed
            driver_facts = _complete(
                nvml_collector.CollectorResult(f"the collector could not be started: {error.strerror or error}"), driver
            )
    else:
        dismiss_ahead()
    try:
        if collector is not None:
            collector.listen(patience, progress)
        # the host's readers (journalctl is slow) run meanwhile
        if simulated is None:
            _read_host(root, deadline_s, around, data)
        else:
            around |= simulated.around()
        if collector is not None:
            collector.wait(deadline_s + _SLACK_S)
    except BaseException as error:  # noqa: BLE001 - raised again below, after `on_interrupt`
        stop = error
    text = None if stop is None else f"interrupted by {str(stop) or type(stop).__name__}"
    if collector is not None:
        driver_facts = _complete(collector.end(patience, text), driver)
    if text is not None:
        for name in AROUND:
            around.setdefault(name, fill(getattr(Node(), name), Missing(text, "failed")))
    node = _merge(root, *driver_facts, around)
    node = node if simulated is None else simulated.placed(node)
    if stop is not None:
        if on_interrupt is not None:
            on_interrupt(node)
        raise stop
    return node


def _read_host(root: AnyPath, deadline_s: float, into: dict[str, Any], data: Sequence[str]) -> None:
    """Add everything but the driver to `into`, by the field names of `Node`; the slow reader comes last."""
    with storage.StorageReader(root, os.environ, data) as paths:
        into["pci"] = pci.read_pci(root)
        into["host"] = live_host.read_host(root)
        into["environment"] = environment.read_environment(os.environ, root)
        into["software"] = replace(
            environment.read_software(), nccl_net_plugins=environment.read_nccl_net_plugins(root, os.environ)
        )
        into["network"] = network.read_network(root)
        into["fabric_manager"] = services.read_fabric_manager(root)
        into["storage"] = paths.read()
    into["kernel_log"] = kernel_log.read_kernel_log(root, deadline_s)


def _merge(
    root: AnyPath, driver: Driver, gpus: tuple[Gpu, ...], pairs: tuple[GpuPair, ...] | Missing, host: dict[str, Any]
) -> Node:
    placed = (replace(gpu, pcie=replace(gpu.pcie, path=pci.read_path(root, gpu.bus_id))) for gpu in gpus)
    source = Source(
        kind="live",
        name=os.uname().nodename,
        collected_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        notes=() if driver.binding_hidden_by is None else (_HIDDEN_BINDING.format(driver.binding_hidden_by),),
    )
    gpus = tuple(sorted(placed, key=lambda gpu: gpu.bus_id))
    return fill(Node(source=source, driver=driver, gpus=gpus, pairs=pairs, **host), _NOT_LOOKED_FOR)


def _complete(collected: CollectorResult, read_before: Driver) -> _DriverFacts:
    """What the collector sent, with a reason in every leaf that it did not reach."""
    driver = collected.driver or read_before
    why = {call.gpu: call.words for call in reversed(collected.unanswered)}
    failure = collected.failure or "the collector did not come to it"
    if collected.failure is not None:
        driver = fill(driver, Missing(failure, "failed"))
    gpus = {
        index: gpu if index in collected.done else fill(gpu, Missing(why.get(index, failure), "failed"))
        for index, gpu in collected.gpus.items()
    }
    count = driver.device_count if isinstance(driver.device_count, int) else 0
    unread = [index for index in range(count) if index not in gpus and index not in collected.handle_errors]
    driver = replace(
        driver,
        handle_errors=tuple(f"index {index}: {text}" for index, text in sorted(collected.handle_errors.items())),
        # not an answer of the driver: checks must not take it for one
        unread_handles=tuple(f"GPU {index}: {why.get(index, failure)}" for index in unread),
        unanswered=collected.unanswered,
    )
    if driver.init_code != 0:
        return driver, (), Missing("the driver did not start")
    by_ends = {(pair.a, pair.b): pair for pair in collected.pairs}
    pairs = []
    for a, b in combinations(sorted(gpus), 2):
        reason = Missing(why.get(a) or why.get(b) or failure, "failed")
        pairs.append(by_ends.get((a, b)) or fill(GpuPair(a, b), reason))
    return driver, tuple(gpus.values()), tuple(pairs)
