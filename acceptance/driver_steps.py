"""Steps `driver` and `settings`: what the driver answers and how fast, and whether settings are reported.

`driver`: the duration of each NVML call, cold and warm, and the value of each field id. `settings` sets a power cap and
a locked clock on one GPU; gpudoctor must report these and nothing else. A guardian process restores both, however the
run ends.
"""

from __future__ import annotations

import math
import os
import shutil
from collections import Counter
from collections.abc import Iterator

import msgspec

from acceptance.children import Guardian
from acceptance.driver_child import CHILD, Call, DriverReading, where
from acceptance.quick_steps import loaded_gpus
from acceptance.run import AcceptanceRun, Item, StepError, agreed, could_not, differs
from acceptance.smi_step import SMI
from gpudoctor.errors import UserError
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import known
from gpudoctor.report.model import Report

_CAP_SHARE = 0.8  # of the default: far below the 1 % that gpu.power-limit allows
_CLOCK_SHARE = 0.4  # of the maximum: below the 50 % under which gpu.clocks calls a busy GPU locked
_CAP_CHECKS = frozenset({"gpu.power-limit", "gpu.identical"})
_CLOCK_CHECKS = frozenset(
    {*("gpu.clocks", "gpu.throttle", "compute.gemm", "compute.memory", "train.balance", "train.scaling")}
)
_LOCK_LOAD = ("gpu", "compute.gemm", "compute.memory", "--level", "full")
# nvidia-smi exits with 0 after "... is not supported for GPU ..."
_NOT_SET = b"treating as warning"
Said = set[tuple[str, str, str | None]]


def settings(run: AcceptanceRun) -> Iterator[Item]:
    """The power cap with a quick check, the locked clock with a check under load."""
    program = shutil.which(SMI)
    if program is None:
        yield could_not(f"a power cap and a locked clock: {SMI} is not on PATH")
        return
    gpu = _free_gpu(run)
    if gpu is None:
        yield could_not("a power cap and a locked clock: each GPU is in use by another process, or split by MIG")
        return
    if known(gpu.settings.persistence) is False:
        yield could_not(
            f"a power cap and a locked clock: persistence mode is off on {gpu.label}, whose driver forgets both "
            f"as soon as nobody uses it: {SMI} -pm 1"
        )
        return
    yield from _capped(run, program, gpu)
    if not loaded_gpus(run):
        yield could_not("a locked clock: it shows under load only, and no GPU was put under load")
        return
    yield from _locked(run, program, gpu)


def _free_gpu(run: AcceptanceRun) -> Gpu | None:
    """The last free GPU: job schedulers allocate the first ones first."""
    for gpu in reversed(run.node.gpus):
        if known(gpu.processes) == () and known(gpu.settings.mig_enabled) is not True:
            return gpu
    return None


def _capped(run: AcceptanceRun, program: str, gpu: Gpu) -> Iterator[Item]:
    before_w, default_w = known(gpu.power.requested_limit_w), known(gpu.power.default_limit_w)
    lowest_w = known(gpu.power.min_limit_w)
    if before_w is None or default_w is None or lowest_w is None:
        yield could_not(f"a power cap on {gpu.label}: its limits are not known")
        return
    cap_w = float(math.ceil(max(lowest_w, _CAP_SHARE * default_w)))
    if cap_w > 0.98 * default_w or before_w < 0.99 * default_w:
        yield could_not(f"a power cap on {gpu.label}: set to {before_w:g} W already, or no lower limit is allowed")
        return
    set_to = [program, "-i", gpu.bus_id, "-pl"]
    yield from _changed(
        run,
        gpu,
        f"a power cap of {cap_w:g} W",
        ([*set_to, f"{cap_w:g}"], [*set_to, f"{before_w:g}"]),
        ("--level", "quick"),
        _CAP_CHECKS,
    )
    if _limit(run, gpu) != before_w:
        yield differs(f"{gpu.label} has a power limit of {_limit(run, gpu)} W, not the {before_w:g} W from before")


def _locked(run: AcceptanceRun, program: str, gpu: Gpu) -> Iterator[Item]:
    top = known(gpu.clocks.sm_max_mhz)
    if top is None:
        yield could_not(f"a locked clock on {gpu.label}: its maximum clock is not known")
        return
    mhz = str(round(_CLOCK_SHARE * top))
    base = [program, "-i", gpu.bus_id]
    yield from _changed(
        run,
        gpu,
        f"clocks locked at {mhz} MHz",
        ([*base, "-lgc", f"{mhz},{mhz}"], [*base, "-rgc"]),
        _LOCK_LOAD,
        _CLOCK_CHECKS,
    )


def _changed(
    run: AcceptanceRun,
    gpu: Gpu,
    what: str,
    commands: tuple[list[str], list[str]],
    check: tuple[str, ...],
    may_say: frozenset[str],
) -> Iterator[Item]:
    """Check, change, check, undo. The guardian starts before the change, and it alone undoes it."""
    do, undo = commands
    before = run.check(*check, name="settings-before")
    try:
        guardian = Guardian([undo])
    except UserError as error:
        yield could_not(f"{what} on {gpu.label}: {error}")
        return
    after = None
    try:
        done = run.child(do)
        if done.code == 0 and _NOT_SET not in done.stdout.lower():
            after = run.check(*check, name="settings-changed")
    finally:
        failed = guardian.close()
    if after is None:
        # the undo failed for the same reason: nothing was set
        said = done.stdout.decode("utf-8", "replace").strip().partition("\n")[0] or done.words
        root = "" if os.geteuid() == 0 else "needs root; "
        yield could_not(f"{what} on {gpu.label}: {root}{SMI} said: {said}")
        return
    yield from judged(before, after, gpu, what, may_say)
    for line in failed:
        yield differs(f"NOT PUT BACK, do it by hand: {line}")


