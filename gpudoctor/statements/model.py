"""A statement: one piece of bad news from a line, with who says it, how bad it is and what it is about."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["fatal", "error", "warning"]

# death: somebody tells of another process or node that died. wrapper: points at another error. peer: a partner went
# away. wait: nobody came in time. end: asked to end. resource: memory, disk, descriptors, ports. network: names and
# routes. cause: all others
Kind = Literal["death", "wrapper", "peer", "wait", "end", "resource", "network", "cause"]

# how the line shows that it is bad news; `sentence` is plain prose and the weakest
Form = Literal["exception", "level", "program", "verdict", "event", "death", "errno", "exit", "sentence"]


class About(msgspec.Struct, frozen=True):
    """What a message names. `bus_id`: `0000:3b:00.0`, lower case; `uuid`: `GPU-...`; `port`: of the adapter."""

    gpu_index: int | None = None
    bus_id: str | None = None
    uuid: str | None = None
    device_file: str | None = None
    adapter: str | None = None
    port: int | None = None


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """A line, counted from 1, that reports a failure or a warning.

    `message`: without prefixes and level. `program`: who says it, as far as the line shows. `label`: the word of
    `catalogue` for a text that is known; None is still evidence.
    """

    line: int
    message: str
    form: Form
    severity: Severity
    kind: Kind
    about: About
    program: str | None = None
    label: str | None = None
