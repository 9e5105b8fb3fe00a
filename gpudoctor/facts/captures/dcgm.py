"""DCGM as `dcgmi` prints it: its GPUs with their readings and NVLinks, and the verdicts of its own tests."""

from __future__ import annotations

import re
from collections import Counter

from msgspec.structs import replace

from gpudoctor.facts.captures import BUS_ID, MOST_GPUS, clipped
from gpudoctor.facts.captures.monitor import part_by_dcgm
from gpudoctor.facts.captures.nvidia_smi.query_dump import SmiDump
from gpudoctor.facts.captures.nvidia_smi.query_gpu import GpuDump, GpuDumps
from gpudoctor.facts.captures.nvidia_smi.table import OTHER_TABLE
from gpudoctor.facts.captures.reader import Block, Part, TextReader, text_reader
from gpudoctor.facts.captures.text_statements import from_tool
from gpudoctor.facts.model.gpu import LinkState, NvLink
from gpudoctor.facts.model.missing import UNSUPPORTED
from gpudoctor.facts.model.reported import Loudness, Reported
from gpudoctor.text.grouped import grouped
from gpudoctor.text.units import ranges

_MOST_ROWS, _MOST_WORDS = 40, 300  # of what a failed test says: it repeats it for each GPU
_BORDER = r"[|+][-=+]{10,}[|+]?\s*$"
_ROW = re.compile(r"\|([^|]{0,200})\|([^|]{0,400})\|")
_GPU = re.compile(r"GPU (\d{1,4})(?!\d)")
_GLUED = re.compile(r"(GPU \d{1,4})(?=GPU)")  # DCGM 1 and 2 put the GPU before the words without a gap
# what an administrator sets, and no part that is broken
_SETTING = re.compile(r"(?i)persistence mode|environment variable|permission|(?:deny|black)list|graphics process")
_NO_VERDICT = "DCGM's own tests, which gpudoctor does not repeat from a text; on the node: gpudoctor check --level full"


# `dcgmi diag`

# also rows alone, as people quote them; the names of DCGM 1 to 4
_TEST = (
    r"(?:Deny|Black)list|NVML Library|CUDA Main Library|Permissions and OS Blocks|Persistence Mode|Inforom|Memtest"
    r"|Environment Variables|Page Retirement(?:/Row Remap)?|Graphics Processes|Fabric Manager|PCIe|GPU Memory"
    r"|Diagnostic|Pulse Test|EUD Test|(?:SM|Targeted) Stress|Targeted Power|Memory Bandwidth"
    r"|software|memory|pcie|diagnostic|memtest|pulse_test|eud|cpu_eud|targeted_(?:stress|power)|memory_bandwidth|nvbandwidth|nccl_tests"
)
_DIAG = (
    r"Successfully ran diagnostic for group|\| Diagnostic +\| Result +\|"
    rf"|\| (?:{_TEST}) +\| (?:Pass|Fail|Warn|Skip|Not Run)\b"
    r"|[|+]-+ {1,3}(?:Metadata|Deployment|Integration|Hardware|Stress) {1,3}-+\+-+[|+]\s*$"
)
_TABLE = (
    rf"(?!{OTHER_TABLE.pattern}|{_DIAG})"
    rf"(?:{_BORDER}|[|+]-+ {{1,3}}\w[\w ]{{1,30}}-+\+-+[|+]\s*$|\|[^|]*\|[^|]*\|\s*$)"
)
_NOT_RUN = re.compile(r"Error(?:: Unable to (?:complete|run)| when executing the) diagnostic.{0,300}")
_RESULT = re.compile(r"(?:GPU ?(\d{1,4}): )?(Pass|Fail|Warn|Skip|Not Run)(?:p?ed)?\b[ -]*(.{0,60})", re.IGNORECASE)
_NO_TEST = re.compile(r"(?i)(?:GPU ?\d{1,4}: *)?(?:disabled|not ?applicable|not ?supported|not ?run|n/?a)(?: - .*)?$")
_OF_ONE_GPU = re.compile(r"GPU ?\d{1,4}:")
_DIAG_JSON = re.compile(r'[\s{]{0,40}"DCGM (?:GPU )?Diagnostic"\s*:')
_JSON_FIELD = re.compile(
    r'"(name|status|gpu_ids?|entity_id|category|runtime_error)"\s*:\s*(?:"((?:[^"\\]|\\.){0,300})"|(\d{1,6}))'
)
_HEALTH = r"\| Health Monitor Report +\|"
_HEALTH_ENDS: dict[str, Loudness] = {"Healthy": "ok", "Warning": "warning", "Failure": "error"}
# words in place of one; not a temperature
_NO_HEALTH = re.compile(r"(?!(?:Healthy|OK|Good)\b)[A-Za-z][A-Za-z ]{1,60}$")
_OVERALL = re.compile(r"\| Overall Health:? *\|? *(\w+)")
_FOUND = re.compile(r"\d{1,4} \w+ found(?: \(\w+\))?\.\s*$|\| (?:GPU|Switch|CPU) ID +\|")
_ENTRY = re.compile(rf"(Name|PCI Bus ID|Device UUID): ({BUS_ID}|\S.{{0,100}})")
_LINK_DOWN = re.compile(r"(?:GPU \d{1,4}: ?)?GPU (\d{1,4})'s NvLink link (\d{1,2}) is currently down")
_REST_OF_LINKS = re.compile(r"(?:Run a field diagnostic on the GPU|[\s.,])*")
_OF_LINKS = ("PCIe", "pcie")  # the tests that look at links
_PERHAPS_NO_LINKS = "NVLinks are down, which DCGM calls a failure on boards without NVLink too"
_NVLINK_GPU = re.compile(r"\s+gpuId (\d{1,4}):\s*$")
_NVLINK_SWITCH = re.compile(r"\s+physicalId (\d{1,4}):\s*$")
_NVLINK_STATES = re.compile(r"\s+[UDX_](?: [UDX_]){0,63}\s*$")
_STATES: dict[str, LinkState] = {"U": "active", "D": "inactive", "X": "disabled"}


