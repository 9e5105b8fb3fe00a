"""Matrix products divided over tensor-parallel ranks with sequence parallelism, as in Megatron-LM.

Between products every rank has its own part of the sequence. The gathered input of a product is not kept: its backward
pass gathers it again (Korthikanti et al., arXiv:2205.05198, section 4.2.2). Activations: (batch, sequence, width).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, linear


class TensorParallelRanks:
    """The group of tensor-parallel ranks: their number, this one's position among them, and their device mesh."""

    def __init__(self, count: int = 1, number: int = 0, mesh: Any = None) -> None:
        self.count, self.number, self.mesh = count, number, mesh
        self.group: Any = None if mesh is None else mesh.get_group()

    def gathered(self, part: torch.Tensor) -> torch.Tensor:
        """The whole sequence, gathered from all ranks."""
        parts = [torch.empty_like(part) for _ in range(self.count)]
        dist.all_gather(parts, part.contiguous(), group=self.group)
        return torch.cat(parts, dim=1)

    def reduced(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part of the sequence of the sum over all ranks."""
        whole = whole.contiguous()
        dist.all_reduce(whole, group=self.group)  # gloo has no reduce_scatter in older torch
        return whole.chunk(self.count, dim=1)[self.number].clone()

    def columns(self, x: torch.Tensor, *layers: torch.nn.Linear) -> tuple[torch.Tensor, ...]:
        """Each layer's product with the same input: this rank's part of the outputs, for the whole sequence."""
        if self.count == 1:
            return tuple(layer(x) for layer in layers)
        weights = [layer.weight for layer in layers]
        products: tuple[torch.Tensor, ...] = _Columns.apply(self, x, *weights)  # type: ignore[no-untyped-call]
        return tuple(
            p if layer.bias is None else p + layer.bias.to(p.dtype) for p, layer in zip(products, layers, strict=True)
        )

    def rows(self, x: torch.Tensor, layer: torch.nn.Linear) -> torch.Tensor:
        """The product of an input divided by columns over the ranks: this rank's part of the sequence."""
        if self.count == 1:
            return layer(x)  # type: ignore[no-any-return]
        product = self.summed(linear(x, layer.weight))
        return product if layer.bias is None else product + layer.bias.to(product.dtype)

    def summed(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's part of the sequence of the sum over all ranks, with gradient."""
        reduced: torch.Tensor = _Reduced.apply(self, x)  # type: ignore[no-untyped-call]
        return reduced


class _Columns(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, ways: TensorParallelRanks, x: torch.Tensor, *weights: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.ways = ways
        ctx.save_for_backward(x, *weights)
        whole = ways.gathered(x)
        return tuple(linear(whole, weight.to(x.dtype)) for weight in weights)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        x, *weights = ctx.saved_tensors
        whole = ctx.ways.gathered(x).flatten(0, 1)
        grad_weights = [(g.flatten(0, 1).t() @ whole).to(w.dtype) for g, w in zip(grads, weights, strict=True)]
        del whole
        grad_x = grads[0] @ weights[0].to(x.dtype)
        for grad, weight in zip(grads[1:], weights[1:], strict=True):
            grad_x += grad @ weight.to(x.dtype)
        return (None, ctx.ways.reduced(grad_x), *grad_weights)


class _Reduced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ways: TensorParallelRanks, x: torch.Tensor) -> torch.Tensor:
        ctx.ways = ways
        return ways.reduced(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, ctx.ways.gathered(grad)


def vocabulary_loss(ways: TensorParallelRanks, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy, () from (tokens, part of the vocabulary) and (tokens,), the same on every rank.

    Forward and backward pass must both run inside torch's loss_parallel.
    """
    from torch.distributed.tensor import DTensor, Shard

    divided = DTensor.from_local(logits, ways.mesh, [Shard(1)], run_check=False)
    loss: torch.Tensor = cross_entropy(divided, targets).to_local()  # type: ignore[attr-defined]
    return loss
