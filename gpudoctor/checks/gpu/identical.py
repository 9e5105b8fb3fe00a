"""gpu.identical: are the compute GPUs alike?"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

import msgspec

from gpudoctor.checks.core.case import Case, Limit, once_a_case
from gpudoctor.checks.core.each_gpu import untrusted
from gpudoctor.checks.core.finding import Advice, Evidence, Expected, Finding, Found, fail, ok, skip, unknown, warn
from gpudoctor.checks.core.registry import check
from gpudoctor.checks.core.subject import NODE, of_gpu
from gpudoctor.checks.core.unread import failed_readings, first_failed, unread
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.profiles.profile import majority
from gpudoctor.text.grouped import grouped

_MEMORY_PCT = Limit(
    3, "%", "equal boards differ by less; ECC on GDDR memory takes about 6 %", name="memory_pct", status="fail"
)


class Attribute(msgspec.Struct, frozen=True):
    """An attribute that should be the same on all; `grave` if a difference makes every step wait for the slowest."""

    words: str
    read: Callable[[Gpu], Hashable]
    grave: bool = False


_MEMORY = Attribute("memory (MiB)", lambda g: g.memory_total_mib, grave=True)
_VBIOS = Attribute("VBIOS", lambda g: g.vbios)
_BOARD = (
    Attribute("PCI device id", lambda g: g.pci_device_id),
    Attribute("PCI subsystem id", lambda g: g.pci_subsystem_id),
    _VBIOS,
    Attribute("default power limit (W)", lambda g: g.power.default_limit_w),
    Attribute("maximum SM clock (MHz)", lambda g: g.clocks.sm_max_mhz),
    Attribute("maximum memory clock (MHz)", lambda g: g.clocks.memory_max_mhz),
)


@check(
    "gpu.identical",
    title="The compute GPUs are alike",
    impact="unequal-gpus",
    limits=(_MEMORY_PCT,),
    explains=("pcie.balance", "nvlink.topology", "train.memory", "train.scaling"),
)
def identical(case: Case) -> Iterator[Finding]:
    """Name the models if there are several; of one model, compare each attribute with the majority of the GPUs."""
    gpus: list[Gpu] = []
    for gpu in case.compute_gpus:
        if doubt := untrusted(gpu):
            yield unknown(of_gpu(gpu), doubt)
        elif isinstance(gpu.name, Missing):
            yield unread(of_gpu(gpu), "model name", gpu.name)
        elif (why := _may_only_drive_a_display(case, gpu)) is not None:
            yield unread(of_gpu(gpu), f"whether the {gpu.name} only drives a display", why)
        else:
            gpus.append(gpu)
    yield from _of_another_model(case, gpus)
    if len(gpus) < 2:
        if len(case.compute_gpus) == 1 and case.expect.gpu_name is None:
            yield skip(NODE, "one GPU: nothing to compare")
        return
    if len({gpu.name for gpu in gpus}) > 1:
        yield from _mixed(case, gpus)
        return
    attributes: tuple[Attribute, ...] = (_MEMORY, *_BOARD)
    if case.node.host.is_guest:
        # clouds replace boards one by one, and a guest cannot update their firmware
        attributes = tuple(attribute for attribute in attributes if attribute is not _VBIOS)
    yield from _compared(case, gpus, attributes)


def _compared(case: Case, gpus: list[Gpu], attributes: tuple[Attribute, ...]) -> Iterator[Finding]:
    """Compare GPUs of one model by each attribute with the majority; without a majority there is a tie."""
    outliers: dict[int, list[tuple[Attribute, object, object]]] = {}
    ties: list[tuple[Attribute, dict[Hashable, list[int]]]] = []
    for attribute in attributes:
        values = _values(case, attribute, gpus)
        usual = majority(values.values())
        for index, value in values.items():
            if usual not in (None, value):
                outliers.setdefault(index, []).append((attribute, value, usual))
        if usual is None and len(values) > 1:
            ties.append((attribute, grouped((value, index) for index, value in values.items())))
    if ties:
        yield _tie(case, ties)
    for gpu in gpus:
        if gpu.index in outliers:
            yield _outlier(case, gpu, outliers[gpu.index])
        elif not ties:
            size = known(gpu.memory_total_mib)
            text = f"{gpu.name}{f', {size} MiB' if size else ''}, like its peers"
            yield ok(of_gpu(gpu), text, None, Evidence("VBIOS", known(gpu.vbios) or "not read"))
        yield from failed_readings(of_gpu(gpu), *((each.words, each.read(gpu)) for each in attributes))


def _mixed(case: Case, gpus: list[Gpu]) -> Iterator[Finding]:
    """The models, and which GPUs are of each, on those that are fewer: none is wrong, but they do not train alike."""
    of_model = grouped((str(gpu.name), gpu.index) for gpu in gpus)
    models = "; ".join(f"{name} ({_names(indices)})" for name, indices in of_model.items())
    usual = majority([str(gpu.name) for gpu in gpus])
    fewer = [of_gpu(gpu) for gpu in gpus if usual is not None and gpu.name != usual]
    for subject in fewer or [NODE]:
        yield warn(
            subject,
            Found(f"different models: {models}", len(of_model), "models"),
            Expected("one model", "==", 1, "models", "peers"),
            likely="a training on all of them waits for the slowest at every step, and has the smallest memory",
            advice=_leave_out(case),
        )


@once_a_case
def _largest_mib(case: Case) -> int:
    return max(known(gpu.memory_total_mib) or 0 for gpu in case.compute_gpus)


def _may_only_drive_a_display(case: Case, gpu: Gpu) -> Missing | None:
    """Why it is not known whether this GPU is to be compared: of display and small memory, one could not be read."""
    display, memory = gpu.settings.display_active, known(gpu.memory_total_mib)
    if memory is not None and memory * 2 < _largest_mib(case):
        return first_failed([display])
    return first_failed([gpu.memory_total_mib]) if display is True else None


def _of_another_model(case: Case, gpus: list[Gpu]) -> Iterator[Finding]:
    """Compare each GPU with the configured model: GPUs that are all alike may still all be wrong."""
    requested = case.expect.gpu_name
    if requested is None:
        return
    expected = Expected(f'a name with "{requested}"', source="configuration")
    for gpu in gpus:
        if requested.casefold() not in str(gpu.name).casefold():
            advice = Advice("Is this the node that the configuration is for? Else mend it.", "gpudoctor config")
            yield fail(of_gpu(gpu), str(gpu.name), expected, advice=[advice])
        elif len(gpus) == 1:
            yield ok(of_gpu(gpu), str(gpu.name), expected)


def _values(case: Case, attribute: Attribute, gpus: list[Gpu]) -> dict[int, Hashable]:
    """The known values by GPU; memory sizes within the tolerance of the median count as equal."""
    values = {g.index: v for g in gpus if not isinstance(v := attribute.read(g), Missing)}
    if attribute is not _MEMORY or not values:
        return values
    sizes = sorted(v for v in values.values() if isinstance(v, int))
    usual = sizes[len(sizes) // 2]
    limit = case.limit(_MEMORY_PCT)
    return {i: usual if abs(v - usual) * 100 <= limit * usual else v for i, v in values.items() if isinstance(v, int)}


@once_a_case
def _ecc_modes(case: Case) -> set[bool | None]:
    return {known(g.ecc.enabled) for g in case.compute_gpus}


def _tie(case: Case, ties: list[tuple[Attribute, dict[Hashable, list[int]]]]) -> Finding:
    texts = []
    for attribute, sides in ties:
        values = ", ".join(f"{value} ({_names(indices)})" for value, indices in sides.items())
        texts.append(f"{attribute.words}: {values}")
    text, expected = f"the GPUs differ in {'; in '.join(texts)}", Expected("the same on all GPUs", source="peers")
    return _finding(case, [attribute for attribute, _ in ties], None, text, expected)


def _outlier(case: Case, gpu: Gpu, differences: list[tuple[Attribute, object, object]]) -> Finding:
    return _finding(
        case,
        [attribute for attribute, _, _ in differences],
        gpu,
        ", ".join(f"{attribute.words} {value}" for attribute, value, _ in differences),
        Expected(", ".join(f"{a.words} {usual}" for a, _, usual in differences), source="majority of the peers"),
        *(Evidence(attribute.words, str(value)) for attribute, value, _ in differences),
    )


def _finding(
    case: Case, differing: list[Attribute], gpu: Gpu | None, text: str, expected: Expected, *evidence: Evidence
) -> Finding:
    grave_ones = [attribute for attribute in differing if attribute.grave]
    by_ecc = grave_ones == [_MEMORY] and _ecc_modes(case) == {True, False}
    grave = bool(grave_ones) and not by_ecc
    if by_ecc:
        likely = "ECC is on for some GPUs only, and takes its share of their memory"
        advice = [Advice("Give all GPUs the same ECC mode, then reboot.", "nvidia-smi -e 1")]
    elif grave:
        likely = "boards of another size: the smallest memory is the limit of all"
        advice = _leave_out(case)
    else:
        likely = "a board of another make or revision, or one whose firmware was not updated with the others"
        advice = [
            Advice(
                "Bring all boards to the same firmware.", "nvidia-smi --query-gpu=index,name,vbios_version --format=csv"
            ),
            Advice("See whether it costs speed.", "gpudoctor check compute train --level full"),
        ]
    subject = of_gpu(gpu) if gpu else NODE
    return (fail if grave else warn)(subject, text, expected, *evidence, likely=likely, advice=advice)


def _leave_out(case: Case) -> list[Advice]:
    return [
        # without the order, CUDA counts the fastest GPU first, and the list would name others than nvidia-smi's
        Advice(
            "Train on the GPUs that are alike; leave the others out.",
            f"export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={_most_alike(case)}",
        ),
        Advice("Plan to make the node uniform: one model, one memory size."),
    ]


@once_a_case
def _most_alike(case: Case) -> str:
    """The largest set of GPUs of one model and memory size, as CUDA numbers them by bus id; "..." if there is none."""
    sizes = _values(case, _MEMORY, list(case.compute_gpus))
    to_compare = {gpu.index for gpu in case.compute_gpus}
    numbered = enumerate(sorted(case.node.gpus, key=lambda gpu: gpu.bus_id))
    sets = grouped(
        ((known(gpu.name), sizes.get(gpu.index)), number) for number, gpu in numbered if gpu.index in to_compare
    )
    largest = max(sets.values(), key=len)
    several = sum(len(each) == len(largest) for each in sets.values()) > 1
    return "..." if several else ",".join(map(str, largest))


def _names(indices: list[int]) -> str:
    return f"GPU{'s' * (len(indices) > 1)} {', '.join(map(str, indices))}"
