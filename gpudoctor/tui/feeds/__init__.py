"""Where the screen gets its data: child processes and recordings, all behind the interface of a `Feed`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from gpudoctor.facts.stream.messages import WatchLine


@dataclass(frozen=True)
class FeedFailure:
    """The source ended, could not be started or is silent; `since_s` is Unix time."""

    why: str
    since_s: float


class Feed(Protocol):
    """A source of lines. `lines` yields until `close`, also after failures; `close` never waits."""

    label: str

    def lines(self) -> AsyncIterator[WatchLine | FeedFailure]: ...

    def close(self) -> None: ...
