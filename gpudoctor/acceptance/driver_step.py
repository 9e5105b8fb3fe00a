"""Step `driver`: the duration of each NVML call, cold and warm, and the value of each field id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from gpudoctor.acceptance.driver_child import Call, DriverReading, where
from gpudoctor.acceptance.run import AcceptanceRun, Item, StepError, agreed, could_not, differs
from gpudoctor.facts.model.missing import known

HANGS_S = 60.0  # limit of one call: without persistence mode 16 GPUs wake one after the other in 48 s
_READING_S = 180.0
_CHILD = ("gpudoctor.acceptance.driver_child", f"{HANGS_S:g}")
COLD, WARM = "nvml-cold.json", "nvml-warm.json"
_COUNTERS = (3, 4, 5, 6, 94)  # field ids that may grow between two reads
_SHOWN = 3


def read_cold(run: AcceptanceRun) -> None:
    """Read the driver before anything else wakes it; step `driver` reports the errors of this reading."""
    run.allow(_READING_S)
    try:
        run.raw[COLD] = run.module(*_CHILD)
    except StepError as error:
        run.raw[COLD] = msgspec.json.encode({"error": str(error)})


def driver(run: AcceptanceRun) -> Iterator[Item]:
    """Both readings must be complete for each GPU, and each value the same by field id and by getter."""
    run.raw[WARM] = run.module(*_CHILD)
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
