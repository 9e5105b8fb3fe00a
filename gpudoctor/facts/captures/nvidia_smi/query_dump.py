"""A whole dump of nvidia-smi: the driver, its GPUs, and how nvidia-smi failed."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import datetime

import msgspec
from msgspec.structs import replace

from gpudoctor.facts.captures import ABSENT, BUS_ID, SourceError
from gpudoctor.facts.captures.nvidia_smi.names import LEAVES, PATHS
from gpudoctor.facts.captures.nvidia_smi.query_gpu import GpuDump, GpuDumps, marked_as_cut
from gpudoctor.facts.captures.nvidia_smi.values import Values
from gpudoctor.facts.captures.text_statements import from_tool
from gpudoctor.facts.model.driver import DRIVER_VERSION
from gpudoctor.facts.model.gpu import CallError, Gpu
from gpudoctor.facts.model.missing import NOT_READ, Missing
from gpudoctor.facts.model.node import Driver, short_bus_id
from gpudoctor.facts.model.reported import Reported
from gpudoctor.facts.nvml.codes import DUMP_HANDLE, UNKNOWN, code_in_words

# messages of nvidia-smi in place of a dump -> nvmlInit's code, see Driver.init_code
_INIT_FAILURES = (
    ("couldn't communicate with the NVIDIA driver", 9),
    ("Driver Not Loaded", 9),
    ("couldn't find libnvidia-ml.so", 12),
    ("Driver/library version mismatch", 18),
    ("could not load NVML library", 12),
    ("LIBRARY_NOT_FOUND", 12),
    ("Shared Library Not Found", 12),
    ("Insufficient Permissions", 4),
    ("blocked by the operating system", 17),
    ("Failed to initialize NVML", 999),
)
_NO_DEVICES = "No devices were found"
_SMI = "nvidia-smi"
_LIBRARY = re.compile(rf"NVML library version: ({DRIVER_VERSION})")
# "GPU 0000:05:00.0: ..." of older drivers, "GPU1: 0000:34:00.0: ..." of newer ones
_LOST_GPU = re.compile(rf"GPU ?(?:(?P<index>\d{{1,3}}): ?)?(?P<bus_id>{BUS_ID})", re.IGNORECASE)
# people also quote it in the middle of a sentence
_HANDLE = re.compile(r"(?:^.{0,40})?Unable to determine the device handle for.{0,300}", re.MULTILINE)

_LACKING = Missing("not in its section, as it is in that of a GPU like it", "failed")
_MOST_KINDS = 16  # of GPUs, and of values: more than any machine has
_SELECTED = re.compile(r" (?:-i|--id)[ =]?\d")
_UNLICENSED = re.compile(r"Unlicensed|Expired")
_NOT_VGPU = ("NONE", "PASS-THROUGH", "HOST")
_JUDGED = frozenset(PATHS.values()).union(*(names for _, names in LEAVES.values()))
_UNWELL = re.compile(r"(?i)(?:un|not[ _-]?)(?:healthy|ok|well)|faulty|degraded|fail(?:ed|ing)|critical|bad")

ANSWERED = Driver(module_loaded=True, init_code=0)


class SmiDump(msgspec.Struct):
    """The GPUs and the driver in one output of nvidia-smi; with GPUs, the driver has usually answered.

    A GPU without a bus id in the text gets the bus id "unknown-INDEX". `indexed`: the text contains the indices of its
    GPUs; otherwise they are counted in its order. `attached`: the number of GPUs that it claims. `complete`: there is
    no sign that GPUs are missing from it. `name` is the form of the output ("nvidia-smi -q"). `notes` are shown in the
    report. `unnumbered`: GPUs whose bus id is in an error message and whose index is nowhere. `only_adds_facts`: to the
    GPUs of a list by nvidia-smi itself, if there is one; it is none. `unlisted`: in words, GPUs of such a text that
    the list lacks. `sample`: a higher one stands further down in its file. `reported`: what its text says of itself.
    """

    gpus: tuple[Gpu, ...] = ()
    driver: Driver = ANSWERED
    collected_at: str | Missing = ABSENT
    notes: tuple[str, ...] = ()
    attached: int | Missing = ABSENT
    name: str = "nvidia-smi -q"
    indexed: bool = False
    complete: bool = True
    unnumbered: tuple[Gpu, ...] = ()
    only_adds_facts: bool = False
    unlisted: tuple[str, ...] = ()
    sample: int = 0
    reported: tuple[Reported, ...] = ()


def smi_dump(top: dict[str, str], gpus: list[GpuDump], outside: str = "", *, selected: bool = False) -> SmiDump:
    """Build a dump from its head, its GPUs in order, and the text around them.

    `selected`: it was limited to some GPUs (-i). Raise SourceError for an invalid bus id, or one that occurs twice.
    """
    v = Values(top)
    handle_errors = tuple(line.strip() for line in _HANDLE.findall(outside))
    counted = attached = v.whole("attached_gpus")
    seen: set[str] = set()
    for index, gpu in enumerate(gpus):
        if gpu.bus_id and not gpu.address:
            raise SourceError(f"GPU {index} of the dump has no bus id but {gpu.bus_id[:40]!r}")
        if gpu.address in seen:
            raise SourceError(f"GPU {gpu.address} is there twice: more than one nvidia-smi -q dump in one file?")
        seen |= {gpu.address} - {""}
    cut = [f"the dump is cut off inside GPU {gpu.address or index}" for index, gpu in enumerate(gpus) if gpu.cut]
    complete = not cut
    if not isinstance(attached, Missing) and len(gpus) < attached and not handle_errors:
        # `-i 0` shows one GPU of eight and still counts eight: the other seven must neither count as lost nor pass
        attached = Missing(f"the dump shows {len(gpus)} of {attached} GPUs", "absent" if selected else "failed")
        complete = False
    names = (gpu.address or f"{n if gpu.number is None else gpu.number}" for n, gpu in enumerate(gpus))
    unwell_values = (each for gpu, name in zip(gpus, names, strict=True) for each in unwell(gpu.values, name))
    unnamed = f"the text does not name its GPU{'s' * (len(gpus) > 1)}: counted in its order, from 0"
    driver = replace(
        ANSWERED,
        library_version=v.text("driver_version"),
        cuda_version=v.text("cuda_version"),
        device_count=attached,
        handle_errors=handle_errors,
    )
    return SmiDump(
        _marked_as_lacking(GpuDumps(enumerate(gpus)).in_order(), [len(gpu.values) for gpu in gpus]),
        driver,
        collected_at=time_in(v.text("timestamp")),
        notes=(*cut, *([unnamed] if any(not gpu.bus_id for gpu in gpus) else ())),
        attached=counted,
        complete=complete,
        reported=(*_unlicensed(gpus), *unwell_values),
    )


def numbered(gpus: tuple[Gpu, ...], name: str, driver: Driver = ANSWERED) -> SmiDump:
    """GPUs with their indices, from a text that is no list of all GPUs."""
    return SmiDump(gpus, driver, name=name, indexed=True, complete=False, only_adds_facts=True)


def count_by_index(indices: Collection[int]) -> Missing:
    """That GPUs are missing from a list, by its indices: failed if it shows most from 0 to the highest, and not all.

    A list of few of them shows a selection (`nvidia-smi -i 0,4`), which its text does not name.
    """
    highest = max(indices, default=0)
    if len(indices) > highest or 2 * len(indices) <= highest + 1:
        return NOT_READ
    names = ", ".join(str(index) for index in range(highest) if index not in indices)
    return Missing(f"the text shows no GPU {names}, and GPUs up to {highest}", "failed")


def is_selected(command: str) -> bool:
    """Whether the command limits nvidia-smi to some GPUs (-i)."""
    return _SELECTED.search(command) is not None


def unwell(values: Mapping[str, str], gpu: str) -> tuple[Reported, ...]:
    """The values of a GPU that no fact holds, and whose word says that something is not well, under whatever name."""
    bad = [(path, text) for path, text in values.items() if path not in _JUDGED and _UNWELL.fullmatch(text.strip())]
    return tuple(from_tool("nvidia-smi", f"GPU {gpu}: {path} is {text.strip()}") for path, text in bad[:_MOST_KINDS])


def _unlicensed(gpus: list[GpuDump]) -> tuple[Reported, ...]:
    """That a vGPU has no licence: its driver slows it down then. Source: Virtual GPU Client Licensing User Guide.

    A GPU whose mode is not that of a vGPU shows the same line, and needs no licence.
    """
    for gpu in gpus:
        mode = next((text for path, text in gpu.values.items() if text and path.endswith("virtualization_mode")), "")
        states = (_UNLICENSED.match(text) for path, text in gpu.values.items() if path.endswith("license_status"))
        if (status := next(filter(None, states), None)) and not mode.upper().startswith(_NOT_VGPU):
            return (from_tool("nvidia-smi", f"vGPU licence status {status[0]}: the driver slows it down", "warning"),)
    return ()


def _marked_as_lacking(gpus: tuple[Gpu, ...], values: list[int]) -> tuple[Gpu, ...]:
    """The GPUs, with what a section lacks and the fullest one of a GPU like it has marked as failed.

    `values`: how many each GPU has, by index.
    """
    fullest: dict[tuple[object, ...], Gpu] = {}
    for gpu in sorted(gpus, key=lambda gpu: values[gpu.index]):
        fullest[_kind(gpu)] = gpu
    kinds = list(fullest.items())[-_MOST_KINDS:]
    made = []
    for gpu in gpus:
        own = _kind(gpu)
        for kind, other in kinds:
            if other is not gpu and all(ABSENT in (one, two) or one == two for one, two in zip(own, kind, strict=True)):
                gpu = marked_as_cut(gpu, other, _LACKING)
        made.append(gpu)
    return tuple(made)


def _kind(gpu: Gpu) -> tuple[object, ...]:
    """What explains that a GPU shows less than another one: its model, its board, and settings that hide values."""
    settings = gpu.settings
    modes = (settings.mig_enabled, settings.virtualization, settings.display_attached, settings.display_active)
    return (gpu.name, gpu.vbios, gpu.ecc.enabled, *modes)


def init_failure(text: str) -> SmiDump | None:
    """A dump for nvidia-smi's errors: no driver, GPUs that could not be opened, or no GPUs; None if there are none."""
    handles = tuple(dict.fromkeys(line.strip() for line in _HANDLE.findall(text)))
    if handles:
        gpus, indexed = _lost(handles)
        return SmiDump(gpus, replace(ANSWERED, handle_errors=handles), name=_SMI, indexed=indexed, complete=False)
    if _NO_DEVICES in text:
        return SmiDump(driver=replace(ANSWERED, device_count=0), name=_SMI)
    for message, code in _INIT_FAILURES:
        if message in text:
            line = next(line.strip() for line in text.splitlines() if message in line)
            library = _LIBRARY.search(text)
            driver = Driver(init_code=code, init_error=line[:300], library_version=library[1] if library else NOT_READ)
            return SmiDump(driver=driver, name=_SMI, complete=False)
    return None


