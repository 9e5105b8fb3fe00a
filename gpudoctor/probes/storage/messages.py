"""The order to the process that reads a path, and its answers, one JSON line each."""

from __future__ import annotations

import msgspec

from gpudoctor.facts.model.measured_data import ReadMethod, StorageRate
from gpudoctor.facts.model.missing import Missing

SEQUENTIAL_BYTES = 1 << 20
RANDOM_BYTES = 128 << 10


class ReadOrder(msgspec.Struct, frozen=True):
    """What to read: a path of the user, or (`own_file`) a folder in which an unnamed file may be created.

    The path is encoded as hexadecimal bytes, since it need not be UTF-8 as JSON requires.
    `readers`: numbers of concurrent readers, one measurement each, which ends after `seconds` or `most_bytes`.
    """

    path_hex: str
    own_file: bool
    readers: tuple[int, ...]
    seconds: float = 1.0
    most_bytes: int = 16 << 30


class ReadStep(msgspec.Struct, frozen=True, tag="doing"):
    """A step begins."""

    text: str


class FilesFound(msgspec.Struct, frozen=True, tag="found"):
    """The files to read, and how they are read."""

    files: int
    bytes_found: int
    method: ReadMethod


class RateMeasured(msgspec.Struct, frozen=True, tag="rate"):
    rate: StorageRate


class ReadLeftOut(msgspec.Struct, frozen=True, tag="left-out"):
    text: str


class ReadEnd(msgspec.Struct, frozen=True, tag="rest"):
    """The results at the end."""

    cold: bool | Missing
    cached_gb_s: float | Missing
    opens_per_s: float | Missing
    open_p99_us: float | Missing


class ReadFailure(msgspec.Struct, frozen=True, tag="failure"):
    """Why reading ended early; no more answers follow."""

    why: Missing


ReadAnswer = ReadStep | FilesFound | RateMeasured | ReadLeftOut | ReadEnd | ReadFailure
