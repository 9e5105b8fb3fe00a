"""Chooses a strategy and gives the reason; if none works, names the nearest request that would."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator

import msgspec

from gpudoctor.errors import UserError
from gpudoctor.plan import MAX_BATCH
from gpudoctor.plan.machine import Machine
from gpudoctor.plan.memory import PlanJob, RankSplit
from gpudoctor.plan.not_planned import lora_fits
from gpudoctor.plan.strategies import Option, each_option, megatron, tensor_divides, tried
from gpudoctor.text.units import GIB, gib_text

MOST_NODES = 4096
_SCARCE = 0.05  # of a GPU's memory


class Choice(msgspec.Struct, frozen=True):
    """Every option tried, the one to take, the reason, and alternatives if that one is slow or tight."""

    options: tuple[Option, ...]
    taken: Option
    why: str
    instead: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def choose(machine: Machine, job: PlanJob, global_batch: int | None) -> Choice:
    """The simplest strategy that fits. Raise UserError, with the nearest request that works, if none does.

    Rule: if it fits one GPU: DDP. If it fits the node: FSDP over the node, replicas between nodes. If it is
    larger: tensor parallelism inside NVLink and a pipeline over the nodes; without NVLink a pipeline, which
    sends least, or FSDP over all GPUs. A tight fit is chosen only if nothing fits better; FSDP with its states
    in RAM comes last.
    Source: Narayanan et al. (arXiv:2104.04473) section 3, takeaways 1 and 2; torchtitan (arXiv:2410.06511).
    """
    options, taken = _best(machine, job, None)
    if global_batch is not None:
        check_batch(global_batch, taken.split)
        options, taken = _best(machine, job, global_batch)
    instead: list[str] = []
    if taken.split.offload or taken.fit == "tight":
        instead = list(_nearest(machine, job))
        spare = next((o for o in options if o.split.offload and o.fit == "fits" and o is not taken), None)
        if spare is not None:
            instead.append(
                f"{spare.split.title}: {gib_text(spare.memory.total if spare.memory else 0.0)} a GPU, and slow"
            )
    elif (roomier := _roomier(options, taken, machine)) is not None and roomier.memory is not None:
        used = gib_text(roomier.memory.total)
        instead.append(f"{roomier.split.title} leaves more room ({used} a GPU) if this runs out of memory")
    return Choice(options, taken, why(taken, options, machine), tuple(instead))


def _roomier(options: tuple[Option, ...], taken: Option, machine: Machine) -> Option | None:
    """The option that leaves the most free, if the one taken leaves less than the formulas may be wrong by."""
    sized = [(o.memory.total, n) for n, o in enumerate(options) if o.fit == "fits" and o.memory and not o.split.offload]
    if taken.memory is None or machine.memory_bytes - taken.memory.total > _SCARCE * machine.memory_bytes:
        return None
    least, number = min(sized)
    return options[number] if machine.memory_bytes - least > _SCARCE * machine.memory_bytes else None


def why(option: Option, options: tuple[Option, ...], machine: Machine) -> str:
    """The reason for this option, in words."""
    split = option.split
    if machine.world == 1:
        return "one GPU holds it all" if not split.offload else "one GPU holds it only with the states in host RAM"
    if split.name == "ddp":
        return "one GPU holds all of it, so each GPU keeps a copy and only gradients are exchanged"
    short = next((o.reason for o in options if o.split.name == "ddp" and o.reason), "too much")
    if split.name == "fsdp" and split.shards <= machine.gpus_per_node:
        more = ", and the nodes hold copies of each other" if split.shards < split.data else ""
        return f"one GPU does not hold it ({short}); the {split.shards} GPUs of a node together do{more}"
    node = f"one GPU does not hold it ({short})" if machine.gpus_per_node == 1 else _why_not_a_node(options, machine)
    if split.offload:
        return f"{node}; with weights and optimizer in RAM it trains, slowly"
    if split.tensor > 1:
        over = "over the nodes" if machine.nodes > 1 else "beside it"
        stages = f", a pipeline {over}" if split.pipeline > 1 else ""
        return f"{node}; tensor parallel inside NVLink ({split.tensor} GPUs){stages}"
    if split.name == "fsdp":
        return f"{node}; FSDP over all nodes is the simplest that does"
    return f"{node}; a pipeline sends least between its stages"


def _why_not_a_node(options: tuple[Option, ...], machine: Machine) -> str:
    """The reason that FSDP over one node of several GPUs is not taken."""
    shards = machine.gpus_per_node
    fsdp = next((o for o in options if o.split.name == "fsdp" and o.split.shards == shards), None)
    if fsdp is not None and fsdp.fit == "tight":
        return f"FSDP over the {shards} GPUs of a node would be tight"
    return f"the {shards} GPUs of a node do not hold it" + (f" ({fsdp.reason})" if fsdp and fsdp.reason else "")


def _best(machine: Machine, job: PlanJob, global_batch: int | None) -> tuple[tuple[Option, ...], Option]:
    """All options, and the one to take. Raise UserError if none fits."""
    options = tuple(each_option(machine, job, global_batch))
    for fit, offload in (("fits", False), ("tight", False), ("fits", True), ("tight", True)):
        for option in sorted(options, key=lambda o: _rank(o, machine)):
            if option.fit == fit and option.split.offload is offload:
                return options, option
    raise UserError(_nothing_fits(options, machine, job))


def check_batch(global_batch: int, split: RankSplit) -> None:
    """Raises UserError, with the nearest batch that works, if the data-parallel ranks cannot share it evenly."""
    if global_batch % split.data == 0:
        return
    lower, upper = global_batch // split.data * split.data, -(-global_batch // split.data) * split.data
    nearest = " or ".join(str(batch) for batch in (lower, upper) if 0 < batch <= MAX_BATCH)
    raise UserError(
        f"--global-batch {global_batch} does not divide over the {split.data} data-parallel ranks of {split.title}; "
        f"the nearest that works: {nearest}"
    )


def _rank(option: Option, machine: Machine) -> int:
    split = option.split
    within = split.shards <= machine.gpus_per_node
    order = {"ddp": 0, "fsdp": 1 if within else 5, "3d": 2, "tensor": 3, "pipeline": 4, "fsdp-offload": 6}
    return order.get(split.name, 9)  # ZeRO-1 and ZeRO-2 are shown, but never better than FSDP here


def _nothing_fits(options: tuple[Option, ...], machine: Machine, job: PlanJob) -> str:
    gpus = f"{machine.world} {'GPU' if machine.world == 1 else 'GPUs'} of {gib_text(machine.memory_bytes)}"
    sizes = [(option.memory.total, n) for n, option in enumerate(options) if option.memory is not None]
    amount, number = min(sizes)
    least = options[number]
    need = gib_text(amount) if least.split.name == "ddp" else f"{gib_text(amount)} a GPU with {least.split.title}"
    if least.split.offload:
        need = f"{need}: {least.reason}"
    if _ram_wanted(machine, job):
        how = f"(least: {need}); with states in host RAM it may: not tried, because the node's RAM is not known"
    else:
        how = f"in any way (least: {need})"
    adapters = "; LoRA would fit, by a rule of thumb: --lora" if lora_fits(machine, job) else ""
    return f"{job.shape.name} does not fit {gpus} {how}; {way_out(machine, job)}{adapters}"


def way_out(machine: Machine, job: PlanJob) -> str:
    """The nearest request that works if this one does not; with states in RAM only if nothing else works.

    RAM that is not known is one of the ways: so much of it would do.
    """
    nearest = list(_nearest(machine, job))
    if gib := _ram_wanted(machine, job):
        nearest.append(f"--ram {gib}, if a node has {gib} GiB of free RAM (slow)")
    nearest = nearest or [*_shorter(machine, job, offload=True)]
    return f"the nearest that works: {'; or '.join(nearest)}" if nearest else "take a smaller model"


def _nearest(machine: Machine, job: PlanJob) -> Iterator[str]:
    """Options that would work: fewer bytes per parameter, shorter sequences, more nodes (fewer with states in RAM)."""
    if job.precision in ("bf16", "fp16") and _any_fits(machine, msgspec.structs.replace(job, precision="bf16-true")):
        yield "--precision bf16-true (8 bytes a parameter, coarser updates)"
    if job.optimizer == "adamw" and _any_fits(machine, msgspec.structs.replace(job, optimizer="adamw-8bit")):
        yield "--optimizer adamw-8bit"
    yield from _shorter(machine, job, offload=False)
    nodes = _nodes_wanted(machine, job)
    if nodes is not None:
        yield f"--nodes {nodes}"
    fewer = _nodes_wanted(machine, job, offload=True)
    if fewer is not None and (nodes is None or fewer < nodes):
        yield f"--nodes {fewer}, with states in host RAM (slow)"


def _shorter(machine: Machine, job: PlanJob, *, offload: bool) -> Iterator[str]:
    seq = job.seq // 2
    while seq >= 512 and not _any_fits(machine, msgspec.structs.replace(job, seq=seq), offload=offload):
        seq //= 2
    if seq >= 512:
        yield f"--seq {seq}"


def _nodes_wanted(machine: Machine, job: PlanJob, *, offload: bool = False) -> int | None:
    """The smallest number of such nodes, above what there is, that holds the job; None if it fits, or none does.

    More nodes may fit worse: the stages of a pipeline, at most one a layer, have to divide the ranks. If stages divide
    the ranks of some nodes, they divide those of each multiple, and there more nodes fit better: so it bisects the
    multiples of each number up to that of the layers.
    """

    def fits_on(nodes: int) -> bool:
        return _any_fits(msgspec.structs.replace(machine, nodes=nodes), job, offload=offload)

    if fits_on(machine.nodes):
        return None
    least = MOST_NODES + 1
    for step in range(1, job.shape.layers + 1):
        multiples = range((machine.nodes // step + 1) * step, least, step)
        if multiples and fits_on(multiples[-1]):
            least = multiples[bisect_left(multiples, True, key=fits_on)]
    return least if least <= MOST_NODES else None


def _ram_wanted(machine: Machine, job: PlanJob) -> int | None:
    """The GiB of free RAM with which states in RAM fit; None if the node's RAM is known, or if no RAM would do."""
    if machine.ram_bytes is not None:
        return None
    roomy = msgspec.structs.replace(machine, ram_bytes=math.inf)
    fitting = (o.memory for o in each_option(roomy, job, None) if o.split.offload and o.fit == "fits")
    memory = next(fitting, None)
    return math.ceil(memory.host * machine.gpus_per_node / GIB) if memory is not None else None


