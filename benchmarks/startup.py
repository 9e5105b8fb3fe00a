"""How long a quick check of the live path takes, against the least that a Python tool of this kind can do.

The floor is the script `bare` below: it imports pynvml, asks 8 GPUs for 31 attributes and 18 NVLinks each, one call
after another (405 calls), and prints them as JSON. Both run as whole processes of the same interpreter, in turn,
before the driver library of `gpudoctor fake-driver`: once with a driver that answers at once, where imports decide,
and once with one that takes 2 ms a call, as a real one may, where the number of calls in a row decides. A third line
is a simulated node, for which no driver is asked, against a process that imports pynvml and msgspec.

Prints a line for each, with medians and the median of the ratios of pairs; exits 1 where a ratio is above its limit.
Beside them, before the driver that answers at once, `nvitop -1` if it is installed: whole processes with their
children, by wall time and, once more, by processor time on one CPU. It wants a C compiler, and 2 cores that have
nothing else to do. On one CPU because the check is two processes, nvitop one: if two CPUs are threads of one core, as
those of a virtual machine often are, each second in which both work counts for more.

    python benchmarks/startup.py
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

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
NVITOP = ["-m", "nvitop", "-1"]
# wall time: ratio to the floor, at most
AT_ONCE_MAX, TWO_MS_MAX, SIMULATED_MAX = 2.0, 0.35, 2.0
# processor time: ratio to nvitop, at most
NVITOP_CPU_MAX = 1.0


class Cost(NamedTuple):
    """Seconds that one process took, with its children."""

    wall_s: float
    cpu_s: float


def cost_of(arguments: list[str]) -> Cost:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    # not from the checkout: it would be imported, and compiled, instead of the package installed
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True, cwd="/", env=_compiled_once())
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _compiled_once() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def rounds_of(commands: list[list[str]], runs: int) -> list[list[Cost]]:
    """The costs of all commands, in turn."""
    for command in commands:  # fill the caches
        cost_of(command)
    return [[cost_of(command) for command in commands] for _ in range(runs)]


def before_a_driver(latency_ms: float, runs: int, *, one_cpu: bool = False) -> list[list[Cost]]:
    """Of the bare script, a live check and nvitop, before a driver that takes so long for a call."""
    fake = ["-m", "gpudoctor", "fake-driver", "--node", NODE, "--call-latency", f"{latency_ms:g}", "--", sys.executable]
    inside = [str(Path(__file__).resolve()), "--inside", "--runs", str(runs), *(["--one-cpu"] if one_cpu else [])]
    done = subprocess.run([sys.executable, *fake, *inside], stdout=subprocess.PIPE, check=True, cwd="/")
    return [[Cost(*cost) for cost in each] for each in json.loads(done.stdout)]


def held(what: str, rounds: list[list[Cost]], limit: float) -> bool:
    """Print the line about wall time; whether the limit holds."""
    floor, check = (statistics.median(each[place].wall_s for each in rounds) for place in (0, 1))
    ratio = statistics.median(each[1].wall_s / each[0].wall_s for each in rounds)
    times = f"floor {floor * 1000:.0f} ms, quick check {check * 1000:.0f} ms"
    print(f"{what}: {times}, ratio {ratio:.2f} (at most {limit}{'' if ratio <= limit else ', missed'})", flush=True)
    return ratio <= limit


def beside_nvitop(rounds: list[list[Cost]], on_one_cpu: list[list[Cost]]) -> bool:
    """Print processor and wall time of all three, and the ratios of the check; whether the limit holds."""

    def figures(rounds: list[list[Cost]], of: Callable[[Cost], float]) -> str:
        script, check, nvitop = (statistics.median(of(each[place]) * 1000 for each in rounds) for place in (0, 1, 2))
        beside = (statistics.median(of(each[1]) / of(each[place]) for each in rounds) for place in (0, 2))
        ratios = "script {:.2f}, nvitop {:.2f}".format(*beside)
        return f"script {script:.0f} ms, nvitop -1 {nvitop:.0f} ms, quick check {check:.0f} ms; ratio to {ratios}"

    print(f"  processor time, one CPU: {figures(on_one_cpu, lambda cost: cost.cpu_s)} (at most {NVITOP_CPU_MAX})")
    print(f"  processor time, all CPUs: {figures(rounds, lambda cost: cost.cpu_s)}")
    print(f"  wall time: {figures(rounds, lambda cost: cost.wall_s)}", flush=True)
    return statistics.median(each[1].cpu_s / each[2].cpu_s for each in on_one_cpu) <= NVITOP_CPU_MAX


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--one-cpu", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        if args.one_cpu:
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        commands = [["-c", BARE], CHECK, *([NVITOP] if find_spec("nvitop") else [])]
        print(json.dumps(rounds_of(commands, args.runs)))
        return 0
    # as pip leaves an installed package: a run from source would time the compiler
    compileall.compile_dir(Path(gpudoctor.__file__).parent, quiet=1)
    at_once = before_a_driver(0, args.runs)
    limits = [
        held("driver answers at once", at_once, AT_ONCE_MAX),
        len(at_once[0]) < 3 or beside_nvitop(at_once, before_a_driver(0, args.runs, one_cpu=True)),
        held("driver takes 2 ms a call", before_a_driver(2, args.runs), TWO_MS_MAX),
        held("simulated node", rounds_of([["-c", IMPORTS], SIMULATED], args.runs), SIMULATED_MAX),
    ]
    return 0 if all(limits) else 1


if __name__ == "__main__":
    sys.exit(main())
