"""How CUDA interprets CUDA_VISIBLE_DEVICES: a pure parser that gives its reasons as text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import msgspec
from msgspec.structs import replace

from gpudoctor.facts.model.gpu import Gpu, MigInstance
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.lazy import lazy_pattern

# what C's strtoul reads from the start of an entry, ignoring the rest
_NUMBER = lazy_pattern(r"[ \t\n\v\f\r]*([+-]?)([0-9]+)")
_MIG_OF_GPU = lazy_pattern(r"MIG-(GPU-[^/]+)/([0-9]+)/([0-9]+)")
_HIDES_ALL = ("", "NoDevFiles")


class Visible(msgspec.Struct, frozen=True):
    """The GPUs that a CUDA process sees, in CUDA's order.

    `visible` holds NVML indices, and `uuids` in the same order what CUDA opens: the UUID of the GPU or of its MIG
    instance; None if it was not read. Each other GPU is either in `hidden_on_purpose` (not in the list) or in
    `hidden_by_mistake` (in the list, but CUDA does not show it). `cut_at` is the entry at which CUDA stopped
    reading. `problems` are errors in the list, `notes` are remarks about a correct one. `order_uncertain`: some GPUs
    are hidden, and the indices count in CUDA's fastest-first order, which may differ from NVML's on this mix of
    GPUs. `unresolved`: why the facts are not sufficient; if it is set, ignore the other fields.
    """

    value: str | None
    visible: tuple[int, ...] = ()
    uuids: tuple[str | None, ...] = ()
    hidden_on_purpose: tuple[int, ...] = ()
    hidden_by_mistake: tuple[int, ...] = ()
    cut_at: str | None = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    order_uncertain: bool = False
    unresolved: str | None = None

    @property
    def hidden(self) -> tuple[int, ...]:
        return tuple(sorted((*self.hidden_on_purpose, *self.hidden_by_mistake)))

    @property
    def hides_all(self) -> bool:
        """Whether no GPU is visible although there are some."""
        return not self.visible and bool(self.hidden) and self.unresolved is None


class _Bad(msgspec.Struct, frozen=True):
    """Why an entry matches no device. `harmless`: the usual way to end a list, not a mistake."""

    why: str
    harmless: bool = False
    unresolved: bool = False


_EMPTY = _Bad("the entry is empty", harmless=True)


class _Device(msgspec.Struct, frozen=True):
    gpu: Gpu
    mig: MigInstance | None = None


def resolve(value: str | None, gpus: Sequence[Gpu], device_order: str | None = None) -> Visible:
    """What a CUDA process sees with this value on a node with these GPUs; never raises.

    `gpus` are all GPUs of the node, `device_order` is CUDA_DEVICE_ORDER. The rules come from the environment
    variables chapter of the CUDA programming guide (order, stop at the first invalid entry, UUID prefixes, MIG
    names), from the MIG user guide (one instance per process, and then no other GPU), and from torch.cuda for what
    the guide does not specify (numbers are read like strtoul, a repeated entry empties the list, and repeats are
    detected before entries are looked up).
    """
    ordered = tuple(sorted(gpus, key=lambda gpu: gpu.bus_id))
    if value is None:
        every = map(_open, ordered)
        return _seen(Visible(None), ordered, [d for d in every if isinstance(d, _Device)], named=set())
    if value.strip() in _HIDES_ALL or not ordered:
        return Visible(value, hidden_on_purpose=tuple(sorted(gpu.index for gpu in ordered)))
    entries = value.split(",")
    keys: list[object]
    # the first entry determines how CUDA reads the whole list
    if value.startswith(("GPU-", "MIG-")):
        found = [_by_uuid(entry, value[:4], ordered) for entry in entries]
        keys = [(d.gpu.index, d.mig.uuid if d.mig else None) if isinstance(d, _Device) else d for d in found]
        order_uncertain = False
    else:
        numbers = [_number(entry) for entry in entries]
        found = [n if isinstance(n, _Bad) else _by_index(n, ordered) for n in numbers]
        keys = list(numbers)
        # fastest-first may differ from bus order unless the GPUs are known to be all of one model
        order_uncertain = len({known(gpu.name) for gpu in ordered}) > 1 and device_order != "PCI_BUS_ID"
    return _read(Visible(value, order_uncertain=order_uncertain), entries, found, keys, ordered)


def shown_to_any(settings: Sequence[str | None], node: Node) -> str | None:
    """The GPUs that any of these CUDA_VISIBLE_DEVICES shows, in the form of --gpu; None if all are the same."""
    if len(set(settings)) < 2:
        return None
    order = node.environment.get("CUDA_DEVICE_ORDER")
    seen = [resolve(setting, node.gpus, order) for setting in settings]
    shown = {index for each in seen for index in each.visible}
    # a broken value does not identify the intended GPUs: judge all of them
    if any(each.unresolved or each.problems or each.order_uncertain for each in seen):
        shown = {gpu.index for gpu in node.gpus}
    return ",".join(str(gpu.index) for gpu in node.gpus if gpu.index in shown) or None


def _read(
    start: Visible, entries: list[str], found: list[_Device | _Bad], keys: list[object], ordered: tuple[Gpu, ...]
) -> Visible:
    """Process the list as CUDA does: stop at the first bad entry, and show nothing if one repeats."""
    named = {d.gpu.index for d in found if isinstance(d, _Device)}
    bad = next((each for each in found if isinstance(each, _Bad)), None)
    stop = len(found) if bad is None else found.index(bad)
    devices = [d for d in found[:stop] if isinstance(d, _Device)]
    if bad is not None and bad.unresolved:
        return Visible(start.value, unresolved=bad.why)
    # torch detects repeats before it knows the number of GPUs: up to the first entry that is not a number
    readable = list(takewhile(lambda key: not isinstance(key, _Bad), keys))
    repeated = _first_repeat(readable)
    if repeated is not None:
        problems = [f"{_shown(entries[repeated])} appears twice, and CUDA then shows no GPU at all"]
        problems += [b.why for b in found[: len(readable)] if isinstance(b, _Bad)]
        return Visible(
            start.value,
            hidden_on_purpose=tuple(sorted(gpu.index for gpu in ordered if gpu.index not in named)),
            hidden_by_mistake=tuple(sorted(named)),
            problems=tuple(dict.fromkeys(problems)),
        )
    if bad is not None:
        start = replace(start, cut_at=entries[stop])
        if not bad.harmless or named - {d.gpu.index for d in devices}:
            start = replace(start, problems=(f"CUDA stops at {_shown(entries[stop])}: {bad.why}",))
        elif devices:
            start = replace(start, notes=(f"the list ends at {_shown(entries[stop])}",))
    return _seen(start, ordered, devices, named)


def _first_repeat(keys: list[object]) -> int | None:
    first_at = {key: i for i, key in reversed(list(enumerate(keys)))}
    return next((i for i, key in enumerate(keys) if first_at[key] != i), None)


def _seen(start: Visible, ordered: tuple[Gpu, ...], devices: list[_Device], named: set[int]) -> Visible:
    """The result for these devices, after applying MIG's rule: one instance, and no other GPU."""
    first, notes = next((d for d in devices if d.mig is not None), None), start.notes
    if first is not None and len(devices) > 1:
        devices = [first]
        notes = (*notes, f"a CUDA process uses one MIG instance and nothing else: the one on GPU {first.gpu.index}")
        named = named & {first.gpu.index}
    visible = tuple(d.gpu.index for d in devices)
    hidden = sorted(gpu.index for gpu in ordered if gpu.index not in visible)
    return replace(
        start,
        visible=visible,
        uuids=tuple(known(d.mig.uuid if d.mig else d.gpu.uuid) for d in devices),
        hidden_on_purpose=tuple(i for i in hidden if i not in named),
        hidden_by_mistake=tuple(i for i in hidden if i in named),
        notes=notes,
        order_uncertain=start.order_uncertain and bool(visible) and bool(hidden),
    )