@text_reader("dcgmi diag", f"{_DIAG}|{_NOT_RUN.pattern}", _TABLE)
def _read_diag(block: Block) -> Part:
    """The results in a table of DCGM 1 to 4: one row per test, from 4 on followed by a row per GPU.

    Its words follow a failed test in rows "Warning" or "Error", wrapped in the middle of words.
    """
    results = _Results()
    test, in_words = "", False
    for line in block.lines:
        if not_run := _NOT_RUN.match(line):
            return Part(reported=(from_tool("dcgmi diag", f"did not run: {not_run[0]}", "unread"),))
        row = _ROW.match(line)
        if row is None:
            continue
        name, result = row[1].strip(" *"), _RESULT.match(row[2].strip(" *"))
        if name:
            in_words = name.startswith(("Warning", "Error"))
        if in_words and (name or result is None or result[1] is None):
            results.tell(test, row[2][1:].rstrip())
            continue
        if name:
            test = name if result or re.fullmatch(_TEST, name) else ""
        if test and result:
            where = f"GPU {result[1]}" if result[1] else result[3].strip()
            if name or where.startswith("GPU"):  # DCGM 2 and 3: a row per result, with the GPUs that had it
                results.add(test, result[2], where)
        elif test:
            results.note_unknown(test, row[2].strip(), of_test=bool(name))
    return results.part()


@text_reader(
    "dcgmi diag -j",
    _DIAG_JSON.match,
    r'\s*(?:"|[}\],]|\{\s*$|\{ *"(?!MESSAGE|_)|\[\s*(?:$|[{\]"])|null\b)',  # not an entry of a log
    restarts=_DIAG_JSON.match,
)
def _read_diag_json(block: Block) -> Part:
    """`dcgmi diag -j` of DCGM 3 and 4, whole or cut off."""
    results = _Results()
    test = gpu = ""
    for found in _JSON_FIELD.finditer(block.text):
        key, value = found[1], found[2] if found[2] is not None else found[3]
        if key == "runtime_error":
            results.reported.append(from_tool("dcgmi diag", f"did not run: {value}", "unread"))
        elif key in ("name", "category"):
            test, gpu = value, ""
        elif key == "status":
            if known_end := _RESULT.match(value):
                results.add(test, known_end[2], f"GPU {gpu}" if gpu else "")
            elif test:
                results.note_unknown(test, value, of_test=True)
            gpu = ""
        else:
            gpu = value
    return results.part()


