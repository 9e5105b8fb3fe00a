"""How long a quick check of the live path takes, against the least that a Python tool of this kind can do.

The floor is the script `bare` below: it imports pynvml, asks 8 GPUs for 31 attributes and 18 NVLinks each, one call
after another (405 calls), and prints them as JSON. Both run as whole processes of the same interpreter, in turn,
before the driver library of `gpudoctor fake-driver`: once with a driver that answers at once, where imports decide,
and once with one that takes 2 ms a call, as a real one may, where the number of calls in a row decides. A third line
is a simulated node, for which no driver is asked, against a process that imports pynvml and msgspec.

Prints a line for each, with medians and the median of the ratios of pairs; exits 1 where a ratio is above its limit.
It wants a C compiler, and 2 cores that have nothing else to do.

    python benchmarks/startup.py
"""

from __future__ import annotations

import argparse
import compileall
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import gpudoctor

NODE = "hgx-h100-8"
BARE = """
import json, pynvml as N
def asked(call, *arguments):
    try:
        return str(call(*arguments))
    except N.NVMLError as error:
        return str(error)
N.nvmlInit()
whole = {"driver": asked(N.nvmlSystemGetDriverVersion), "cuda": asked(N.nvmlSystemGetCudaDriverVersion), "gpus": []}
for index in range(N.nvmlDeviceGetCount()):
    gpu = N.nvmlDeviceGetHandleByIndex(index)
    told = [asked(call, gpu) for call in (
        N.nvmlDeviceGetName, N.nvmlDeviceGetUUID, N.nvmlDeviceGetSerial, N.nvmlDeviceGetVbiosVersion,
        N.nvmlDeviceGetPciInfo, N.nvmlDeviceGetMemoryInfo, N.nvmlDeviceGetBAR1MemoryInfo,
        N.nvmlDeviceGetUtilizationRates, N.nvmlDeviceGetPowerUsage, N.nvmlDeviceGetEnforcedPowerLimit,
        N.nvmlDeviceGetPowerManagementLimit, N.nvmlDeviceGetPowerManagementDefaultLimit,
        N.nvmlDeviceGetPerformanceState, N.nvmlDeviceGetCurrentClocksThrottleReasons,
        N.nvmlDeviceGetCurrPcieLinkGeneration, N.nvmlDeviceGetCurrPcieLinkWidth,
        N.nvmlDeviceGetMaxPcieLinkGeneration, N.nvmlDeviceGetMaxPcieLinkWidth, N.nvmlDeviceGetPcieReplayCounter,
        N.nvmlDeviceGetEccMode, N.nvmlDeviceGetPersistenceMode, N.nvmlDeviceGetComputeMode)]
    told += [asked(N.nvmlDeviceGetClockInfo, gpu, kind) for kind in (N.NVML_CLOCK_SM, N.NVML_CLOCK_MEM)]
    told += [asked(N.nvmlDeviceGetMaxClockInfo, gpu, kind) for kind in (N.NVML_CLOCK_SM, N.NVML_CLOCK_MEM)]
    told += [asked(N.nvmlDeviceGetTemperatureThreshold, gpu, kind) for kind in (0, 1)]
    told += [asked(N.nvmlDeviceGetTotalEccErrors, gpu, kind, 0) for kind in (0, 1)]
    told += [asked(N.nvmlDeviceGetTemperature, gpu, 0)]
    told += [asked(N.nvmlDeviceGetNvLinkState, gpu, link) for link in range(18)]
    whole["gpus"].append(told)
N.nvmlShutdown()
print(json.dumps(whole))
"""
IMPORTS = "import pynvml, msgspec; print(msgspec.json.encode({'gpus': list(range(8))}).decode())"
CHECK = ["-m", "gpudoctor", "check", "--level", "quick", "--json"]
SIMULATED = [*CHECK, "--node", NODE]
# ratio to the floor, at most
AT_ONCE_MAX, TWO_MS_MAX, SIMULATED_MAX = 2.2, 0.35, 2.0


def wall_s(arguments: list[str]) -> float:
    """Seconds that one process takes."""
    began = time.perf_counter()
    # not from the checkout: it would be imported, and compiled, instead of the package installed
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True, cwd="/")
    return time.perf_counter() - began


def pairs_of(floor: list[str], check: list[str], runs: int) -> list[tuple[float, float]]:
    """Seconds of both, in turn."""
    wall_s(floor), wall_s(check)  # fill the caches
    return [(wall_s(floor), wall_s(check)) for _ in range(runs)]


def before_a_driver(latency_ms: float, runs: int) -> list[tuple[float, float]]:
    """Seconds of the bare script and of a live check, in turn, before a driver that takes so long for a call."""
    fake = ["-m", "gpudoctor", "fake-driver", "--node", NODE, "--call-latency", f"{latency_ms:g}", "--", sys.executable]
    inside = [str(Path(__file__).resolve()), "--inside", "--runs", str(runs)]
    done = subprocess.run([sys.executable, *fake, *inside], stdout=subprocess.PIPE, check=True, cwd="/")
    return [(float(floor), float(check)) for floor, check in json.loads(done.stdout)]


def held(what: str, pairs: list[tuple[float, float]], limit: float) -> bool:
    """Print the line; whether the limit holds."""
    floor, check = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    times = f"floor {floor * 1000:.0f} ms, quick check {check * 1000:.0f} ms"
    print(f"{what}: {times}, ratio {ratio:.2f} (at most {limit}{'' if ratio <= limit else ', missed'})")
    return ratio <= limit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        print(json.dumps(pairs_of(["-c", BARE], CHECK, args.runs)))
        return 0
    # as pip leaves an installed package: a run from source would time the compiler
    compileall.compile_dir(Path(gpudoctor.__file__).parent, quiet=1)
    limits = [
        held("driver answers at once", before_a_driver(0, args.runs), AT_ONCE_MAX),
        held("driver takes 2 ms a call", before_a_driver(2, args.runs), TWO_MS_MAX),
        held("simulated node", pairs_of(["-c", IMPORTS], SIMULATED, args.runs), SIMULATED_MAX),
    ]
    return 0 if all(limits) else 1


if __name__ == "__main__":
    sys.exit(main())
