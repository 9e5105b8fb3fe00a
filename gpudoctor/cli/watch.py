"""`gpudoctor watch`: the facts once, then what changes, one JSON line at a time."""

from __future__ import annotations

import argparse
import io
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, BinaryIO, Protocol

import msgspec

from gpudoctor.errors import UserError
from gpudoctor.exits import OK
from gpudoctor.facts.kernel_log.tail import KernelTail
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import KernelEvent, Node
from gpudoctor.facts.stream.messages import Opening, Tick
from gpudoctor.json_text import terminal_safe

if TYPE_CHECKING:
    from gpudoctor.facts.stream.driver import DriverWatch
    from gpudoctor.facts.stream.recording import Recording


class ClosedError(Exception):
    """Nobody reads any more."""


class Lines:
    """stdout, a line at a time, unbuffered: what waits for a reader that sleeps must not be lost or held back twice."""

    def __init__(self, stream: BinaryIO) -> None:
        self._raw = getattr(stream, "raw", stream)
        self._encode = msgspec.json.Encoder().encode
        self._poll: select.poll | None = None
        try:
            descriptor = self._raw.fileno()
            self._poll = select.poll()
            self._poll.register(descriptor, 0)  # errors only: the reader is gone
        except (OSError, io.UnsupportedOperation, ValueError):
            self._poll = None

    def write(self, line: Opening | Tick) -> None:
        """Raise ClosedError where the reader has gone, UserError where stdout cannot take it."""
        data = memoryview(terminal_safe(self._encode(line)) + b"\n")
        try:
            while data:
                data = data[self._raw.write(data) or 0 :]
        except BrokenPipeError:
            raise ClosedError from None
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise UserError(f"stdout could not take the line ({why})") from None

    def wait(self, seconds: float) -> None:
        """Wait; raise ClosedError as soon as the reader has gone."""
        if self._poll is None:
            time.sleep(seconds)
        elif self._poll.poll(seconds * 1000):
            raise ClosedError


class Source(Protocol):
    """Where lines come from."""

    def lines(self, at_s: float) -> Iterator[Opening | Tick]:
        """What is to be told at a Unix time, facts first; nothing where there is no more."""

    def close(self) -> None: ...


class Live:
    """This machine. `nvml_module` stands in for pynvml in tests, and `root` for /."""

    def __init__(self, interval_s: float, root: Path = Path("/"), nvml_module: str | None = None) -> None:
        self._interval_s = interval_s
        self._root = root
        self._nvml = nvml_module
        self._opened = self._read_anew = False
        self._driver: DriverWatch | None = None
        # before the facts are read: what the kernel says meanwhile is in one of them
        self._kernel = KernelTail(root)
        try:
            self._node = self._collect()
            self._in_facts = frozenset(known(self._node.kernel_log.events) or ())
            self._readers()
        except BaseException:
            self.close()
            raise

    def _collect(self) -> Node:
        from gpudoctor.facts.collect import collect_live

        return collect_live(self._root, nvml_module=self._nvml)

    def _readers(self) -> None:
        from gpudoctor.facts.stream.host import HostReader
        from gpudoctor.facts.stream.processes import ProcessReader

        self._host = HostReader(self._node.host, self._root)
        self._processes = ProcessReader()
        self._watch_driver()

    def _watch_driver(self) -> None:
        from gpudoctor.facts.stream.driver import DriverWatch

        driver = self._node.driver
        code = known(driver.init_code)
        no_driver = driver.module_loaded is False or code not in (None, 0)
        if not no_driver and (self._node.gpus or driver.device_count != 0):
            gpus = [(gpu.index, known(gpu.uuid)) for gpu in self._node.gpus]
            self._driver = DriverWatch(gpus, self._interval_s, self._nvml)

    def lines(self, at_s: float) -> Iterator[Opening | Tick]:
        if not self._opened:
            yield self._opening(at_s)
        answer, silence = (None, None) if self._driver is None else self._driver.read()
        if answer is not None and not self._read_anew and _half_read(self._node):
            # the driver hung when the facts were read, and answers now
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


class Made:
    """A node that is not here."""

    def __init__(self, node: Node, interval_s: float) -> None:
        self._node = node
        self._interval_s = interval_s
        self._number = 0

    def lines(self, at_s: float) -> Iterator[Opening | Tick]:
        from gpudoctor.facts.simulated.live import ticks_of

        number, self._number = self._number, self._number + 1
        if number == 0:
            yield Opening("gpudoctor.watch/1", at_s, self._interval_s, self._node)
        yield ticks_of(self._node, number, at_s, self._interval_s)

    def close(self) -> None:
        pass


class Recorded:
    """A recorded stream, told again with the times it was written at."""

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


def open_source(name: str | None, faults: list[str], interval_s: float) -> Source:
    """What `--node` and `--fault` name. Raise UserError."""
    if name is None:
        if faults:
            raise UserError("--fault is for simulated nodes and captures: name one with --node (see: gpudoctor nodes)")
        return Live(interval_s)
    from gpudoctor.facts.captures.source import load_source

    if name != "-" and not faults and Path(name).is_file():
        from gpudoctor.facts.stream.recording import is_stream_file, read_stream

        if is_stream_file(name):
            return Recorded(read_stream(name))
    node = load_source(name, stdin=sys.stdin.buffer if name == "-" and sys.stdin else None).node
    if faults:
        from gpudoctor.facts.simulated.load import apply_faults

        node = apply_faults(node, faults)
    return Made(node, interval_s)


def watch(args: argparse.Namespace) -> int:
    """Write lines until nobody reads them, or to the end of a recording; give the exit code."""
    if sys.stdout is None:
        raise UserError("stdout is closed: gpudoctor watch writes its lines there")
    lines = Lines(sys.stdout.buffer)
    with ExitStack() as kept:
        source = open_source(args.node, args.fault, args.interval)
        kept.callback(source.close)
        with suppress(ClosedError):
            follow(source, lines, args.interval)
    return OK


def follow(source: Source, lines: Lines, interval_s: float, clock: Callable[[], float] = time.time) -> None:
    """Write every line of the source in its time. Raise ClosedError, UserError."""
    due_s = monotonic()
    while True:
        at_s = round(clock(), 3)
        told = False
        for line in source.lines(at_s):
            lines.write(line)
            told = True
        if not told:
            return
        due_s += interval_s
        if due_s < monotonic() - interval_s:
            due_s = monotonic()  # what came too late is left out, not caught up with
        lines.wait(max(0.0, due_s - monotonic()))
