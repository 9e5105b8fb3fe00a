"""Many quick checks started together on one machine: every verdict, and what they leave behind.

Half of them read a simulated node, half of them a fake driver (the C library, pynvml, the collector process), healthy
and broken: a driver that hangs, a GPU that is lost, links that are slow. A loaded machine must not convict a healthy
driver, nor make a broken one pass. Exits 1 if an exit code or a verdict is wrong, or if a process, a temporary file or
shared memory is left behind.

    python benchmarks/at_once.py --count 64
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import psutil

MARK = "GPUDOCTOR_AT_ONCE"
SHM = Path("/dev/shm")
_END_WITHIN_S = 300.0


class Job(NamedTuple):
    """One check: its node or driver, and its expected result."""

    fake_driver: bool
    fault: str | None
    verdict: str
    exit_code: int
    found: str | None = None
    gpu: int | None = None

    def command(self, node: str) -> list[str]:
        own = [sys.executable, "-m", "gpudoctor"]
        on = ["--node", node, *(("--fault", self.fault) if self.fault else ())]
        check = [*own, "check", "--level", "quick", "--json"]
        return [*own, "fake-driver", *on, "--", *check] if self.fake_driver else [*check, *on]

    def __str__(self) -> str:
        return f"{'fake driver' if self.fake_driver else 'simulated node'} with {self.fault or 'nothing'}"


JOBS = (
    Job(True, None, "pass", 0),
    Job(False, None, "pass", 0),
    Job(True, "gpu-lost@2", "fail", 1, "gpu.lost", 2),
    Job(False, "gpu-lost@2", "fail", 1, "gpu.lost", 2),
    Job(True, "driver-hang@3", "fail", 1, "driver.responsive", 3),
    Job(False, "driver-hang@3", "fail", 1, "driver.responsive", 3),
    Job(True, "ecc-uncorrected@1", "fail", 1, "gpu.ecc", 1),
    Job(False, "nvlink-link-down@5", "fail", 1, "nvlink.links", 5),
    Job(True, "power-cap@6", "warn", 0, "gpu.power-limit", 6),
    Job(False, "pcie-width-x8@4", "fail", 1, "pcie.link-width", 4),
)


class Answer(NamedTuple):
    """What came of a job."""

    job: Job
    exit_code: int
    report: Mapping[str, Any] | None
    seconds: float
    words: str


def answers(node: str, count: int, folder: Path) -> Iterator[Answer]:
    """Start all of them, then collect each as it ends."""
    environ = {**os.environ, "TMPDIR": str(folder / "tmp"), MARK: str(folder)}
    (folder / "tmp").mkdir()
    began = time.monotonic()
    running = []
    for number, job in enumerate(islice(cycle(JOBS), count)):
        out, errors = (folder / f"{number}.{kind}" for kind in ("out", "err"))
        with out.open("wb") as stdout, errors.open("wb") as stderr:
            process = subprocess.Popen(
                job.command(node), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environ
            )
        running.append((job, process, out, errors))
    while running:
        for one in tuple(running):
            job, process, out, errors = one
            if process.poll() is None:
                if time.monotonic() - began < _END_WITHIN_S:
                    continue
                process.kill()
                process.wait()
            running.remove(one)
            try:
                report = json.loads(out.read_bytes())
            except ValueError:
                report = None
            words = errors.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
            yield Answer(job, process.returncode, report, time.monotonic() - began, words)
        time.sleep(0.02)


def problems(answer: Answer) -> list[str]:
    """What is wrong with this run: exit code, verdict, unexpected failures, or a finding on another GPU."""
    job, report = answer.job, answer.report
    if report is None:
        return [f"exit code {answer.exit_code} and no report: {answer.words}"]
    wrong = []
    if (answer.exit_code, report["verdict"]) != (job.exit_code, job.verdict):
        wrong.append(f"exit code {answer.exit_code} and {report['verdict']}, not {job.exit_code} and {job.verdict}")
    faults = [(fault["check"], fault["subject"].get("gpu")) for fault in report["faults"]]
    if faults != ([(job.found, job.gpu)] if job.verdict == "fail" else []):
        wrong.append(f"its faults are {faults}: {report['reason']}")
    checks = {check["id"]: check for check in report["checks"]}
    if job.verdict == "warn" and checks[job.found]["status"] != "warn":
        wrong.append(f"{job.found} is {checks[job.found]['status']}")
    if job.verdict != "fail":
        wrong += [f"{name} is unknown" for name, check in checks.items() if check["status"] == "unknown"]
    return wrong


def left_behind(folder: Path, shm_before: set[str]) -> list[str]:
    """Processes, temporary files and shared memory that outlived their check."""
    left = [f"{path} is left" for path in (folder / "tmp").rglob("*")]
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(folder):
                left.append(f"process {process.pid} is left: {' '.join(process.cmdline())[:100]}")
        except psutil.Error:
            continue
    return left + [f"{SHM / name} is left" for name in sorted(_names(SHM) - shm_before)]


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def at_once(node: str, count: int) -> tuple[list[Answer], list[str]]:
    """Run `count` checks together: their answers, and all that is wrong, in words."""
    shm_before = _names(SHM)
    with tempfile.TemporaryDirectory(prefix="gpudoctor-at-once-") as name:
        folder = Path(name)
        # built once before: the first of many would time the compiler
        built = Job(True, None, "pass", 0).command(node)
        subprocess.run([*built[: built.index("--")], "--", "true"], stderr=subprocess.DEVNULL, check=True)
        got = list(answers(node, count, folder))
        wrong = [f"{answer.job}: {words}" for answer in got for words in problems(answer)]
        return got, wrong + left_behind(folder, shm_before)


def main() -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--node", default="hgx-h100-8")
    parser.add_argument("--count", type=int, default=64)
    args = parser.parse_args()
    got, wrong = at_once(args.node, args.count)
    for words in wrong:
        print(words)
    worst = max(got, key=lambda answer: answer.seconds)
    first = min(got, key=lambda answer: answer.seconds)
    print(
        f"{len(got)} checks at once on {os.cpu_count()} CPUs: {worst.seconds:.1f} s in all, the first after"
        f" {first.seconds:.1f} s, the last was {worst.job}; {len(wrong)} wrong"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
