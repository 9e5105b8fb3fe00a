"""Benchmarks whose verdict is in their figures: gpu-burn, nccl-tests, nvbandwidth, and two of the CUDA samples.

The figures are compared with each other or with zero only; what a node should reach, gpudoctor measures itself.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import product

from gpudoctor.facts.captures.reader import Block, Part, TextReader, text_reader
from gpudoctor.facts.captures.text_statements import from_tool
from gpudoctor.facts.model.reported import Reported
from gpudoctor.text.units import ranges

_RATE = r"\d{1,9}(?:\.\d{1,6})?"
_CELLS = rf"(?:\s+(?:N/A|{_RATE})){{1,1024}}\s*$"
# a name, and no news of the device
_NAME = (
    r"(?=.*(?:NVIDIA|nvidia|Tesla|GeForce|Quadro|GRID|TITAN|Graphics|Orin|[A-Z]{1,3}\d))"
    r"(?!.*(?i:error|fail|lost|fall|fell|hung|\bnot\b|unre|xid))[\w ./()-]{2,80}"
)
_DEVICE = rf"\s*Device:? ?\d{{1,4}}[,:] {_NAME}(?:, pciBusID: .{{1,80}}| \([0-9A-Fa-f:.]{{4,20}}\))?\s*$"

_BURN_GPU = re.compile(r"\s*GPU (\d{1,4}): (OK|FAULTY)")
_BURN_PROGRESS = re.compile(r"(\d{1,3})\.\d%\s+proc'd: ([^e]{1,20000})errors: ?([^t]{0,20000})")
_BURN_ERRORS = re.compile(r"(-?\d{1,20})\s*(\(DIED!\))?")
_BURN_ENDED = re.compile(r"Couldn't init a GPU test|No clients are alive")
_P2P_MATRIX = re.compile(
    r"(?:(?P<way>Uni|Bi)directional P2P=(?P<on>En|Dis)abled Bandwidth|P2P=(?P<latency>En|Dis)abled Latency"
    r"|P2P Connectivity Matrix).*\n"
    r"\s+(?:D\\D|GPU)\s.*\n(?P<rows>(?:[ \t]{1,12}\d{1,4}(?:[ \t]+(?:N/A|\d{1,9}(?:\.\d{1,6})?)){1,1024}[ \t]*\n)+)"
)
_P2P_KINDS = {
    "Uni": ("unidirectional copies", "GB/s"),
    "Bi": ("bidirectional copies", "GB/s"),
    "latency": ("latency", "us"),
}
_EDITORS_NUMBER = re.compile(r"^[ \t]{0,8}\d{1,4}(?: |$)", re.MULTILINE)
# those of pageable memory do not reach a link's rate
_COPIES = re.compile(
    r"(?P<way>Host to Device|Device to Host) Bandwidth, .*\n PINNED Memory .*\n\s+Transfer Size \(Bytes\)\s+"
    r"Bandwidth\((?P<unit>[MG])B/s\)\n(?P<rows>(?:[ \t]+\d{3,12}[ \t]+\d{1,7}(?:\.\d{1,3})?[ \t]*\n)+)"
)
_NCCL_BEGINS = re.compile(r"#\s*nThread \d|#\s+nccl-tests version|#\s+size\s+count\s+type\b")
_NCCL_TYPED = re.compile(
    r"\s*\d{1,15}\s+\d{1,15}\s+(?:float|half|double|bfloat16|u?int\d\d?|fp?8\w*)\s+(?:sum|prod|max|min|avg|none)\s"
)
# size, count, type, redop, root; then time, algbw, busbw and #wrong, out of place and in place
_NCCL_ROW = re.compile(
    r"\s*(?P<size>\d{1,15})\s+\d{1,15}\s+(?P<kind>\w{2,12}\s+\w{2,12}\s+-?\d{1,4})"
    rf"\s+{_RATE}\s+{_RATE}\s+(?P<busbw>{_RATE})\s+(?P<wrong>\d{{1,12}}|N/A)"
    rf"(?:\s+{_RATE}\s+{_RATE}\s+(?P<in_busbw>{_RATE})\s+(?P<in_wrong>\d{{1,12}}|N/A))?\s*$"
)
_NCCL_HEAD = re.compile(
    r"#\s*(?:Using devices|Avg bus bandwidth\s*:\s*[\d.]{1,20}|Collective test (?:starting|concluded): \w{1,30}_perf"
    r"|size\s+count\s+type(?:\s+(?:redop|root|time|algbw|busbw|#wrong|error))*|\(B\)\s+\(elements\)(?:\s+\((?:us|GB/s)\))*"
    rf"|out-of-place\s+in-place|Rank\s+\d+\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+\S+\s+device\s+\d+\s+\[[0-9a-fA-Fx:.]+\]\s+{_NAME})?\s*$"
)
_NCCL_WRONG = re.compile(
    r"\s*#\s*(?P<words>Out of bounds values\s*:.{0,60}FAILED)|\s*#\s*Out of bounds values\s*:\s*0\s+OK\s*$"
)
_WRONG_COPY = re.compile(r"\s*(?:Invalid value when checking|ASSERT in expression)")
_COPY_FIGURES = re.compile(
    r"(?P<title>memcpy .{1,60}?) bandwidth \(GB/s\)\n.*\n"
    rf"(?P<rows>(?:[ \t]{{0,12}}\d{{1,4}}(?:[ \t]+(?:N/A|{_RATE})){{1,1024}}[ \t]*\n)+)"
)
_SLOW_SHARE = 0.6  # of the others
_SLOW_COPY_GB_S = 5  # PCIe 3.0 x8 carries 6
_LARGE_COPY_BYTES = 16_000_000  # smaller ones do not reach it either
_LARGE_MESSAGE_BYTES = 16_000_000  # from here on latency no longer counts
_FULL_LINK_BYTES = 1_000_000  # below it, caches and buffers are measured, not links
_SLOW_WHEN_LARGE = 0.5  # protocols and algorithms change with the size: a step of a fifth or a third is usual


@text_reader(
    "gpu-burn",
    r"Tested \d{1,4} GPUs:|GPU Burn$|\W{0,4}\d{1,3}\.\d%\s+proc'd: |Couldn't init a GPU test|No clients are alive",
    r"\s*GPU \d{1,4}: (?:OK|FAULTY)|Burning for |Killing processes|Initialized device ",
)
def read_burn(block: Block) -> Part:
    """GPUs that are faulty, computed wrongly, computed nothing, or could not be started at all."""
    verdicts = list(block.matches(_BURN_GPU))
    bad = [f"GPU {found[1]} is FAULTY" for found in verdicts if found[2] == "FAULTY"]
    if progress := [found for line in block.lines for found in _BURN_PROGRESS.finditer(line)]:
        bad += _burn_troubles(progress)
    bad += [line.strip() for line in block.lines if _BURN_ENDED.match(line)]
    if bad:
        return Part(reported=tuple(from_tool("gpu-burn", text) for text in dict.fromkeys(bad)))
    if slow := _slow_in_burn(progress[-1]) if progress else []:
        text = f"GPU {ranges(slow)} computed at less than {_SLOW_SHARE:.0%} of the others' rate"
        return Part(reported=(from_tool("gpu-burn", text, "warning"),))
    return Part(reported=(from_tool("gpu-burn", f"{len(verdicts)} GPUs OK", "ok"),) if verdicts else ())


def _slow_in_burn(progress: re.Match[str]) -> list[int]:
    """The GPUs, fewer than half, that are far behind the others when most of the time is over."""
    rates = _burn_rates(progress) if int(progress[1]) >= 50 else []
    return [n for n, rate in enumerate(rates) if rate < _SLOW_SHARE * sorted(rates)[(len(rates) - 1) // 2]]


def _burn_rates(progress: re.Match[str]) -> list[float]:
    return [float(rate) for rate in re.findall(r"\((\d{1,12}(?:\.\d{1,6})?) Gflop/s\)", progress[2])]


def _burn_troubles(progress: list[re.Match[str]]) -> Iterator[str]:
    """What the lines of progress say; the first ones come before the first result."""
    rates = _burn_rates(progress[-1])
    idle = [n for n, rate in enumerate(rates) if rate == 0]
    if idle and int(progress[-1][1]) >= 50:
        yield f"GPU {ranges(idle)} of {len(rates)} computed nothing: 0 Gflop/s"
    counts = [each for line in progress for each in enumerate(_BURN_ERRORS.findall(line[3]))]
    died = {n for n, (_, dead) in counts if dead}
    wrong = {n for n, (errors, _) in counts if int(errors)} - died
    if wrong:
        yield f"GPU {ranges(sorted(wrong))} computed wrongly"
    if died:
        yield f"the process of GPU {ranges(sorted(died))} died"


@text_reader(
    "nccl-tests",
    lambda line: _NCCL_BEGINS.match(line) or (_NCCL_TYPED.match(line) and _NCCL_ROW.match(line)),
    lambda line: _NCCL_HEAD.match(line) or _NCCL_ROW.match(line) or _NCCL_WRONG.match(line),
)
def read_nccl_tests(block: Block) -> Part:
    """Sums that came out wrong, and large messages that are far slower than smaller ones.

    The bandwidth itself is only noted, as no text tells what these links should reach.
    """
    rows = list(block.matches(_NCCL_ROW))
    bad = [
        f"{cell} wrong values at a size of {row['size']} bytes"
        for row in rows
        for cell in (row["wrong"], row["in_wrong"])
        if cell is not None and cell.strip("0N/A")
    ]
    if not bad:
        bad = [" ".join(found["words"].split()) for found in block.matches(_NCCL_WRONG) if found["words"]]
    if bad:
        return Part(reported=tuple(from_tool("nccl-tests", text) for text in list(dict.fromkeys(bad))[:3]))
    if not rows:
        return Part()
    best = max(float(row[way] or 0) for row in rows for way in ("busbw", "in_busbw"))
    # run with -c 0, it compares no value
    values = "values not compared" if any("N/A" in row["wrong"] for row in rows) else "no wrong value"
    text = f"nccl-tests: {values} in {len(rows)} rows; at most {best:g} GB/s busbw, which only a measurement judges"
    slow = [from_tool("nccl-tests", each, "warning") for each in _slow_when_large(block)]
    return Part(notes=(f"{text} (gpudoctor check collective)",), reported=tuple(slow[:1]))


def _slow_when_large(block: Block) -> Iterator[str]:
    """A bus bandwidth that ends at less than half: it grows with the size until the links are full, and stays there.

    A head, another operation, and a size that is no larger than the one before begin another run.
    """
    runs: list[list[re.Match[str]]] = [[]]
    for row in map(_NCCL_ROW.match, block.lines):
        last = runs[-1][-1] if runs[-1] else None
        if row is None or (last and (row["kind"] != last["kind"] or int(row["size"]) <= int(last["size"]))):
            runs.append([])
        if row is not None and int(row["size"]) >= _FULL_LINK_BYTES:
            runs[-1].append(row)
    for run, way in product(runs, ("busbw", "in_busbw")):
        sizes = {float(row[way] or 0): row["size"] for row in run}
        end = float(run[-1][way] or 0) if run and int(run[-1]["size"]) >= _LARGE_MESSAGE_BYTES else math.inf
        if end < _SLOW_WHEN_LARGE * max(sizes, default=0):
            yield f"busbw falls from {max(sizes):g} GB/s at {sizes[max(sizes)]} bytes to {end:g} at {run[-1]['size']}"


@text_reader(
    "nvbandwidth",
    r"nvbandwidth Version:|Running (?:host|device|all|one)_to_\w+\.|memcpy (?:CE|SM) .{1,60} bandwidth \(GB/s\)",
    r"Built from Git version: \S{0,60}$|(?:CUDA (?:Runtime|Driver)|Driver) Version: [\d.]{1,20}\s*$"
    r"|NOTE: (?:This tool reports current measured bandwidth on your system|The reported results may not reflect"
    rf" the full capabilities of the platform)\.?\s*$|{_DEVICE}"
    rf"|\s{{1,12}}\d{{1,3}}(?:\s+\d{{1,3}})*\s*$|\s{{0,12}}\d{{1,3}}{_CELLS}"
    r"|SUM \S{1,80}\s+[\d.]{1,20}\s*$"
    rf"|{_WRONG_COPY.pattern}| Current offset : \d{{1,20}}\s*$",
)
def read_nvbandwidth(block: Block) -> Part:
    """Copies that arrived with other values; the rates are only noted."""
    if bad := [line.strip() for line in block.lines if _WRONG_COPY.match(line)]:
        return Part(reported=tuple(from_tool("nvbandwidth", text) for text in dict.fromkeys(bad)))
    ranges_gb_s = []
    for found in _COPY_FIGURES.finditer(block.text):
        cells = (cell for row in found["rows"].splitlines() for cell in row.split()[1:] if cell != "N/A")
        rates = sorted(map(float, cells))
        ranges_gb_s += [f"{found['title']} {rates[0]:g} to {rates[-1]:g} GB/s"] if rates else []
    text = f"nvbandwidth: {'; '.join(ranges_gb_s)}, which only a measurement judges (gpudoctor check link)"
    return Part(notes=(text,) if ranges_gb_s else ())


@text_reader(
    "p2pBandwidthLatencyTest",
    # with an editor's line number
    r"(?:[ \t]{0,8}\d{1,4} )?(?:\[P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test\]|P2P Connectivity Matrix"
    r"|(?:Uni|Bi)directional P2P=(?:En|Dis)abled Bandwidth|P2P=(?:En|Dis)abled Latency)",
    rf"{_DEVICE}|Device=\d{{1,4}} CAN|\s+(?:D\\D|GPU|CPU)(?:\s+\d{{1,4}})+\s*$|\s{{1,12}}\d{{1,12}}{_CELLS}"
    r"|\*\*\*NOTE: In case|So you can see lesser|NOTE: The CUDA Samples",
)
def read_p2p(block: Block) -> Part:
    """Copies from GPU to GPU that are no faster with peer to peer than without, if the GPUs can reach each other."""
    # of each kind of matrix, with peer to peer ("En") and without ("Dis"): the value of each pair
    figures: defaultdict[tuple[str, str], dict[tuple[int, int], float]] = defaultdict(dict)
    reach: list[float] = []
    text = block.text
    if block.lines and _EDITORS_NUMBER.match(block.lines[0]):
        text = _EDITORS_NUMBER.sub("", text)
    for matrix in _P2P_MATRIX.finditer(text):
        cells = _pairs(matrix["rows"])
        kind = "latency" if matrix["latency"] else matrix["way"]
        if kind is None:
            reach += cells.values()
        else:
            figures[kind, matrix["on"] or matrix["latency"]] |= cells
    if reach and not any(reach):
        return Part(notes=("p2pBandwidthLatencyTest: these GPUs have no peer to peer",))
    slow: list[Reported] = []
    better: list[bool] = []  # of each pair, in each kind
    for kind, (label, unit) in _P2P_KINDS.items():
        on, off = figures[kind, "En"], figures[kind, "Dis"]
        if not on or on.keys() != off.keys():
            continue
        sign = -1 if kind == "latency" else 1
        better += [sign * (value - off[pair]) > 0 for pair, value in on.items()]
        middle, middle_off = (sorted(values)[len(values) // 2] for values in (on.values(), off.values()))
        if sign * (middle - middle_off) <= 0:
            text = f"{label}: {middle:g} {unit} with peer to peer, {middle_off:g} without"
            slow.append(from_tool("p2pBandwidthLatencyTest", text, "warning"))
    if slow:
        return Part(reported=tuple(slow))
    note = "nothing to compare" if not better else "every pair is faster with peer to peer"
    if better and not all(better):
        note = f"{better.count(False)} of {len(better)} figures are no better with peer to peer"
    return Part(notes=(f"p2pBandwidthLatencyTest: {note}",))


def _pairs(rows: str) -> dict[tuple[int, int], float]:
    """The value of each pair of two GPUs that a matrix has."""
    return {
        (int(row), column): float(cell)
        for row, *cells in map(str.split, rows.splitlines())
        for column, cell in enumerate(cells)
        if column != int(row) and cell != "N/A"
    }


def _copies(block: Block) -> Iterator[tuple[str, float]]:
    """Rates of bandwidthTest between RAM and a GPU that could be those of the link: the way and GB/s."""
    for copies in _COPIES.finditer(block.text):
        for size, rate in map(str.split, copies["rows"].splitlines()):
            if int(size) >= _LARGE_COPY_BYTES:
                yield copies["way"].lower(), float(rate) * (0.001 if copies["unit"] == "M" else 1)


@text_reader(
    "bandwidthTest",
    r"\[?CUDA Bandwidth Test\] - Starting",
    rf"Running on|{_DEVICE}| (?:Quick|Range|Shmoo) Mode| \w+ to \w+ Bandwidth, | (?:PINNED|PAGEABLE) Memory"
    rf"|\s+Transfer Size|\s{{1,12}}\d{{1,12}}{_CELLS}|Result = |NOTE: The CUDA Samples",
)
def read_copies(block: Block) -> Part:
    """What bandwidthTest says has failed, and copies that are slower than any link of a GPU should be."""
    best: dict[str, float] = {}
    for way, rate in _copies(block):
        best[way] = max(best.get(way, 0.0), rate)
    reported = [from_tool("bandwidthTest", line.strip()) for line in block.lines if "Result = FAIL" in line]
    reported += [
        from_tool("bandwidthTest", f"{way} {rate:.1f} GB/s: a slow link, or CPUs far from the GPU", "warning")
        for way, rate in best.items()
        if rate < _SLOW_COPY_GB_S
    ]
    figures = ", ".join(f"{way} {rate:.1f} GB/s" for way, rate in best.items())
    return Part(reported=tuple(reported), notes=(f"bandwidthTest: {figures or 'no rate of a link'}",))


BENCHMARK_READERS: tuple[TextReader, ...] = (read_burn, read_nccl_tests, read_nvbandwidth, read_p2p, read_copies)
