"""Step `facts`: the facts against `nvidia-smi -q -x`, field by field."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from acceptance.run import AcceptanceRun, Item, agreed, could_not, differs
from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.captures.nvidia_smi.query_dump import SmiDump
from gpudoctor.facts.captures.nvidia_smi.query_xml import parse_smi_xml
from gpudoctor.facts.model.gpu import Gpu, GpuProcess
from gpudoctor.facts.model.missing import Fact, Missing, known
from gpudoctor.facts.model.node import Node

Value = object
# values that change by themselves: both must have one, the numbers may differ
VOLATILE = frozenset(
    {
        *("clocks.graphics_mhz", "clocks.sm_mhz", "clocks.memory_mhz", "clocks.performance_state"),
        *("clocks.event_reasons", "power.draw_w", "utilization.gpu_pct", "utilization.memory_pct"),
        *("memory_used_mib", "memory_free_mib", "pcie.generation"),
    }
)
# values that change slowly or are rounded: the allowed distance from the readings before and after
_TOLERANCE: Mapping[str, float] = {
    "thermal.gpu_c": 5,
    "thermal.memory_c": 5,
    "thermal.margin_c": 5,
    # rounding: nvidia-smi prints MiB and hundredths of a watt
    **dict.fromkeys(("memory_total_mib", "memory_reserved_mib"), 1),
    **{f"power.{name}_w": 0.01 for name in ("limit", "requested_limit", "default_limit", "min_limit", "max_limit")},
}
# not in nvidia-smi's dump, or deliberately read another way; `errors` and `index` are no values of the GPU
_NOT_COMPARED = frozenset(
    {
        *("index", "bus_id", "errors", "numa_node", "cpu_affinity", "processes", "compute_capability"),
        *("pcie.path", "nvlinks", "settings.mig_instances", "settings.confidential_compute"),
        "pcie.host_generation_max",  # gpudoctor takes it from /sys
    }
)
# gpudoctor reads these only from GPUs without margins
_LIMITS = frozenset(f"thermal.{name}_c" for name in ("slowdown", "shutdown", "max_operating", "memory_max"))


class LeafComparison(msgspec.Struct):
    """The number of leaves that agree and that nvidia-smi lacks; those that differ; those denied without root."""

    same: int = 0
    not_shown: int = 0
    differ: list[str] = []
    denied: list[str] = []


def compare(before: Gpu, after: Gpu, smi: Gpu) -> LeafComparison:
    """Compare each leaf of gpudoctor's readings before and after with nvidia-smi's reading between them.

    A number that grew from the first reading to the second (a counter) may have any value between
    them. A leaf that this version of nvidia-smi does not show is counted but not compared.
    """
    made = LeafComparison()
    after_of = dict(leaves(after))
    smi_of = dict(leaves(smi))
    has_margins = known(before.thermal.slowdown_margin_c) is not None
    for path, first in leaves(before):
        if path in _NOT_COMPARED:
            continue
        theirs = smi_of.get(path)
        replaced = has_margins and path in _LIMITS and isinstance(first, Missing)
        if theirs is None or replaced or (isinstance(theirs, Missing) and theirs.kind == "absent"):
            made.not_shown += 1
        elif isinstance(first, Missing) and first.kind == "denied":
            made.denied.append(path)
        elif (why := _difference(path, first, after_of.get(path), theirs)) is None:
            made.same += 1
        else:
            made.differ.append(f"{path}: {why}")
    return made


def leaves(fact: Fact, at: str = "") -> Iterator[tuple[str, Value]]:
    """Every leaf with its path (power.limit_w); a tuple is one leaf."""
    for name in fact.__struct_fields__:
        value = getattr(fact, name)
        if isinstance(value, Fact):
            yield from leaves(value, f"{at}{name}.")
        else:
            yield f"{at}{name}", value


def _difference(path: str, first: Value, last: Value, theirs: Value) -> str | None:
    """None if they agree, else a text with both values."""
    both = f"gpudoctor {_word(first)}, nvidia-smi {_word(theirs)}"
    ours_missing = isinstance(first, Missing) and isinstance(last, Missing)
    if ours_missing or isinstance(theirs, Missing):
        return None if ours_missing and isinstance(theirs, Missing) else both
    if path in VOLATILE:
        return None if _kind(first) == _kind(theirs) or _kind(last) == _kind(theirs) else both
    numbers = [value for value in (first, last) if isinstance(value, int | float) and not isinstance(value, bool)]
    if numbers and isinstance(theirs, int | float) and not isinstance(theirs, bool):
        slack = _TOLERANCE.get(path, 0)
        return None if min(numbers) - slack <= theirs <= max(numbers) + slack else both
    return None if theirs in (first, last) or _folded(theirs) in (_folded(first), _folded(last)) else both


def _kind(value: Value) -> type:
    return float if isinstance(value, int) and not isinstance(value, bool) else type(value)


def _folded(value: Value) -> Value:
    """Names and ids in lower case: case does not matter."""
    return value.lower() if isinstance(value, str) else value


def _word(value: Value) -> str:
    if isinstance(value, Missing):
        return f"none ({value.reason})"
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)


SMI = "nvidia-smi"
DUMP = "nvidia-smi.xml"
_TOPOLOGY = "nvidia-smi-topo.txt"
_MOST_SHOWN = 20


def facts(run: AcceptanceRun) -> Iterator[Item]:
    """Run gpudoctor, nvidia-smi, gpudoctor: nvidia-smi's values must match those read before and after."""
    program = shutil.which(SMI)
    if program is None:
        yield could_not(f"facts against {SMI} -q -x: {SMI} is not on PATH")
        return
    before = run.facts()
    done = run.child([program, "-q", "-x"])
    after = run.facts()
    run.raw[DUMP] = done.stdout
    run.raw[_TOPOLOGY] = run.child([program, "topo", "-m"]).stdout
    if done.code != 0:
        yield differs(f"{SMI} -q -x {done.words}")
        return
    try:
        dump = parse_smi_xml(done.stdout.decode("utf-8", "replace"))
    except SourceError as error:
        yield differs(f"{SMI} -q -x is not to be read: {error}")
        return
    yield from compared(before, after, dump)


