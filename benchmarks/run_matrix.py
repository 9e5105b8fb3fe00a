"""Whether `gpudoctor run` names the right rank and the right cause, and nothing else: trainings, each with each fault.

    python benchmarks/run_matrix.py [--trainings tutorial,fsdp2] [--faults compute,hang] [--ranks 2,4] [--repeat 20]
    python benchmarks/run_matrix.py --clean 40

The truth is in EXPECTED: check, rank (that with the fault, or none) and words of its finding. A row is right if that
finding is there, and every other finding that is a warning or failure names the same rank or none. A clean run is right
without any. The trainings are those of run_training.py; those of a framework that is not installed are left out. The
memory limit needs root and cgroup v2. Exits 1 if a row is wrong, and keeps its report.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

_TRAINING = Path(__file__).with_name("run_training.py")
_LIMIT_S = 400
_CGROUP = Path("/sys/fs/cgroup")
_MEMORY_MIB = 1500


class Expected(NamedTuple):
    """The check that finds it, whether it names the rank, and what its words are."""

    check: str
    words: str
    names_rank: bool = True
    options: tuple[str, ...] = ()


_HANG = ("--hang-after", "8", "--on-hang", "end")
EXPECTED = {
    "compute": Expected("run.balance", "slow compute"),
    "data": Expected("run.data", "slow data"),
    "host": Expected("run.host", "host time"),
    "python": Expected("run.host", "host time"),
    "blocked": Expected("run.balance", "stands still"),
    "uneven": Expected("run.batch", "uneven batches"),
    "core": Expected("run.balance", "want of a CPU"),
    "leak": Expected("run.memory", "memory leak"),
    "hang": Expected("run.progress", "run_training.py:{line} in stand_still", options=_HANG),
    "leave": Expected("run.progress", "left by itself"),
    "raise": Expected("run.progress", "raised ValueError: label 17 is out of range"),
    "kill": Expected("run.progress", "killed by a signal"),
    "exit0": Expected("run.progress", "left by itself"),
    "exit0-at-once": Expected("run.progress", "without Python's own end"),
    "oom": Expected("run.memory", "memory limit"),
    "nan": Expected("run.finite", "not finite"),
}
# what makes a fault large enough to matter; compute is the 15 % that must be seen, in a few seconds of training
_SHARES = {"data": "0.5", "host": "0.5", "python": "0.5", "blocked": "0.5"}
_STEPS = {"compute": "400"}
# what torchrun does to the others is part of it; else a launcher that imports no torch saves a third of the time
_OF_TORCHRUN = ("leave", "raise", "kill", "exit0", "exit0-at-once", "oom", "hang")
_LAUNCHER = """
import os, socket, subprocess, sys
with socket.socket() as own:
    own.bind(("127.0.0.1", 0))
    port = own.getsockname()[1]