def _number(entry: str) -> int | _Bad:
    match = _NUMBER.match(entry)
    if match is None:
        if not entry.strip():
            return _EMPTY
        if entry.strip().startswith(("GPU-", "MIG-")):
            return _Bad("a list that starts with an index cannot hold UUIDs")
        return _Bad("it is not a number, nor a UUID as nvidia-smi -L prints it")
    sign, digits = match.groups()
    # longer than any device number; int() refuses strings of thousands of digits
    number = int(digits) if len(digits) <= 18 else 10**18
    if sign == "-" and number:
        return _Bad("negative numbers end the list", harmless=True)
    return number


def _by_index(number: int, ordered: tuple[Gpu, ...]) -> _Device | _Bad:
    if number >= len(ordered):
        present = "GPU 0 only" if len(ordered) == 1 else f"GPUs 0-{len(ordered) - 1}"
        return _Bad(f"{_shown(str(number))} does not exist on a node with {present}")
    return _open(ordered[number])


def _by_uuid(entry: str, prefix: str, ordered: tuple[Gpu, ...]) -> _Device | _Bad:
    if not entry.startswith(prefix):
        if not entry.strip():
            return _EMPTY
        if entry.strip().startswith(prefix):
            return _Bad("there is a blank before the UUID")
        return _Bad(f"a list that starts with a {prefix}UUID can hold nothing else")
    return _by_gpu_uuid(entry, ordered) if prefix == "GPU-" else _by_mig_uuid(entry, ordered)


