"""What was seen of a run: the input of its findings. Data only."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudoctor.checks.core.case import Case
from gpudoctor.diagnose.diagnosis import Cause
from gpudoctor.facts.model.node import Node
from gpudoctor.run.record_reader import SampledLine
from gpudoctor.run.step_series import TimedStep

# how a rank's process ended; abrupt: without Python's own end, by a signal or os._exit
Ending = Literal["runs", "normal", "exception", "abrupt"]


class WatchedRank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank. `steps` are those that all ranks have, after warm-up; `finished` counts all of its own.

    `ended_s` is in seconds after the start; an abrupt end is noticed a little later, and `lived_s` is when it was last
    seen alive. `bad_loss` and `bad_gradient` are the first steps with a value that is not finite.
    """

    rank: int
    pid: int
    gpu: int | None = None
    finished: int = 0
    steps: tuple[TimedStep, ...] = ()
    warm_up: tuple[TimedStep, ...] = ()
    ending: Ending = "runs"
    ended_s: float | None = None
    lived_s: float | None = None
    error: str | None = None
    places: tuple[SampledLine, ...] = ()
    bad_loss: int | None = None
    bad_gradient: int | None = None
    cpus: tuple[int, ...] = ()
    cpu_neighbour: str | None = None
    loader: bool = False
    loader_workers: int = 0


class StoppedRank(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank stood while nothing moved: its phase, its collective if it waits, the line of the user's code.

    `callers` are the lines of the user's code that led there, innermost first; `workers` say where those of its loader
    stand, if it waits for them.
    """

    rank: int
    finished: int
    gone: bool = False
    waits: bool = False
    phase: str = ""
    collective: str = ""
    place: str = ""
    code: str = ""
    callers: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    stack: tuple[str, ...] = ()
    kernel: str = ""


class RunStall(msgspec.Struct, frozen=True, kw_only=True):
    """A time without progress. `resumed`: the run went on by itself."""

    after_s: float
    stood_s: float
    ranks: tuple[StoppedRank, ...]
    resumed: bool = False
    ended_by_us: bool = False


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run. `case` has facts and telemetry of the node. `signal` ended the command; `sent` came to us.

    `cause_in_logs` is what the kept logs say happened first.
    """

    ranks: tuple[WatchedRank, ...] = ()
    exit_code: int = 0
    signal: int | None = None
    sent: tuple[int, ...] = ()
    duration_s: float = 0.0
    stalls: tuple[RunStall, ...] = ()
    oom_kills: int = 0
    world_size: int | None = None
    not_observed: str | None = None
    cause_in_logs: Cause | None = None
    case: Case = Case(Node())
