"""Join the nvidia-smi dumps of one machine: match their GPUs and merge what each dump contains.

A dump is a list of GPUs, `complete` if none is missing from it, or extra: it `only_adds_facts` to GPUs of a list. The
GPUs of an unordered dump have neither indices nor an order. Unlisted: in an extra dump, but in no complete list.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import reduce
from typing import Any

import msgspec
from msgspec.structs import replace

from gpudoctor.facts.captures import MOST_GPUS, SourceError
from gpudoctor.facts.captures.host.lspci import Function
from gpudoctor.facts.captures.leaves import merged
from gpudoctor.facts.captures.nvidia_smi.query_dump import SmiDump
from gpudoctor.facts.model.gpu import UNKNOWN_BUS, Gpu
from gpudoctor.facts.model.missing import NOT_READ, Missing, known
from gpudoctor.facts.model.node import Driver, Host

_IN_BRACKETS = re.compile(r"\[([^\]:]{1,80})\]")
_MODEL = re.compile(r"\b[A-Z]{0,2}\d{1,4}[A-Z]?\b")
# the most detailed dump first: if two readings differ, the first one counts, but of one kind of text the later one
_BEST_FIRST = ("nvidia-smi -q", "nvidia-smi --query-gpu", "nvidia-smi", "collect_env", "nvidia-smi -L")
_INIT_OK = 0
_FileDump = tuple[str, SmiDump]  # the file, and a dump in it


class _SeenGpu(msgspec.Struct):
    """One GPU, of a dump or of the joined list: the identifiers found so far, and its facts."""

    gpu: Gpu
    index: int | None
    bus_id: str | None
    uuid: str | None
    indexed: bool  # a dump contains its index
    files: list[str]  # all that show it
    dump: SmiDump  # whose readings count if two differ
    file: str  # that of the dump

    def is_before(self, other: _SeenGpu) -> bool:
        """Whether the other readings are of the same kind, and later: by their time, else further down in one file."""
        at, other_at = known(self.dump.collected_at), known(other.dump.collected_at)
        if self.dump.name != other.dump.name or (at is None) != (other_at is None):
            return False
        if at is not None and other_at is not None and at != other_at:
            return at < other_at
        return self.file == other.file and self.dump.sample < other.dump.sample


def joined_dumps(pairs: Iterable[_FileDump], notes: list[str]) -> SmiDump:
    """Join (file, dump) pairs into one dump, independent of their order. Raise SourceError if they are of two machines.

    GPUs are matched by bus id, by UUID, or by an index that both dumps contain. If a dump has no indices, its GPUs are
    counted in its order, as the driver does; a GPU whose index is taken gets the next free one.
    """
    # indices from a dump take precedence over counted ones
    ordered = sorted(pairs, key=_order)
    if not ordered:
        return SmiDump(driver=Driver())
    _check_same_driver(ordered)
    all_listed = any(dump.gpus and dump.complete and not dump.only_adds_facts for _, dump in ordered)
    lists, extra = _lists_and_extra(ordered, all_listed)
    gpus_seen = _gpus_of(lists)
    unlisted = [text for file, dump in extra for text in _add_facts(gpus_seen, dump, file, all_listed, notes)]
    if len(gpus_seen) > MOST_GPUS:
        raise SourceError(f"more than {MOST_GPUS} GPUs: not those of one machine")
    _check_same_gpus(ordered)
    gpus, unnumbered = _numbered(gpus_seen)
    dumps = [dump for _, dump in ordered]
    notes.extend(note for dump in dumps for note in dump.notes)
    return SmiDump(
        driver=_driver_of_dumps(dumps, len(gpus_seen), notes),
        gpus=gpus,
        collected_at=next((dump.collected_at for dump in dumps if known(dump.collected_at)), NOT_READ),
        indexed=any(dump.indexed for dump in dumps),
        complete=all(dump.complete for _, dump in lists),
        unnumbered=unnumbered,
        unlisted=tuple(unlisted),
    )


def _lists_and_extra(ordered: list[_FileDump], all_listed: bool) -> tuple[list[_FileDump], list[_FileDump]]:
    """The dumps that list GPUs, and those that only add facts to them."""
    has_order = any(dump.gpus and not _is_unordered(dump) for _, dump in ordered)
    extra = [(file, d) for file, d in ordered if (all_listed and d.only_adds_facts) or (has_order and _is_unordered(d))]
    return [pair for pair in ordered if pair not in extra], extra


def _gpus_of(lists: list[_FileDump]) -> list[_SeenGpu]:
    """The GPUs of all lists, each once."""
    gpus_seen: list[_SeenGpu] = []
    for file, dump in sorted(lists, key=lambda pair: not pair[1].indexed):
        for shown in sorted(_shown(dump, file), key=lambda shown: shown.gpu.index):
            if (seen := _same_gpu(gpus_seen, shown)) is not None:
                _merge(seen, shown)
                continue
            if not shown.indexed and any(seen.index == shown.index for seen in gpus_seen):
                shown.index = None
            gpus_seen.append(shown)
    return gpus_seen


def _only_lost(gpu: Gpu) -> bool:
    """Whether all that is known about the GPU is that it could not be opened."""
    return bool(gpu.errors) and replace(_bare(gpu), errors=()) == Gpu(0, "")


def _order(pair: _FileDump) -> tuple[Any, ...]:
    dump = pair[1]
    best = _BEST_FIRST.index(dump.name) if dump.name in _BEST_FIRST else len(_BEST_FIRST)
    # an index that stands beside an address or UUID says more than one alone
    alone = not any(gpu.bus_id_read or known(gpu.uuid) for gpu in dump.gpus)
    at = known(dump.collected_at) or ""
    # the later one first; then anything that does not depend on the order of the files
    later = tuple(-ord(letter) for letter in at)
    return (best, alone, -len(dump.gpus), later, not at, repr(dump))


def _shown(dump: SmiDump, file: str) -> list[_SeenGpu]:
    """The GPUs of a dump; without an identifier that it lacks, or that redaction made the same for all GPUs."""
    uuids = Counter(known(gpu.uuid) for gpu in dump.gpus)
    shown = []
    for gpu in dump.gpus:
        uuid = known(gpu.uuid)
        if uuids[uuid] > 1 or not (uuid or "").lower().removeprefix("gpu-").strip("0-x*"):
            uuid = None
        shown.append(_SeenGpu(gpu, gpu.index, gpu.bus_id_read, uuid, dump.indexed, [file], dump, file))
    return shown


def _is_unordered(dump: SmiDump) -> bool:
    """Whether the GPUs of the dump have neither indices nor an order that shows them."""
    return dump.only_adds_facts and not dump.indexed and not dump.complete


def _add_facts(gpus_seen: list[_SeenGpu], dump: SmiDump, file: str, all_listed: bool, notes: list[str]) -> list[str]:
    """Add the facts to the GPUs that are there, and return in words which other ones the dump shows."""
    unlisted = []
    for shown in _shown(dump, file):
        if (seen := _same_gpu(gpus_seen, shown)) is not None:
            _merge(seen, shown)
            continue
        name = shown.bus_id or (f"{shown.index}" if dump.indexed else "")
        if all_listed and name and None not in [seen.bus_id if shown.bus_id else seen.index for seen in gpus_seen]:
            unlisted.append(f"{dump.name} shows GPU {name}, which nvidia-smi does not list")
        else:  # a UUID may be that of a MIG device
            name = name or shown.uuid or f"{shown.index}"
            notes.append(f"{file}: {dump.name}: not used: no other text shows its GPU {name}")
    return unlisted


def _same_gpu(gpus_seen: list[_SeenGpu], shown: _SeenGpu) -> _SeenGpu | None:
    """The same GPU in another dump: by bus id, by UUID, or by an index that says which it is."""
    for seen in gpus_seen:
        if shown.bus_id is not None and seen.bus_id == shown.bus_id:
            return seen
    for seen in gpus_seen:
        if shown.uuid is not None and seen.uuid == shown.uuid:
            return seen
    if not shown.indexed and (_only_lost(shown.gpu) or _is_unordered(shown.dump)):
        return None
    by_index = next((seen for seen in gpus_seen if seen.index == shown.index), None)
    sure = by_index is not None and (shown.indexed or None in (by_index.bus_id, shown.bus_id))
    return by_index if sure else None


def _merge(seen: _SeenGpu, shown: _SeenGpu) -> None:
    """Add what a dump shows to the same GPU of another dump. Raise SourceError if their identifiers differ."""
    _check_identifiers(seen, shown)
    if seen.is_before(shown):
        seen.gpu = merged(_bare(shown.gpu), _bare(seen.gpu), [])
        seen.dump, seen.file = shown.dump, shown.file
    else:
        seen.gpu = merged(_bare(seen.gpu), _bare(shown.gpu), [])
    seen.bus_id, seen.uuid = seen.bus_id or shown.bus_id, seen.uuid or shown.uuid
    seen.files += shown.files
    if shown.indexed and not seen.indexed:
        seen.index, seen.indexed = shown.index, True


def _bare(gpu: Gpu) -> Gpu:
    """The GPU without its identifiers, which are decided separately."""
    return replace(gpu, index=0, bus_id="")


def _check_identifiers(seen: _SeenGpu, shown: _SeenGpu) -> None:
    for own, others in ((seen.bus_id, shown.bus_id), (seen.uuid, shown.uuid)):
        if own is not None and others is not None and own != others:
            other = next((name for name in seen.files if name != shown.file), seen.files[0])
            raise _contradiction(shown.file, other, f"GPU {shown.bus_id or shown.index} is {others} here, {own} there")


def _contradiction(file: str, other: str, how: str) -> SourceError:
    return SourceError(f"{file} contradicts {other} ({how}): keep the dumps of one machine and time only")


def _check_same_driver(ordered: list[_FileDump]) -> None:
    """Raise SourceError if two dumps with GPUs have different driver versions: another machine, or another time."""
    of_driver = [
        (file, version) for file, dump in ordered if dump.gpus and (version := known(dump.driver.library_version))
    ]
    for file, version in of_driver:
        if version != of_driver[0][1]:
            raise _contradiction(file, of_driver[0][0], f"driver {version} here, {of_driver[0][1]} there")


def _check_same_gpus(ordered: list[_FileDump]) -> None:
    """Raise SourceError if each of two dumps contains a GPU (by bus id) that the other lacks."""
    sets = [(file, {gpu.bus_id for gpu in dump.gpus if gpu.bus_id_read}) for file, dump in ordered if dump.complete]
    for at, (file, own) in enumerate(sets):
        for other, others in sets[:at]:
            if own and others and not (own <= others or others <= own):
                raise _contradiction(file, other, f"GPU {min(own ^ others)} is in one only")


def _numbered(gpus_seen: list[_SeenGpu]) -> tuple[tuple[Gpu, ...], tuple[Gpu, ...]]:
    """The GPUs with an index each, and those of which only an error message with their address is known."""
    lost = [seen for seen in gpus_seen if not seen.indexed and _only_lost(seen.gpu)]
    unnumbered = tuple(replace(seen.gpu, bus_id=seen.bus_id or "") for seen in lost)
    gpus_seen = [seen for seen in gpus_seen if seen not in lost]
    taken = {seen.index for seen in gpus_seen if seen.index is not None}
    free = iter(number for number in range(2 * MOST_GPUS) if number not in taken)
    made = []
    for seen in sorted(gpus_seen, key=lambda seen: (seen.bus_id or "~", seen.uuid or "")):
        index = seen.index if seen.index is not None else next(free)
        made.append(replace(seen.gpu, index=index, bus_id=seen.bus_id or f"{UNKNOWN_BUS}{index}"))
    made.sort(key=lambda gpu: (gpu.bus_id, 0) if gpu.bus_id_read else ("~", gpu.index))
    return tuple(made), unnumbered


def _driver_of_dumps(dumps: list[SmiDump], shown: int, notes: list[str]) -> Driver:
    """Merge the drivers: a failed start outweighs a successful one, and the smaller GPU count the larger one."""
    drivers = [dump.driver for dump in dumps]
    codes = {code for driver in drivers if (code := known(driver.init_code)) is not None}
    counts = [count for driver in drivers if (count := known(driver.device_count)) is not None]
    failed = next((driver for driver in drivers if driver.init_code not in (_INIT_OK, NOT_READ)), None)
    made = reduce(lambda one, other: merged(one, other, []), drivers, failed or drivers[0])
    made = replace(made, handle_errors=tuple(sorted({text for driver in drivers for text in driver.handle_errors})))
    if len(codes) > 1:
        made = replace(made, init_code=max(codes) if _INIT_OK in codes else made.init_code)
        notes.append("one text shows GPUs, in the other the driver failed: the failure is judged")
    attached = min((count for dump in dumps if (count := known(dump.attached)) is not None), default=None)
    if counts:
        made = replace(made, device_count=min(counts))
    elif attached is not None and shown >= attached:  # one dump lists GPUs that another leaves out
        made = replace(made, device_count=attached)
    elif isinstance(made.device_count, Missing) and attached is not None:
        notes.append(made.device_count.reason)
    return made


def with_addresses(gpus: tuple[Gpu, ...], functions: list[Function]) -> tuple[Gpu, ...]:
    """GPUs of which only the order is known, with the addresses and names of as many functions in lspci."""
    if not gpus:
        return tuple(Gpu(index, function.bus_id, name=function.name) for index, function in enumerate(functions))
    ordered = sorted(gpus, key=lambda gpu: gpu.index)
    if [gpu.index for gpu in ordered] != list(range(len(functions))) or any(gpu.bus_id_read for gpu in gpus):
        return gpus
    pairs = list(zip(ordered, functions, strict=True))
    # CUDA's order may differ from the bus'
    if any(_of_another_model(gpu, function) for gpu, function in pairs):
        return gpus
    return tuple(replace(gpu, bus_id=function.bus_id, name=known(gpu.name) or function.name) for gpu, function in pairs)


def _of_another_model(gpu: Gpu, function: Function) -> bool:
    """Whether the driver's name of a GPU and lspci's one in brackets ("GA100 [A100 PCIe 40GB]") share no model."""
    bracketed, name = _IN_BRACKETS.search(function.name), known(gpu.name)
    if bracketed is None or name is None:
        return False
    models = set(_MODEL.findall(bracketed[1].upper()))
    return bool(models) and models.isdisjoint(_MODEL.findall(name.upper()))


def with_failures(gpus: tuple[Gpu, ...], lost: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Each GPU with the error that nvidia-smi reported for its bus id; errors for unlisted GPUs stay driver errors."""
    errors = {gpu.bus_id: gpu.errors for gpu in lost}
    return tuple(replace(gpu, errors=errors[gpu.bus_id]) if gpu.bus_id in errors else gpu for gpu in gpus)


def without_gpu_memory(host: Host, gpus: tuple[Gpu, ...]) -> Host:
    """Hide the RAM size on Grace: it exposes GPU memory as NUMA nodes, which `free` counts as RAM."""
    if isinstance(host.ram_mib, Missing) or all(gpu.settings.addressing_mode != "ats" for gpu in gpus):
        return host
    hidden = Missing("free may count GPU memory as RAM on this machine", "absent")
    return replace(host, ram_mib=hidden, ram_available_mib=hidden)
