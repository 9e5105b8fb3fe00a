"""The result of a rule, and what rules share.

A rule is asked about one attempt of a job and yields hypotheses; nothing, where what it knows is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import msgspec

from gpudoctor.diagnose.diagnosis import Confidence
from gpudoctor.diagnose.events import Event, only
from gpudoctor.diagnose.job import Attempt
from gpudoctor.text.units import listed

_SHOWN = 4

_LOOPBACK = ("127.", "0.", "::")
_OF_MANY = ("bogon", "localhost", "ubuntu", "?UNKNOWN?")


class Hypothesis(msgspec.Struct):
    """What may have happened first. `ranks`: empty if no rank is named. `unknown`: a kind of failure, not its cause."""

    what: str
    text: str = ""
    events: list[Event] = []
    confidence: Confidence = "likely"
    ranks: tuple[int, ...] = ()
    host: str | None = None
    gpu: str | None = None
    unknown: bool = False

    @property
    def rank(self) -> int | None:
        """The rank, if exactly one is named."""
        return self.ranks[0] if len(self.ranks) == 1 else None


Rule = Callable[[Attempt], Iterator[Hypothesis]]


def at_events(
    what: str,
    text: str,
    events: Collection[Event],
    confidence: Confidence = "likely",
    ranks: tuple[int, ...] = (),
    *,
    unknown: bool = False,
) -> Hypothesis:
    """The hypothesis that these events show, at their common host."""
    return Hypothesis(what, text, [*events][:_SHOWN], confidence, ranks, host_of(events), unknown=unknown)


def undecided(what: str, text: str, events: Collection[Event], *, host: str | None = None) -> Hypothesis:
    """A kind of failure whose cause is not in the text."""
    return Hypothesis(what, text, [*events][:_SHOWN], "possible", host=host, unknown=True)


def ranks_of(events: Iterable[Event]) -> tuple[int, ...]:
    """The ranks of the events, sorted."""
    return tuple(sorted({e.rank for e in events if e.rank is not None}))


def only_rank(ranks: Collection[int]) -> tuple[int, ...]:
    """The rank, if it is the only one; else empty."""
    return tuple(ranks) if len(ranks) == 1 else ()


def host_of(events: Iterable[Event]) -> str | None:
    """The common host of the events, if there is exactly one; else the common address."""
    events = [*events]
    return only(e.host for e in events if e.host) or address_of(events)


def names_a_machine(host: str) -> bool:
    """Whether the name or address is that of one machine: no loopback, and no name that many have."""
    return host not in _OF_MANY and not host.startswith(_LOOPBACK)


def address_of(events: Collection[Event]) -> str | None:
    """The common address, of events that no controller can have repeated; Ray's labels name no host."""
    address = only(e.ip for e in events) if all(e.word("address") or not e.word("type") for e in events) else None
    return address if address is not None and names_a_machine(address) else None


def words_of(event: Event) -> str:
    """What a program said: its exception, or the message of its line."""
    message, name = event.word("message"), event.word("type")
    return f"{name}: {message}" if name and message else name or event.text.strip()


def named(ranks: Iterable[int], nobody: str = "a rank") -> str:
    """`rank 3`, `ranks 1, 2 and 5`; who it is if no rank is known.

    >>> named([3]), named([2, 1, 5]), named([])
    ('rank 3', 'ranks 1, 2 and 5', 'a rank')
    """
    numbers = sorted(ranks)
    if len(numbers) <= 1:
        return f"rank {numbers[0]}" if numbers else nobody
    if len(numbers) > 12:
        return f"ranks {listed([*map(str, numbers)], 8)}"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
