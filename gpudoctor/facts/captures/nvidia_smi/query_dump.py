"""What an `nvidia-smi -q` dump as a whole gives: the driver, its GPUs, and how it failed."""

from __future__ import annotations

import re
from datetime import datetime

import msgspec

from gpudoctor.facts.captures import ABSENT, SourceError
from gpudoctor.facts.captures.nvidia_smi.query_gpu import GpuDump, gpu_from
from gpudoctor.facts.captures.nvidia_smi.values import Values
from gpudoctor.facts.model.gpu import CallError, Gpu
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.model.node import Driver, short_bus_id
from gpudoctor.facts.nvml.error_cost import DUMP_HANDLE, UNKNOWN, code_in_words

BUS_ID = re.compile(r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
# what nvidia-smi prints instead of a dump -> nvmlInit's code, see Driver.init_code
_INIT_FAILURES = (
    ("couldn't communicate with the NVIDIA driver", 9),
    ("Driver Not Loaded", 9),
    ("couldn't find libnvidia-ml.so", 12),
    ("Driver/library version mismatch", 18),
    ("Failed to initialize NVML", 999),
)
_NO_DEVICES = "No devices were found"
_HANDLE = re.compile(r"^.{0,40}Unable to determine the device handle for.{0,300}", re.MULTILINE)


class SmiDump(msgspec.Struct):
    """One `-q` dump. `notes` say what a reader of the report should know of it."""

    driver: Driver
    gpus: tuple[Gpu, ...]
    collected_at: str | Missing = ABSENT
    notes: tuple[str, ...] = ()


def smi_dump(top: dict[str, str], gpus: list[GpuDump], outside: str = "") -> SmiDump:
    """Put a dump together from its head, its GPUs in order, and the text around them.

    Raise SourceError for a bus id that is none, or one that comes twice.
    """
    v = Values(top)
    handle_errors = tuple(line.strip() for line in _HANDLE.findall(outside))
    attached = v.whole("attached_gpus")
    notes: tuple[str, ...] = ()
    if not isinstance(attached, Missing) and attached > 0 and not gpus and not handle_errors:
        raise SourceError(f"cut off: the dump counts {attached} GPUs and shows none of them")
    if not isinstance(attached, Missing) and len(gpus) < attached and not handle_errors:
        # `-i 0` shows one GPU of eight and still counts eight: no ground to call seven lost
        notes = (f"the dump shows {len(gpus)} of {attached} GPUs",)
        attached = Missing(notes[0], "absent")
    return SmiDump(
        driver=Driver(
            module_loaded=True,
            init_code=0,
            library_version=v.text("driver_version"),
            cuda_version=v.text("cuda_version"),
            device_count=attached,
            handle_errors=handle_errors,
        ),
        gpus=_in_order(gpus),
        collected_at=_time(v.text("timestamp")),
        notes=notes,
    )


def init_failure(text: str) -> SmiDump | None:
    """The dump of an nvidia-smi that could not start, or found nothing; None where it could."""
    handles = tuple(line.strip() for line in _HANDLE.findall(text))
    if handles:
        return SmiDump(Driver(module_loaded=True, init_code=0, handle_errors=handles), _lost(handles))
    if _NO_DEVICES in text:
        return SmiDump(Driver(module_loaded=True, init_code=0, device_count=0), ())
    for words, code in _INIT_FAILURES:
        if words in text:
            line = next(line.strip() for line in text.splitlines() if words in line)
            return SmiDump(Driver(init_code=code, init_error=line[:300]), ())
    return None


def _lost(handles: tuple[str, ...]) -> tuple[Gpu, ...]:
    """The GPUs that handle errors name by bus id: nothing else is known of them."""
    found: dict[str, CallError] = {}
    for line in handles:
        bus_id = BUS_ID.search(line)
        if bus_id is not None:
            words = line.partition(bus_id.group())[2].lstrip(": ")
            code = code_in_words(words)
            code = UNKNOWN if code is None else code
            found[short_bus_id(bus_id.group())] = CallError(DUMP_HANDLE, code, words[:100])
    return tuple(Gpu(index, bus_id, errors=(found[bus_id],)) for index, bus_id in enumerate(sorted(found)))


def _in_order(gpus: list[GpuDump]) -> tuple[Gpu, ...]:
    seen: set[str] = set()
    made: list[Gpu] = []
    for index, dump in enumerate(gpus):
        if not BUS_ID.fullmatch(dump.bus_id):
            raise SourceError(f"GPU {index} of the dump has no bus id but {dump.bus_id[:40]!r}")
        dump.bus_id = short_bus_id(dump.bus_id)
        if dump.bus_id in seen:
            raise SourceError(f"GPU {dump.bus_id} is there twice: more than one nvidia-smi -q dump in one file?")
        seen.add(dump.bus_id)
        made.append(gpu_from(dump, index))
    return tuple(sorted(made, key=lambda gpu: gpu.bus_id))


def _time(text: str | Missing) -> str | Missing:
    """nvidia-smi's clock has no zone: "Fri Aug 21 08:54:01 2026" as 2026-08-21T08:54:01."""
    if isinstance(text, Missing):
        return text
    try:
        return datetime.strptime(" ".join(text.split()), "%a %b %d %H:%M:%S %Y").isoformat()  # noqa: DTZ007
    except ValueError:
        return text[:40]
