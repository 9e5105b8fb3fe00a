"""The sources of `gpudoctor watch`: this machine, a simulated or captured node, or a recorded stream.

Each source imports what only it needs: `watch` runs for weeks, and a simulated node does not need psutil.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gpudoctor.errors import UserError
from gpudoctor.facts.kernel_log.live import KernelTail
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import KernelEvent, Node
from gpudoctor.facts.stream.messages import Opening, Tick
from gpudoctor.lazy import lazy_imports

with lazy_imports():
    from gpudoctor.facts import collect
    from gpudoctor.facts.captures import source
    from gpudoctor.facts.simulated import live, load
    from gpudoctor.facts.stream import driver as live_driver
    from gpudoctor.facts.stream import host_readers, recording

if TYPE_CHECKING:
    from gpudoctor.facts.stream.driver import DriverWatch
    from gpudoctor.facts.stream.recording import Recording


class StreamSource(Protocol):
    """A source of lines."""

    def lines(self, at_s: float) -> Iterator[Opening | Tick]:
        """Yield the lines for a Unix time, an opening first; none at the end of the stream."""

    def close(self) -> None: ...


class LiveSource:
    """This machine. In tests, `nvml_module` replaces pynvml, and `root` replaces /."""

    def __init__(self, interval_s: float, root: Path = Path("/"), nvml_module: str | None = None) -> None:
        self._interval_s = interval_s
        self._root = root
        self._nvml = nvml_module
        self._opened = self._read_anew = False
        self._driver: DriverWatch | None = None
        # opened before the facts are read, so that no kernel message falls between the two
        self._kernel = KernelTail(root)
        try:
            self._node = self._collect()
            self._in_facts = frozenset(known(self._node.kernel_log.events) or ())
            self._host = host_readers.HostReader(self._node.host, self._root)
            self._processes = host_readers.ProcessReader()
            self._watch_driver()
        except BaseException:
            self.close()
            raise

    def _collect(self) -> Node:
        return collect.collect_live(self._root, nvml_module=self._nvml)

    def _watch_driver(self) -> None:
        driver = self._node.driver
        code = known(driver.init_code)
        no_driver = driver.module_loaded is False or code not in (None, 0)
        if not no_driver and (self._node.gpus or driver.device_count != 0):
            gpus = [(gpu.index, known(gpu.uuid)) for gpu in self._node.gpus]
            self._driver = live_driver.DriverWatch(gpus, self._interval_s, self._nvml)

    def lines(self, at_s: float) -> Iterator[Opening | Tick]:
        if not self._opened:
            yield self._opening(at_s)
        answer, silence = (None, None) if self._driver is None else self._driver.read()
        if answer is not None and not self._read_anew and _half_read(self._node):
            # the driver hung while the facts were read, and answers now
            self._read_anew = True
            before, self._node = self._node, self._collect()
            yield self._opening(at_s)
            if len(before.gpus) < len(self._node.gpus):
                self._close_driver()
                self._watch_driver()
                answer, silence = (None, None) if self._driver is None else self._driver.read()
        processes = None if answer is None or answer.processes is None else self._processes.read(answer.processes)
        yield Tick(
            at_s=at_s,
            gpus=() if answer is None else answer.gpus,
            host=self._host.read(),
            processes=processes,
            kernel=self._new_events(),
            silence=silence,
            cost_ms=None if answer is None else answer.cost_ms,
        )

    def _opening(self, at_s: float) -> Opening:
        self._opened = True
        return Opening("gpudoctor.watch/1", at_s, self._interval_s, self._node)

    def _new_events(self) -> tuple[KernelEvent, ...]:
        events = tuple(event for event in self._kernel.read() if event not in self._in_facts)
        self._in_facts = frozenset()
        return events

    def close(self) -> None:
        self._close_driver()
        self._kernel.close()

    def _close_driver(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None


def _half_read(node: Node) -> bool:
    return bool(node.driver.unanswered or node.driver.unread_handles) or (
        isinstance(node.driver.init_code, Missing) and node.driver.module_loaded is True
    )


class SimulatedSource:
    """A simulated or captured node, with generated values."""

    def __init__(self, node: Node, interval_s: float) -> None:
        self._node = node
        self._interval_s = interval_s
        self._number = 0

    def lines(self, at_s: float) -> Iterator[Opening | Tick]:
        number, self._number = self._number, self._number + 1
        if number == 0:
            yield Opening("gpudoctor.watch/1", at_s, self._interval_s, self._node)
        yield live.ticks_of(self._node, number, at_s, self._interval_s)

    def close(self) -> None:
        pass


class RecordedSource:
    """A recorded stream, with its original times."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._number = 0

    def lines(self, at_s: float) -> Iterator[Opening | Tick]:
        number, self._number = self._number, self._number + 1
        if number in self._recording.openings:
            yield self._recording.opening_at(number)
        if number < self._recording.count:
            yield self._recording.tick(number)

    def close(self) -> None:
        self._recording.close()


def open_source(name: str | None, faults: list[str], interval_s: float) -> StreamSource:
    """Open the source that `--node` and `--fault` describe. Raise UserError."""
    if name is None:
        if faults:
            raise UserError("--fault is for simulated nodes and captures: name one with --node (see: gpudoctor nodes)")
        return LiveSource(interval_s)
    if name != "-" and not faults and recording.is_stream_file(name):
        return RecordedSource(recording.read_stream(name))
    node = source.load_source(name).node
    if faults:
        node = load.apply_faults(node, faults)
    return SimulatedSource(node, interval_s)