def _any_fits(machine: Machine, job: PlanJob, *, offload: bool = False) -> bool:
    return any(o.fit == "fits" and (offload or not o.split.offload) for o in each_option(machine, job, None))


# The split that --tensor and --pipeline request, or the nearest to it that works.


def choose_forced(machine: Machine, job: PlanJob, global_batch: int | None, tensor: int, pipeline: int) -> Choice:
    """The split that --tensor and --pipeline request. Raises UserError, with the nearest that works, if it does not."""
    widest = max(tensor, machine.nvlinked)

    def split_of(ways: int, stages: int) -> RankSplit:
        return megatron(machine, ways, stages) if ways * stages > 1 else RankSplit("ddp", machine.world)

    def works(ways: int, stages: int) -> bool:
        return ways <= widest and tried(machine, job, split_of(ways, stages), None).works

    wrong = undividable(job, machine.world, tensor, pipeline)
    split = split_of(tensor, pipeline)
    option = None if wrong else tried(machine, job, split, None)
    if option is not None and option.works and global_batch is not None:
        check_batch(global_batch, split)
        option = tried(machine, job, split, global_batch)
    if option is None or not option.works:
        if option is not None:
            room = gib_text(machine.memory_bytes)
            wrong = f"--tensor {tensor} --pipeline {pipeline}: {option.reason or 'does not fit'} on a GPU of {room}"
        near = nearest_split(job, machine.world, tensor, pipeline, works)
        if near is None:
            fitting = next((o for o in each_option(machine, job, global_batch) if o.works), None)
            near = f"{fitting.split.title} works" if fitting else way_out(machine, job)
            near = f"without --tensor and --pipeline {near}"
        raise UserError(f"{wrong}; {near}")
    warnings: tuple[str, ...] = ()
    if tensor > machine.nvlinked:
        what = "no NVLink joins these GPUs" if machine.nvlinked == 1 else f"NVLink joins {machine.nvlinked} GPUs only"
        warnings = (f"tensor parallelism over {tensor} GPUs, but {what}: every layer waits for the slower link",)
    options = each_option(machine, job, global_batch)
    return Choice((*options, option), option, "--tensor and --pipeline request it", (), warnings)


