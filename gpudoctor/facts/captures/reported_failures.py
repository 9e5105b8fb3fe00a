"""What other tools and people report: figures for a note, and failures, after which a node cannot pass."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gpudoctor.facts.captures.reader import Block
from gpudoctor.units import ranges

CELLS = r"(?:\s+(?:N/A|\d{1,9}(?:\.\d{1,6})?)){1,1024}\s*$"

# nccl-tests, with or without the "#" that web pages take for a heading
_RANK = re.compile(r"#?\s+Rank\s+\d{1,5}\s.{0,200}? on\s+(\S{1,100})\s+device\s")
_NCCL_ROW = re.compile(r"(?:\s*\S{1,12}:)?\s*(\d{1,15})\s+\d{1,15}\s+[a-z]\w{2,12}\s(.{10,300})$")


def nccl_figures(block: Block) -> str:
    hosts = [found[1] for line in block.lines if (found := _RANK.match(line))]
    largest, busbw = 0, ""
    for line in block.lines:
        row = _NCCL_ROW.match(line)
        cells = row[2].split() if row else []
        # time, algbw, busbw and errors; first out of place, then in place
        if row and len(cells) >= 8 and int(row[1]) >= largest and re.fullmatch(r"\d{1,9}(?:\.\d{1,6})?", cells[-6]):
            largest, busbw = int(row[1]), cells[-6]
    ranks = f"{len(hosts)} ranks on {len(set(hosts))} host{'s' * (len(set(hosts)) > 1)}, " if hosts else ""
    return f"{ranks}{busbw} GB/s busbw at {largest} bytes" if busbw else ranks.rstrip(", ")


_BURN_GPU = re.compile(r"\s*GPU (\d{1,4}): (OK|FAULTY)")
_BURN_PROGRESS = re.compile(r"(\d{1,3})\.\d%\s+proc'd: ([^e]{1,20000})errors: ?([^t]{0,20000})")
_BURN_ERRORS = re.compile(r"(-?\d{1,20})\s*(\(DIED!\))?")
_BURN_ENDED = re.compile(r"Couldn't init a GPU test|No clients are alive")


def burn_failures(block: Block) -> list[str]:
    """What gpu-burn found: GPUs that are faulty, computed wrongly, computed nothing, or could not be started at all."""
    verdicts = [found for line in block.lines if (found := _BURN_GPU.match(line))]
    faulty = [int(found[1]) for found in verdicts if found[2] == "FAULTY"]
    told = [f"{len(faulty)} of {len(verdicts)} GPUs FAULTY: GPU {ranges(sorted(set(faulty)))}"] if faulty else []
    progress = [found for line in block.lines for found in _BURN_PROGRESS.finditer(line)]
    if progress:
        last = progress[-1]
        rates = re.findall(r"\((\d{1,12}(?:\.\d{1,6})?) Gflop/s\)", last[2])
        idle = sum(float(rate) == 0 for rate in rates)
        # the first lines come before the first result
        if idle and int(last[1]) >= 50:
            told.append(f"0 Gflop/s on {idle} of {len(rates)} GPUs")
        # its counts start again at 0 after each line
        counts = [_BURN_ERRORS.findall(found[3]) for found in progress]
        gpus = max(map(len, counts))
        died = {gpu for line in counts for gpu, (_, end) in enumerate(line) if end}
        wrong = {gpu for line in counts for gpu, (count, end) in enumerate(line) if int(count) != 0 and not end}
        told += [f"compute errors on {len(wrong)} of {gpus} GPUs"] if wrong else []
        told += [f"the test died on {len(died)} of {gpus} GPUs"] if died else []
    return told + [line.strip()[:200] for line in block.lines if _BURN_ENDED.match(line.lstrip())]


_P2P_MATRIX = re.compile(r"\s*(Uni|Bi)directional P2P=(En|Dis)abled Bandwidth")
_P2P_ROW = re.compile(rf"\s{{1,12}}(\d{{1,4}})({CELLS})")
_SLOWER = 0.8


def p2p_failures(block: Block) -> list[str]:
    """Copies from GPU to GPU that are slower with peer to peer than without, through the host: no profile is needed."""
    rates: dict[tuple[str, str], list[float]] = {}
    now: tuple[str, str] | None = None
    for line in block.lines:
        if head := _P2P_MATRIX.match(line):
            now = (head[1], head[2])
        elif now is not None and (row := _P2P_ROW.match(line)):
            others = (cell for column, cell in enumerate(row[2].split()) if column != int(row[1]))
            rates.setdefault(now, []).extend(float(cell) for cell in others if cell != "N/A")
        elif line.strip() and not re.match(r"\s+(?:D\\D|GPU)\s", line):
            now = None
    told = []
    for way in ("Uni", "Bi"):
        on, off = sorted(rates.get((way, "En"), [])), sorted(rates.get((way, "Dis"), []))
        if on and off and on[len(on) // 2] < _SLOWER * off[len(off) // 2]:
            rates_told = f"{on[len(on) // 2]:g} GB/s with peer to peer and {off[len(off) // 2]:g} without"
            told.append(f"{way.lower()}directional {rates_told}")
    return told


_COPY = re.compile(r"\s*(Host to Device|Device to Host) Bandwidth, ")
_COPY_UNIT = re.compile(r"\s+Transfer Size \(Bytes\)\s+Bandwidth\((M|G)B/s\)")
_COPY_RATE = re.compile(r"\s+(\d{3,12})\s+(\d{1,7}(?:\.\d{1,3})?)\s*$")
_SLOW_COPY_GB_S = 5  # PCIe 3.0 x8 carries 6
_LARGE_COPY_BYTES = 16_000_000  # smaller ones, and those of pageable memory, do not reach a link's rate


def _copies(block: Block) -> Iterator[tuple[str, float, bool]]:
    """Rates of bandwidthTest between RAM and a GPU: the way, GB/s, and whether it could be that of the link."""
    way, unit_gb, pinned = "", 0.0, False
    for line in block.lines:
        if " Bandwidth, " in line:
            way, unit_gb, pinned = (found[1].lower() if (found := _COPY.match(line)) else ""), 0.0, False
        elif " Memory Transfers" in line:
            pinned = "PINNED" in line
        elif unit := _COPY_UNIT.match(line):
            unit_gb = 1.0 if unit[1] == "G" else 0.001
        elif way and unit_gb and (rate := _COPY_RATE.match(line)):
            yield way, float(rate[2]) * unit_gb, pinned and int(rate[1]) >= _LARGE_COPY_BYTES


def _highest(copies: Iterable[tuple[str, float, bool]]) -> list[tuple[str, float]]:
    rates: dict[str, float] = {}
    for way, rate, _ in copies:
        rates[way] = max(rates.get(way, 0.0), rate)
    return list(rates.items())


def copy_figures(block: Block) -> str:
    return ", ".join(f"{way} {rate:.1f} GB/s" for way, rate in _highest(_copies(block)))


def copy_failures(block: Block) -> list[str]:
    """What bandwidthTest says has failed, and copies that are slower than any link of a GPU should be."""
    rates = _highest(copy for copy in _copies(block) if copy[2])
    slow = [f"{way} {rate:.1f} GB/s" for way, rate in rates if rate < _SLOW_COPY_GB_S]
    told = [f"{rate}: a slow link, or CPUs and memory far from the GPU" for rate in slow]
    return [line.strip() for line in block.lines if "Result = FAIL" in line] + told


# CUDA's errors whose cause is not the program; source: the enumerations CUresult and cudaError_t
CUDA_FAULTS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (meaning, re.compile(rf"(?:CUDA_ERROR_|cudaError)(?:{names})\b|\b(?i:error(?: code)?:? ){number}\b|{words}"))
    for number, names, words, meaning in (
        (214, "ECC_UNCORRECTABLE|ECCUncorrectable", "uncorrectable ECC error encountered", "a fault of GPU memory"),
        (220, "NVLINK_UNCORRECTABLE|NvlinkUncorrectable", "uncorrectable NVLink error detected", "a fault of NVLink"),
        (714, "HARDWARE_STACK_ERROR|HardwareStackError", "hardware stack error", "a fault of the GPU"),
        (721, "CONTAINED|Contained", "contained error", "a fault of GPU memory"),
        (802, "SYSTEM_NOT_READY|SystemNotReady", "system not yet initialized",
         "the NVSwitches are not set up (nvidia-fabricmanager)"),
        (803, "SYSTEM_DRIVER_MISMATCH|SystemDriverMismatch",
         "unsupported display driver / cuda driver combination", "library and driver differ in their version"),
    )
)  # fmt: skip


def cuda_failures(block: Block) -> list[str]:
    """The lines in which a program tells of an error of CUDA, with what it means if it can only mean one thing."""
    told = []
    for line in block.lines:
        meaning = next((words for words, fault in CUDA_FAULTS if fault.search(line)), None)
        told.append(f"{meaning}: {line.strip()}" if meaning else line.strip(" \t#"))
    return told


POD = re.compile(
    r"(?:[\w.-]{1,100}\s+)?(?:pod/)?(?P<pod>[\w.-]{1,253})\s+(?P<ready>\d{1,3})/(?P<containers>\d{1,3})"
    r"\s+(?P<status>[A-Z]\S{2,60})\s(?:\s*(?P<restarts>\d{1,6})(?:\s+\([^)]{1,40}\))?\s+(?P<age>(?:\d{1,6}[smhdy])+))?"
)
# a user's pod may have "gpu" in its name, too
_GPU_SOFTWARE = re.compile(
    r"nvidia-|gpu-operator|gpu-feature-discovery|dcgm"
    r"|.*nvidia-(?:driver|device-plugin|container-toolkit|operator|mig-manager|dcgm)"
)
_POD_WELL = ("Completed", "Succeeded", "Terminating")
_POD_WAITS = ("Init:0", "Pending", "ContainerCreating", "PodInitializing", "Running")
_YOUNG = re.compile(r"\d{1,6}s|\d(?:m\d{1,2}s|m)")  # less than ten minutes: it still loads images, or starts


def pod_failures(block: Block) -> list[str]:
    """The pods of GPU software that do not run, or are not ready, as kubectl says; those that fail first."""
    pods = [found for line in block.lines if (found := POD.match(line)) and _GPU_SOFTWARE.match(found["pod"])]
    bad = [pod for pod in pods if not _is_well(pod)]
    bad.sort(key=lambda pod: pod["status"].startswith(_POD_WAITS))
    return [
        f"{pod['pod']} {pod['ready']}/{pod['containers']} {pod['status']}"
        if pod["status"] == "Running"
        else f"{pod['pod']} {pod['status']}"
        for pod in bad
    ]


def _is_well(pod: re.Match[str]) -> bool:
    if pod["status"] in _POD_WELL or (pod["status"] == "Running" and int(pod["ready"]) >= int(pod["containers"])):
        return True
    young = pod["restarts"] == "0" and _YOUNG.fullmatch(pod["age"] or "") is not None
    return young and pod["status"].startswith(_POD_WAITS)


def acs_failures(block: Block) -> list[str]:
    """Whether ACS is on in any function: NVIDIA's advice is to see "SrcValid-" everywhere."""
    on = sum("SrcValid+" in line or "Redir+" in line for line in block.lines)
    return [f"ACS is on (SrcValid+) in {on} of {len(block.lines)} functions"] if on else []


# what only a broken GPU is told of, and the words with which a sentence tells of none
_FAULT = re.compile(
    r"(?<!no )(?<!0 )\b(?i:uncorrectable ECC error)\b|GPU is lost|fallen off the bus"
    r"|\bXid:? (?:error:? |code:? )?(?:48|62|64|74|79|95|119|120|140)\b"
)
_NO_FAULT = re.compile(
    r"\b(?:no|never|without|none|zero|if|when|whether|may|might|could|would|e\.g|such as|fix\w*|rather than)\b"
    r"|(?:\bnot|n't)(?! (?:usable|work|working|available|visible|respond\w*))\b",
    re.IGNORECASE,
)


def tells_of_a_fault(line: str) -> bool:
    """Whether a line in a form that no reader knows says that a GPU is broken.

    >>> tells_of_a_fault("GPU 3 is dead since noon: fallen off the bus"), tells_of_a_fault("We saw no Xid 79 since")
    (True, False)
    """
    return _FAULT.search(line) is not None and _NO_FAULT.search(line) is None
