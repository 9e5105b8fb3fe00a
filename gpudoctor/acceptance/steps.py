"""The steps of the acceptance run, in the order in which they run."""

from __future__ import annotations

from collections.abc import Iterator

from gpudoctor.acceptance.driver_step import driver
from gpudoctor.acceptance.ending_steps import interrupt, left_behind, shm_entries
from gpudoctor.acceptance.level_steps import burn, full, standard
from gpudoctor.acceptance.quick_steps import quick, under_load
from gpudoctor.acceptance.rate_steps import all_reduce, rates
from gpudoctor.acceptance.result import Item
from gpudoctor.acceptance.run import AcceptanceRequest, AcceptanceRun, Step
from gpudoctor.acceptance.settings_step import settings
from gpudoctor.acceptance.smi_step import facts

NAMES = (
    *("driver", "quick", "facts", "standard", "full", "rates", "all-reduce", "under-load", "burn"),
    *("settings", "interrupt", "left-behind"),
)
# many times what each takes on a healthy node: a step at its deadline hangs, and says so
_QUICK_S = 10.0
_BURN_MORE_S = 900.0  # its start, the round that it ends with, its report


def wanted_steps(request: AcceptanceRequest) -> tuple[Step, ...]:
    """The steps that were asked for."""
    shm = shm_entries()

    def nothing_left(run: AcceptanceRun) -> Iterator[Item]:
        return left_behind(run, shm)

    steps = (
        Step("driver", "every driver call and field id, timed", 180.0, driver),
        Step("quick", "quick check, twice", 180.0, quick),
        Step("facts", "facts against nvidia-smi -q -x", 300.0, facts),
        Step("standard", "level standard", 600.0, standard),
        Step("full", "level full", 1200.0, full),
        Step("rates", "GEMM, memory, host link against loops", 900.0, rates),
        Step("all-reduce", "all_reduce against nccl-tests", 300.0, all_reduce),
        Step("under-load", "quick checks beside a load", 300.0 + _QUICK_S * request.repeats, under_load),
        Step("burn", "level burn", (request.burn_s or 0.0) + _BURN_MORE_S, burn),
        Step("settings", "a power cap, a locked clock", 900.0, settings),
        Step("interrupt", "Ctrl-C in the middle of a check", 180.0, interrupt),
        Step("left-behind", "what the run left behind", 180.0, nothing_left),
    )
    return tuple(
        step for step in steps if step.name not in request.skip and (not request.only or step.name in request.only)
    )
