"""The table that both fake drivers answer from: function, device and arguments -> values, as NVML's numbers.

The Python fake uses the values directly; the C library gets them as the bytes of nvml.h's structs.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgspec

from gpudoctor.facts.model.missing import NOT_IN_FILE, Missing
from gpudoctor.lazy import lazy_pattern

SYSTEM = -1
NEVER = -1  # as a return code: the call does not return
UNKNOWN = 999

# a value that the facts lack is not supported, as by a GPU without it
_CODES = {"unsupported": 3, "absent": 3, "not_asked": 3, "denied": 4}
_CODE_AT_END = lazy_pattern(r"\(([0-9]{1,3})\)$")
# for a failed leaf without a code; not 999, which would condemn the whole GPU
_TIMEOUT = 10
_KEY_BYTES = 250
_LONGEST_WAIT_MS = 86_400_000


def code_of(why: Missing) -> int:
    """NVML's return code for a leaf that is Missing: the one in its reason, as in "GPU is lost (15)"."""
    if why == NOT_IN_FILE:
        return _CODES["absent"]
    return _CODES.get(why.kind) or code_named(why.reason) or _TIMEOUT


def code_named(reason: str) -> int:
    """The return code at the end of a reason from a driver; 0 if there is none."""
    named = _CODE_AT_END.search(reason)
    return int(named[1]) if named else 0


def number_of(leaf: Any, labels: Mapping[int, str]) -> Any:
    """NVML's number for a label; "value 9" is a number without a label."""
    if isinstance(leaf, Missing):
        return leaf
    found = next((number for number, word in labels.items() if word == leaf), None)
    if found is not None:
        return found
    number = str(leaf).removeprefix("value ")
    return int(number) if number.isdecimal() else Missing(f"no number stands for {leaf}", "unsupported")


def thousandths(leaf: Any) -> Any:
    """Watts to mW, GB/s to MB/s."""
    return leaf if isinstance(leaf, Missing) else round(leaf * 1000)


def handle_name(text: str) -> str:
    """A UUID or bus id as a key of the table: lower case, with `?` for characters that are not ASCII."""
    return text.lower().encode("ascii", "replace").decode()


class TableRow(msgspec.Struct, frozen=True):
    """One answer: the return code, or the values. A value that is Missing makes the whole call fail.

    `form` is the `struct` format of the values (native byte order, only explicit padding).
    """

    form: str = ""
    values: tuple[Any, ...] = ()
    code: int = 0

    @property
    def missing(self) -> Missing | None:
        """The first value that is Missing."""
        return next((value for value in self.values if isinstance(value, Missing)), None)

    def packed(self) -> tuple[int, bytes]:
        """Return code and bytes for the C library; a value that does not fit into its format becomes a timeout."""
        missing = self.missing
        if self.code or missing is not None:
            return self.code if missing is None else code_of(missing), b""
        try:
            return 0, struct.pack(f"={self.form}", *self.values)
        except (struct.error, OverflowError):  # a facts file may contain any number
            return _TIMEOUT, b""


class NvmlTable:
    """Collects answers; the first one for a key is kept.

    `functions` are those with a row, `versions` the struct version that a function answers with.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[str | int, ...], TableRow] = {}
        self.functions: set[str] = set()
        self.versions: dict[str, int] = {}

    def refuse(self, function: str, device: int, code: int) -> None:
        """Return this code for the function, whatever its arguments; function `*` is for all others."""
        self._keep(function, device, (), TableRow(code=code))

    def put(self, function: str, device: int, form: str, *values: Any, args: tuple[int, ...] = ()) -> None:
        """Return these values, in the order of the answer's struct."""
        self._keep(function, device, args, TableRow(form, values))

    def put_versioned(self, function: str, device: int, version: int, form: str, *values: Any) -> None:
        """Return the values of a struct that begins with its version, which the caller sets."""
        self.versions[function] = version
        self.put(function, device, f"I{form}", version, *values, args=(version,))

    def put_text(self, function: str, device: int, text: Any) -> None:
        """Return a zero-terminated string."""
        data = text if isinstance(text, Missing) else str(text).encode("utf-8", "replace") + b"\0"
        self._keep(function, device, (), TableRow("" if isinstance(data, Missing) else f"{len(data)}s", (data,)))

    def wait(self, function: str, device: int, seconds: float) -> None:
        """Have the first such call of a process hold the driver's lock for so long; `device`: the first handle call."""
        self.refuse(f"wait|{function}", device, min(round(seconds * 1000), _LONGEST_WAIT_MS))

    def latency(self, milliseconds: float) -> None:
        """Delay every call by so many milliseconds."""
        if milliseconds:
            self.refuse("latency", SYSTEM, round(1000 * milliseconds))

    def put_handle(self, function: str, text: Any, device: int) -> None:
        """Return the device with this UUID or bus id; a text that no caller could pass is left out."""
        name = handle_name(str(text))
        if not isinstance(text, Missing) and str(text).isprintable() and len(f"{function}|{name}") < _KEY_BYTES:
            self._rows.setdefault((function, name), TableRow("i", (device,)))

    def _keep(self, function: str, device: int, args: tuple[int, ...], row: TableRow) -> None:
        self.functions.add(function)
        self._rows.setdefault((function, device, *args), row)

    def find(self, function: str, *key: str | int) -> TableRow | None:
        """The row of a device (or of a UUID or bus id) and these arguments.

        A row without arguments that is an error applies to all arguments.
        """
        whole = self._rows.get((function, *key[:1]))
        if whole is not None and (len(key) == 1 or whole.code or whole.missing):
            return whole
        return self._rows.get((function, *key)) if len(key) > 1 else None

    def written(self) -> bytes:
        """The file for the C library, sorted by key."""
        rows = (("|".join(map(str, key)).encode(), *row.packed()) for key, row in self._rows.items())
        return b"".join(b"%s\t%d\t%s\n" % (key, code, data.hex().encode()) for key, code, data in sorted(rows))
