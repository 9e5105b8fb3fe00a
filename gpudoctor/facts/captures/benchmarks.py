"""Benchmarks whose verdict is in their figures: gpu-burn, p2pBandwidthLatencyTest, bandwidthTest.

The figures are compared with each other or with zero only; what a node should reach, gpudoctor measures itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpudoctor.facts.captures.reader import Block, Part, TextReader, text_reader
from gpudoctor.facts.captures.text_statements import from_tool
from gpudoctor.facts.model.reported import Reported
from gpudoctor.text.units import ranges

_CELLS = r"(?:\s+(?:N/A|\d{1,9}(?:\.\d{1,6})?)){1,1024}\s*$"
_DEVICE = r"\s*Device:? ?\d{1,4}[,:] "

_BURN_GPU = re.compile(r"\s*GPU (\d{1,4}): (OK|FAULTY)")
_BURN_PROGRESS = re.compile(r"(\d{1,3})\.\d%\s+proc'd: ([^e]{1,20000})errors: ?([^t]{0,20000})")
_BURN_ERRORS = re.compile(r"(-?\d{1,20})\s*(\(DIED!\))?")
_BURN_ENDED = re.compile(r"Couldn't init a GPU test|No clients are alive")
_P2P_MATRIX = re.compile(
    r"(?:(?P<way>Uni|Bi)directional P2P=(?P<on>En|Dis)abled Bandwidth|P2P Connectivity Matrix).*\n\s+(?:D\\D|GPU)\s.*\n"
    r"(?P<rows>(?:[ \t]{1,12}\d{1,4}(?:[ \t]+(?:N/A|\d{1,9}(?:\.\d{1,6})?)){1,1024}[ \t]*\n)+)"
)
# those of pageable memory do not reach a link's rate
_COPIES = re.compile(
    r"(?P<way>Host to Device|Device to Host) Bandwidth, .*\n PINNED Memory .*\n\s+Transfer Size \(Bytes\)\s+"
    r"Bandwidth\((?P<unit>[MG])B/s\)\n(?P<rows>(?:[ \t]+\d{3,12}[ \t]+\d{1,7}(?:\.\d{1,3})?[ \t]*\n)+)"
)
_SLOW_COPY_GB_S = 5  # PCIe 3.0 x8 carries 6
_LARGE_COPY_BYTES = 16_000_000  # smaller ones do not reach it either


@text_reader(
    "gpu-burn",
    r"Tested \d{1,4} GPUs:|GPU Burn$|\d{1,3}\.\d%\s+proc'd: |Couldn't init a GPU test|No clients are alive",
    r"\s*GPU \d{1,4}: (?:OK|FAULTY)|Burning for |Killing processes|Initialized device ",
)
def read_burn(block: Block) -> Part:
    """GPUs that are faulty, computed wrongly, computed nothing, or could not be started at all."""
    verdicts = [found for line in block.lines if (found := _BURN_GPU.match(line))]
    bad = [f"GPU {found[1]} is FAULTY" for found in verdicts if found[2] == "FAULTY"]
    if progress := [found for line in block.lines for found in _BURN_PROGRESS.finditer(line)]:
        bad += _burn_troubles(progress)
    bad += [line.strip() for line in block.lines if _BURN_ENDED.match(line)]
    if bad:
        return Part(reported=tuple(from_tool("gpu-burn", text) for text in dict.fromkeys(bad)))
    return Part(reported=(from_tool("gpu-burn", f"{len(verdicts)} GPUs OK", "ok"),) if verdicts else ())


def _burn_troubles(progress: list[re.Match[str]]) -> Iterator[str]:
    """What the lines of progress say; the first ones come before the first result."""
    rates = [float(rate) for rate in re.findall(r"\((\d{1,12}(?:\.\d{1,6})?) Gflop/s\)", progress[-1][2])]
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
    "p2pBandwidthLatencyTest",
    # with an editor's line number
    r"(?:[ \t]{0,8}\d{1,4} )?(?:\[P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test\]|P2P Connectivity Matrix"
    r"|(?:Uni|Bi)directional P2P=(?:En|Dis)abled Bandwidth|P2P=(?:En|Dis)abled Latency)",
    rf"{_DEVICE}|Device=\d{{1,4}} CAN|\s+(?:D\\D|GPU|CPU)(?:\s+\d{{1,4}})+\s*$|\s{{1,12}}\d{{1,12}}{_CELLS}"
    r"|\*\*\*NOTE: In case|So you can see lesser|NOTE: The CUDA Samples",
)
def read_p2p(block: Block) -> Part:
    """Copies from GPU to GPU that are no faster with peer to peer than without, if the GPUs can reach each other."""
    rates: dict[tuple[str, str], list[float]] = {}
    for matrix in _P2P_MATRIX.finditer(block.text):
        for row, *cells in map(str.split, matrix["rows"].splitlines()):
            others = (cell for column, cell in enumerate(cells) if column != int(row) and cell != "N/A")
            rates.setdefault((matrix["way"] or "access", matrix["on"] or ""), []).extend(map(float, others))
    if not any(rates.get(("access", ""), [1.0])):
        return Part(notes=("p2pBandwidthLatencyTest: these GPUs have no peer to peer",))
    slow = []
    for way in ("Uni", "Bi"):
        on, off = sorted(rates.get((way, "En"), [])), sorted(rates.get((way, "Dis"), []))
        if on and off and on[len(on) // 2] <= off[len(off) // 2]:
            figures = f"{on[len(on) // 2]:g} GB/s with peer to peer, {off[len(off) // 2]:g} without"
            slow.append(from_tool("p2pBandwidthLatencyTest", f"{way.lower()}directional copies: {figures}", "warning"))
    return Part(reported=tuple(slow), notes=() if slow else ("p2pBandwidthLatencyTest: faster with peer to peer",))


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
    reported: list[Reported] = [
        from_tool("bandwidthTest", line.strip()) for line in block.lines if "Result = FAIL" in line
    ]
    reported += [
        from_tool("bandwidthTest", f"{way} {rate:.1f} GB/s: a slow link, or CPUs far from the GPU", "warning")
        for way, rate in best.items()
        if rate < _SLOW_COPY_GB_S
    ]
    figures = ", ".join(f"{way} {rate:.1f} GB/s" for way, rate in best.items())
    return Part(reported=tuple(reported), notes=(f"bandwidthTest: {figures or 'no rate of a link'}",))


BENCHMARK_READERS: tuple[TextReader, ...] = (read_burn, read_p2p, read_copies)
