"""What the error text of a rank means: the catalogue of `statements`, by what follows for a probe.

An unknown text stays an `error` in the library's own words, and is never a pass. `crash`: a healthy GPU does not do
this to work that runs everywhere else. `refused`: the GPU accepts no new process; whether it is configured so or broken
follows from its compute mode and its users.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudoctor.statements.catalogue import Effect, known_error

Kind = Literal["crash", "error", "out-of-memory", "refused"]

_KINDS: dict[Effect, Kind] = {
    "hardware": "crash",
    "kernel": "crash",
    "refused": "refused",
    "memory": "out-of-memory",
    "setup": "error",
    "program": "error",
}
_NEVER_ON_A_HEALTHY_NODE = "cuda_system_not_ready"


class Meaning(msgspec.Struct, frozen=True):
    """The kind of an error, and in plain words what happened."""

    kind: Kind
    plain: str


def meaning_of(text: str) -> Meaning | None:
    """The meaning of an error text; None if it is unknown, which does not mean harmless."""
    known = known_error(text)
    if known is None:
        return None
    kind = "crash" if known.label == _NEVER_ON_A_HEALTHY_NODE else _KINDS[known.effect]
    return Meaning(kind, "" if "out of memory" in text.lower() else known.plain)


def telling_line(lines: tuple[str, ...]) -> tuple[str, Meaning] | None:
    """The first line of a process's output that explains why it ended, with its meaning."""
    for line in lines:
        if "NCCL WARN" not in line and (meaning := meaning_of(line)) is not None:
            return line.strip(), meaning
    return None