def undividable(job: PlanJob, world: int, tensor: int, pipeline: int, of: str = "GPUs") -> str | None:
    """Why `world` ranks (called `of` in the text) cannot be divided like that; None if they can."""
    shape = job.shape
    if pipeline > shape.layers:
        return f"--pipeline {pipeline}: {shape.name} has {shape.layers} layers, and a stage needs one"
    if shape.heads % tensor or shape.kv_heads % tensor:
        heads = f"{shape.heads} heads ({shape.kv_heads} key-value heads)"
        return f"--tensor {tensor} does not divide the {heads} of {shape.name}"
    if not tensor_divides(job, tensor):
        return f"--tensor {tensor} does not divide ffn {shape.ffn}, or sequences of {job.seq} tokens"
    if world % (tensor * pipeline):
        ranks = "1 GPU" if (world, of) == (1, "GPUs") else f"{world} {of}"
        return f"--tensor {tensor} x --pipeline {pipeline} does not divide {ranks}"
    return None


def nearest_split(
    job: PlanJob, world: int, tensor: int, pipeline: int, works: Callable[[int, int], bool]
) -> str | None:
    """The values of both options, in words, that are nearest to the request and `works`; None if there are none."""
    pairs = (
        (ways, stages)
        for ways in range(1, min(world, job.shape.heads) + 1)
        if world % ways == 0 and tensor_divides(job, ways)
        for stages in range(1, min(world // ways, job.shape.layers) + 1)
        if world // ways % stages == 0
    )
    nearest = sorted(pairs, key=lambda pair: (abs(pair[0] - tensor) + abs(pair[1] - pipeline), pair))
    found = next((pair for pair in nearest if works(*pair)), None)
    if found is None:
        return None
    given = ((f"--tensor {found[0]}", tensor, found[0]), (f"--pipeline {found[1]}", pipeline, found[1]))
    return f"the nearest that works: {' '.join(text for text, asked, now in given if asked > 1 or now > 1)}"
