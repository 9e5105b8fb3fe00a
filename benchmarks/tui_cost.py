"""What the live view costs: CPU and memory of `gpudoctor tui` with its children, its first paint, and nvitop beside it.

Both run for the same time at one sample a second in a terminal of 120 x 36, one after the other, on the same simulated
node: gpudoctor with --node, nvitop (if it is installed) on our fake driver. Exits 1 if gpudoctor needs more than --max
times nvitop's CPU, more than --max-rss-mib, or paints later than --max-first-paint-s.

    pip install nvitop; python benchmarks/tui_cost.py
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import NamedTuple

import psutil

# a busy node, as ours is: values that move, and one process on each GPU
NVITOP = """
import random
import sys
sys.path.insert(0, {root!r})
import pynvml
from msgspec.structs import replace
from gpudoctor.facts.model.gpu import GpuProcess
from gpudoctor.facts.captures.source import load_source
from gpudoctor.testing.fake_nvml import FakeNvml

node = load_source({node!r}).node
pids = {pids!r}
busy = (
    replace(gpu, memory_used_mib=60000, memory_free_mib=20000, processes=(GpuProcess(pid=pid, memory_mib=59000),))
    for gpu, pid in zip(node.gpus, pids)
)
fake = FakeNvml(replace(node, gpus=tuple(busy)))


def answered(name):
    asks = [getattr(fake, name + version) for version in ("", "_v3", "_v2") if hasattr(pynvml, name + version)]

    def call(*arguments, **named):
        for ask in asks:
            try:
                return ask(*arguments, **named)
            except IndexError:  # a clock that the fake driver does not have
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED) from None
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                    raise
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    return call


def utilization(handle):
    return pynvml.c_nvmlUtilization_t(random.randint(90, 100), random.randint(40, 60))


for name in dir(pynvml):
    if name.startswith(("nvmlDevice", "nvmlSystem", "nvmlInit")) and callable(getattr(pynvml, name)):
        setattr(pynvml, name, answered(name))
pynvml.nvmlInitWithFlags = lambda flags=0: fake.nvmlInit()
pynvml.nvmlShutdown = lambda: None
pynvml.nvmlDeviceGetUtilizationRates = utilization
pynvml.nvmlDeviceGetPowerUsage = lambda handle: random.randint(500_000, 600_000)
from nvitop.api import libnvml
from nvitop.cli import main

# these it asks the library itself for, past pynvml
for kind in ("MemoryInfo", "ComputeRunningProcesses", "GraphicsRunningProcesses", "MPSComputeRunningProcesses"):
    setattr(libnvml, "nvmlDeviceGet" + kind, answered("nvmlDeviceGet" + kind))
sys.argv = ["nvitop", "--monitor", "full", "--interval", "1"]
sys.exit(main())
"""


# the least that a screen made with Textual can do: the baseline of a first paint
FLOOR = """
from textual.app import App
from textual.widgets import Static


class Least(App):
    def compose(self):
        yield Static("Overview")


Least().run()
"""


class Cost(NamedTuple):
    """Of one program and its children: CPU in percent of one core, resident memory, and seconds to the first paint."""

    cpu_pct: float
    rss_mib: float
    first_paint_s: float | None
    processes: int


def cost_of(command: list[str], sign: bytes, settle_s: float, watch_s: float) -> Cost:
    """Run it in a terminal; `sign` is text of the first painted screen."""
    began = time.monotonic()
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="120", LINES="36")
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 36, 120, 0, 0))
    painted_s, seen = None, b""
    try:
        end = began + settle_s
        while time.monotonic() < end:
            seen = (seen + _read(terminal, end))[-200_000:]
            if painted_s is None and sign in seen:
                painted_s = time.monotonic() - began
        if painted_s is None:
            sys.exit(f"{command[0]} painted no {sign!r} in {settle_s:g} s: {seen[-600:]!r}")
        tree = psutil.Process(pid)
        before, started = _cpu_s(tree), time.monotonic()
        end = started + watch_s
        while time.monotonic() < end:
            _read(terminal, end)
        passed_s, cpu_s = time.monotonic() - started, _cpu_s(tree) - before
        everyone = [tree, *tree.children(recursive=True)]
        rss_mib = sum(process.memory_info().rss for process in everyone) / 2**20
        return Cost(cpu_s / passed_s * 100, rss_mib, painted_s, len(everyone))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def _read(terminal: int, end: float) -> bytes:
    if not select.select([terminal], [], [], max(0.0, end - time.monotonic()))[0]:
        return b""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""


def _cpu_s(process: psutil.Process) -> float:
    """Of the process and its children, those that have ended included."""
    total = 0.0
    for each in [process, *process.children(recursive=True)]:
        times = each.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    return total


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--node", default="hgx-h100-8")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--settle", type=float, default=8.0, help="seconds before it counts: the first check runs")
    parser.add_argument("--max", type=float, default=1.5)
    parser.add_argument("--max-rss-mib", type=float, default=120.0)
    parser.add_argument("--max-first-paint-s", type=float, default=0.7)
    args = parser.parse_args()
    ours = cost_of(
        [sys.executable, "-m", "gpudoctor", "tui", "--node", args.node], b"Overview", args.settle, args.seconds
    )
    floor = cost_of([sys.executable, "-c", FLOOR], b"Overview", 4.0, 0.1)
    print(
        f"gpudoctor tui and its children ({ours.processes} processes): CPU {ours.cpu_pct:.1f} % of a core,"
        f" RSS {ours.rss_mib:.0f} MiB (at most {args.max_rss_mib:g}),"
        f" first paint {ours.first_paint_s:.2f} s (at most {args.max_first_paint_s:g};"
        f" a Textual app with one word: {floor.first_paint_s:.2f} s)",
        flush=True,
    )
    missed = ours.rss_mib > args.max_rss_mib or (ours.first_paint_s or 99) > args.max_first_paint_s
    try:
        import nvitop  # noqa: F401
    except ImportError:
        print("nvitop is not installed: nothing to compare with")
        return int(missed)
    root = str(Path(__file__).resolve().parent.parent)
    jobs = [subprocess.Popen(["sleep", "1000"]) for _ in range(8)]
    try:
        program = NVITOP.format(root=root, node=args.node, pids=[job.pid for job in jobs])
        theirs = cost_of([sys.executable, "-c", program], b"H100", args.settle, args.seconds)
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    ratio = ours.cpu_pct / theirs.cpu_pct
    print(f"nvitop on our fake driver: CPU {theirs.cpu_pct:.1f} % of a core, RSS {theirs.rss_mib:.0f} MiB")
    print(f"ratio {ratio:.2f} (at most {args.max})")
    return int(missed or ratio > args.max)


if __name__ == "__main__":
    sys.exit(main())
