"""How surely `gpudoctor check train` names a slow CPU rank, and how rarely it names one that is not slow.

    python benchmarks/straggler_power.py --runs 20

Each run is a separate `gpudoctor check train --backend gloo`, as a user starts it. The cases take turns, so that what
else the machine does meets all of them alike; so do the ranks that are slowed. Exits 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Case:
    """One kind of run; limits are shares of its runs, None if nothing is promised."""

    name: str
    factor: float | None
    share_of_runs: float
    least_named: float | None = None
    most_alarms: float | None = None
    most_unknown: float | None = None
    ranks: int = 2
    busy: bool = False
    outcomes: list[str] = field(default_factory=list)

    def count(self, outcome: str) -> int:
        return self.outcomes.count(outcome)


def cases() -> list[Case]:
    """The promises: detection on 2 ranks; elsewhere only that no healthy rank is named."""
    return [
        Case("clean", None, 2.0, most_alarms=0.01, most_unknown=0.10),
        Case("15 % slower", 1.15, 1.0, least_named=0.90, most_alarms=0.0),
        Case("25 % slower", 1.25, 1.0, least_named=0.98, most_alarms=0.0),
        Case("50 % slower", 1.50, 1.0, least_named=0.99, most_alarms=0.0),
        Case("clean, a busy core", None, 0.25, most_alarms=0.0, busy=True),
        Case("25 % slower, a busy core", 1.25, 0.25, most_alarms=0.0, busy=True),
        Case("clean, 4 ranks", None, 0.25, most_alarms=0.0, ranks=4),
        Case("25 % slower, 4 ranks", 1.25, 0.25, most_alarms=0.0, ranks=4),
    ]


def one_run(case: Case, number: int) -> str:
    """named | alarm | unknown | missed | clean | broken."""
    slow = number % case.ranks
    command = [sys.executable, "-m", "gpudoctor", "check", "train", "--backend", "gloo", "--ranks", str(case.ranks)]
    if case.factor is not None:
        command += ["--inject", f"slow-rank={slow}:{case.factor}"]
    with _busy_core(case.busy):
        ran = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    try:
        report = json.loads(ran.stdout)
        [balance] = [check for check in report["checks"] if check["id"] == "train.balance"]
    except ValueError:
        print(ran.stderr, file=sys.stderr)
        return "broken"
    accused = {f["subject"].get("rank") for f in balance["findings"] if f["status"] in ("warn", "fail")}
    if accused - ({slow} if case.factor is not None else set()):
        return "alarm"
    if accused:
        return "named"
    if balance["status"] != "pass":
        return "unknown"
    return "clean" if case.factor is None else "missed"


@contextmanager
def _busy_core(wanted: bool) -> Iterator[None]:
    """Another process that keeps one core busy."""
    if not wanted:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            yield
        finally:
            other.kill()


def missed_limits(case: Case) -> list[str]:
    """The promises that this case did not keep, in words."""
    runs = len(case.outcomes)
    found = []
    if case.count("broken"):
        found.append(f"{case.name}: {case.count('broken')} runs gave no report")
    if case.least_named is not None and case.count("named") < case.least_named * runs:
        found.append(f"{case.name}: named in {case.count('named')} of {runs}, wanted {case.least_named:.0%}")
    if case.most_alarms is not None and case.count("alarm") > case.most_alarms * runs:
        found.append(f"{case.name}: {case.count('alarm')} of {runs} named a rank that is not slow")
    if case.most_unknown is not None and case.count("unknown") > case.most_unknown * runs:
        found.append(f"{case.name}: {case.count('unknown')} of {runs} unknown, allowed {case.most_unknown:.0%}")
    return found


def table(done: list[Case]) -> str:
    """The outcomes as a Markdown table."""
    lines = ["| case | runs | slow rank named | innocent rank named | unknown | pass |", "| --- " * 6 + "|"]
    for case in done:
        passed = case.count("clean") + case.count("missed")
        cells = [case.name, len(case.outcomes), case.count("named"), case.count("alarm"), case.count("unknown"), passed]
        cells[2] = "-" if case.factor is None else cells[2]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> int:
    """Run all cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=20, help="runs of each slowed case; twice as many clean ones")
    runs = parser.parse_args().runs
    if runs < 1:
        parser.error("--runs: at least 1")
    todo = cases()
    rounds = 2 * runs
    for number in range(rounds):
        for case in todo:
            # spread over the rounds as evenly as their number allows
            due = max(1, round(case.share_of_runs * runs))
            if len(case.outcomes) * rounds < due * (number + 1):
                case.outcomes.append(one_run(case, len(case.outcomes)))
                print(f"{number + 1}/{rounds} {case.name}: {case.outcomes[-1]}", file=sys.stderr, flush=True)
    cores = len(os.sched_getaffinity(0))
    print(f"2 CPU ranks (gloo) where not said otherwise, on {cores} cores:\n\n{table(todo)}")
    missed = [words for case in todo for words in missed_limits(case)]
    for words in missed:
        print(f"MISSED  {words}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
