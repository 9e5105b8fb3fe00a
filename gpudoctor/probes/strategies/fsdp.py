"""Fully sharded data parallelism (`fully_shard`): weights, gradients and optimizer state are 1/n on each rank."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
import torch.distributed as dist

from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.runner.messages import StrategyLeftOut
from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.strategies.bench import Bench, Variant
from gpudoctor.probes.strategies.memory import whole_weights
from gpudoctor.probes.strategies.model import train_step

_SKIPS_AT = 3
_dist: Any = dist
_GATHERS = ("all_gather_into_tensor", "all_gather_single")  # fully_shard calls one of them: the second in newer torch


def run_fsdp(rank: Rank, bench: Bench) -> None:
    """Train in fp32, then with weights gathered and multiplied in bf16."""
    why_not = why_not_fsdp(on_gpu=rank.on_gpu)
    if why_not is not None:
        rank.send(StrategyLeftOut("fsdp", Missing(why_not, "unsupported")))
        return
    _train(rank, bench, "fsdp", "fp32")
    if bench.has_bf16:
        _train(rank, bench, "fsdp-bf16", "bf16")
    else:
        why = "mixed precision: a GPU here is older than compute capability 8.0 and has no bf16"
        rank.send(StrategyLeftOut("fsdp", Missing(why, "unsupported")))


def why_not_fsdp(*, on_gpu: bool) -> str | None:
    """Why this torch cannot do it on such ranks, in words; None where it can."""
    import torch.distributed.fsdp as offered

    version = str(torch.__version__)
    if not hasattr(offered, "fully_shard"):
        return f"fully_shard came with torch 2.6, and this is {version}"
    if not on_gpu and not hasattr(torch.cpu.Stream, "record_event"):  # 2.6 has streams of CPUs that record nothing
        return f"fully_shard of this torch ({version}) runs on GPUs only, and these are CPU ranks"
    return None


def _train(rank: Rank, bench: Bench, name: str, dtype: Literal["fp32", "bf16"]) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    with rank.blocked():
        options: dict[str, Any] = {"mesh": init_device_mesh(rank.device.type, (rank.world_size,))}
    if dtype == "bf16":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    bench.begin_variant()
    model = bench.model()
    for block in model.blocks.values():
        fully_shard(block, **options)
    fully_shard(model, **options)
    optimizer = bench.optimizer(model.parameters(), fused=True)
    skips = dtype == "fp32" and rank.injected("skip-all-gather") is not None

    def step(number: int) -> torch.Tensor:
        with _one_gather_skipped() if skips and number == _SKIPS_AT else nullcontext():
            return train_step(model, optimizer, bench.part(number, rank.number, rank.world_size))

    bench.train(
        Variant(name, dtype, own_part=True),
        step,
        holds=lambda: (model.parameters(), optimizer),
        weights=lambda: whole_weights(model),
    )


@contextmanager
def _one_gather_skipped() -> Iterator[None]:
    """The fault skip-all-gather: once, this rank gets its own part of a gather, and zeros for the others'.

    It takes part all the same: a rank that stayed away would be a hang, which hang-rank plays.
    """
    skipped: list[bool] = []
    kept: list[torch.Tensor] = []  # what an operation under way still writes to
    originals = {name: getattr(dist, name) for name in _GATHERS if hasattr(dist, name)}
    try:
        for name, original in originals.items():
            setattr(_dist, name, functools.partial(_skip_first, original, skipped, kept))
        yield
    finally:
        for name, original in originals.items():
            setattr(_dist, name, original)


def _skip_first(
    original: Callable[..., Any],
    skipped: list[bool],
    kept: list[torch.Tensor],
    output: torch.Tensor,
    given: torch.Tensor,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    if skipped:
        return original(output, given, group=group, async_op=async_op)
    skipped.append(True)
    own = given.clone()  # `given` may lie inside `output`
    kept += [own, torch.empty_like(output)]
    output.zero_()
    output.view(-1).chunk(dist.get_world_size(group))[dist.get_rank(group)].copy_(own.view(-1))
    return original(kept[-1], own, group=group, async_op=async_op)
