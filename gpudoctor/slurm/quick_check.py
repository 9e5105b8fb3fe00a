"""Runs a quick check of this node or of a job's GPUs, and decides which failures may drain the node."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from gpudoctor.errors import UserError
from gpudoctor.lazy import lazy_pattern
from gpudoctor.slurm.settings import FILE, HookSettings, SettingsError

if TYPE_CHECKING:
    from gpudoctor.checks.core.faults import Fault
    from gpudoctor.checks.core.registry import Check
    from gpudoctor.report.model import Report

Verdict = Literal["pass", "warn", "fail", "unknown"]
_NUMBERS = lazy_pattern(r"\d{1,4}(?:,\d{1,4})*")
_MINOR = lazy_pattern(r"^Device Minor:\s*(\d+)", re.MULTILINE)
_BUS = lazy_pattern(r"^Bus Location:\s*(\S+)", re.MULTILINE)
# MIG instances: if there are any, Slurm numbers these, and number 1 may be an instance on GPU 0
_MIG = "proc/driver/nvidia/capabilities/gpu*/mig/gi*"
_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"


class HookVerdict(msgspec.Struct, frozen=True):
    """The verdict and its reason. `drains`: the reason for draining the node; None if no failure may drain it.

    `check`: the check of the first fault. `misconfigured`: no verdict because of settings that cannot be understood.
    """

    verdict: Verdict
    why: str
    drains: str | None = None
    check: str | None = None
    misconfigured: bool = False


def check(
    settings: HookSettings, gpus: str | None, deadline_s: float, level: Literal["quick", "standard"] = "quick"
) -> HookVerdict:
    """Check the node, or only the named GPUs. Return unknown, with the reason, if the check could not be done."""
    from gpudoctor.api import node_check
    from gpudoctor.facts.nvml.collector_ahead import dismiss_ahead, start_ahead

    node, *faults = settings.simulated or (None,)
    request = node_check.CheckRequest(
        level=level,
        skip=settings.skip,
        gpu=gpus,
        node=node,
        faults=tuple(word for word in faults if word is not None),
        deadline_s=deadline_s,
    )
    if not settings.simulated:
        start_ahead()  # reads the driver while the checks are imported
    # an error until the node is read is one of the configuration or the settings
    misconfigured = True
    try:
        prep = node_check.prepare(request)
        _refuse_unknown(settings.drain_checks, prep.checks + prep.left_out)
        misconfigured = bool(settings.simulated)
        return result_of(node_check.run_prepared(prep), settings)
    except UserError as error:
        return HookVerdict("unknown", str(error), misconfigured=misconfigured)
    finally:
        dismiss_ahead()


def result_of(report: Report, settings: HookSettings) -> HookVerdict:
    """The hook's verdict for a report; a simulated report is unknown unless GPUDOCTOR_TRIAL is set."""
    mark = "SIMULATED " if report.simulated else ""
    if report.simulated and not settings.simulated:
        return HookVerdict(
            "unknown", f"SIMULATED {report.reason}: says nothing of this node (GPUDOCTOR_TRIAL allows it)"
        )
    if report.verdict != "fail":
        return HookVerdict(report.verdict, mark + report.reason)
    named, fault = report.reason, next(iter(report.faults), None)
    if settings.drain_checks:
        fault = next((f for f in report.faults if _may_drain(f, settings.drain_checks)), None)
        named = "" if fault is None else f"FAIL {fault.check} {fault.headline}"
    first = fault or next(iter(report.faults), None)
    return HookVerdict("fail", mark + report.reason, mark + named if named else None, first.check if first else None)


def _may_drain(fault: Fault, patterns: Iterable[str]) -> bool:
    """Whether the fault, or a failure that it explains, may drain the node."""
    return any(_matches(check, word) for check in (fault.check, *fault.explains) for word in patterns)


def _refuse_unknown(patterns: Iterable[str], checks: Iterable[Check]) -> None:
    ids = [check.id for check in checks]
    for word in patterns:
        if not any(_matches(check, word) for check in ids):
            raise SettingsError(f"{FILE}: GPUDOCTOR_DRAIN_CHECKS: no check is called {word[:60]} (see: gpudoctor list)")


def _matches(check: str, word: str) -> bool:
    return word in (check, check.partition(".")[0]) or fnmatchcase(check, word)


# The job's GPUs, and whether this machine has any.


def job_gpus(slurm_job_gpus: str, root: Path = Path("/")) -> str | None:
    """SLURM_JOB_GPUS as comma-separated bus ids: Slurm counts device files, whose order need not be the driver's.

    Returned unchanged if the driver lists no GPUs in /proc. None if the GPUs cannot be told (MIG, a device that the
    driver does not know): the whole node is then checked.
    """
    if not _NUMBERS.fullmatch(slurm_job_gpus) or any(root.glob(_MIG)):
        return None
    tree = root / "proc/driver/nvidia/gpus"
    if not tree.is_dir():
        return slurm_job_gpus
    bus_of: dict[str, str] = {}
    for file in tree.glob("*/information"):
        text = text_of(file)
        minor, bus = _MINOR.search(text), _BUS.search(text)
        if minor and bus:
            bus_of[minor[1]] = bus[1]
    expected = [bus_of.get(number) for number in slurm_job_gpus.split(",")]
    return None if None in expected else ",".join(bus for bus in expected if bus)


def has_gpus(root: Path = Path("/")) -> bool:
    """Whether device files or the PCI bus show an NVIDIA GPU. A slurm.conf is shared with nodes that have none."""
    if any(root.glob("dev/nvidia[0-9]*")):
        return True
    return any(
        text_of(device / "vendor") == _NVIDIA and text_of(device / "class").startswith(_DISPLAY_CLASS)
        for device in root.glob("sys/bus/pci/devices/*")
    )


def text_of(file: Path) -> str:
    """The text of a small file without blanks around it; empty if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
