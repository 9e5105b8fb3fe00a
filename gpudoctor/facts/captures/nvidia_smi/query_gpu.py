"""One GPU of any form of nvidia-smi's output as facts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from gpudoctor.facts.captures import ABSENT, BUS_ID, MOST_GPUS, SourceError
from gpudoctor.facts.captures.nvidia_smi.names import LEAVES, REASON_SECTIONS, REASONS
from gpudoctor.facts.captures.nvidia_smi.values import Values, not_understood
from gpudoctor.facts.model.gpu import UNKNOWN_BUS, Gpu, GpuProcess, MigInstance
from gpudoctor.facts.model.missing import Fact, Missing
from gpudoctor.facts.model.node import short_bus_id
from gpudoctor.facts.nvml.codes import RECOVERY_ACTIONS, errors_in_dump

# the result of the GPU's registration with the fabric: its error words are the value, not a failed read
_FABRIC_STATUS = "fabric/status"
T = TypeVar("T", bound=msgspec.Struct)
# in place of what a text would show if it were whole
CUT = Missing("the text is cut off before it", "failed")
_REASON_PREFIXES = re.compile(r"^(?:clocks_event_reason_)?(?:clocks_throttle_reason_)?(?:gpu_)?")
# the sections of Gpu: Gpu.pcie is a PcieLink
_SECTIONS = {
    name: type(default)
    for name, default in zip(Gpu.__struct_fields__[::-1], Gpu.__struct_defaults__[::-1], strict=False)
    if isinstance(default, Fact)
}


class GpuDump(msgspec.Struct):
    """A GPU as a text shows it: what it is called there, its values by their path in `-q`, and its two lists.

    `bus_id`: as the text has it, or "". `lists_mig`: instances would be listed if any. `facts`: leaves of Gpu that are
    not in `-q`. `cut`: why it may have values that the text does not show. `number`: its place among the GPUs of a text
    that shows some again; None if that is its place in the text.
    """

    bus_id: str = ""
    values: dict[str, str] = {}
    processes: list[dict[str, str]] = []
    mig_devices: list[dict[str, str]] = []
    lists_mig: bool = False
    facts: dict[str, Any] = {}
    cut: Missing | None = None
    number: int | None = None

    def keep(self, path: list[str], text: str) -> None:
        """Keep a value of the tree of -q, text or XML. In a list, a name that is there already begins a new record."""
        name = path[-1]
        if len(path) == 1 or path[0] not in ("processes", "mig_device", "mig_devices"):
            self.values["/".join(path)] = text
            return
        if path[0] == "processes":
            records = self.processes
            self.values.setdefault("processes", "")
        else:
            records = self.mig_devices
            name = "/".join(path[1:]).removeprefix("mig_device/")
        if not records or name in records[-1]:
            records.append({})
        records[-1][name] = text

    @property
    def address(self) -> str:
        """Its bus id as in the facts; "" if the text has none."""
        return short_bus_id(self.bus_id) if re.fullmatch(BUS_ID, self.bus_id) else ""


class GpuDumps(dict[Any, GpuDump]):
    """The GPUs of one text, by what tells them apart in it."""

    def at(self, key: Any, bus_id: str = "") -> GpuDump:
        """The GPU, new or known. Raise SourceError if these are more than a machine has."""
        if key not in self and len(self) >= MOST_GPUS:
            raise SourceError(f"more than {MOST_GPUS} GPUs: not those of one machine")
        return self.setdefault(key, GpuDump(bus_id))

    def by_index(self) -> tuple[Gpu, ...]:
        """The facts of all GPUs, if the keys are their indices."""
        return self.numbered(dict(zip(self, self, strict=True)))

    def in_order(self) -> tuple[Gpu, ...]:
        """The facts of all GPUs, counted in the text's order."""
        return self.numbered({key: index for index, key in enumerate(self)})

    def numbered(self, indices: Mapping[Any, int]) -> tuple[Gpu, ...]:
        """The facts of all GPUs, in the order of the bus."""
        made = [(dump, gpu_from(dump, indices[key])) for key, dump in self.items()]
        whole = next((gpu for dump, gpu in made if dump.cut is None), None)
        gpus = [gpu if dump.cut is None else _cut(gpu, whole, dump, dump.cut) for dump, gpu in made]
        return tuple(sorted(gpus, key=lambda gpu: (gpu.bus_id_read or "~", gpu.index)))


def _cut(gpu: Gpu, whole: Gpu | None, dump: GpuDump, reason: Missing) -> Gpu:
    gpu = marked_as_cut(gpu, whole, reason)
    if next(reversed(dump.values), "").partition("/")[0] in REASON_SECTIONS:
        # it ends inside the list of reasons: one of the missing ones may be active
        gpu = replace(gpu, clocks=replace(gpu.clocks, event_reasons=reason))
    return gpu


def marked_as_cut(value: T, like: T | None, reason: Missing) -> T:
    """The facts with every absent leaf set to `reason`, except those that are absent in `like`, a complete one, too.

    What a truncated text would have contained is unknown, so none of it may pass.
    """
    made: Any = value
    news: dict[str, Any] = {}
    for field in made.__struct_fields__:
        old, same = getattr(made, field), getattr(like, field, None)
        if old == ABSENT and same != ABSENT:
            news[field] = reason
        elif isinstance(old, Fact):
            news[field] = marked_as_cut(old, same, reason)
    result: T = replace(made, **news)
    return result


