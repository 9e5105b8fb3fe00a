"""The split that --tensor and --pipeline ask for, or the nearest to it that works."""

from __future__ import annotations

from collections.abc import Callable

from gpudoctor.errors import UserError
from gpudoctor.plan.choose import Choice, check_batch, way_out
from gpudoctor.plan.machine import Machine
from gpudoctor.plan.memory import PlanJob
from gpudoctor.plan.split import RankSplit
from gpudoctor.plan.strategies import megatron, options_of, tensor_divides, tried
from gpudoctor.units import gib_text


def choose_forced(machine: Machine, job: PlanJob, global_batch: int | None, tensor: int, pipeline: int) -> Choice:
    """The split that --tensor and --pipeline ask for. Raise UserError, with the nearest that works."""
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
            fitting = next((o for o in options_of(machine, job, global_batch) if o.works), None)
            near = f"{fitting.split.title} works" if fitting else way_out(machine, job)
            near = f"without --tensor and --pipeline {near}"
        raise UserError(f"{wrong}; {near}")
    warnings: tuple[str, ...] = ()
    if tensor > machine.nvlinked:
        what = "no NVLink joins these GPUs" if machine.nvlinked == 1 else f"NVLink joins {machine.nvlinked} GPUs only"
        warnings = (f"tensor parallelism over {tensor} GPUs, but {what}: every layer waits for the slower link",)
    options = options_of(machine, job, global_batch)
    return Choice((*options, option), option, "as asked with --tensor and --pipeline", (), warnings)


def undividable(job: PlanJob, world: int, tensor: int, pipeline: int, of: str = "GPUs") -> str | None:
    """Why `world` ranks (called `of`) cannot be divided like that; None where they can."""
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
    """In words, what both options can be, as near as can be to what was asked; None where nothing `works`."""
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
    return f"the nearest that works: {' '.join(words for words, asked, now in given if asked > 1 or now > 1)}"
