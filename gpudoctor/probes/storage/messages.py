"""What the process that reads is asked, and what it answers, one JSON line each."""

from __future__ import annotations

import msgspec

from gpudoctor.facts.model.measured_data import ReadMethod, StorageRate
from gpudoctor.facts.model.missing import Missing

SEQUENTIAL_BYTES = 1 << 20
RANDOM_BYTES = 128 << 10


class ReadOrder(msgspec.Struct, frozen=True):
    """What to read: a path of the user, or (`own_file`) a folder in which a file without a name may be made.

    The path is written as hexadecimal bytes: JSON takes none that is not UTF-8.
    `readers`: how many at once, one measurement each. One measurement ends after `seconds`, or `most_bytes`.
    """

    path_hex: str
    own_file: bool
    readers: tuple[int, ...]
    seconds: float = 1.0
    most_bytes: int = 16 << 30


class ReadStep(msgspec.Struct, frozen=True, tag="doing"):
    """What begins now."""

    text: str


class FilesFound(msgspec.Struct, frozen=True, tag="found"):
    """What there is to read, and how it is read."""

    files: int
    bytes_found: int
    method: ReadMethod


class RateMeasured(msgspec.Struct, frozen=True, tag="rate"):
    rate: StorageRate


class ReadLeftOut(msgspec.Struct, frozen=True, tag="left-out"):
    text: str


class ReadEnd(msgspec.Struct, frozen=True, tag="rest"):
    """What is known at the end."""

    cold: bool | Missing
    cached_gb_s: float | Missing
    opens_per_s: float | Missing
    open_p99_us: float | Missing


class ReadFailure(msgspec.Struct, frozen=True, tag="failure"):
    """Why nothing more comes."""

    why: Missing


ReadAnswer = ReadStep | FilesFound | RateMeasured | ReadLeftOut | ReadEnd | ReadFailure