common = dict(os.environ, WORLD_SIZE=sys.argv[1], MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
numbers = map(str, range(int(sys.argv[1])))
ranks = [subprocess.Popen(sys.argv[2:], env=dict(common, RANK=n, LOCAL_RANK=n)) for n in numbers]
sys.exit(max(rank.wait() for rank in ranks))
"""
_BUSY = "import os, sys; os.sched_setaffinity(0, {0})\nwhile os.getppid() == int(sys.argv[1]): pass"
_FRAMEWORKS = ("accelerate", "lightning")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trainings", default="tutorial,fsdp2,accelerate,lightning,manual")
    parser.add_argument("--faults", default=",".join(EXPECTED))
    parser.add_argument("--ranks", default="2")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--clean", type=int, default=0, help="so many runs without a fault, and nothing else")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    trainings = [
        name for name in args.trainings.split(",") if name not in _FRAMEWORKS or importlib.util.find_spec(name)
    ]
    sizes = [int(size) for size in args.ranks.split(",")]
    draw = random.Random(args.seed)
    if args.clean:
        results = [clean(number, draw, trainings) for number in range(args.clean)]
    else:
        results = [
            row(training, size, fault, number)
            for training in trainings
            for size in sizes
            for fault in args.faults.split(",")
            for number in range(args.repeat)
        ]
    print(f"right: {sum(results)} of {len(results)}")
    return 0 if all(results) else 1


def row(training: str, size: int, fault: str, number: int) -> bool:
    """One training with one fault; whether what is said of it is right."""
    bad = (number + 1) % size
    expected = EXPECTED[fault]
    arguments = ["--fault", fault, "--rank", str(bad), "--share", _SHARES.get(fault, "0.15")]
    arguments += ["--steps", _STEPS.get(fault, "100")]
    around = {"oom": memory_limit, "core": busy_core}.get(fault, nothing_around)
    began_s = time.monotonic()
    with around() as prefix:
        report = run(training, size, arguments, expected.options, prefix)
    words = expected.words.format(line=_line_of("time.sleep(10_000)"))
    found = problems(report)
    right = [each for each in found if each["id"] == expected.check and words in _words(each)]
    right = [each for each in right if each["subject"].get("rank") == (bad if expected.names_rank else None)]
    others = [each for each in found if each["subject"].get("rank") not in (None, bad)]
    right_only = bool(right) and not others
    return said(f"{training} x {size}, {fault} on rank {bad}", right_only, report, began_s, expected.check)


def clean(number: int, draw: random.Random, trainings: list[str]) -> bool:
    """One training without a fault, each time another one."""
    training, size = draw.choice([*trainings, "single"]), draw.choice([1, 2, 2, 4])
    if training == "single":
        size = 1
    width, layers = draw.choice([(128, 2), (256, 4), (512, 4), (768, 6)])
    arguments = ["--width", str(width), "--layers", str(layers), "--steps", str(draw.choice([60, 100, 200]))]
    arguments += ["--batch", str(draw.choice([16, 64, 128])), "--accumulate", str(draw.choice([1, 1, 2, 4]))]
    arguments += ["--odd", str(draw.choice([0, 7])), "--workers", str(draw.choice([0, 0, 2]) if width > 256 else 0)]
    arguments += ["--evaluate", str(draw.choice([0, 0, 20])), "--save", str(draw.choice([0, 0, 25]))]
    began_s = time.monotonic()
    with busy_core() if number % 3 == 0 else nothing_around():
        report = run(training, size, arguments)
    quiet = not problems(report) and "late" not in report
    return said(f"clean {number}: {training} x {size} {' '.join(arguments)}", quiet, report, began_s)


def run(
    training: str, size: int, arguments: list[str], options: tuple[str, ...] = (), prefix: Sequence[str] = ()
) -> dict[str, Any]:
    """The report of one run."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        command = [sys.executable, "-m", "gpudoctor", "run", "--precheck", "none", "--on-exit", "end"]
        command += ["--format", "json", "-o", str(file)]
        program = [str(_TRAINING), training, *arguments]
        launch = [sys.executable]
        if any(fault in _OF_TORCHRUN for fault in arguments):
            launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
        elif training != "single":
            launch = [sys.executable, "-c", _LAUNCHER, str(size), sys.executable]
        done = subprocess.run(
            [*command, *options, "--", *prefix, *launch, *program],
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_S,
        )
        report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        report["stderr"] = done.stderr[-4000:]
        if report["kept"]:
            shutil.rmtree(report["kept"], ignore_errors=True)
        return report


def problems(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [finding for finding in report["findings"] if finding["status"] in ("warn", "fail")]


def said(name: str, right: bool, report: dict[str, Any], began_s: float, check: str = "") -> bool:
    """Print the row at once, and what was found if it is wrong; of the check that should have found it in any case."""
    steps = max((rank["step_ms"] or 0.0 for rank in report["ranks"]), default=0.0)
    seconds = time.monotonic() - began_s
    print(f"{'right' if right else 'WRONG'}  {name} ({steps:.1f} ms a step, {seconds:.0f} s)", flush=True)
    if not right:
        for finding in report["findings"]:
            if finding["status"] in ("pass", "skip") and finding["id"] != check:
                continue
            print(f"    {finding['status']} {finding['id']} {finding['subject'].get('rank')}: {_words(finding)}")
        file = Path(tempfile.gettempdir()) / f"run_matrix-{os.getpid()}-{time.time_ns()}.json"
        file.write_text(json.dumps(report, indent=1), encoding="utf-8")
        print(f"    its report: {file}", flush=True)
    return right


def _words(finding: dict[str, Any]) -> str:
    found = (finding.get("found") or {}).get("text") or finding.get("reason") or ""
    return f"{found}; likely {finding.get('likely')}"


def _line_of(code: str) -> int:
    lines = _TRAINING.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if code in line)


@contextmanager
def nothing_around() -> Iterator[list[str]]:
    yield []


@contextmanager
def busy_core() -> Iterator[list[str]]:
    """A process that keeps CPU 0 busy, as long as this one lives."""
    busy = subprocess.Popen([sys.executable, "-c", _BUSY, str(os.getpid())])
    try:
        yield []
    finally:
        busy.kill()
        busy.wait()


@contextmanager
def memory_limit() -> Iterator[list[str]]:
    """A command that runs another one in a cgroup with a memory limit."""
    version_2 = (_CGROUP / "cgroup.controllers").exists()
    group = (_CGROUP if version_2 else _CGROUP / "memory") / f"run_matrix.{os.getpid()}"
    group.mkdir()
    (group / ("memory.max" if version_2 else "memory.limit_in_bytes")).write_text(str(_MEMORY_MIB << 20))
    try:
        yield ["sh", "-c", 'echo $$ >"$0" && exec "$@"', str(group / "cgroup.procs")]
    finally:
        time.sleep(1.0)  # until the last of its processes has ended
        group.rmdir()


if __name__ == "__main__":
    sys.exit(main())