def _by_gpu_uuid(entry: str, ordered: tuple[Gpu, ...]) -> _Device | _Bad:
    matching = [gpu for gpu in ordered if (known(gpu.uuid) or "").startswith(entry)]
    if len(matching) == 1:
        return _open(matching[0])
    if matching:
        which = ", ".join(f"GPU {gpu.index}" for gpu in matching)
        return _Bad(f"the prefix fits more than one GPU ({which})")
    if any(isinstance(gpu.uuid, Missing) for gpu in ordered):
        return _Bad("the UUIDs of the GPUs are not all known", unresolved=True)
    return _Bad("no GPU of this node has this UUID")


def _by_mig_uuid(entry: str, ordered: tuple[Gpu, ...]) -> _Device | _Bad:
    legacy = _MIG_OF_GPU.fullmatch(entry)
    gaps = False
    for gpu in ordered:
        instances = gpu.settings.mig_instances
        if isinstance(instances, Missing):
            gaps = gaps or known(gpu.settings.mig_enabled) is not False
            continue
        for mig in instances:
            place = (str(known(mig.gpu_instance)), str(known(mig.compute_instance)))
            if mig.uuid == entry or (legacy and known(gpu.uuid) == legacy[1] and place == (legacy[2], legacy[3])):
                return _Device(gpu, mig)
            gaps = gaps or isinstance(mig.uuid, Missing)
    if gaps:
        return _Bad("the MIG instances of the GPUs are not all known", unresolved=True)
    return _Bad("no MIG instance of this node has this name")


def _open(gpu: Gpu) -> _Device | _Bad:
    """The GPU, or its first instance if MIG is on: CUDA cannot use the rest of it then."""
    if known(gpu.settings.mig_enabled) is not True:
        return _Device(gpu)
    instances = gpu.settings.mig_instances
    if isinstance(instances, Missing):
        return _Device(gpu, MigInstance())
    if not instances:
        return _Bad(f"GPU {gpu.index} is in MIG mode and has no instance")
    return _Device(gpu, instances[0])


def bare_uuid(uuid: str) -> str:
    """The UUID without the prefix that only the driver uses, to compare torch's with the driver's."""
    return uuid.lower().removeprefix("gpu-")


def _shown(entry: str) -> str:
    """The entry for a message: long ones are cut, empty and unprintable ones quoted."""
    text = entry.strip()
    if not text.isprintable() or not text:
        text = repr(entry)
    return text if len(text) <= 48 else text[:45] + "..."
