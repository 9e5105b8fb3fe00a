"""How nvidia-smi prints values, and its words for values that it does not have."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

from gpudoctor.facts.captures import ABSENT
from gpudoctor.facts.model.gpu import ComputeMode
from gpudoctor.facts.model.missing import Missing, MissingKind, if_known

# with a unit behind it, or the x of lanes; no version, date or bus id
_NUMBER = re.compile(r"[-+]?\d{1,18}(?:\.\d{1,9})?(?:(?![\w.,])|(?=(?:x|Mi?B|C|W)\b))")
_TRUE = frozenset({"yes", "true", "enabled", "active", "on", "1"})
_FALSE = frozenset({"no", "false", "disabled", "not active", "inactive", "off", "0"})
_MISSING: Mapping[str, MissingKind] = {
    **dict.fromkeys(("n/a", "not supported", "not available", "function not found"), "unsupported"),
    "requested functionality has been deprecated": "unsupported",
    **dict.fromkeys(("insufficient permissions", "no permission"), "denied"),
    "gpu access blocked by the operating system": "denied",
    **dict.fromkeys(("err!", "error", "unknown error", "gpu is lost", "gpu requires reset"), "failed"),
    **dict.fromkeys(("timeout", "driver error", "corrupted inforom"), "failed"),
}


def missing_word(text: str) -> Missing | None:
    """The Missing that a text stands for; None if the text is a value."""
    word = text.strip().strip("[]").strip().lower()
    if kind := _MISSING.get(word):
        return Missing(f"nvidia-smi says {text.strip()}", kind)
    return ABSENT if word in ("", "redacted") else None


class Values:
    """A GPU's section of a `-q` dump: path of normalised names joined by "/" -> text.

    Every getter takes the paths of one value in the different schemas and returns the first known value, otherwise the
    first Missing that is not `ABSENT`, otherwise `ABSENT`. If a whole section is "N/A" ("Remapped Rows : N/A"), that
    applies to all values in it.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, *paths: str) -> str | Missing:
        missing = ABSENT
        for path in paths:
            text = self._find(path)
            if not isinstance(text, Missing):
                return text
            if missing is ABSENT:
                missing = text
        return missing

    def read(self, kind: str, *paths: str) -> Any:
        """The value as one of `KINDS`; Missing (failed) if its text is none."""
        return if_known(self.text(*paths), KINDS[kind])

    def whole(self, *paths: str) -> int | Missing:
        found: int | Missing = self.read("whole", *paths)
        return found

    def flag(self, *paths: str) -> bool | Missing:
        found: bool | Missing = self.read("flag", *paths)
        return found

    def under(self, section: str) -> list[str]:
        """The paths of all values in a section."""
        return [path for path in self._values if path.startswith(section + "/")]

    def _find(self, path: str) -> str | Missing:
        text = self._values.get(path)
        if text is not None:
            return missing_word(text) or text
        while "/" in path:
            path = path.rpartition("/")[0]
            parent = self._values.get(path)
            if parent is not None:
                return missing_word(parent) or ABSENT
        return ABSENT


def normal_name(name: str) -> str:
    """A label or tag in normalised spelling.

    >>> normal_name("GPU T.Limit Temp"), normal_name("SRAM Uncorrectable SEC-DED")
    ('gpu_t_limit_temp', 'sram_uncorrectable_sec_ded')
    """
    return "_".join(re.findall(r"[a-z0-9]+", name.lower()))


def not_understood(text: str) -> Missing:
    return Missing(f"not understood: {text[:60]!r}", "failed")


# Kinds of values.


def _number(text: str) -> float | Missing:
    match = _NUMBER.match(text)
    return float(match.group()) if match else not_understood(text)


def _whole(text: str) -> int | Missing:
    number = _number(text)
    if isinstance(number, Missing):
        return number
    return int(number) if number.is_integer() else not_understood(str(number))


def _flag(text: str) -> bool | Missing:
    word = text.lower()
    return True if word in _TRUE else False if word in _FALSE else not_understood(text)


def _performance_state(text: str) -> int | Missing:
    level = text.removeprefix("P")
    return int(level[:3]) if level.isdecimal() else not_understood(text)


def _one_of(names: Mapping[str, str], text: str) -> str | Missing:
    word = text.lower().replace("_", "-")
    return names.get(word) or not_understood(text.lower())


_VIRTUALIZATION = {
    "none": "none",
    "pass-through": "passthrough",
    "vgpu": "vgpu",
    "host vgpu": "host-vgpu",
    "host vsga": "host-vsga",
}
_COMPUTE_MODES = {mode: mode for mode in get_args(ComputeMode)} | {
    "e. process": "exclusive-process",
    "e. thread": "exclusive-thread",
}
KINDS: Mapping[str, Callable[[str], Any]] = {
    "text": str,
    "lower": str.lower,
    "hyphened": lambda text: text.lower().replace(" ", "-"),
    "number": _number,
    "whole": _whole,
    "flag": _flag,
    "p_state": _performance_state,
    "compute_mode": lambda text: _one_of(_COMPUTE_MODES, text),
    "virtualization": lambda text: _one_of(_VIRTUALIZATION, text),
    # NVML's packed id, the device before the vendor: 0x233010de
    "pci_id": lambda text: "0x" + text.lower().removeprefix("0x"),
}
