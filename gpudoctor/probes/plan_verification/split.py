"""One rank of a plan verification: process groups, its stage of the model, FSDP or DDP around it, the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from gpudoctor.probes.plan_verification.messages import VerificationOrder
from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.runner.torch_device import UnusableTorchError
from gpudoctor.probes.strategies.data_parallel import ddp_model
from gpudoctor.probes.strategies.memory import local_part
from gpudoctor.probes.strategies.pipeline_steps import Stages
from gpudoctor.probes.strategies.tensor_matmuls import TensorParallelRanks
from gpudoctor.probes.strategies.transformer import Transformer

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "bf16-true": torch.bfloat16, "fp32": torch.float32}
_SEED = 47


class RankPosition:
    """The position of this rank among data x tensor x pipeline ranks, and its process groups.

    Tensor-parallel ranks are nearest to each other, then data, then pipeline, as in Megatron-LM.
    """

    def __init__(self, rank: Rank, order: VerificationOrder) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        sizes = (order.pipeline, order.data, order.tensor)
        self.mesh = init_device_mesh(rank.device.type, sizes, mesh_dim_names=("pipeline", "data", "tensor"))
        tensor_number = rank.number % order.tensor
        self.data_number = rank.number // order.tensor % order.data
        a_stage = order.data * order.tensor
        self.stages = Stages(range(rank.number % a_stage, rank.world_size, a_stage), rank.number, rank.device)
        self.tp = TensorParallelRanks(order.tensor, tensor_number, self.mesh["tensor"] if order.tensor > 1 else None)
        self.data_group: Any = self.mesh["data"].get_group()


class Built:
    """The wrapped model, the module inside it, its optimizer, and the context of its forward pass."""

    def __init__(self, rank: Rank, order: VerificationOrder, position: RankPosition) -> None:
        self._order, self._device = order, rank.device
        self._autocasts = order.precision in ("bf16", "fp16") and not order.sharded
        stage = position.stages.index
        torch.manual_seed(_SEED + 1000 * stage + position.tp.number)
        first = sum(order.layers_of_stages[:stage])
        self.inner = Transformer(order.model, range(first, first + order.layers_of_stages[stage]), position.tp)
        dtype = DTYPES[order.precision]
        # under plain autocast the embedding's output is fp32, as in a user's training
        self.inner.compute_dtype = None if self._autocasts and order.tensor * order.pipeline == 1 else dtype
        self.inner.recompute = _recomputation(order)
        if order.precision == "bf16-true":
            self.inner.to(dtype)
        if not order.offload:
            self.inner.to(rank.device)
        self.model: Any = self.inner
        self.by_hand = False  # whether the caller must average gradients over the data-parallel ranks
        if order.sharded:
            _shard(self.inner, order, position.mesh["data"])
        elif order.data > 1 and order.tensor * order.pipeline == 1:
            self.model = ddp_model(rank, self.inner)
        else:
            self.by_hand = order.data > 1
        self.optimizer = _optimizer(order, self.inner, on_gpu=rank.on_gpu and not order.offload)

    def zero_grad(self) -> None:
        """Free the gradients; zero them if DDP accumulates, which would hold them twice until it exchanges them."""
        accumulates = self._order.micro_batches > 1 and self.model is not self.inner
        self.optimizer.zero_grad(set_to_none=not accumulates)

    @contextmanager
    def forward_context(self, microbatch: int) -> Iterator[None]:
        """Around a forward pass: autocast if only the weights are fp32; DDP reduces only with the last microbatch."""
        order = self._order
        with ExitStack() as contexts:
            if self.model is not self.inner and microbatch < order.micro_batches - 1:
                contexts.enter_context(self.model.no_sync())
            if self._autocasts:
                contexts.enter_context(torch.autocast(self._device.type, DTYPES[order.precision]))
            yield


def stored_bytes(tensors: Iterator[torch.Tensor | None]) -> int:
    """Bytes that these tensors store on this rank; a tensor that occurs twice counts once."""
    found = {id(t): local_part(t) for t in tensors if t is not None}
    return sum(part.numel() * part.element_size() for part in found.values())


def _shard(model: Transformer, order: VerificationOrder, mesh: Any) -> None:
    try:
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    except ImportError:
        text = f"fully_shard is not in torch {torch.__version__}: it wants 2.6 or newer to try FSDP"
        raise UnusableTorchError(text) from None
    options: dict[str, Any] = {"mesh": mesh}
    if order.precision in ("bf16", "fp16"):
        options["mp_policy"] = MixedPrecisionPolicy(DTYPES[order.precision], torch.float32)
    if order.offload:
        options["offload_policy"] = CPUOffloadPolicy()
    # separate units for embedding and head, as in torchtitan: otherwise both would be gathered all the time; if tied,
    # they are one tensor
    first, last = (None, None) if order.model.tied else (model.embedding, model.head)
    for unit in (first, *model.blocks.values(), last, model):
        if unit is not None:
            fully_shard(unit, **options)


def _optimizer(order: VerificationOrder, model: nn.Module, *, on_gpu: bool) -> torch.optim.Optimizer:
    # foreach would hold copies of all gradients for a moment
    options: dict[str, Any] = {"fused": True} if on_gpu else {"foreach": False}
    if order.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=1e-4, **options)
    momentum = 0.9 if order.optimizer == "momentum" else 0.0
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=momentum, **options)


def _recomputation(order: VerificationOrder) -> Any:
    """The function that calls a layer with recomputation; None if the layer keeps everything."""
    if order.recompute == "none":
        return None
    from functools import partial

    from torch.utils import checkpoint as torchs

    checkpoints: Any = torchs  # not annotated everywhere
    if order.recompute == "full":
        return partial(checkpoints.checkpoint, use_reentrant=False)

    aten: Any = torch.ops.aten
    products = (aten.mm.default, aten.addmm.default)
    attention = [
        getattr(aten, name).default
        for name in (
            "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu",
        ) if hasattr(aten, name)
    ]  # fmt: skip

    policies = checkpoints.CheckpointPolicy

    def contexts() -> Any:
        products_seen = {"forward": 0, "recompute": 0}

        def policy(ctx: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
            saved = operation in attention
            if operation in products:
                mode = "recompute" if ctx.is_recompute else "forward"
                products_seen[mode] += 1
                saved = products_seen[mode] % 2 == 1  # every other one
            return policies.MUST_SAVE if saved else policies.PREFER_RECOMPUTE

        return checkpoints.create_selective_checkpoint_contexts(policy)

    return partial(checkpoints.checkpoint, use_reentrant=False, context_fn=contexts)
