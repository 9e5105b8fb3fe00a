"""Fully sharded data parallelism: each rank holds 1/n of weights, gradients and optimizer state.

With `fully_shard` (FSDP2), and with `FullyShardedDataParallel` (FSDP1), which most guides still use.
"""

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
from gpudoctor.probes.strategies.bench import Bench
from gpudoctor.probes.strategies.memory import whole_weights
from gpudoctor.probes.strategies.model import build_optimizer, train_step
from gpudoctor.probes.strategies.transformer import TransformerBlock

_Dtype = Literal["fp32", "bf16"]
_Sharded = tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[], dict[str, torch.Tensor]]]
_Shard = Callable[[Rank, Bench, _Dtype], _Sharded]  # shards the model: returns it, its optimizer and its full weights

_SKIPS_AT = 3
_dist: Any = dist
# FSDP calls one of these: fully_shard the second in newer torch, FSDP1 the last on CPU ranks
_GATHERS = ("all_gather_into_tensor", "all_gather_single", "all_gather")


def run_fsdp(rank: Rank, bench: Bench) -> None:
    """Train with `fully_shard` in fp32, then with weights gathered and multiplied in bf16."""
    _run(rank, bench, "fsdp", "fully_shard", _fully_shard)


def run_fsdp1(rank: Rank, bench: Bench) -> None:
    """Train with `FullyShardedDataParallel` in fp32, then with weights gathered and gradients summed in bf16."""
    _run(rank, bench, "fsdp1", "FullyShardedDataParallel", _wrap)


def _run(rank: Rank, bench: Bench, name: str, api: str, shard: _Shard) -> None:
    why_not = why_not_fsdp(api, on_gpu=rank.on_gpu)
    if why_not is not None:
        rank.send(StrategyLeftOut(name, Missing(why_not, "unsupported")))
        return
    _train(rank, bench, name, "fp32", shard)
    if bench.has_bf16:
        _train(rank, bench, f"{name}-bf16", "bf16", shard)
    else:
        why = "mixed precision: a GPU here is older than compute capability 8.0 and has no bf16"
        rank.send(StrategyLeftOut(name, Missing(why, "unsupported")))


def why_not_fsdp(api: str, *, on_gpu: bool) -> str | None:
    """Why this torch lacks this FSDP API on GPU or CPU ranks; None if it has it."""
    import torch.distributed.fsdp as offered

    version = str(torch.__version__)
    if not hasattr(offered, api):
        return f"{api} came with torch 2.6, and this is {version}"
    if not on_gpu and not hasattr(torch.cpu.Stream, "record_event"):  # torch 2.6 has CPU streams that record nothing
        return f"{api} of this torch ({version}) runs on GPUs only, and these are CPU ranks"
    return None


def _fully_shard(rank: Rank, bench: Bench, dtype: _Dtype) -> _Sharded:
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
    return model, build_optimizer(model.parameters(), fused=True), lambda: whole_weights(model)


def _wrap(rank: Rank, bench: Bench, dtype: _Dtype) -> _Sharded:
    """Wrap as guides do: FULL_SHARD, one unit per block, and all of MixedPrecision in bf16."""
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    low = torch.bfloat16
    precision = MixedPrecision(param_dtype=low, reduce_dtype=low, buffer_dtype=low) if dtype == "bf16" else None
    bench.begin_variant()
    with rank.blocked():
        model = FullyShardedDataParallel(
            bench.model(),
            sharding_strategy=ShardingStrategy.FULL_SHARD,
            auto_wrap_policy=ModuleWrapPolicy({TransformerBlock}),
            mixed_precision=precision,
            device_id=rank.device,  # without it torch refuses a machine without accelerator
            use_orig_params=True,
        )

    def weights() -> dict[str, torch.Tensor]:
        with FullyShardedDataParallel.summon_full_params(model, writeback=False):
            return {name: weight.detach().clone() for name, weight in model.named_parameters()}

    return model, build_optimizer(model.parameters()), weights


def _train(rank: Rank, bench: Bench, name: str, dtype: _Dtype, shard: _Shard) -> None:
    model, optimizer, weights = shard(rank, bench, dtype)
    skips = dtype == "fp32" and rank.injected("skip-all-gather") is not None

    def step(number: int) -> torch.Tensor:
        with _one_gather_skipped() if skips and number == _SKIPS_AT else nullcontext():
            return train_step(model, optimizer, bench.own_part(number))

    bench.train(name, step, model, optimizer, dtype=dtype, own_part=True, weights=weights)


@contextmanager
def _one_gather_skipped() -> Iterator[None]:
    """The fault skip-all-gather: in one gather this rank gets its own part, and zeros for those of the others.

    The rank still takes part in it, since staying away would be a hang, which hang-rank simulates.
    """
    skipped: list[bool] = []
    kept: list[torch.Tensor] = []  # buffers that a running operation still writes to
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
    output: torch.Tensor | list[torch.Tensor],
    given: torch.Tensor,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    if skipped:
        return original(output, given, group=group, async_op=async_op)
    skipped.append(True)
    own = given.clone()  # `given` may lie inside `output`
    parts = output if isinstance(output, list) else list(output.view(-1).chunk(dist.get_world_size(group)))
    elsewhere = [torch.empty_like(part) for part in output] if isinstance(output, list) else torch.empty_like(output)
    kept += [own, *(elsewhere if isinstance(elsewhere, list) else [elsewhere])]
    for number, part in enumerate(parts):
        part.copy_(own.view_as(part)) if number == dist.get_rank(group) else part.zero_()
    return original(elsewhere, own, group=group, async_op=async_op)
