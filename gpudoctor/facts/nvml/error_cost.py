"""What a driver error costs: one value, one GPU, or the node. The same rule for live reads and dumps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from gpudoctor.facts.model.gpu import CallError, Gpu
from gpudoctor.facts.model.missing import Missing

Cost = Literal["value", "gpu", "node"]

LOST, RESET_REQUIRED, UNKNOWN = 15, 16, 999
# errors of the handle lookup that concern hardware: no power, no interrupts, lost, needs a reset, unknown;
# source: nvml.h, nvmlDeviceGetHandleByIndex
_NO_HANDLE = frozenset({8, 11, LOST, RESET_REQUIRED, UNKNOWN})
_HANDLE = "nvmlDeviceGetHandleByIndex"
_DUMP = "nvidia-smi -q: "
DUMP_HANDLE = "nvidia-smi: device handle"
# nvmlReturn_t as nvidia-smi prints it
_WORDS = {"gpu is lost": LOST, "gpu requires reset": RESET_REQUIRED, "unknown error": UNKNOWN}
# and as nvidia-smi prints it when it could not open a GPU at all
_HANDLE_WORDS = {
    **_WORDS,
    "insufficient permissions": 4,
    "insufficiently powered": 8,
    "insufficient external power": 8,
    "interrupt": 11,
}
_CODE = re.compile(r"\((\d{1,3})\)$")
_VERSION = re.compile(r"_v\d+$")

# what every working GPU answers, by driver call and by section of `nvidia-smi -q`
_CORE: Mapping[str, str] = {
    "nvmlDeviceGetName": "name",
    "product_name": "name",
    "nvmlDeviceGetMemoryInfo": "memory",
    "fb_memory_usage": "memory",
    "nvmlDeviceGetClockInfo": "clocks",
    "clocks": "clocks",
    "nvmlDeviceGetTemperature": "temperature",
    "temperature": "temperature",
    "nvmlDeviceGetUtilizationRates": "utilisation",
    "utilization": "utilisation",
}
_QUESTIONS = frozenset(_CORE.values())


def cost_of(code: int, call: str) -> Cost:
    """What this code (nvmlReturn_t) costs as the answer to a call, or to a field of a dump ("nvidia-smi -q: ...").

    15 and 16 cost the GPU, whatever the call. 999 costs the value, like all other codes:
    healthy GPUs return it for single calls (WSL2 for the utilisation, others for the addressing mode);
    `condemning` decides when it costs more. A GPU without a handle is lost if the code concerns
    its hardware. An nvmlInit that fails costs the node.
    """
    if call.startswith("nvmlInit"):
        return "node"
    if code in (LOST, RESET_REQUIRED) or (call in (_HANDLE, DUMP_HANDLE) and code in _NO_HANDLE):
        return "gpu"
    return "value"


def is_kept(code: int) -> bool:
    """Whether a reader keeps this error with the GPU: alone or with others like it, it may cost the GPU."""
    return code in (LOST, RESET_REQUIRED, UNKNOWN)


def condemning(gpu: Gpu) -> tuple[CallError, ...]:
    """The errors that make all readings of this GPU unreliable; none if its readings are valid.

    999 condemns a GPU only if it is the answer to all core queries: name, memory, clocks, temperature
    and utilisation.
    """
    grave = tuple(error for error in gpu.errors if cost_of(error.code, error.call) == "gpu")
    if grave or not gpu.errors:
        return grave
    unknown = tuple(error for error in gpu.errors if error.code == UNKNOWN)
    asked = {core_question(error.call) for error in unknown}
    return unknown if asked >= _QUESTIONS and not _answers(gpu) else ()


def core_question(call: str) -> str | None:
    """The core query that a call or a field of a dump belongs to; None for all others."""
    section = call.removeprefix(_DUMP).partition("/")[0]
    return _CORE.get(_VERSION.sub("", section))


def _answers(gpu: Gpu) -> bool:
    core = (
        *(gpu.name, gpu.memory_total_mib, gpu.memory_used_mib),
        *(gpu.clocks.graphics_mhz, gpu.clocks.sm_mhz, gpu.clocks.memory_mhz),
        *(gpu.thermal.gpu_c, gpu.utilization.gpu_pct, gpu.utilization.memory_pct),
    )
    return any(not isinstance(value, Missing) for value in core)


def code_in_words(words: str) -> int | None:
    """The code that a line of the driver or nvidia-smi ends with or names: "GPU is lost (15)", "...: Unknown Error"."""
    told = _CODE.search(words)
    if told:
        return int(told[1])
    lower = words.lower()
    return next((code for name, code in _HANDLE_WORDS.items() if name in lower), None)


def no_handle_cost(words: str) -> Cost:
    """What an entry of `Driver.handle_errors` costs; a value if it contains no code.

    The entry names the call that failed unless it was the handle lookup itself.
    """
    code, call = code_in_words(words), re.search(r"\bnvmlDeviceGet\w+", words)
    return "value" if code is None else cost_of(code, call[0] if call else _HANDLE)


def errors_in_dump(values: Iterable[tuple[str, str]]) -> tuple[CallError, ...]:
    """The errors to keep among a GPU's (path, text) in an `nvidia-smi -q` dump: one for each code and core query."""
    found: dict[tuple[int, str], CallError] = {}
    for path, text in values:
        bare = text.strip().strip("[]").strip()
        code = _WORDS.get(bare.lower())
        if code is not None:
            call = f"{_DUMP}{path}"
            question = core_question(call) if code == UNKNOWN else None
            found.setdefault((code, question or ""), CallError(call, code, bare))
    return tuple(found[key] for key in sorted(found))