def gpu_from(dump: GpuDump, index: int) -> Gpu:
    """The facts of one GPU; values that are not in the text are `ABSENT`, or not read."""
    v = Values(dump.values)
    found = {leaf: v.read(kind, *names) for leaf, (kind, names) in LEAVES.items()}
    found.update(_ecc_counts(v))
    found |= {
        "errors": errors_in_dump(item for item in dump.values.items() if item[0] != _FABRIC_STATUS),
        "recovery_action": _recovery(v),
        "clocks.event_reasons": _event_reasons(v),
        "settings.mig_instances": _mig_instances(found["settings.mig_enabled"], dump),
        "processes": _processes(v, dump.processes),
    }
    status = found["fabric.status"]
    if isinstance(status, Missing) and status.kind == "failed":
        found["fabric.status"] = dump.values[_FABRIC_STATUS].lower()
    made: dict[str, dict[str, Any]] = {name: {} for name in ("", *_SECTIONS)}
    for leaf, value in found.items():
        section, _, field = leaf.rpartition(".")
        made[section][field] = value
    leaves = made.pop("") | {name: _SECTIONS[name](**fields) for name, fields in made.items()} | dump.facts
    return Gpu(index, dump.address or f"{UNKNOWN_BUS}{index}", **leaves)


def _combined(how: Callable[[Iterable[int]], int], *counts: int | Missing) -> int | Missing:
    """The known counts in one; failed if one of them failed, Missing if none is known."""
    failed = [count for count in counts if isinstance(count, Missing) and count.kind == "failed"]
    if failed:
        return failed[0]
    numbers = [count for count in counts if not isinstance(count, Missing)]
    if numbers:
        return how(numbers)
    return next((count for count in counts if count != ABSENT), ABSENT)


def _ecc_counts(v: Values) -> Iterator[tuple[str, int | Missing]]:
    """The counts of errors, in which GPUs print parts, the total, or both."""
    for scope in ("volatile", "aggregate"):
        at = f"ecc_errors/{scope}/"
        names = ("sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_sec_ded")
        sram = _combined(sum, *(v.whole(at + name, at + name.replace("sec_ded", "secded")) for name in names))
        parts = _combined(sum, sram, v.whole(at + "dram_uncorrectable"))
        yield f"ecc.sram_uncorrected_{scope}", sram
        yield f"ecc.uncorrected_{scope}", _combined(max, parts, v.whole(at + "double_bit/total"))
        parts = _combined(sum, v.whole(at + "sram_correctable"), v.whole(at + "dram_correctable"))
        yield f"ecc.corrected_{scope}", _combined(max, parts, v.whole(at + "single_bit/total"))


def _event_reasons(v: Values) -> tuple[str, ...] | Missing:
    """The active reasons; Missing if none could be read, or one failed."""
    paths = [path for section in REASON_SECTIONS for path in v.under(section)]
    if not paths:
        whole = v.text(*REASON_SECTIONS)
        return whole if isinstance(whole, Missing) else ABSENT
    flags = {path: v.flag(path) for path in paths}
    missing = [flag for flag in flags.values() if isinstance(flag, Missing)]
    if failed := [flag for flag in missing if flag.kind == "failed"]:
        return failed[0]
    if len(missing) == len(flags):
        return missing[-1]
    reasons = (_REASON_PREFIXES.sub("", path.rpartition("/")[2]) for path, flag in flags.items() if flag is True)
    return tuple(dict.fromkeys(REASONS.get(reason, reason.replace("_", "-")) for reason in reasons))


def _mig_instances(enabled: bool | Missing, dump: GpuDump) -> tuple[MigInstance, ...] | Missing:
    if isinstance(enabled, Missing):
        return enabled
    if not dump.mig_devices and not dump.lists_mig:
        return ABSENT
    return tuple(
        MigInstance(
            uuid=v.text("uuid"),
            profile=v.text("profile"),
            gpu_instance=v.whole("gpu_instance_id"),
            compute_instance=v.whole("compute_instance_id"),
            memory_mib=v.whole("fb_memory_usage/total"),
        )
        for v in map(Values, dump.mig_devices)
    )


def _processes(v: Values, listed: list[dict[str, str]]) -> tuple[GpuProcess, ...] | Missing:
    if not listed:
        reported = v.text("processes", "compute_processes")
        if isinstance(reported, Missing):
            return reported
        return () if reported.lower() == "none" else not_understood(reported)
    found = []
    for fields in listed:
        p = Values(fields)
        pid, kind = p.whole("pid", "process_id"), p.text("type")
        if isinstance(pid, Missing):
            return pid
        found.append(
            GpuProcess(
                pid=pid,
                name=p.text("process_name", "name"),
                kind="C" if isinstance(kind, Missing) else kind,
                memory_mib=p.whole("used_memory", "used_gpu_memory"),
            )
        )
    return tuple(found)


def _recovery(v: Values) -> str | Missing:
    """The recovery action; drivers up to 565 only have two flags for it."""
    reported = v.text("gpu_recovery_action")
    if not isinstance(reported, Missing):
        action = reported.lower().removesuffix(" required").replace(" ", "-")
        action = {"reset": "gpu-reset", "reboot": "node-reboot"}.get(action, action)
        return action if action in RECOVERY_ACTIONS.values() else f"value {reported}"
    reset = v.flag("gpu_reset_status/reset_required")
    drain = v.flag("gpu_reset_status/drain_and_reset_recommended")
    if reset is True:
        return "gpu-reset"
    if drain is True:
        return "drain-and-reset"
    if reset is False and drain is False:
        return "none"
    return next((m for m in (reported, reset, drain) if isinstance(m, Missing) and m != ABSENT), ABSENT)
