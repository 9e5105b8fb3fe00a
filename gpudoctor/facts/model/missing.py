"""A value that could not be read, and why."""

from typing import Literal, TypeVar

import msgspec

T = TypeVar("T")

MissingKind = Literal["absent", "unsupported", "denied", "failed"]


class Missing(msgspec.Struct, frozen=True):
    """Stands where a value would be; carries the reason in words and the kind for the judge.

    Kinds: `absent`, the source does not hold it (a capture without that section, a device that
    is not there); `unsupported`, this model or driver does not have it; `denied`, no permission
    to read it; `failed`, it was asked for and the answer was an error, a timeout or nonsense.
    Checks turn the first three into `skip` and `failed` into `unknown`; none is ever a pass.
    """

    missing: str
    kind: MissingKind = "absent"

    @property
    def reason(self) -> str:
        return self.missing


NOT_READ = Missing("not read")
UNSUPPORTED = Missing("not supported by this GPU or driver", "unsupported")


def known(value: T | Missing) -> T | None:
    """The value, or None where it is Missing: for callers that need no reason."""
    return None if isinstance(value, Missing) else value
