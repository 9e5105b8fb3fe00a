"""The base of every fact, and the placeholder for a value that could not be read."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

T = TypeVar("T")
U = TypeVar("U")

MissingKind = Literal["absent", "unsupported", "denied", "not_asked", "failed"]


class Fact(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of every fact: immutable; JSON leaves out the fields that were not read."""


F = TypeVar("F", bound=Fact)


class Missing(msgspec.Struct, frozen=True):
    """Takes the place of a value that could not be read: `missing` is the reason, `kind` is for the checks.

    Kinds: `absent`, the source does not contain it (a capture without that section, a device that
    does not exist); `unsupported`, this model or driver does not have it; `denied`, no permission
    to read it; `not_asked`, gpudoctor chose not to read it here; `failed`, the read returned an
    error, timed out or gave an impossible value.
    Checks turn all but the last into `skip` and `failed` into `unknown`; none is ever a pass.
    """

    missing: str
    kind: MissingKind = "absent"

    @property
    def reason(self) -> str:
        return self.missing


NOT_READ = Missing("not read")
# in files of gpudoctor: it writes every leaf of a node and its GPUs, with a value or the reason why there is none
NOT_IN_FILE = Missing("not in this file", "failed")
UNSUPPORTED = Missing("not supported by this GPU or driver", "unsupported")


def known(value: T | Missing) -> T | None:
    """The value, or None if it is Missing: for callers that do not need the reason."""
    return None if isinstance(value, Missing) else value


def if_known(value: T | Missing, made: Callable[[T], U]) -> U | Missing:
    """What is `made` of the value; or the Missing itself, whose reason is that of all that would be made of it."""
    return value if isinstance(value, Missing) else made(value)


def fill(fact: F, reason: Missing) -> F:
    """A copy in which every leaf that was not read holds the reason."""
    changed: dict[str, Any] = {}
    for name in fact.__struct_fields__:
        value = getattr(fact, name)
        if value == NOT_READ:
            changed[name] = reason
        elif isinstance(value, Fact):
            changed[name] = fill(value, reason)
    return replace(fact, **changed)