class _Results:
    """The tests of one diagnostic, how each ended, and where it failed or warned."""

    def __init__(self) -> None:
        self.reported: list[Reported] = []
        self._ends: dict[str, str] = {}
        self._places: dict[str, list[str]] = {}
        self._words: dict[str, list[str]] = {}

    def tell(self, test: str, text: str) -> None:
        """A row of what the test says of its failure."""
        if len(rows := self._words.setdefault(test, [])) < _MOST_ROWS:
            rows.append(text)

    def add(self, test: str, end: str, where: str) -> None:
        """A result of the whole test, or of a GPU in it."""
        end, before = end.capitalize(), self._ends.setdefault(test, end.capitalize())
        if end not in ("Fail", "Warn") or before == "Fail" != end:
            return
        if before != end:
            self._ends[test] = end
            self._places.pop(test, None)
        places = self._places.setdefault(test, [])
        if where and where not in places and len(places) < MOST_GPUS:
            places.append(where)

    def note_unknown(self, test: str, text: str, *, of_test: bool) -> None:
        """Other words in place of a result of the test, or of a GPU in it, unless they say that it was not run."""
        of_gpu = _OF_ONE_GPU.match(text) is not None
        if (of_gpu or (of_test and text not in ("", "Result"))) and not _NO_TEST.match(text):
            text = f"{test} has no result that gpudoctor knows: {clipped(text) or 'nothing'}"
            self.reported.append(from_tool("dcgmi diag", text, "unread"))

    def part(self) -> Part:
        for test, places in self._places.items():
            end, why = self._ends[test], _unwrapped(self._words.get(test, []))
            where = f" ({', '.join(places)})" if places else ""
            text = clipped(f"{end}: {test}{where}{why and ': '}{why}")
            if test in _OF_LINKS and _all_links(why):
                self.reported.append(from_tool("dcgmi diag", f"{_PERHAPS_NO_LINKS}: {text}", "unread"))
                continue
            loudness: Loudness = "warning" if end == "Warn" or _SETTING.search(f"{test} {why}") else "error"
            reported = from_tool("dcgmi diag", text, loudness)
            if loudness == "error" and len(_gpus_in(self._words.get(test, []))) > 1:  # it is of none alone
                reported = replace(reported, gpu=None, effect="hardware")
            self.reported.append(reported)
        counts = ", ".join(f"{count} {end}" for end, count in Counter(self._ends.values()).items())
        if "Pass" in counts and not self.reported:
            self.reported.append(from_tool("dcgmi diag", counts, "ok"))
        return Part(notes=(f"dcgmi diag: {counts}: {_NO_VERDICT}",) if counts else (), reported=tuple(self.reported))


def _all_links(why: str) -> bool:
    """Whether it says of the links of each GPU, from the first on, that they are down, and nothing else."""
    links = grouped((found[1], int(found[2])) for found in _LINK_DOWN.finditer(why))
    rest = _LINK_DOWN.sub("", why)
    if len(why) == _MOST_WORDS:  # it was cut off: the end is a piece of the next link's words
        rest = rest[: rest.rfind(".") + 1]
    whole = all(len(each) > 1 and each == [*range(len(each))] for each in links.values())
    return bool(links) and whole and _REST_OF_LINKS.fullmatch(rest) is not None


def _gpus_in(rows: list[str]) -> set[str]:
    """The numbers of the GPUs that a failed test names, in rows that were cut at their width."""
    return set(_GPU.findall(_GLUED.sub(r"\1: ", "".join(rows))))


def _unwrapped(rows: list[str]) -> str:
    """The words of rows that were cut at their width; one that is shorter ended in a blank."""
    width = max(map(len, rows), default=0)
    text = "".join(row if len(row) == width else f"{row} " for row in rows)
    return " ".join(_GLUED.sub(r"\1: ", text).split())[:_MOST_WORDS]


# `dcgmi health -c`