def _lost(handles: tuple[str, ...]) -> tuple[tuple[Gpu, ...], bool]:
    """The GPUs named by bus id in handle errors, and whether the errors contain their indices."""
    found: dict[str, tuple[int | None, CallError]] = {}
    for line in handles:
        named = _LOST_GPU.search(line)
        if named is not None:
            text = " ".join(line[named.end() :].lstrip(": ").split())
            code = code_in_words(text)
            code = UNKNOWN if code is None else code
            index = int(named["index"]) if named["index"] else None
            found[short_bus_id(named["bus_id"])] = (index, CallError(DUMP_HANDLE, code, text[:100]))
    indices = [index for index, _ in found.values() if index is not None]
    indexed = len(set(indices)) == len(found) > 0
    return (
        tuple(
            Gpu(index if indexed and index is not None else order, bus_id, errors=(error,))
            for order, (bus_id, (index, error)) in enumerate(sorted(found.items()))
        ),
        indexed,
    )


def time_in(text: str | Missing) -> str | Missing:
    """Convert "Fri Aug 21 08:54:01 2026" to 2026-08-21T08:54:01; nvidia-smi prints no time zone."""
    if isinstance(text, Missing):
        return text
    try:
        return datetime.strptime(" ".join(text.split()), "%a %b %d %H:%M:%S %Y").isoformat()  # noqa: DTZ007
    except ValueError:
        return text[:40]