def compared(before: Node, after: Node, dump: SmiDump) -> Iterator[Item]:
    """The driver, the list of GPUs, and each GPU's leaves and processes."""
    yield from _driver(before, dump)
    ours = {gpu.bus_id: gpu for gpu in before.gpus}
    later = {gpu.bus_id: gpu for gpu in after.gpus}
    theirs = {gpu.bus_id: gpu for gpu in dump.gpus}
    for bus_id in sorted(ours.keys() ^ theirs.keys()):
        who = "gpudoctor" if bus_id in ours else SMI
        yield differs(f"GPU {bus_id}: only {who} sees it")
    same = not_shown = 0
    differ: list[str] = []
    denied: Counter[str] = Counter()
    for bus_id in sorted(ours.keys() & theirs.keys() & later.keys()):
        one = compare(ours[bus_id], later[bus_id], theirs[bus_id])
        same, not_shown = same + one.same, not_shown + one.not_shown
        denied.update(one.denied)
        odd = _processes(ours[bus_id], later[bus_id], theirs[bus_id])
        differ += [f"{ours[bus_id].label}: {line}" for line in (*one.differ, *odd)]
    for line in differ[:_MOST_SHOWN]:
        yield differs(line)
    if len(differ) > _MOST_SHOWN:
        yield differs(f"and {len(differ) - _MOST_SHOWN} more values, see {DUMP} and facts.json")
    if same:
        yield agreed(f"{same} values of {len(theirs)} GPUs are the same; {not_shown} are not in this {SMI}'s dump")
    elif not differ:
        yield differs(f"{SMI} -q -x shows nothing that could be compared")
    for path, count in denied.items():
        yield could_not(f"{path} of {count} GPUs: no permission to read it; root may")


def _driver(ours: Node, dump: SmiDump) -> Iterator[Item]:
    pairs = (
        ("driver version", ours.driver.library_version, dump.driver.library_version),
        ("CUDA version", ours.driver.cuda_version, dump.driver.cuda_version),
        ("number of GPUs", ours.driver.device_count, dump.driver.device_count),
    )
    for what, one, other in pairs:
        if isinstance(other, Missing):
            continue
        if one != other:
            yield differs(f"{what}: gpudoctor {one.reason if isinstance(one, Missing) else one}, {SMI} {other}")


def _processes(before: Gpu, after: Gpu, smi: Gpu) -> Iterator[str]:
    """Processes that only gpudoctor (both times) or only nvidia-smi saw."""
    if isinstance(smi.processes, Missing) or isinstance(before.processes, Missing):
        return
    listed = {process.pid for process in smi.processes}
    first, last = _pids(before.processes), _pids(known(after.processes) or ())
    for pid in sorted(first & last - listed):
        yield f"processes: gpudoctor shows {pid} before and after, {SMI} does not"
    for pid in sorted(listed - first - last):
        # it may have run only between the two readings
        yield f"processes: {SMI} shows {pid}, gpudoctor neither before nor after"


def _pids(processes: tuple[GpuProcess, ...]) -> set[int]:
    return {process.pid for process in processes if not process.is_own}
