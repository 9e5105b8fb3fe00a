"""DCGM as `dcgmi` prints it: its GPUs with their readings and NVLinks, and the verdicts of its own tests."""

from __future__ import annotations

import re
from collections import Counter

from msgspec.structs import replace

from gpudoctor.facts.captures import BUS_ID, MOST_GPUS, clipped
from gpudoctor.facts.captures.nvidia_smi.monitor import with_readings
from gpudoctor.facts.captures.nvidia_smi.query_dump import SmiDump, numbered
from gpudoctor.facts.captures.nvidia_smi.table import OTHER_TABLE
from gpudoctor.facts.captures.reader import Block, Part, TextReader
from gpudoctor.facts.model.gpu import Gpu, LinkState, NvLink
from gpudoctor.facts.model.missing import UNSUPPORTED
from gpudoctor.facts.model.node import short_bus_id

_BORDER = r"[|+][-=+]{10,}[|+]?\s*$"
_ROW = re.compile(r"\|([^|]{0,200})\|([^|]{0,400})\|")
_NO_VERDICT = "DCGM's own tests, which gpudoctor does not repeat from a text; on the node: gpudoctor check --level full"


# `dcgmi diag`

# also rows alone, as people quote them; the names of DCGM 1 to 4
_TEST = (
    r"(?:Deny|Black)list|NVML Library|CUDA Main Library|Permissions and OS Blocks|Persistence Mode|Inforom|Memtest"
    r"|Environment Variables|Page Retirement(?:/Row Remap)?|Graphics Processes|Fabric Manager|PCIe|GPU Memory"
    r"|Diagnostic|Pulse Test|EUD Test|(?:SM|Targeted) Stress|Targeted Power|Memory Bandwidth"
    r"|software|memory|pcie|diagnostic|memtest|pulse_test|eud|cpu_eud|targeted_(?:stress|power)|memory_bandwidth|nvbandwidth|nccl_tests"
)
_DIAG = re.compile(
    r"Successfully ran diagnostic for group|\| Diagnostic +\| Result +\|"
    rf"|\| (?:{_TEST}) +\| (?:Pass|Fail|Warn|Skip|Not Run)\b"
    r"|[|+]-+ {1,3}(?:Metadata|Deployment|Integration|Hardware|Stress) {1,3}-+\+-+[|+]\s*$"
)
_TABLE = re.compile(
    rf"(?!{OTHER_TABLE.pattern}|{_DIAG.pattern})"
    rf"(?:{_BORDER}|[|+]-+ {{1,3}}\w[\w ]{{1,30}}-+\+-+[|+]\s*$|\|[^|]*\|[^|]*\|\s*$)"
)
_NOT_RUN = re.compile(r"Error(?:: Unable to (?:complete|run)| when executing the) diagnostic.{0,300}")
_RESULT = re.compile(r"(?:GPU ?(\d{1,4}): )?(Pass|Fail|Warn|Skip|Not Run)(?:p?ed)?\b[ -]*(.{0,60})", re.IGNORECASE)
_DIAG_JSON = re.compile(r'[\s{]{0,40}"DCGM (?:GPU )?Diagnostic"\s*:')
_JSON = re.compile(r'\s*(?:"|[}\],]|\{\s*$|\{ *"(?!MESSAGE|_)|\[\s*(?:$|[{\]"])|null\b)')  # not an entry of a log
_JSON_FIELD = re.compile(
    r'"(name|status|gpu_ids?|entity_id|category|runtime_error)"\s*:\s*(?:"((?:[^"\\]|\\.){0,300})"|(\d{1,6}))'
)


def _read_diag(block: Block) -> Part:
    """The results in a table of DCGM 1 to 4: one row per test, from 4 on followed by a row per GPU."""
    results = _Results()
    for line in block.lines:
        if not_run := _NOT_RUN.match(line):
            return Part(reported=(f"dcgmi diag did not run: {not_run[0]}",))
        row = _ROW.match(line)
        if row is None:
            continue
        name, result = row[1].strip(" *"), _RESULT.match(row[2].strip(" *"))
        if name:
            results.test = ""
        if result is None:
            continue
        if name and not result[1]:
            results.add(name, result[2], result[3].strip())
        elif results.test and result[1]:
            results.add_gpu(result[1], result[2])
        elif results.test and result[3].startswith("GPU:") and result[2].lower() == "fail":
            results.fail(result[3].strip())  # DCGM 2 and 3: a row per result, with the GPUs that had it
    return results.part()


