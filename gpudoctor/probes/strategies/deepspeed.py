"""DeepSpeed's ZeRO: optimizer state (1), gradients (2) and parameters (3) divided over the ranks."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.strategies.bench import Bench
from gpudoctor.probes.strategies.model import build_optimizer
from gpudoctor.probes.strategies.transformer import loss_of

STAGES = (1, 2, 3)
_DRIFT = 0.01  # added to a weight of this rank by --inject desync


def run_deepspeed(rank: Rank, bench: Bench) -> None:
    """Train the model under each stage of ZeRO, in fp32."""
    deepspeed = _imported(rank)
    for stage in STAGES:
        bench.begin_variant()
        engine, *_ = deepspeed.initialize(
            model=bench.model(),
            optimizer=build_optimizer,  # called with the parameters as DeepSpeed divides them
            config=_settings(stage, bench.shape.batch // rank.world_size),
            dist_init_required=False,
        )
        bench.train(
            f"zero-{stage}",
            functools.partial(_step, rank, bench, engine, stage),
            engine.module,
            engine.optimizer.optimizer,
            own_part=True,
            parameters=functools.partial(_held, engine, stage),
            weights=functools.partial(_whole_weights, deepspeed, engine, stage),
        )
        engine.destroy()


def _imported(rank: Rank) -> Any:
    """Import DeepSpeed on the existing process group, without compiling anything."""
    os.environ["DS_ACCELERATOR"] = "cuda" if rank.on_gpu else "cpu"
    # DeepSpeed reads these at start-up although the process group exists already
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    os.environ["LOCAL_RANK"] = "0"  # DeepSpeed uses it as the GPU's index, and each rank sees its own GPU first
    # folders to which it would write what it compiles or tunes
    for name in ("TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "TRITON_HOME"):
        os.environ[name] = f"{rank.job.folder}/{name.lower()}"
    rank.phase("import deepspeed")
    try:
        import deepspeed
    except ImportError as error:  # it is installed, so a failing import is a failure and not a reason to skip it
        raise RuntimeError(f"DeepSpeed does not load: {error}") from error
    for name in deepspeed.ops.__compatible_ops__:
        # its kernel for CPU shared memory, useful for inference only, takes g++ half a minute to compile
        deepspeed.ops.__compatible_ops__[name] = False
    deepspeed.init_distributed("nccl" if rank.on_gpu else "gloo", auto_mpi_discovery=False, dist_init_required=None)
    return deepspeed


def _settings(stage: int, batch: int) -> dict[str, Any]:
    """DeepSpeed's configuration, with which every parameter is divided, however small."""
    return {
        "train_micro_batch_size_per_gpu": batch,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1 << 30,
    }


def _step(rank: Rank, bench: Bench, engine: Any, stage: int, number: int) -> torch.Tensor:
    tokens, targets = bench.own_part(number)
    loss = loss_of(engine(tokens), targets)
    engine.backward(loss)
    engine.step()  # clears the gradients itself
    if rank.injected("desync"):
        drift = next(iter(_held(engine, stage)))
        with torch.no_grad():
            drift.add_(_DRIFT)  # after every step, because DeepSpeed gathers the weights again in each
    return loss.detach()


def _held(engine: Any, stage: int) -> Iterable[torch.Tensor]:
    """The parameters that this rank holds between two steps; in stage 3 its parts of them."""
    parameters: list[Any] = list(engine.module.parameters())
    return [parameter.ds_tensor for parameter in parameters] if stage == 3 else parameters


def _whole_weights(deepspeed: Any, engine: Any, stage: int) -> dict[str, torch.Tensor]:
    if stage < 3:
        return dict(engine.module.named_parameters())
    model: nn.Module = engine.module
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        return {name: weight.detach().clone() for name, weight in model.named_parameters()}
