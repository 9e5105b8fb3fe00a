"""Where the lines of `gpudoctor watch` come from, and what is told when they do not come."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from gpudoctor.facts.stream.messages import WatchLine


@dataclass(frozen=True)
class FeedFailure:
    """The source ended, could not be started, or says nothing; `since_s` is Unix time."""

    why: str
    since_s: float


class Feed(Protocol):
    """A source of lines. `lines` goes on for ever, whatever happens, until `close`, which never waits."""

    label: str

    def lines(self) -> AsyncIterator[WatchLine | FeedFailure]: ...

    def close(self) -> None: ...
