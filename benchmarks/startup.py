"""How much slower a quick check is than the least a Python tool of this kind can do.

The floor imports pynvml and msgspec and prints a JSON document; both are run in turn, as whole
processes of the same interpreter, and the medians are compared. Prints one line; exits 1 where
the ratio is above --max.

    python benchmarks/startup.py
"""

from __future__ import annotations

import argparse
import compileall
import statistics
import subprocess
import sys
import time
from pathlib import Path

import gpudoctor

FLOOR = "import pynvml, msgspec; print(msgspec.json.encode({'gpus': list(range(8))}).decode())"
CHECK = ["-m", "gpudoctor", "check", "--level", "quick", "--json", "--node", "hgx-h100-8"]


def wall_s(arguments: list[str]) -> float:
    """Seconds that one whole process takes."""
    began = time.perf_counter()
    # not from the checkout: it would be imported, and compiled, instead of the package installed
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True, cwd="/")
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--max", type=float, default=2.0)
    args = parser.parse_args()
    # as pip leaves an installed package: a run from source would time the compiler
    compileall.compile_dir(Path(gpudoctor.__file__).parent, quiet=1)
    wall_s(["-c", FLOOR]), wall_s(CHECK)  # fill the caches
    pairs = [(wall_s(["-c", FLOOR]), wall_s(CHECK)) for _ in range(args.runs)]
    floor, check = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"floor {floor * 1000:.0f} ms, quick check {check * 1000:.0f} ms, ratio {ratio:.2f} (at most {args.max})")
    return 0 if ratio <= args.max else 1


if __name__ == "__main__":
    sys.exit(main())
