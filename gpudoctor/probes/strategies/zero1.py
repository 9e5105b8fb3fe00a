"""ZeRO stage 1: DDP with ZeroRedundancyOptimizer, so that each rank has the state of its share of the weights only."""

from __future__ import annotations

import torch

from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.strategies.bench import Bench, Variant
from gpudoctor.probes.strategies.ddp import wrapped
from gpudoctor.probes.strategies.model import OPTIMIZER_OPTIONS, loss_of


def run_zero1(rank: Rank, bench: Bench) -> None:
    """Train with the state of the optimizer divided over the ranks."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = bench.model()
    with rank.blocked():
        ddp = wrapped(rank, model)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **OPTIMIZER_OPTIONS)

    def step(number: int) -> torch.Tensor:
        optimizer.zero_grad()
        tokens, targets = bench.part(number, rank.number, rank.world_size)
        loss = loss_of(ddp(tokens), targets)
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.detach()

    bench.train(
        Variant("zero1", own_part=True),
        step,
        holds=lambda: (model.parameters(), optimizer.optim),
        weights=lambda: dict(model.named_parameters()),
    )