def judged(before: Report, after: Report, gpu: Gpu, what: str, may_say: frozenset[str]) -> Iterator[Item]:
    """Among the new findings, one of the checks `may_say` must name this GPU, and no other check or GPU may appear."""
    new = _said(after) - _said(before)
    named = {said for said in new if said[0] in may_say and said[2] == gpu.bus_id}
    if named:
        words = ", ".join(sorted(f"{check} {status}" for check, status, _ in named))
        yield agreed(f"{what} on {gpu.label} is named: {words}")
    else:
        yield differs(f"{what} on {gpu.label} is named by no check")
    for check, status, bus_id in sorted(new - named, key=str):
        yield differs(f"{what} on {gpu.label}: {check} {status} of {bus_id or 'the node'} has nothing to do with it")


def _said(report: Report) -> Said:
    """Each warning, fail and unknown: check, status, and the GPU by bus id."""
    by_index: dict[int | None, str] = {gpu.index: gpu.bus_id for gpu in report.gpus}
    return {
        (check.id, finding.status.value, finding.subject.bus_id or by_index.get(finding.subject.gpu))
        for check in report.checks
        for finding in check.findings
        if finding.status.value in ("warn", "fail", "unknown")
    }


def _limit(run: AcceptanceRun, gpu: Gpu) -> float | None:
    return next((known(each.power.requested_limit_w) for each in run.facts().gpus if each.bus_id == gpu.bus_id), None)


_READING_S = 180.0
COLD, WARM = "nvml-cold.json", "nvml-warm.json"
_COUNTERS = (3, 4, 5, 6, 94)  # field ids that may grow between two reads
_SHOWN = 3


def read_cold(run: AcceptanceRun) -> None:
    """Read the driver before anything else wakes it; step `driver` reports the errors of this reading."""
    run.allow(_READING_S)
    try:
        run.raw[COLD] = run.module(*CHILD)
    except StepError as error:
        run.raw[COLD] = msgspec.json.encode({"error": str(error)})


def driver(run: AcceptanceRun) -> Iterator[Item]:
    """Both readings must be complete for each GPU, and each value the same by field id and by getter."""
    run.raw[WARM] = run.module(*CHILD)
    for name, words in ((COLD, "first"), (WARM, "second")):
        try:
            reading = msgspec.json.decode(run.raw[name], type=DriverReading)
        except (msgspec.MsgspecError, ValueError) as error:
            yield differs(f"the {words} reading is none: {error}")
            continue
        if not reading.calls and not reading.hung:
            yield differs(f"the {words} reading failed: {_error(run.raw[name])}")
            continue
        yield from _reading(words, reading)
    yield from _fields(msgspec.json.decode(run.raw[WARM], type=DriverReading))


def _reading(words: str, reading: DriverReading) -> Iterator[Item]:
    driver = reading.driver
    for call in reading.hung:
        yield differs(f"{words} reading: {call}")
    if reading.hung:
        return
    if driver.init_code != 0:
        yield differs(f"{words} reading: nvmlInit answered {driver.init_code}: {known(driver.init_error)}")
        return
    for index, why in sorted(reading.unread.items()):
        yield differs(f"{words} reading: GPU {index} was not read: {why}")
    count = known(driver.device_count)
    if count != len(reading.read) + len(set(reading.unread) - set(reading.read)):
        yield differs(f"{words} reading: the driver counts {count} GPUs, {len(reading.read)} were read to the end")
    slowest = sorted(reading.calls, key=lambda call: -call.ms)[:_SHOWN]
    init_s = known(driver.init_s)
    yield agreed(
        f"{words} reading: {len(reading.read)} GPUs in {reading.seconds:.2f} s, {len(reading.calls)} calls"
        + (f", nvmlInit {init_s:.3f} s" if init_s is not None else "")
        + f"; slowest: {', '.join(map(_call, slowest))}"
    )


def _call(call: Call) -> str:
    return f"{call.name}{where(call.thread)} {call.ms:.1f} ms"


def _fields(reading: DriverReading) -> Iterator[Item]:
    ids = {answer.field for answer in reading.answers}
    refused = Counter(answer.field for answer in reading.answers if answer.code)
    if not ids:
        yield could_not("field values: this driver answered no nvmlDeviceGetFieldValues")
        return
    same = 0
    for twin in reading.twins:
        if twin.by_field is None or twin.by_getter is None:
            continue
        grown = twin.field in _COUNTERS and twin.by_getter > twin.by_field
        if twin.by_field == twin.by_getter or grown:
            same += 1
            continue
        yield differs(f"GPU {twin.gpu}: field {twin.field} says {twin.by_field}, {twin.getter} {twin.by_getter}")
    said = f"{len(ids)} field ids asked for, {len(refused)} refused by some GPU or link"
    if same:
        yield agreed(f"{said}; {same} values are the same by field id and by getter")
    else:
        yield could_not(f"{said}; none of them has a getter that answered too")


def _error(raw: bytes) -> str:
    return str(msgspec.json.decode(raw).get("error", "no driver call was made"))