def _read_diag_json(block: Block) -> Part:
    """`dcgmi diag -j` of DCGM 3 and 4, whole or cut off."""
    results = _Results()
    name = gpu = ""
    for found in _JSON_FIELD.finditer(block.text):
        key, value = found[1], found[2] if found[2] is not None else found[3]
        if key == "runtime_error":
            results.reported.append(f"dcgmi diag did not run: {value}")
        elif key in ("name", "category"):
            name, gpu = value, ""
        elif key != "status":
            gpu = value
        else:
            if results.test != name:
                results.add(name, value, "")
            if gpu:
                results.add_gpu(gpu, value)
            elif value.lower() == "fail":
                results.fail("")
            gpu = ""
    return results.part()


class _Results:
    """The tests of one diagnostic, how each ended, and where it failed."""

    def __init__(self) -> None:
        self.test = ""
        self.reported: list[str] = []
        self._ends: dict[str, str] = {}
        self._failed: dict[str, list[str]] = {}

    def add(self, test: str, end: str, where: str) -> None:
        self.test = test
        self._ends[test] = end.capitalize()
        if end.lower() == "fail":
            self.fail(where)

    def add_gpu(self, gpu: str, end: str) -> None:
        if end.lower() == "fail":
            self.fail(f"GPU {gpu}")

    def fail(self, where: str) -> None:
        self._ends[self.test] = "Fail"
        places = self._failed.setdefault(self.test, [])
        if where and where not in places and len(places) < MOST_GPUS:
            places.append(where)

    def part(self) -> Part:
        failed = [f"{test} ({', '.join(places)})" if places else test for test, places in self._failed.items()]
        if failed:
            self.reported.append(f"dcgmi diag: Fail: {'; '.join(failed)}")
        counts = ", ".join(f"{count} {end}" for end, count in Counter(self._ends.values()).items())
        notes = (f"dcgmi diag: {counts}: {_NO_VERDICT}",) if counts else ()
        return Part(notes=notes, reported=tuple(clipped(text) for text in self.reported))


# `dcgmi health -c`

_HEALTH = re.compile(r"\| Health Monitor Report +\||\| Overall Health:? *\|? *(?:Healthy|Warning|Failure)")
_HEALTH_HEAD = re.compile(r"\| Health Monitor Report +\|")
_OVERALL = re.compile(r"\| Overall Health:? *\|? *(\w+)")


def _read_health(block: Block) -> Part:
    overall, gpu = "", ""
    bad: list[str] = []
    for line in block.lines:
        if found := _OVERALL.match(line):
            overall = found[1]
        elif row := _ROW.match(line):
            name, value = row[1].strip(" ->"), row[2].strip()
            if name.isdecimal():
                gpu = f"GPU {name} "
            elif name and value in ("Failure", "Warning"):
                bad.append(f"{gpu}{name} {value}")
    if not overall:
        return Part()
    words = clipped(f"dcgmi health: {overall}" + (f": {'; '.join(bad)}" if bad else ""))
    failed = overall == "Failure"
    return Part(notes=(f"{words}: {_NO_VERDICT}",), reported=(words,) if failed else ())


# `dcgmi discovery -l`

_DISCOVERY = re.compile(r"\| GPU ID +\| Device Information +\|")
_FOUND = re.compile(r"\d{1,4} \w+ found(?: \(\w+\))?\.\s*$|\| (?:GPU|Switch|CPU) ID +\|")
_ENTRY = re.compile(rf"(Name|PCI Bus ID|Device UUID): ({BUS_ID}|\S.{{0,100}})")


def _read_discovery(block: Block) -> Part:
    """The GPUs, in DCGM's order; what it lists below them (switches, CPUs) is not used."""
    gpus: list[Gpu] = []
    for line in block.lines:
        if _FOUND.match(line) and "GPU" not in line:
            break
        row = _ROW.match(line)
        entry = _ENTRY.match(row[2].strip()) if row is not None else None
        if row is None or entry is None:
            continue
        if row[1].strip().isdecimal() and len(gpus) < MOST_GPUS:
            gpus.append(Gpu(len(gpus), f"unknown-{len(gpus)}"))
        if not gpus:
            continue
        key, value = entry[1], clipped(entry[2])
        if key == "Name" and "<<<NULL>>>" not in value:
            gpus[-1] = replace(gpus[-1], name=value)
        elif key == "PCI Bus ID" and re.fullmatch(BUS_ID, value):
            gpus[-1] = replace(gpus[-1], bus_id=short_bus_id(value))
        elif key == "Device UUID":
            gpus[-1] = replace(gpus[-1], uuid=value)
    if not gpus:
        return Part()
    return Part(smi=(SmiDump(tuple(gpus), name="dcgmi discovery", beside=True),))