@text_reader(
    "dcgmi health",
    rf"{_HEALTH}|\| Overall Health:? *\|? *(?:Healthy|Warning|Failure)",
    f"{_TABLE}|{_OVERALL.pattern}",
    restarts=re.compile(_HEALTH).match,
)
def _read_health(block: Block) -> Part:
    """Each part that is not well, as seriously as DCGM takes it, with what it says below; else its word for all."""
    overall, gpu = "", ""
    unread: list[str] = []
    unwell: list[tuple[str, str, list[str]]] = []  # a result, its place, and the rows below it
    for line in block.lines:
        if found := _OVERALL.match(line):
            overall = found[1]
        elif row := _ROW.match(line):
            name, value = row[1].strip(" ->"), row[2].strip()
            if name.isdecimal():
                gpu = f"GPU {name} "
            elif name and value in ("Failure", "Warning"):
                unwell.append((value, f"{gpu}{name}", []))
            elif _GPU.match(name) and _NO_HEALTH.match(value):
                unread.append(f"{name} has no health that gpudoctor knows: {value}")
            elif value and not name and unwell:
                unwell[-1][2].append(value)
    if not overall:
        return Part()
    texts = [(end, f"{end}: {place}" + ("; " + " ".join(rows) if rows else "")) for end, place, rows in unwell]
    if overall not in [end for end, _ in texts]:
        texts.append((overall, f"Overall Health: {overall}"))
    reported = [from_tool("dcgmi health", clipped(text), _HEALTH_ENDS.get(end, "warning")) for end, text in texts]
    reported += [from_tool("dcgmi health", clipped(text), "unread") for text in unread]
    return Part(reported=tuple(reported))


# `dcgmi discovery -l`


@text_reader("dcgmi discovery", r"\| GPU ID +\| Device Information +\|", f"{_TABLE}|{_FOUND.pattern}")
def _read_discovery(block: Block) -> Part:
    """The GPUs, in DCGM's order; what it lists below them (switches, CPUs) is not used."""
    gpus, gpu = GpuDumps(), GpuDump()
    for line in block.lines:
        if _FOUND.match(line) and "GPU" not in line:
            break
        row = _ROW.match(line)
        entry = _ENTRY.match(row[2].strip()) if row is not None else None
        if row is None or entry is None:
            continue
        if row[1].strip().isdecimal():
            gpu = gpus.at(len(gpus))
        if entry[1] == "PCI Bus ID":
            gpu.bus_id = entry[2]
        elif "<<<NULL>>>" not in entry[2]:
            gpu.values["product_name" if entry[1] == "Name" else "gpu_uuid"] = clipped(entry[2])
    if not gpus:
        return Part()
    return Part(smi=(SmiDump(gpus.in_order(), name="dcgmi discovery", only_adds_facts=True),))


# `dcgmi nvlink -s`


@text_reader(
    "dcgmi nvlink",
    rf"\| +NvLink Link Status +\||{_NVLINK_GPU.pattern}|\s+[UDX_](?: [UDX_]){{3,63}}\s*$",
    rf"{_NVLINK_GPU.pattern}|{_NVLINK_STATES.pattern}|{_TABLE}"
    rf"|(?:GPUs|NvSwitches):\s*$|{_NVLINK_SWITCH.pattern}|\s+No Nv|Key: Up=U",
)
def _read_nvlink(block: Block) -> Part:
    """The links of each GPU; of a switch only those that are down, since whether each is used is not in the text."""
    gpus = GpuDumps()
    gpu: int | None = None
    switch = ""
    unread: list[str] = []
    for line in block.lines:
        if found := _NVLINK_GPU.match(line):
            gpu, switch = int(found[1]), ""
        elif found := _NVLINK_SWITCH.match(line):
            gpu, switch = None, found[1]
        elif not _NVLINK_STATES.match(line):
            continue
        elif gpu is not None:
            links = tuple(NvLink(n, state=_STATES[s]) for n, s in enumerate(line.split()) if s in _STATES)
            gpus.at(gpu).facts["nvlinks"] = links or UNSUPPORTED
            gpu = None
        elif not switch:
            unread.append(f"links of a GPU that the text does not name: {line.strip()}")
        elif down := [n for n, state in enumerate(line.split()) if state == "D"]:
            unread.append(f"link {ranges(down)} of NVSwitch {switch} is down; whether it is used is not known here")
    part = part_by_dcgm(gpus, "dcgmi nvlink")
    return replace(part, reported=(*part.reported, *(from_tool("dcgmi nvlink", text, "unread") for text in unread)))


DCGM_READERS: tuple[TextReader, ...] = (_read_diag, _read_diag_json, _read_health, _read_discovery, _read_nvlink)
