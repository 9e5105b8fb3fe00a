"""A whole Doctor without a child: lines are put in by hand, checks are judged in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace
from textual.pilot import Pilot

from gpudoctor.checks.core.registry import Level
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import NOT_READ, known
from gpudoctor.facts.model.node import KernelEvent, Node
from gpudoctor.facts.simulated.load import apply_faults, load_node
from gpudoctor.facts.stream.messages import GpuTick, HostTick, Opening, ProcessTick, Silence, Tick, WatchLine
from gpudoctor.report.judge import Question, judge
from gpudoctor.tui.app import Doctor
from gpudoctor.tui.check_runner import Checker, OnProgress
from gpudoctor.tui.state import FeedFailure, FinishedRun, State
from tests.tui.screen import until

AT_S = 1_790_000_000.0


def node_of(name: str = "hgx-h100-8", *faults: str) -> Node:
    return apply_faults(load_node(name, {}), list(faults)) if faults else load_node(name, {})


def opening_of(node: Node, at_s: float = AT_S) -> Opening:
    return Opening("gpudoctor.watch/1", at_s, 1.0, node)


def gpu_tick(index: int, **readings: float) -> GpuTick:
    usual = {
        "utilization_pct": 98.0,
        "memory_used_mib": 73318.0,
        "temperature_c": 57.0,
        "power_w": 511.0,
        "sm_mhz": 1980.0,
        "pcie_rx_gb_s": 3.14,
        "pcie_tx_gb_s": 0.21,
        "nvlink_rx_gb_s": 131.2,
        "nvlink_tx_gb_s": 130.4,
    }
    return GpuTick(index, {**usual, **readings}, events=())


def tick_of(
    node: Node,
    second: int = 1,
    *,
    without: Sequence[int] = (),
    changed: dict[int, GpuTick] | None = None,
    kernel: Sequence[str | KernelEvent] = (),
    silence: Silence | None = None,
    processes: tuple[ProcessTick, ...] | None = None,
) -> Tick:
    gpus = tuple((changed or {}).get(gpu.index, gpu_tick(gpu.index)) for gpu in node.gpus if gpu.index not in without)
    host = HostTick(cpu_pct=38.2, cpus=224, ram_used_mib=421_888.0, ram_total_mib=2_063_000.0, load_1min=31.25)
    events = tuple(KernelEvent("xid", line) if isinstance(line, str) else line for line in kernel)
    if silence is not None:
        gpus = ()
    return Tick(AT_S + second, gpus, host, processes, events, silence, cost_ms=3.2)


def torchrun(node: Node, user: str = "alice") -> tuple[ProcessTick, ...]:
    return tuple(
        ProcessTick(gpu.index, 4000 + gpu.index, "python", "C", user, 73000.0, 99.0, "train.py", "torchrun", gpu.index)
        for gpu in node.gpus
    )


def state_of(node: Node, *ticks: Tick) -> State:
    state = State(label=known(node.host.hostname) or "node")
    state.open(opening_of(node))
    for tick in ticks or (tick_of(node),):
        state.take(tick)
    return state


class HandFeed:
    """A feed whose lines the test puts in."""

    def __init__(self, *lines: WatchLine | FeedFailure, label: str = "dgx-h100-17") -> None:
        self.label = label
        self.closed = 0
        self._queue: asyncio.Queue[WatchLine | FeedFailure] = asyncio.Queue()
        for line in lines:
            self._queue.put_nowait(line)

    def put(self, line: WatchLine | FeedFailure) -> None:
        self._queue.put_nowait(line)

    async def lines(self) -> AsyncIterator[WatchLine | FeedFailure]:
        while True:
            yield await self._queue.get()

    def close(self) -> None:
        self.closed += 1


class HandChecker(Checker):
    """Judges a node in this process; `hold` keeps a run going until `cancel`."""

    def __init__(self, node: Node, *, hold: bool = False, loads: bool = False) -> None:
        super().__init__(["gpudoctor"], [] if loads else ["--node", "x"])
        self.judged = node
        self.asked: list[tuple[tuple[str, ...], Level]] = []
        self.closed = 0
        self._ended = asyncio.Event()
        self._hold = hold

    async def run(
        self, words: Sequence[str], level: Level, *, force: bool = False, on_progress: OnProgress | None = None
    ) -> FinishedRun:
        self.asked.append((tuple(words), level))
        if self._hold:
            await self._ended.wait()
            return FinishedRun(AT_S, tuple(words), level, None, "cancelled, without a report")
        report = judge(self.judged, question=Question(level=level))
        return FinishedRun(AT_S, tuple(words), level, report)

    def cancel(self) -> None:
        self._ended.set()

    def close(self) -> None:
        self.closed += 1
        self._ended.set()


def doctor(
    node: Node | None = None, *lines: WatchLine | FeedFailure, checker: Checker | None = None, **options: Any
) -> Doctor:
    """A Doctor of a node that was opened and ticked once (or brought `lines`)."""
    node = node if node is not None else node_of()
    feed = HandFeed(*(lines or (opening_of(node), tick_of(node))))
    options.setdefault("clock", lambda: AT_S + 1)
    return Doctor(feed, checker or HandChecker(node), **options)


def put(app: Doctor, line: WatchLine | FeedFailure) -> None:
    assert isinstance(app._feed, HandFeed)
    app._feed.put(line)


@asynccontextmanager
async def shown(app: Doctor, size: tuple[int, int] = (120, 36)) -> AsyncIterator[tuple[Doctor, Pilot[Any]]]:
    """The app on a screen, once the node was checked."""
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.state.tick is not None)
        if app._first_level is not None:
            await until(pilot, lambda: bool(app.state.runs) or app.state.running is not None)
        yield app, pilot


def recorded(tmp_path: Path, seconds: int = 60) -> Path:
    node = node_of()
    ticks = (tick_of(node, s, changed={0: gpu_tick(0, power_w=float(s))}) for s in range(seconds))
    return written(tmp_path / "day.jsonl", opening_of(node), *ticks)


def written(path: Path, *lines: WatchLine) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return path


def sixteen(node: Node | None = None) -> Node:
    """Two baseboards of eight in one node: the second in another PCI domain, and every pair joined like the first."""
    node = node or node_of()
    second = tuple(_on_second_board(gpu) for gpu in node.gpus)
    joined = (known(node.pairs) or ())[0]
    return replace(
        node,
        gpus=(*node.gpus, *second),
        pairs=tuple(replace(joined, a=a, b=b) for a, b in combinations(range(2 * len(node.gpus)), 2)),
        driver=replace(node.driver, device_count=2 * len(node.gpus)),
        pci=replace(node.pci, nvidia_devices=NOT_READ),
    )


def _on_second_board(gpu: Gpu) -> Gpu:
    path = tuple(replace(hop, bus_id=f"0001:{hop.bus_id[5:]}") for hop in known(gpu.pcie.path) or ())
    return replace(
        gpu,
        index=gpu.index + 8,
        bus_id=f"0001:{gpu.bus_id[5:]}",
        uuid=f"{gpu.uuid}-second",
        pcie=replace(gpu.pcie, path=path),
    )