# `dcgmi nvlink -s` and `dcgmi dmon`, which name each GPU by DCGM's number: NVML's index, unless GPUs came or went since

_NUMBERED = "GPUs are named by DCGM's numbers, taken as the indices of nvidia-smi"
_NVLINK = re.compile(r"\| +NvLink Link Status +\|")
_NVLINK_GPU = re.compile(r"\s+gpuId (\d{1,4}):\s*$")
_NVLINK_STATES = re.compile(r"\s+[UDX_](?: [UDX_]){0,63}\s*$")
_NVLINK_MORE = re.compile(r"(?:GPUs|NvSwitches):\s*$|\s+(?:physicalId \d+:|No Nv)|Key: Up=U")
_STATES: dict[str, LinkState] = {"U": "active", "D": "inactive", "X": "disabled"}


def _read_nvlink(block: Block) -> Part:
    gpus: dict[int, Gpu] = {}
    index: int | None = None
    for line in block.lines:
        if found := _NVLINK_GPU.match(line):
            index = int(found[1])
        elif index is not None and _NVLINK_STATES.match(line):
            links = tuple(NvLink(n, state=_STATES[s]) for n, s in enumerate(line.split()) if s in _STATES)
            if len(gpus) < MOST_GPUS:
                gpus[index] = Gpu(index, f"unknown-{index}", nvlinks=links or UNSUPPORTED)
            index = None
    return _numbered_part(gpus, "dcgmi nvlink")


_DMON = re.compile(r"# ?Entity(?:\s+[A-Z][A-Z0-9#]{3,5}){1,40}\s*$")
_DMON_ROW = re.compile(r"\s*GPU (\d{1,4})((?:\s+(?:-?[\d.]{1,20}|N/A)){1,40})\s*$")
_DMON_MORE = re.compile(r"\s*I[Dd](?:\s+[^\s\d]{1,8})*\s*$|\s*(?:GPU|GPU-I|GPU-CI|Switch|Link|CPU|CPU Core) \d+\s")
# short names of DCGM's fields -> paths in nvidia-smi -q
_DMON_PATHS = {
    "TMPTR": "temperature/gpu_current_temp",
    "MMTMP": "temperature/memory_current_temp",
    "POWER": "power_readings/power_draw",
    "GPUTL": "utilization/gpu",
    "MCUTL": "utilization/memory",
    "SMCLK": "clocks/graphics",
    "MMCLK": "clocks/memory",
    "FBUSD": "fb_memory_usage/used",
}


def _read_dmon(block: Block) -> Part:
    columns: list[str] = []
    gpus: dict[int, Gpu] = {}
    for line in block.lines:
        if _DMON.match(line):
            columns = line.split("Entity", 1)[1].split()
        elif row := _DMON_ROW.match(line):
            cells = dict(zip(columns, row[2].split(), strict=False))
            gpus[int(row[1])] = with_readings(int(row[1]), cells, _DMON_PATHS)
    return _numbered_part(gpus, "dcgmi dmon")


def _numbered_part(gpus: dict[int, Gpu], name: str) -> Part:
    if not gpus:
        return Part(notes=(f"{name}: no GPU in it that gpudoctor reads",))
    return Part(smi=(numbered(gpus, name),), notes=(f"{name}: {_NUMBERED}",))


DCGM_READERS: tuple[TextReader, ...] = (
    TextReader("dcgmi diag", lambda line: _DIAG.match(line) or _NOT_RUN.match(line), _TABLE.match, _read_diag),
    TextReader("dcgmi diag -j", _DIAG_JSON.match, _JSON.match, _read_diag_json, restarts=_DIAG_JSON.match),
    TextReader(
        "dcgmi health",
        _HEALTH.match,
        lambda line: _TABLE.match(line) or _OVERALL.match(line),
        _read_health,
        restarts=_HEALTH_HEAD.match,
    ),
    TextReader(
        "dcgmi discovery", _DISCOVERY.match, lambda line: _TABLE.match(line) or _FOUND.match(line), _read_discovery
    ),
    TextReader(
        "dcgmi nvlink",
        _NVLINK.match,
        lambda line: any(form.match(line) for form in (_NVLINK_GPU, _NVLINK_STATES, _NVLINK_MORE, _TABLE)),
        _read_nvlink,
    ),
    TextReader("dcgmi dmon", _DMON.match, _DMON_MORE.match, _read_dmon),
)
