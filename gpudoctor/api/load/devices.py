"""Which GPUs may be put under load and which rank gets which; or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from gpudoctor.api.load.other_users import used_by_others
from gpudoctor.api.load.request import Backend, LoadRequest
from gpudoctor.checks.core.condemning import condemning
from gpudoctor.checks.core.cuda_device_list import resolve
from gpudoctor.checks.core.scope import scope_of
from gpudoctor.errors import UserError
from gpudoctor.facts.model.gpu import Gpu
from gpudoctor.facts.model.missing import Missing, known
from gpudoctor.facts.model.node import Node
from gpudoctor.profiles.profile import compute_gpus

if TYPE_CHECKING:
    from gpudoctor.probes.runner.local_workers import LocalWorkers

CPU_RANKS = 2


def devices_to_load(node: Node, request: LoadRequest) -> tuple[Backend, tuple[Gpu, ...]] | Missing:
    """The backend and GPUs for ranks outside of a check: no GPUs with gloo, Missing if no rank may run.

    Raise UserError for options that contradict the node.
    """
    backend = backend_for(node, request.backend)
    if backend is None:
        return Missing(why_no_devices(node))
    if backend == "gloo":
        return backend, ()
    gpus = gpus_to_load(node, request, None)
    return gpus if isinstance(gpus, Missing) else (backend, gpus)


def backend_for(node: Node, asked: Backend | Literal["auto"]) -> Backend | None:
    """The communication backend on this node; None if no rank can run. Raise UserError if `asked` contradicts it."""
    live = node.source.kind == "live"
    if asked == "nccl" and not live:
        raise UserError(
            f"--backend nccl loads GPUs of this machine, and {node.source.name} is not it; "
            "--backend gloo measures CPU ranks here"
        )
    if asked == "nccl" and not node.gpus:
        raise UserError("--backend nccl: no GPU here; --backend gloo measures CPU ranks")
    if asked != "auto":
        return asked
    return "nccl" if live and node.gpus else None


def why_no_devices(node: Node) -> str:
    if node.source.kind == "live":
        return "no GPU to load; --backend gloo measures CPU ranks"
    kind = {"simulated": "simulated node", "facts": "node read from a facts file"}.get(node.source.kind, "capture")
    return f"a {kind} cannot be put under load; --backend gloo measures CPU ranks of this machine"


def gpus_to_load(node: Node, request: LoadRequest, workers: LocalWorkers | None) -> tuple[Gpu, ...] | Missing:
    """The GPU of each rank, in rank order, or why no GPU may be put under load."""
    scope, _ = scope_of(node, request.gpu)
    in_scope = compute_gpus(tuple(gpu for gpu in node.gpus if scope is None or gpu.index in scope))
    fit = tuple(gpu for gpu in in_scope if _unfit(gpu) is None)
    if not fit:
        return Missing(_unfit(in_scope[0]) or "", "unsupported")
    if workers is None or workers.missing:
        gpus = fit[: request.ranks]
        if request.ranks is not None and request.ranks > len(fit):
            raise UserError(f"--ranks {request.ranks}: one GPU a rank, and there are {len(fit)}")
    else:
        found = gpus_of_ranks(node, workers.visible)
        why = found if isinstance(found, str) else next(filter(None, map(_unfit, found)), None)
        if why is not None or isinstance(found, str):
            # nobody is in the way, so what was not measured is not known
            return Missing(f"{workers.engine} started {workers.ranks} ranks here; {why}", "failed")
        gpus = found
    danger = _danger(node, gpus)
    if danger is not None:
        return Missing(f"{danger}: no load on such a node", "denied")
    busy = None if request.force else used_by_others(node, gpus)
    return busy or gpus


def gpus_of_ranks(node: Node, visible: Sequence[str | None]) -> tuple[Gpu, ...] | str:
    """The GPU of each rank, from CUDA_VISIBLE_DEVICES of each process; or why they do not have one each.

    srun may bind one GPU to every task, while torchrun shows all of them to all processes: there the
    n-th process gets the n-th.
    """
    order = node.environment.get("CUDA_DEVICE_ORDER")
    indices: list[int] = []
    for rank, setting in enumerate(visible):
        seen = resolve(setting, node.gpus, order).visible
        at = 0 if len(seen) == 1 else rank
        indices += seen[at : at + 1]
    if len(set(indices)) < len(visible):
        return (
            f"as far as the first of them can see, they have {len(set(indices))} GPUs: one a rank is needed, and "
            "where each is shut in with its own, srun --gpu-bind=none opens them"
        )
    return tuple(gpu for index in indices for gpu in node.gpus if gpu.index == index)


def refused_frameworks(node: Node, loaded: tuple[Gpu, ...], *, force: bool) -> dict[str, Missing]:
    """Why no framework may be started: each opens all GPUs that CUDA shows, not only those in `loaded`."""
    seen = resolve(node.environment.get("CUDA_VISIBLE_DEVICES"), node.gpus, node.environment.get("CUDA_DEVICE_ORDER"))
    passed_over = {gpu.index for gpu in loaded} | set(() if seen.unresolved or seen.order_uncertain else seen.hidden)
    others = tuple(gpu for gpu in node.gpus if gpu.index not in passed_over)
    if danger := _danger(node, others):
        return {"frameworks": Missing(f"{danger}, and a framework opens every GPU", "denied")}
    busy = None if force else used_by_others(node, others)
    return (
        {"frameworks": msgspec.structs.replace(busy, missing=f"frameworks open every GPU: {busy.reason}")}
        if busy
        else {}
    )


def _unfit(gpu: Gpu) -> str | None:
    """Why no rank can run on this GPU; what is wrong with the GPU is reported by other checks."""
    if known(gpu.settings.mig_enabled) is True:
        return f"GPU {gpu.index} is divided by MIG: NCCL and DDP want whole GPUs"
    # a rank's GPU is selected by UUID (CUDA_VISIBLE_DEVICES)
    return None if known(gpu.uuid) else f"GPU {gpu.index} tells no UUID"


def _danger(node: Node, gpus: tuple[Gpu, ...]) -> str | None:
    """Why any load would hang, or contradict the user's settings."""
    if node.driver.unanswered:
        return f"the driver does not answer ({node.driver.unanswered[0].call})"
    for gpu in gpus:
        if errors := condemning(gpu):
            return f"GPU {gpu.index} does not answer ({errors[0].name}); --gpu names those to measure without it"
    setting = node.environment.get("CUDA_VISIBLE_DEVICES")
    if resolve(setting, node.gpus, node.environment.get("CUDA_DEVICE_ORDER")).hides_all:
        return f"CUDA_VISIBLE_DEVICES={setting} hides every GPU"
    return None
