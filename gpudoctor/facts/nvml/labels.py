"""Labels for NVML's numbers, as nvidia-smi prints them; unknown numbers keep their value."""

from __future__ import annotations

from collections.abc import Mapping

from gpudoctor.facts.model.missing import UNSUPPORTED, Missing

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


def error_word(code: int) -> str:
    """The label of an NVML return code."""
    return ERROR_WORDS.get(code, f"error {code}")


def missing_for(code: int, call: str) -> Missing:
    """The Missing for a return code: 3, 13, 22, 25 and 26 are unsupported, 4 is denied, all others are failed."""
    if code in _UNSUPPORTED:
        return UNSUPPORTED
    reason = f"{call}: {error_word(code)} ({code})"
    return Missing(reason, "denied" if code in _DENIED else "failed")


def word(value: int | Missing, words: Mapping[int, str]) -> str | Missing:
    """The label for a number, or "value N" if this version does not know it."""
    return value if isinstance(value, Missing) else words.get(value, f"value {value}")


def known_word(value: int | Missing, words: Mapping[int, str], call: str) -> str | Missing:
    """Like `word`, for leaves with a fixed set of labels: other numbers become `failed`, with the raw number."""
    if isinstance(value, Missing):
        return value
    return words.get(value) or Missing(f"{call} said {value}, which this version does not know", "failed")
