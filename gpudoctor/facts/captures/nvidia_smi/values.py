"""How nvidia-smi prints values, and its words for values that it does not have."""

from __future__ import annotations

import re

from gpudoctor.facts.captures import ABSENT
from gpudoctor.facts.model.missing import Missing

_NUMBER = re.compile(r"[-+]?\d{1,18}(?:\.\d{1,9})?(?![\w.,])|[-+]?\d{1,18}(?=x\b)")
_TRUE = frozenset({"yes", "true", "enabled", "active", "on"})
_FALSE = frozenset({"no", "false", "disabled", "not active", "inactive", "off"})
_UNSUPPORTED = frozenset(
    {"n/a", "not supported", "not available", "requested functionality has been deprecated", "function not found"}
)
_DENIED = frozenset({"insufficient permissions", "no permission", "gpu access blocked by the operating system"})
_FAILED = frozenset(
    {
        "err!",
        "error",
        "unknown error",
        "gpu is lost",
        "gpu requires reset",
        "timeout",
        "driver error",
        "corrupted inforom",
    }
)


def missing_word(text: str) -> Missing | None:
    """The Missing that a text stands for; None if the text is a value."""
    word = _bare(text)
    if word in _UNSUPPORTED:
        return Missing(f"nvidia-smi says {text.strip()}", "unsupported")
    if word in _DENIED:
        return Missing(f"nvidia-smi says {text.strip()}", "denied")
    if word in _FAILED:
        return Missing(f"nvidia-smi says {text.strip()}", "failed")
    return ABSENT if word in ("", "redacted") else None


class Values:
    """A GPU's section of a `-q` dump: path of normalised names joined by "/" -> text.

    Every getter takes the paths of one value in the different schemas and returns the first known value, otherwise the
    first Missing that is not `ABSENT`, otherwise `ABSENT`. If a whole section is "N/A" ("Remapped Rows : N/A"), that
    applies to all values in it.
    """

    def __init__(self, values: dict[str, str]) -> None:
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

    def said(self, *paths: str) -> str | Missing:
        """Like `text`, but error words are returned as the value: they are the result of an operation."""
        text = self.text(*paths)
        if isinstance(text, Missing) and text.kind == "failed":
            return next(self._values[path] for path in paths if path in self._values)
        return text

    def number(self, *paths: str) -> float | Missing:
        text = self.text(*paths)
        if isinstance(text, Missing):
            return text
        match = _NUMBER.match(text)
        return float(match.group()) if match else _nonsense(text)

    def whole(self, *paths: str) -> int | Missing:
        number = self.number(*paths)
        if isinstance(number, Missing):
            return number
        return int(number) if number.is_integer() else _nonsense(str(number))

    def flag(self, *paths: str) -> bool | Missing:
        text = self.text(*paths)
        if isinstance(text, Missing):
            return text
        word = text.lower()
        if word in _TRUE:
            return True
        return False if word in _FALSE else _nonsense(text)

    def total(self, *parts: int | Missing) -> int | Missing:
        """The sum of the known parts; failed if one part failed, Missing if none is known."""
        failed = [part for part in parts if isinstance(part, Missing) and part.kind == "failed"]
        if failed:
            return failed[0]
        numbers = [part for part in parts if not isinstance(part, Missing)]
        if numbers:
            return sum(numbers)
        statements = [part for part in parts if isinstance(part, Missing) and part != ABSENT]
        return statements[0] if statements else ABSENT

    def under(self, section: str) -> dict[str, str]:
        """All values below a section, by their path without the section's name."""
        start = section + "/"
        return {path[len(start) :]: text for path, text in self._values.items() if path.startswith(start)}

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


def _bare(text: str) -> str:
    return text.strip().strip("[]").strip().lower()


def _nonsense(text: str) -> Missing:
    return Missing(f"not understood: {text[:60]!r}", "failed")
