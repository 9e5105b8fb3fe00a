"""What NVML's numbers mean: their labels as nvidia-smi prints them, and what an error costs.

Unknown numbers keep their value. An error costs one value, one GPU, or the node; the rule is the same for live reads
and dumps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from gpudoctor.facts.model.gpu import CallError
from gpudoctor.facts.model.missing import UNSUPPORTED, Missing, if_known
from gpudoctor.lazy import lazy_pattern

FUNCTION_NOT_FOUND = 13
_UNSUPPORTED = frozenset({3, FUNCTION_NOT_FOUND, 22, 25, 26})
_DENIED = frozenset({4})

ERROR_WORDS: Mapping[int, str] = {
    0: "success",
    1: "uninitialized",
    2: "invalid argument",
    3: "not supported",
    4: "insufficient permissions",
    5: "already initialized",
    6: "not found",
    7: "insufficient size",
    8: "insufficient external power",
    9: "driver not loaded",
    10: "timeout",
    11: "interrupt request issue",
    12: "NVML shared library not found",
    13: "function not found",
    14: "corrupted infoROM",
    15: "GPU is lost",
    16: "GPU requires reset",
    17: "the operating system has blocked the request",
    18: "driver/library version mismatch",
    19: "in use",
    20: "insufficient memory",
    21: "no data",
    22: "ECC not supported on a vGPU",
    23: "insufficient resources",
    24: "frequency not supported",
    25: "argument version mismatch",
    26: "deprecated",
    27: "not ready",
    28: "GPU not found",
    29: "invalid state",
    30: "reset type not supported",
    999: "unknown error",
}

BRANDS: Mapping[int, str] = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "GRID",
    5: "GeForce",
    6: "Titan",
    7: "NVIDIA Virtual Applications",
    8: "NVIDIA Virtual PC",
    9: "NVIDIA Virtual Compute Server",
    10: "NVIDIA RTX Virtual Workstation",
    11: "NVIDIA Cloud Gaming",
    12: "Quadro RTX",
    13: "NVIDIA RTX",
    14: "NVIDIA",
    15: "GeForce RTX",
    16: "Titan RTX",
    18: "NVIDIA RTX Virtual Game Dev",
}

ARCHITECTURES: Mapping[int, str] = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}

COMPUTE_MODES: Mapping[int, str] = {
    0: "default",
    1: "exclusive-thread",
    2: "prohibited",
    3: "exclusive-process",
}

VIRTUALIZATION: Mapping[int, str] = {0: "none", 1: "passthrough", 2: "vgpu", 3: "host-vgpu", 4: "host-vsga"}

ADDRESSING: Mapping[int, str] = {0: "none", 1: "hmm", 2: "ats"}

RECOVERY_ACTIONS: Mapping[int, str] = {
    0: "none",
    1: "gpu-reset",
    2: "node-reboot",
    3: "drain-p2p",
    4: "drain-and-reset",
    5: "recover-imex-domain",
    6: "bus-reset",
    7: "system-reboot",
}

LINK_STATES: Mapping[int, str] = {0: "inactive", 1: "active", 2: "sleep", 3: "disabled"}

# NVML_NVLINK_VERSION_*
LINK_VERSIONS: Mapping[int, str] = {
    1: "1.0",
    2: "2.0",
    3: "2.2",
    4: "3.0",
    5: "3.1",
    6: "4.0",
    7: "5.0",
    8: "6.0",
}

LINK_ENDS: Mapping[int, str] = {0: "gpu", 1: "cpu", 2: "switch"}

FABRIC_STATES: Mapping[int, str] = {1: "not-started", 2: "in-progress", 3: "completed"}

FABRIC_HEALTH: Mapping[int, str] = {1: "healthy", 2: "unhealthy", 3: "limited capacity"}

FABRIC_CONFIGURATION: Mapping[int, str] = {
    1: "none",
    2: "incorrect sysguid",
    3: "incorrect chassis sn",
    4: "no partition",
    5: "insufficient nvlinks",
    6: "incompatible gpu firmware",
    7: "invalid location",
    8: "gpu state invalid",
}

# NVML_TOPOLOGY_*; "internal" is two GPUs of one board, behind one switch
PATHS: Mapping[int, str] = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}

P2P_STATUS: Mapping[int, str] = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
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
_CODE = lazy_pattern(r"\((\d{1,3})\)$")
_VERSION = lazy_pattern(r"_v\d+$")
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
CORE_QUESTIONS = frozenset(_CORE.values())
Cost = Literal["value", "gpu", "node"]


def error_word(code: int) -> str:
    return ERROR_WORDS.get(code, f"error {code}")


def missing_for(code: int, call: str) -> Missing:
    """The Missing for a return code: 3, 13, 22, 25 and 26 are unsupported, 4 is denied, all others are failed."""
    if code in _UNSUPPORTED:
        return UNSUPPORTED
    reason = f"{call}: {error_word(code)} ({code})"
    return Missing(reason, "denied" if code in _DENIED else "failed")


def word(value: int | Missing, labels: Mapping[int, str]) -> str | Missing:
    """The label for a number, or "value N" if this version does not know it."""
    return if_known(value, lambda number: labels.get(number, f"value {number}"))


def known_word(value: int | Missing, labels: Mapping[int, str], call: str) -> str | Missing:
    """Like `word`, for leaves with a fixed set of labels: other numbers become `failed`, with the raw number."""
    if isinstance(value, Missing):
        return value
    return labels.get(value) or Missing(f"{call} said {value}, which this version does not know", "failed")


def cost_of(code: int, call: str) -> Cost:
    """What this code (nvmlReturn_t) costs as the answer to a call, or to a field of a dump ("nvidia-smi -q: ...").

    15 and 16 cost the GPU, whatever the call. 999 costs the value, like all other codes:
    healthy GPUs return it for single calls (WSL2 for the utilisation, others for the addressing mode);
    `checks/core/condemning.py` decides when it costs more. A GPU without a handle is lost if the code concerns
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


def core_question(call: str) -> str | None:
    """The core query that a call or a field of a dump belongs to; None for all others."""
    section = call.removeprefix(_DUMP).partition("/")[0]
    return _CORE.get(_VERSION.sub("", section))


def code_in_words(text: str) -> int | None:
    """The code that a line of the driver or nvidia-smi ends with or names: "GPU is lost (15)", "...: Unknown Error"."""
    reported = _CODE.search(text)
    if reported:
        return int(reported[1])
    lower = text.lower()
    return next((code for name, code in _HANDLE_WORDS.items() if name in lower), None)


def no_handle_cost(text: str) -> Cost:
    """What an entry of `Driver.handle_errors` costs; a value if it contains no code.

    The entry names the call that failed unless it was the handle lookup itself.
    """
    code, call = code_in_words(text), re.search(r"\bnvmlDeviceGet\w+", text)
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
