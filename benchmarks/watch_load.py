"""What `gpudoctor watch` becomes when it runs on and on: memory, descriptors, CPU, and missed ticks.

It watches a simulated node through the fake driver, so along the real path: the C library, pynvml, and the process that
calls the driver. Both processes count. A tick is missed if the timestamps of the ticks leave a gap, or if it lacks a
GPU. Exits 1 if RSS grew by --max-growth-mib or more from the end of the first minute on, if more than --max-missed-pct
of the ticks were missed, if a descriptor or process more was open at the end, or if the driver's reader was not the
same throughout.

    python benchmarks/watch_load.py --minutes 10
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

import psutil

WARM_UP_S = 60.0
SAMPLE_EVERY_S = 1.0
END_WITHIN_S = 30.0


class Sample(NamedTuple):
    """Of the watching process and of those it has started, at `at_s` seconds after the first tick."""

    at_s: float
    pids: tuple[int, ...]
    rss_mib: tuple[float, ...]
    descriptors: tuple[int, ...]
    cpu_s: float


class Ticks:
    """Reads the lines as they come and keeps only numbers: a reader that falls behind would hold the watch up."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines
        self.gpus = 0
        self.at_s: list[float] = []
        self.cost_ms: list[float] = []
        self.partial = 0
        self.began = threading.Event()

    def read(self) -> None:
        for line in self._lines:
            told = json.loads(line)
            if told["kind"] == "opening":
                self.gpus = len(told["node"]["gpus"])
                continue
            self.at_s.append(told["at_s"])
            self.cost_ms.append(told.get("cost_ms", 0.0))
            # a value that a silent driver left out is no reading
            self.partial += "silence" in told or len(told.get("gpus", ())) != self.gpus
            self.began.set()
        self.began.set()

    def holes(self, interval_s: float) -> tuple[int, int]:
        """How many ticks should have come in the time, and how many were missed."""
        expected = round((self.at_s[-1] - self.at_s[0]) / interval_s) + 1
        pairs = zip(self.at_s, self.at_s[1:], strict=False)
        return expected, sum(max(0, round((later - sooner) / interval_s) - 1) for sooner, later in pairs)


def sampled(watch: psutil.Process, at_s: float) -> Sample:
    """Both processes now; one that has exited in between shows up by its changed pid in the next sample."""
    found = []
    for process in (watch, *watch.children(recursive=True)):
        try:
            with process.oneshot():
                times = process.cpu_times()
                found.append(
                    (process.pid, process.memory_info().rss / 2**20, process.num_fds(), times.user + times.system)
                )
        except psutil.NoSuchProcess:
            continue
    pids, rss_mib, descriptors, cpu_s = zip(*found, strict=True)
    return Sample(at_s, pids, rss_mib, descriptors, sum(cpu_s))


def watched(node: str, interval_s: float, seconds: float) -> tuple[Ticks, list[Sample]]:
    """Run it for so long after its first tick, and end it as a user would."""
    own = [sys.executable, "-m", "gpudoctor"]
    command = [*own, "fake-driver", "--node", node, "--", *own, "watch", "--interval", f"{interval_s:g}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        ticks = Ticks(process.stdout)
        reader = threading.Thread(target=ticks.read, daemon=True)
        reader.start()
        ticks.began.wait()
        began = time.monotonic()
        samples = []
        try:
            [watch] = psutil.Process(process.pid).children()
            while (passed_s := time.monotonic() - began) < seconds:
                samples.append(sampled(watch, passed_s))
                time.sleep(SAMPLE_EVERY_S)
        except (psutil.Error, ValueError):
            sys.exit(f"gpudoctor watch ended by itself after {time.monotonic() - began:.0f} s")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(END_WITHIN_S)
        reader.join(END_WITHIN_S)
    return ticks, samples


def main() -> int:
    """Watch, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--node", default="hgx-h100-8")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS")
    parser.add_argument("--max-growth-mib", type=float, default=2.0)
    parser.add_argument("--max-missed-pct", type=float, default=1.0)
    args = parser.parse_args()
    seconds = args.minutes * 60
    ticks, samples = watched(args.node, args.interval, seconds)
    if len(ticks.at_s) < 2 or len(samples) < 2:
        sys.exit(f"gpudoctor watch wrote {len(ticks.at_s)} ticks in {seconds:g} s")
    warm_s = min(WARM_UP_S, seconds / 2)
    first = next((sample for sample in samples if sample.at_s >= warm_s), samples[-1])
    last = samples[-1]
    growth_mib = sum(last.rss_mib) - sum(first.rss_mib)
    expected, holes = ticks.holes(args.interval)
    missed_pct = (holes + ticks.partial) / expected * 100
    costs_ms = sorted(ticks.cost_ms)
    print(
        f"RSS after {first.at_s:.0f} s {sum(first.rss_mib):.1f} MiB,"
        f" after {last.at_s:.0f} s {sum(last.rss_mib):.1f} MiB"
        f" ({' + '.join(f'{mib:.1f}' for mib in last.rss_mib)}): growth {growth_mib:.2f} MiB"
        f" (less than {args.max_growth_mib:g})"
    )
    print(f"descriptors: first {list(first.descriptors)}, last {list(last.descriptors)}; pids {list(last.pids)}")
    print(
        f"ticks: {expected} expected, {holes} not there, {ticks.partial} not of all {ticks.gpus} GPUs:"
        f" {missed_pct:.2f} % missed (at most {args.max_missed_pct:g});"
        f" the driver was busy {costs_ms[len(costs_ms) // 2]:.1f} ms a tick, {costs_ms[-1]:.0f} at most"
    )
    print(f"CPU {(last.cpu_s - first.cpu_s) / (last.at_s - first.at_s) * 100:.2f} % of a core")
    more = sum(last.descriptors) > sum(first.descriptors)
    changed = any(sample.pids != first.pids for sample in samples if sample.at_s >= warm_s)
    if changed:
        print("the processes were not the same throughout")
    return int(growth_mib >= args.max_growth_mib or missed_pct > args.max_missed_pct or more or changed)


if __name__ == "__main__":
    sys.exit(main())
