"""How long `cluster report` takes for 1,000, 3,000 and 10,000 nodes of 8 GPUs, and whether it finds what is planted.

Reports are made from those of the product on simulated nodes, healthy and with faults, with figures of a full run put
in and varied; names, UUIDs, versions and times differ from node to node. Planted among them: faults, slow GPUs, links
and nodes, other drivers, kernels, VBIOS and NCCL, half-written, foreign, older and duplicate files. Prints a line for
each size; exits 1 if something planted is not found, if a healthy node is named, or if the largest takes longer than
--max-s or more memory than --max-mib.

    python benchmarks/fleet.py
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from fleet_reports import Document, Maker, Planted


def run(folder: Path, runs: int) -> tuple[float, float, Document]:
    """Wall seconds (the best of the runs), MiB of memory at most, and what was found."""
    command = [sys.executable, "-m", "gpudoctor", "cluster", "report", "--json", str(folder)]
    best, most, found = float("inf"), 0.0, b""
    for _ in range(runs):
        with tempfile.TemporaryFile() as answer:
            began = time.perf_counter()
            process = subprocess.Popen(command, stdout=answer)
            _, status, usage = os.wait4(process.pid, 0)
            best = min(best, time.perf_counter() - began)
            process.returncode = os.waitstatus_to_exitcode(status)
            most = max(most, usage.ru_maxrss / 1024)
            answer.seek(0)
            found = answer.read()
    return best, most, msgspec.json.decode(found)


def missed(fleet: Document, planted: Planted) -> list[str]:
    """What was planted and not found, and what was found and not planted."""
    wrong = []

    def compare(what: str, found: set[str], wanted: set[str]) -> None:
        if found != wanted:
            wrong.append(
                f"{what}: not found {sorted(wanted - found)[:5]}, named though healthy {sorted(found - wanted)[:5]}"
            )

    compare(
        "failing nodes", {n["name"] for n in fleet["nodes"] if n["verdict"] == "fail"}, planted.faulty | planted.slow
    )
    compare("outliers", {outlier["node"] for outlier in fleet["outliers"]}, planted.slow | planted.narrow)
    for item, names in planted.drifting.items():
        named = [o for d in fleet["drift"] if d["item"] == item for o in d["others"]]
        compare(item, {name for other in named for name in other["nodes"]}, names)
    compare("items that drift", {drift["item"] for drift in fleet["drift"]}, set(planted.drifting))
    reading = fleet["reading"]
    for what, count, wanted in (
        ("half-written", len(reading["broken"]), planted.broken),
        ("foreign", len(reading["foreign"]), planted.foreign),
        ("duplicates", len(reading["duplicates"]), planted.duplicates),
        ("older", reading["older"], planted.older),
    ):
        if count != wanted:
            wrong.append(f"{what}: {count} found, {wanted} planted")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 3000, 10000])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-s", type=float, default=5.0)
    parser.add_argument("--max-mib", type=float, default=1024.0)
    args = parser.parse_args()
    good, seconds, memory = True, 0.0, 0.0
    for nodes in args.nodes:
        with tempfile.TemporaryDirectory(prefix="gpudoctor-fleet-") as name:
            maker = Maker(Path(name), nodes, args.seed)
            size = maker.write()
            seconds, memory, fleet = run(Path(name), args.runs)
        planted, wrong = maker.planted, missed(fleet, maker.planted)
        drifting = sum(len(names) for names in planted.drifting.values())
        slow = len(planted.slow)
        outcome = "; ".join(wrong) or "all found, no healthy node named"
        print(
            f"{nodes:>6} reports ({size / 1e6:.0f} MB): {seconds:.2f} s, {1e6 * seconds / nodes:.0f} us each, at most "
            f"{memory:.0f} MiB in a process; planted {len(planted.faulty)} faulty, {slow} slow, {drifting} drifting "
            f"nodes: {outcome}",
            flush=True,
        )
        good = good and not wrong
    return 0 if good and seconds <= args.max_s and memory <= args.max_mib else 1


if __name__ == "__main__":
    sys.exit(main())
