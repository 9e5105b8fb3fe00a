"""Who uses the GPUs that are to be loaded: by name, or by readings that nobody accounts for, read a second time."""

from __future__ import annotations

import time

import msgspec

from gpudoctor.checks.core.gpu_use import UNSEEN_MIB, GpuUse, UseReadings, readings_of, use_of, use_of_gpu
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.lazy import lazy_imports

with lazy_imports():
    # only a second look needs them: they import statistics
    from gpudoctor.facts.nvml import sampler, samples

# A GPU without persistence mode is initialised when gpudoctor opens it: its first readings are those of its memory
# being scrubbed, which takes 1 to 3 s.
SECOND_LOOK_S = 2.5


def used_by_others(node: Node, gpus: tuple[Gpu, ...]) -> Missing | None:
    """Why no load may run beside the users of these GPUs; None if nobody is in the way.

    `denied`: a listed process computes there. `failed`: only readings say so, and whose work it is cannot be seen;
    what was to be measured under load is then unknown, and no pass.
    """
    for gpu in gpus:
        for process in use_of_gpu(gpu).others:
            who = f"GPU {gpu.index} is used by {known(process.name) or 'a process'} (pid {process.pid})"
            return Missing(f"{who}: no load beside it without --force", "denied")
    for gpu in gpus:
        use = use_of_gpu(gpu)
        if use.unseen is not None and (use.unlisted_mib or 0) <= UNSEEN_MIB:
            use = _second_look(node, gpu)
        if use.unseen is not None:
            return Missing(f"load refused: GPU {gpu.index}: {use.unseen}; --force loads it all the same", "failed")
    return None


def _second_look(node: Node, gpu: Gpu) -> GpuUse:
    """The use of a GPU by readings taken some seconds later; by its facts if they are not of this machine."""
    if node.source.kind != "live":
        return use_of_gpu(gpu)
    try:
        sampling = sampler.Sampler([(gpu.index, known(gpu.uuid) or "")])
    except OSError:
        return use_of_gpu(gpu)
    try:
        time.sleep(SECOND_LOOK_S)
    finally:
        sampling.stop()
    return use_of(gpu.processes, _later(gpu, sampling.recording()))


def _later(gpu: Gpu, recording: samples.SampleRecording) -> UseReadings:
    names = {"used_mib": "memory_used_mib", "busy_pct": "utilization_pct", "power_w": "power_w"}
    series = {field: recording.series(gpu.index, name) for field, name in names.items()}
    return msgspec.structs.replace(
        readings_of(gpu), **{field: taken[-1][1] for field, taken in series.items() if taken}
    )
