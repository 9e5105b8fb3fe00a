"""Step `facts`: the facts against `nvidia-smi -q -x`, field by field."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator

from gpudoctor.acceptance.leaves import compare
from gpudoctor.acceptance.result import Item, agreed, could_not, differs
from gpudoctor.acceptance.run import AcceptanceRun
from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.captures.nvidia_smi.query_dump import SmiDump
from gpudoctor.facts.captures.nvidia_smi.query_xml import parse_smi_xml
from gpudoctor.facts.model.gpu import Gpu, GpuProcess
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node

SMI = "nvidia-smi"
DUMP = "nvidia-smi.xml"
_TEXTS = {"nvidia-smi-topo.txt": ("topo", "-m"), "nvidia-smi-nvlink.txt": ("nvlink", "-s")}
_MOST_SHOWN = 20


def facts(run: AcceptanceRun) -> Iterator[Item]:
    """gpudoctor, nvidia-smi, gpudoctor: what nvidia-smi shows is what gpudoctor read around it."""
    program = shutil.which(SMI)
    if program is None:
        yield could_not(f"facts against {SMI} -q -x: {SMI} is not on PATH")
        return
    before = run.facts()
    done = run.child([program, "-q", "-x"])
    after = run.facts()
    run.raw[DUMP] = done.stdout
    for name, words in _TEXTS.items():
        run.raw[name] = run.child([program, *words]).stdout
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
    """A process that gpudoctor saw both times is in nvidia-smi's list, and the other way round."""
    if isinstance(smi.processes, Missing) or isinstance(before.processes, Missing):
        return
    listed = {process.pid for process in smi.processes}
    first, last = _pids(before.processes), _pids(known(after.processes) or ())
    for pid in sorted(first & last - listed):
        yield f"processes: gpudoctor shows {pid} before and after, {SMI} does not"
    for pid in sorted(listed - first - last):
        # it may have come and gone between the two
        yield f"processes: {SMI} shows {pid}, gpudoctor neither before nor after"


def _pids(processes: tuple[GpuProcess, ...]) -> set[int]:
    return {process.pid for process in processes if not process.is_own}
