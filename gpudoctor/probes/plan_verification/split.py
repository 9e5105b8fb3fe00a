"""How one rank of a trial is built: process groups, its stage of the model, FSDP or DDP around it, the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from gpudoctor.probes.plan_verification.messages import VerificationOrder
from gpudoctor.probes.plan_verification.model import VerificationTransformer
from gpudoctor.probes.runner.rank import Rank, UnusableTorchError
from gpudoctor.probes.strategies.tensor_matmuls import TensorParallelRanks

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "bf16-true": torch.bfloat16, "fp32": torch.float32}
_SEED = 47


class RankPosition:
    """This rank's place among data x tensor x pipeline ranks, and the groups that it is in.

    Tensor-parallel ranks are nearest to each other, then data, then pipeline, as Megatron-LM lays them out.
    """

    def __init__(self, rank: Rank, order: VerificationOrder) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        sizes = (order.pipeline, order.data, order.tensor)
        self.mesh = init_device_mesh(rank.device.type, sizes, mesh_dim_names=("pipeline", "data", "tensor"))
        self.tensor_number = rank.number % order.tensor
        self.data_number = rank.number // order.tensor % order.data
        self.stage = rank.number // (order.tensor * order.data)
        self.ways = TensorParallelRanks(
            order.tensor, self.tensor_number, self.mesh["tensor"] if order.tensor > 1 else None
        )
        self.data_group: Any = self.mesh["data"].get_group()

    def rank_of_stage(self, stage: int, order: VerificationOrder) -> int:
        """The rank of another stage that has the same tensor and data number."""
        return (stage * order.data + self.data_number) * order.tensor + self.tensor_number


class Built:
    """The model as it is called, the module within, its optimizer, and how it computes."""

    def __init__(self, rank: Rank, order: VerificationOrder, seat: RankPosition) -> None:
        self._order, self._device = order, rank.device
        torch.manual_seed(_SEED + 1000 * seat.stage + seat.tensor_number)
        self.inner = VerificationTransformer(order.model, order.layers_of_stages, seat.stage, seat.ways)
        dtype = _DTYPES[order.precision]
        self.inner.compute_dtype = dtype
        self.inner.keep = _recomputation(order)
        if order.precision == "bf16-true":
            self.inner.to(dtype)
        if not order.offload:
            self.inner.to(rank.device)
        self.model: Any = self.inner
        self.by_hand = False  # whether gradients are to be averaged over the data-parallel ranks here
        if order.sharded:
            _shard(self.inner, order, seat.mesh["data"])
        elif order.data > 1 and order.tensor * order.pipeline == 1:
            from torch.nn.parallel import DistributedDataParallel

            devices = [0] if rank.on_gpu else None
            self.model = DistributedDataParallel(self.inner, device_ids=devices, gradient_as_bucket_view=True)
        else:
            self.by_hand = order.data > 1
        self.optimizer = _optimizer(order, self.inner, on_gpu=rank.on_gpu and not order.offload)

    def zero_grad(self) -> None:
        """Free the gradients; DDP that accumulates keeps them, or it would hold them twice until it exchanges them."""
        accumulates = self._order.micro_batches > 1 and self.model is not self.inner
        self.optimizer.zero_grad(set_to_none=not accumulates)

    def computing(self) -> AbstractContextManager[Any]:
        """Around the forward pass: autocast where weights are fp32 and products are not."""
        if self._order.precision not in ("bf16", "fp16") or self._order.sharded:
            return nullcontext()
        return torch.autocast(self._device.type, _DTYPES[self._order.precision])

    def not_yet_reducing(self, last: bool) -> AbstractContextManager[Any]:
        """Around a micro-batch: DDP exchanges gradients at the last one only."""
        return nullcontext() if last or self.model is self.inner else self.model.no_sync()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of it: FSDP's parameters are DTensors."""
    part = getattr(tensor, "_local_tensor", tensor)
    return part if isinstance(part, torch.Tensor) else tensor


def stored_bytes(tensors: Iterator[torch.Tensor | None]) -> int:
    """Bytes of what these tensors hold here; one that is there twice counts once."""
    found = {id(t): local(t).numel() * local(t).element_size() for t in tensors if t is not None}
    return sum(found.values())


def _shard(model: VerificationTransformer, order: VerificationOrder, mesh: Any) -> None:
    try:
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    except ImportError:
        text = f"fully_shard is not in torch {torch.__version__}: it wants 2.6 or newer to try FSDP"
        raise UnusableTorchError(text) from None
    options: dict[str, Any] = {"mesh": mesh}
    if order.precision in ("bf16", "fp16"):
        options["mp_policy"] = MixedPrecisionPolicy(_DTYPES[order.precision], torch.float32)
    if order.offload:
        options["offload_policy"] = CPUOffloadPolicy()
    # embedding and head apart, as torchtitan does: else both would be whole all the time; one weight is one unit
    if model.embedding is not None and not order.model.tied:
        fully_shard(model.embedding, **options)
    for layer in model.layers:
        fully_shard(layer, **options)
    if model.head is not None and not order.model.tied:
        fully_shard(model.head, **options)
    fully_shard(model, **options)


def _optimizer(order: VerificationOrder, model: nn.Module, *, on_gpu: bool) -> torch.optim.Optimizer:
    # foreach would hold copies of all gradients for a moment
    options: dict[str, Any] = {"fused": True} if on_gpu else {"foreach": False}
    if order.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=1e-4, **options)
    momentum = 0.9 if order.optimizer == "momentum" else 0.0
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=momentum, **options)


def _recomputation(order: VerificationOrder) -> Any:
    """What calls a layer so that it keeps less; None where it keeps all."""
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

    def contexts() -> Any:
        met = {"forward": 0, "recompute": 0}

        def policy(ctx: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
            if operation in products:
                mode = "recompute" if ctx.is_recompute else "forward"
                met[mode] += 1
                return (
                    checkpoints.CheckpointPolicy.MUST_SAVE
                    if met[mode] % 2
                    else checkpoints.CheckpointPolicy.PREFER_RECOMPUTE
                )
            return (
                checkpoints.CheckpointPolicy.MUST_SAVE
                if operation in attention
                else checkpoints.CheckpointPolicy.PREFER_RECOMPUTE
            )

        return checkpoints.create_selective_checkpoint_contexts(policy)

    return partial(checkpoints.checkpoint, use_reentrant=False, context_fn=contexts)
