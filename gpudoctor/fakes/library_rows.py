"""The table that the C library answers from: function, device and arguments -> return code and bytes."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any

from gpudoctor.facts.model.missing import Missing

SYSTEM = -1
NEVER = -1  # as a return code: the call does not return
UNKNOWN = 999

# what a capture does not hold is refused, not unsupported: a GPU without NVLinks is another thing than links not told
_CODES = {"unsupported": 3, "absent": 4, "denied": 4}
_TOLD_CODE = re.compile(r"\(([0-9]{1,3})\)$")
# a failed leaf that names no code; not 999, which would condemn the whole GPU
_TIMEOUT = 10
_KEY_BYTES = 250
_LONGEST_WAIT_MS = 86_400_000


def code_of(why: Missing) -> int:
    """NVML's return code for a leaf that is Missing: the one that its reason names, as in "GPU is lost (15)"."""
    if why.kind in _CODES:
        return _CODES[why.kind]
    told = _TOLD_CODE.search(why.reason)
    return int(told[1]) if told and int(told[1]) else _TIMEOUT


def number_of(leaf: Any, words: Mapping[int, str]) -> Any:
    """The number that NVML has for a word; "value 9" is a number that has no word yet."""
    if isinstance(leaf, Missing):
        return leaf
    found = next((number for number, word in words.items() if word == leaf), None)
    if found is not None:
        return found
    number = str(leaf).removeprefix("value ")
    return int(number) if number.isdecimal() else Missing(f"no number stands for {leaf}", "unsupported")


def thousandths(leaf: Any) -> Any:
    """Watts as mW, GB/s as MB/s."""
    return leaf if isinstance(leaf, Missing) else round(leaf * 1000)


class LibraryRows:
    """Collects answers; the first that is told of a key stays."""

    def __init__(self) -> None:
        self._rows: dict[bytes, tuple[int, bytes]] = {}

    def refuse(self, function: str, device: int, code: int) -> None:
        """This code is the answer to the function whatever its arguments; function `*`: to all others."""
        self._put(function, device, (), code, b"")

    def tell(self, function: str, device: int, form: str, *values: Any, args: tuple[int, ...] = ()) -> None:
        """The values, packed by `form` (struct, native order, no padding but what it names).

        One that is Missing makes the whole call fail; what does not fit into its place too.
        """
        bad = next((value for value in values if isinstance(value, Missing)), None)
        if bad is not None:
            self._put(function, device, args, code_of(bad), b"")
            return
        try:
            packed = struct.pack(f"={form}", *values)
        except (struct.error, OverflowError):  # a facts file may hold any number
            self._put(function, device, args, _TIMEOUT, b"")
            return
        self._put(function, device, args, 0, packed)

    def text(self, function: str, device: int, text: Any, *, args: tuple[int, ...] = ()) -> None:
        """A text with a zero behind it."""
        if isinstance(text, Missing):
            self._put(function, device, args, code_of(text), b"")
        else:
            self._put(function, device, args, 0, str(text).encode("utf-8", "replace") + b"\0")

    def wait(self, function: str, device: int, seconds: float) -> None:
        """The first such call of a process holds the driver's lock for so long; `device`: the GPU's first handle."""
        self._put(f"wait|{function}", device, (), min(round(seconds * 1000), _LONGEST_WAIT_MS), b"")

    def latency(self, milliseconds: float) -> None:
        """How long every call takes before it is answered; 0 is not told: it answers at once."""
        if milliseconds:
            self._put("latency", SYSTEM, (), round(1000 * milliseconds), b"")

    def handle(self, function: str, text: Any, device: int) -> None:
        """The device that goes by this text; a text that no caller could ask for is left out."""
        key = f"{function}|{str(text).lower()}".encode("ascii", "replace")
        if not isinstance(text, Missing) and str(text).isprintable() and len(key) < _KEY_BYTES:
            self._rows.setdefault(key, (0, struct.pack("=i", device)))

    def _put(self, function: str, device: int, args: tuple[int, ...], code: int, data: bytes) -> None:
        key = "|".join((function, str(device), *map(str, args))).encode()
        self._rows.setdefault(key, (code, data))

    def written(self) -> bytes:
        """The file as the library reads it: sorted by key."""
        lines = (b"%s\t%d\t%s\n" % (key, code, data.hex().encode()) for key, (code, data) in sorted(self._rows.items()))
        return b"".join(lines)
