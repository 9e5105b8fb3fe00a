"""Data parallelism: DistributedDataParallel, ZeRO stage 1, DataParallel, and fully sharded (FSDP).

DDP is plain, with gradient accumulation (four micro-batches per step), and with ZeRO stage 1. DataParallel: one
process, here rank 0, spreads each batch over all GPUs while the other ranks are idle. FSDP: each rank holds 1/n of
weights, gradients and optimizer state, with `fully_shard` (FSDP2), and with `FullyShardedDataParallel` (FSDP1), which
most guides still use.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.runner.messages import StrategyLeftOut
from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.strategies.bench import Bench
from gpudoctor.probes.strategies.memory import whole_weights
from gpudoctor.probes.strategies.model import MICRO_BATCHES, OPTIMIZER_OPTIONS, build_optimizer, train_step
from gpudoctor.probes.strategies.transformer import TransformerBlock, loss_of

_DESYNC_STEP = 4
_Dtype = Literal["fp32", "bf16"]
_Sharded = tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[], dict[str, torch.Tensor]]]
_Shard = Callable[[Rank, Bench, _Dtype], _Sharded]  # shards the model: returns it, its optimizer and its full weights

_SKIPS_AT = 3
_dist: Any = dist
# FSDP calls one of these: fully_shard the second in newer torch, FSDP1 the last on CPU ranks
_GATHERS = ("all_gather_into_tensor", "all_gather_single", "all_gather")


def run_ddp(rank: Rank, bench: Bench) -> None:
    """Train with the rank's part of the batch as a whole, then in micro-batches."""
    _train_ddp(rank, bench, "ddp", 1)
    _train_ddp(rank, bench, "ddp-accumulation", MICRO_BATCHES)


def _train_ddp(rank: Rank, bench: Bench, name: str, micro_batches: int) -> None:
    bench.begin_variant()
    model = bench.model()
    with rank.blocked():
        ddp = ddp_model(rank, model)
    optimizer = build_optimizer(model.parameters())

    def step(number: int) -> torch.Tensor:
        if number == _DESYNC_STEP and rank.injected("desync"):
            with torch.no_grad():
                next(model.parameters()).view(-1)[0] += 1e-3
        optimizer.zero_grad()
        loss = torch.zeros((), device=rank.device)
        for micro in range(micro_batches):
            tokens, targets = bench.part(number, rank.number * micro_batches + micro, rank.world_size * micro_batches)
            # gradients are exchanged only once, with the last micro-batch
            with nullcontext() if micro == micro_batches - 1 else ddp.no_sync():
                part = loss_of(ddp(tokens), targets) / micro_batches
                torch.autograd.backward(part)
            loss += part.detach()
        optimizer.step()
        return loss

    bench.train(name, step, model, optimizer, figures={"micro_batches": float(micro_batches)}, own_part=True)


def run_zero1(rank: Rank, bench: Bench) -> None:
    """ZeRO stage 1: the optimizer's state is divided over the ranks by ZeroRedundancyOptimizer."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = bench.model()
    with rank.blocked():
        ddp = ddp_model(rank, model)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **OPTIMIZER_OPTIONS)

    bench.train(
        "zero1",
        lambda number: train_step(ddp, optimizer, bench.own_part(number)),
        model,
        optimizer.optim,
        own_part=True,
    )


def ddp_model(rank: Rank, model: torch.nn.Module) -> DistributedDataParallel:
    """The model in DDP; gradients are views of the buckets, so they are stored only once."""
    devices = [0] if rank.on_gpu else None
    return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)


def run_dp(rank: Rank, bench: Bench) -> None:
    """Train on rank 0 over all GPUs of the run; the other ranks go on to the rendezvous after the strategy.

    They do not wait for rank 0 here, because an error raised there would leave them waiting.
    """
    rank.barrier()
    devices = list(range(torch.cuda.device_count()))
    if rank.number == 0 and len(devices) >= rank.world_size:
        _train_dp(rank, bench, devices)
        return
    rank.phase("dp step")  # all ranks must make the same moves, or the parent cannot tell which one is behind
    if rank.number == 0:
        # a device cgroup hides the other GPUs, or they are MIG instances, of which CUDA allows a process only one
        why = f"it wants all {rank.world_size} GPUs in one process, and this one was given {len(devices)}"
        rank.send(StrategyLeftOut("dp", Missing(why, "denied")))


def _train_dp(rank: Rank, bench: Bench, devices: list[int]) -> None:
    model = bench.model()
    parallel = nn.DataParallel(model, device_ids=devices)
    optimizer = build_optimizer(model.parameters())
    figures: dict[str, float] = {}

    def step(number: int) -> torch.Tensor:
        if not number:
            for device in devices:
                torch.cuda.reset_peak_memory_stats(device)
        loss = train_step(parallel, optimizer, bench.batch(number))
        peaks = [torch.cuda.max_memory_allocated(device) for device in devices]
        figures["first_gpu_extra_bytes"] = float(peaks[0] - bench.at_first_bytes - max(peaks[1:]))
        return loss

    bench.train("dp", step, model, optimizer, figures=figures, alone=True)


def run_fsdp(rank: Rank, bench: Bench) -> None:
    """Train with `fully_shard` in fp32, then with weights gathered and multiplied in bf16."""
    _run_fsdp(rank, bench, "fsdp", "fully_shard", _fully_shard)


def run_fsdp1(rank: Rank, bench: Bench) -> None:
    """Train with `FullyShardedDataParallel` in fp32, then with weights gathered and gradients summed in bf16."""
    _run_fsdp(rank, bench, "fsdp1", "FullyShardedDataParallel", _wrap)


def _run_fsdp(rank: Rank, bench: Bench, name: str, api: str, shard: _Shard) -> None:
    why_not = why_not_fsdp(api, on_gpu=rank.on_gpu)
    if why_not is not None:
        rank.send(StrategyLeftOut(name, Missing(why_not, "unsupported")))
        return
    _train_fsdp(rank, bench, name, "fp32", shard)
    if bench.has_bf16:
        _train_fsdp(rank, bench, f"{name}-bf16", "bf16", shard)
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


def _train_fsdp(rank: Rank, bench: Bench, name: str, dtype: _Dtype, shard: _Shard) -> None:
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
    retained: list[torch.Tensor] = []  # buffers that a running operation still writes to
    originals = {name: getattr(dist, name) for name in _GATHERS if hasattr(dist, name)}
    try:
        for name, original in originals.items():
            setattr(_dist, name, functools.partial(_skip_first, original, skipped, retained))
        yield
    finally:
        for name, original in originals.items():
            setattr(_dist, name, original)


def _skip_first(
    original: Callable[..., Any],
    skipped: list[bool],
    retained: list[torch.Tensor],
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
    retained += [own, *(elsewhere if isinstance(elsewhere, list) else [elsewhere])]
    for number, part in enumerate(parts):
        part.copy_(own.view_as(part)) if number == dist.get_rank(group) else part.zero_()
    return original(elsewhere, own, group=group, async_op=async_op)
