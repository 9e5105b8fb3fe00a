"""What a check of a run is: a name and a pure function of what was watched; and its list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module

from gpudoctor.checks.core.case import Case, Limit
from gpudoctor.checks.core.finding import Finding
from gpudoctor.checks.core.registry import Check
from gpudoctor.run.watched import Watched

RunFunction = Callable[[Watched], Iterator[Finding]]
# in the order of a report: what ended it first, then what slows it down
NAMES = ("progress", "finite", "balance", "batch", "data", "host", "memory", "utilization")

_functions: dict[str, RunFunction] = {}
_checks: dict[str, Check] = {}


def run_check(id: str, *, title: str, limits: tuple[Limit, ...] = ()) -> Callable[[RunFunction], RunFunction]:
    def register(function: RunFunction) -> RunFunction:
        def no_case(case: Case) -> Iterator[Finding]:
            raise NotImplementedError("a check of a run looks at a run, not at a node")

        no_case.__module__ = function.__module__  # its page lies beside it
        _functions[id] = function
        _checks[id] = Check(id, title, "quick", no_case, False, {limit.name: limit for limit in limits})
        return function

    return register


@cache
def run_checks() -> tuple[Check, ...]:
    """All of them, for their titles, limits and pages."""
    for name in NAMES:
        import_module(f"gpudoctor.run.findings.{name}")
    return tuple(_checks[f"run.{name}"] for name in NAMES)


def findings_of(check: Check, watched: Watched) -> tuple[Finding, ...]:
    return tuple(_functions[check.id](watched))
