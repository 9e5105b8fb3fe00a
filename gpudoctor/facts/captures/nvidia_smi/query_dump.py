"""A whole dump of nvidia-smi: the driver, its GPUs, and how nvidia-smi failed."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from gpudoctor.facts.captures import ABSENT, BUS_ID, SourceError
from gpudoctor.facts.captures.nvidia_smi.names import REASON_SECTIONS
from gpudoctor.facts.captures.nvidia_smi.query_gpu import GpuDump, GpuDumps, gpu_from
from gpudoctor.facts.captures.nvidia_smi.values import Values
from gpudoctor.facts.captures.text_statements import from_tool
from gpudoctor.facts.model.driver import DRIVER_VERSION
from gpudoctor.facts.model.gpu import UNKNOWN_BUS, CallError, Gpu
from gpudoctor.facts.model.missing import NOT_READ, Fact, Missing
from gpudoctor.facts.model.node import Driver, short_bus_id
from gpudoctor.facts.model.reported import Reported
from gpudoctor.facts.nvml.codes import DUMP_HANDLE, UNKNOWN, code_in_words

# messages of nvidia-smi in place of a dump -> nvmlInit's code, see Driver.init_code
_INIT_FAILURES = (
    ("couldn't communicate with the NVIDIA driver", 9),
    ("Driver Not Loaded", 9),
    ("couldn't find libnvidia-ml.so", 12),
    ("Driver/library version mismatch", 18),
    ("Failed to initialize NVML", 999),
)
_NO_DEVICES = "No devices were found"
_SMI = "nvidia-smi"
_LIBRARY = re.compile(rf"NVML library version: ({DRIVER_VERSION})")
# "GPU 0000:05:00.0: ..." of older drivers, "GPU1: 0000:34:00.0: ..." of newer ones
_LOST_GPU = re.compile(rf"GPU ?(?:(?P<index>\d{{1,3}}): ?)?(?P<bus_id>{BUS_ID})", re.IGNORECASE)
# people also quote it in the middle of a sentence
_HANDLE = re.compile(r"(?:^.{0,40})?Unable to determine the device handle for.{0,300}", re.MULTILINE)


T = TypeVar("T", bound=msgspec.Struct)
CUT = Missing("the text is cut off before it", "failed")
_LACKING = Missing("not in its section, as it is in that of a GPU like it", "failed")
_MOST_KINDS = 16  # more than any machine has
_SELECTED = re.compile(r" (?:-i|--id)[ =]?\d")
_LICENCE = re.compile(
    r"(?P<gpu>GPU [0-9a-fA-F]{4,8}:|<gpu id=)"
    r"|(?:Virtualization Mode\s{0,80}:|<virtualization_mode>)\s{0,8}(?P<mode>[\w/-]{1,40})"
    r"|(?:License Status\s{0,80}:\s|<license_status>\s{0,8})\s{0,8}(?P<none>Unlicensed|Expired)\b"
)
_NOT_VGPU = ("NONE", "PASS-THROUGH", "HOST")


ANSWERED = Driver(module_loaded=True, init_code=0)


class SmiDump(msgspec.Struct):
    """The GPUs and the driver in one output of nvidia-smi; with GPUs, the driver has usually answered.

    A GPU without a bus id in the text gets the bus id "unknown-INDEX". `indexed`: the text contains the indices of its
    GPUs; otherwise they are counted in its order. `attached`: the number of GPUs that it claims. `ended`: there is no
    sign that GPUs are missing from it. `name` is the form of the output ("nvidia-smi -q"). `notes` are shown in the
    report. `unnumbered`: GPUs whose bus id is in an error message and whose index is nowhere. `beside`: not a list of
    GPUs by nvidia-smi itself; beside one, it can only add facts to the GPUs of that list. `unlisted`: in words, GPUs
    that such a text shows and the list lacks. `sample`: a higher one stands further down in its file.
    """

    gpus: tuple[Gpu, ...] = ()
    driver: Driver = ANSWERED
    collected_at: str | Missing = ABSENT
    notes: tuple[str, ...] = ()
    attached: int | Missing = ABSENT
    name: str = "nvidia-smi -q"
    indexed: bool = False
    ended: bool = True
    unnumbered: tuple[Gpu, ...] = ()
    beside: bool = False
    unlisted: tuple[str, ...] = ()
    sample: int = 0


def smi_dump(
    top: dict[str, str], gpus: list[GpuDump], outside: str = "", *, cut: bool = False, selected: bool = False
) -> SmiDump:
    """Build a dump from its head, its GPUs in order, and the text around them.

    `cut`: the text ends inside its last GPU. `selected`: it was limited to some GPUs (-i).
    Raise SourceError for an invalid bus id, or one that occurs twice.
    """
    v = Values(top)
    handle_errors = tuple(line.strip() for line in _HANDLE.findall(outside))
    counted = attached = v.whole("attached_gpus")
    notes: tuple[str, ...] = ()
    ended = not cut
    if not isinstance(attached, Missing) and len(gpus) < attached and not handle_errors:
        # `-i 0` shows one GPU of eight and still counts eight: the other seven must neither count as lost nor pass
        attached = Missing(f"the dump shows {len(gpus)} of {attached} GPUs", "absent" if selected else "failed")
        ended = False
    unnamed = any(not gpu.bus_id for gpu in gpus)
    made = _in_order(gpus)
    if cut and made:
        last = next(gpu for gpu in made if gpu.index == len(gpus) - 1)
        notes = (*notes, f"the dump is cut off inside GPU {last.bus_id_read or last.index}")
        made = tuple(_marked_as_cut(gpu, made, gpus[-1]) if gpu.index == len(gpus) - 1 else gpu for gpu in made)
    made = _marked_as_lacking(made, [len(gpu.values) for gpu in gpus])
    if unnamed:
        notes = (*notes, f"the text does not name its GPU{'s' * (len(gpus) > 1)}: counted in its order, from 0")
    return SmiDump(
        made,
        replace(
            ANSWERED,
            library_version=v.text("driver_version"),
            cuda_version=v.text("cuda_version"),
            device_count=attached,
            handle_errors=handle_errors,
        ),
        collected_at=time_in(v.text("timestamp")),
        notes=notes,
        attached=counted,
        ended=ended,
    )


def numbered(gpus: GpuDumps, name: str, driver: Driver = ANSWERED) -> SmiDump:
    """GPUs by their index, from a text that is no list of all GPUs."""
    return SmiDump(gpus.by_index(), driver, name=name, indexed=True, ended=False, beside=True)


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


def unlicensed(text: str) -> tuple[Reported, ...]:
    """That a vGPU has no licence: its driver slows it down then. Source: Virtual GPU Client Licensing User Guide.

    A GPU whose mode is not that of a vGPU shows the same line, and needs no licence.
    """
    status, mode = "", ""
    for found in (*_LICENCE.finditer(text), None):
        if found is None or found["gpu"]:
            if status and not mode.startswith(_NOT_VGPU):
                return (from_tool("nvidia-smi", f"vGPU licence status {status}: the driver slows it down", "warning"),)
            status, mode = "", ""
        else:
            mode, status = (found["mode"] or mode).upper(), found["none"] or status
    return ()


def marked_as_cut(value: T, like: T | None = None, reason: Missing = CUT) -> T:
    """The facts with every absent leaf set to `reason`, except those that are absent in `like`, a complete one, too.

    What a truncated text would have contained is unknown, so none of it may pass.
    """
    made: Any = value
    news: dict[str, Any] = {}
    for field in made.__struct_fields__:
        old, same = getattr(made, field), getattr(like, field, None)
        if old == ABSENT and same != ABSENT:
            news[field] = reason
        elif isinstance(old, Fact):
            news[field] = marked_as_cut(old, same, reason)
    made = replace(made, **news)
    result: T = made
    return result


def _marked_as_cut(gpu: Gpu, gpus: tuple[Gpu, ...], dump: GpuDump) -> Gpu:
    whole = next((other for other in gpus if other is not gpu and other.index < gpu.index), None)
    gpu = marked_as_cut(gpu, whole)
    ends_in = next(reversed(dump.values), "").partition("/")[0]
    if ends_in in REASON_SECTIONS:
        # it ends inside the list of reasons: one of the missing ones may be active
        gpu = replace(gpu, clocks=replace(gpu.clocks, event_reasons=CUT))
    return gpu


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
        return SmiDump(gpus, replace(ANSWERED, handle_errors=handles), name=_SMI, indexed=indexed, ended=False)
    if _NO_DEVICES in text:
        return SmiDump(driver=replace(ANSWERED, device_count=0), name=_SMI)
    for message, code in _INIT_FAILURES:
        if message in text:
            line = next(line.strip() for line in text.splitlines() if message in line)
            library = _LIBRARY.search(text)
            driver = Driver(init_code=code, init_error=line[:300], library_version=library[1] if library else NOT_READ)
            return SmiDump(driver=driver, name=_SMI, ended=False)
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


def _in_order(gpus: list[GpuDump]) -> tuple[Gpu, ...]:
    seen: set[str] = set()
    made: list[Gpu] = []
    for index, dump in enumerate(gpus):
        if dump.bus_id and not dump.address:
            raise SourceError(f"GPU {index} of the dump has no bus id but {dump.bus_id[:40]!r}")
        made.append(gpu_from(dump, index))
        if made[-1].bus_id in seen:
            raise SourceError(f"GPU {made[-1].bus_id} is there twice: more than one nvidia-smi -q dump in one file?")
        seen.add(made[-1].bus_id)
    return tuple(sorted(made, key=lambda gpu: (gpu.bus_id.startswith(UNKNOWN_BUS), gpu.bus_id, gpu.index)))


def time_in(text: str | Missing) -> str | Missing:
    """Convert "Fri Aug 21 08:54:01 2026" to 2026-08-21T08:54:01; nvidia-smi prints no time zone."""
    if isinstance(text, Missing):
        return text
    try:
        return datetime.strptime(" ".join(text.split()), "%a %b %d %H:%M:%S %Y").isoformat()  # noqa: DTZ007
    except ValueError:
        return text[:40]
