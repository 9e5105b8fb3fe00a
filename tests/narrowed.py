"""Values of which a test knows whether they were read: the assertion and the narrowed type in one word."""

from __future__ import annotations

from typing import TypeVar

from gpudoctor.facts.model.missing import Missing

T = TypeVar("T")


def present(value: T | Missing | None) -> T:
    """The value, which is there."""
    assert value is not None
    assert not isinstance(value, Missing)
    return value


def missing(value: object, kind: str | None = None, *parts: str) -> Missing:
    """The reason why the value is not there, which it is not; of this kind, and saying all of this."""
    assert isinstance(value, Missing)
    assert kind in (None, value.kind)
    assert [part for part in parts if part not in value.reason] == [], value.reason
    return value
