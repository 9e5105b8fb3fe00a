"""The trial of a plan: a few steps of its strategy, with the memory of the tensors and the time of a step."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from gpudoctor.probes.plan_verification.messages import VerificationFigures, VerificationOrder
from gpudoctor.probes.plan_verification.model import loss_of
from gpudoctor.probes.plan_verification.split import Built, RankPosition, stored_bytes
from gpudoctor.probes.runner.live_bytes import LiveBytes
from gpudoctor.probes.runner.messages import VerificationSample
from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.strategies.pipeline_schedule import one_f_one_b, transfers_before

_SETTLED = 2  # steps until optimizer states are there and DDP has ordered its buckets
_PRODUCTS = 8
_EXCHANGES = 4
_LARGEST_EXCHANGE_BYTES = 256 << 20
_SEED = 53


def run_trial(rank: Rank, order: VerificationOrder) -> None:
    """Train as `order` says, and send one TrialSample.

    Two steps settle, one is looked at for its memory (the counting takes time), the rest are timed. Gradients of
    a tied embedding are not exchanged between the first and the last stage: what is tried is cost, not learning.
    """
    rank.phase("measure products")
    gflops = _gflops(rank, order)
    with rank.blocked():
        exchange = _all_reduce_gb_s(rank, order)
        seat = RankPosition(rank, order)
    with _loss_parallel(order):
        figures = _measured(rank, order, seat)
    rank.send(VerificationSample(msgspec.structs.replace(figures, gflops=gflops, allreduce_gb_s=exchange)))


def _measured(rank: Rank, order: VerificationOrder, seat: RankPosition) -> VerificationFigures:
    """Memory and times of the train; the rates of the ranks are left open."""
    rank.phase("build the model")
    at_first = torch.cuda.memory_allocated() if rank.on_gpu else 0
    live = None if rank.on_gpu else LiveBytes()
    counting: AbstractContextManager[Any] = nullcontext() if live is None else live
    with rank.blocked(), counting:
        built = Built(rank, order, seat)
        train = _Train(rank, order, seat, built)
        rank.phase("train step")
        for _ in range(_SETTLED):
            train.step()
        if live is None:
            torch.cuda.reset_peak_memory_stats()
        else:
            live.peak_bytes = live.now_bytes
        gradients = train.step()
        peak = torch.cuda.max_memory_allocated() - at_first if live is None else live.peak_bytes
    times = []
    for _ in range(order.steps):
        rank.barrier()
        began = time.monotonic()
        with rank.blocked():
            train.step()
            rank.synchronize()
        times.append(time.monotonic() - began)
    parameters = list(built.inner.parameters())
    states = built.optimizer.state.values()
    return VerificationFigures(
        parameters=sum(p.numel() for p in parameters),
        weights_bytes=stored_bytes(iter(parameters)),
        gradients_bytes=gradients,
        optimizer_bytes=stored_bytes(v for s in states for v in s.values() if isinstance(v, torch.Tensor)),
        peak_bytes=peak,
        step_s=tuple(times),
        losses=tuple(train.losses),
    )


def _loss_parallel(order: VerificationOrder) -> AbstractContextManager[Any]:
    if order.tensor == 1:
        return nullcontext()
    from torch.distributed.tensor.parallel import loss_parallel

    parallel: AbstractContextManager[Any] = loss_parallel()
    return parallel


class _Train:
    """Steps on the same made-up tokens."""

    def __init__(self, rank: Rank, order: VerificationOrder, seat: RankPosition, built: Built) -> None:
        self._rank, self._order, self._seat, self._built = rank, order, seat, built
        self.losses: list[float | None] = []
        self._wide = order.precision != "bf16-true"  # else nothing is fp32, the loss as little as the rest
        generator = torch.Generator().manual_seed(_SEED + seat.data_number)
        sizes = (order.micro_batches, order.micro_batch, order.seq)
        self._tokens = torch.randint(order.model.vocab, sizes, generator=generator).to(rank.device)
        self._targets = (3 * self._tokens + 1) % order.model.vocab

    def step(self) -> int:
        """One optimizer step; gives the bytes of all gradients when the backward pass was over."""
        self._built.zero_grad()
        losses = self._pipelined() if self._order.pipeline > 1 else list(self._one_by_one())
        if losses:
            loss = float(torch.stack(losses).mean())
            self.losses.append(loss if math.isfinite(loss) else None)
        self._exchange()
        gradients = stored_bytes(p.grad for p in self._built.inner.parameters())
        self._built.optimizer.step()
        return gradients

    def _one_by_one(self) -> Iterator[torch.Tensor]:
        order, built = self._order, self._built
        for number in range(order.micro_batches):
            with built.not_yet_reducing(last=number == order.micro_batches - 1):
                with built.computing():
                    logits = built.model(self._tokens[number], order.seq)
                    loss = loss_of(self._seat.ways, logits, self._targets[number], wide=self._wide)
                torch.autograd.backward(loss / order.micro_batches)
            yield loss.detach()
            del logits, loss

    def _pipelined(self) -> list[torch.Tensor]:
        """One forward and one backward in turn (1F1B), with what passes between the stages."""
        order, stage = self._order, self._seat.stage
        inputs: dict[int, torch.Tensor] = {}
        outputs: dict[int, Any] = {}  # a tensor, and after it was sent its edge of the graph
        ways_back: dict[int, torch.Tensor] = {}
        logits: dict[int, torch.Tensor] = {}  # alive until the backward pass is over, as in torch's own schedules
        losses: list[torch.Tensor] = []
        done = None
        for action in (*one_f_one_b(stage, order.pipeline, order.micro_batches), None):
            self._pass_on(transfers_before(done, action, stage, order.pipeline), inputs, outputs, ways_back)
            done = action
            if action is None:
                break
            number = action.microbatch
            if action.kind == "forward":
                outputs[number] = self._forward(number, inputs, logits, losses)
            else:
                grad = ways_back.pop(number, None)
                torch.autograd.backward(outputs.pop(number), grad)
                logits.pop(number, None)
        return losses

    def _forward(
        self,
        number: int,
        inputs: dict[int, torch.Tensor],
        logits: dict[int, torch.Tensor],
        losses: list[torch.Tensor],
    ) -> torch.Tensor:
        order, built = self._order, self._built
        given = self._tokens[number] if self._seat.stage == 0 else inputs[number].requires_grad_()
        with built.computing():
            made: torch.Tensor = built.model(given, order.seq)
            if self._seat.stage < order.pipeline - 1:
                return made
            logits[number] = made
            loss = loss_of(self._seat.ways, made, self._targets[number], wide=self._wide) / order.micro_batches
        losses.append(loss.detach() * order.micro_batches)
        return loss

    def _pass_on(
        self,
        transfers: Any,
        inputs: dict[int, torch.Tensor],
        outputs: dict[int, Any],
        ways_back: dict[int, torch.Tensor],
    ) -> None:
        """Post everything at once, and wait for it: a stage that sent before it received could wait for ever."""
        order, posted = self._order, []
        for transfer in transfers:
            peer = self._seat.rank_of_stage(transfer.peer, order)
            number = transfer.what.microbatch
            if transfer.way == "receive":
                place = inputs if transfer.what.kind == "forward" else ways_back
                place[number] = self._built.inner.between(order.micro_batch, order.seq)
                posted.append(dist.P2POp(dist.irecv, place[number], peer))
                continue
            sent = outputs[number].detach() if transfer.what.kind == "forward" else inputs.pop(number).grad
            assert sent is not None
            posted.append(dist.P2POp(dist.isend, sent.contiguous(), peer))
        for work in dist.batch_isend_irecv(posted) if posted else ():
            work.wait()
        for transfer in transfers:
            if transfer.way == "send" and transfer.what.kind == "forward":
                # what was sent has no more use here: of the output only its place in the graph is kept
                outputs[transfer.what.microbatch] = _edge(outputs[transfer.what.microbatch])

    def _exchange(self) -> None:
        """Average gradients over data-parallel ranks, and add up those that sequence parallelism has divided."""
        built, order = self._built, self._order
        parameters = list(built.inner.parameters())
        if built.by_hand:
            for parameter in parameters:
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad.div_(order.data), group=self._seat.data_group)
        if order.tensor > 1:
            for parameter in built.inner.whole_on_each_rank():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad, group=self._seat.ways.group)


def _edge(output: torch.Tensor) -> Any:
    """What a backward pass can begin at without the tensor's values; the tensor itself in torch before 2.6."""
    version = tuple(int(part) for part in str(torch.__version__).split(".")[:2])
    if version < (2, 6):
        return output
    from torch.autograd.graph import get_gradient_edge

    return get_gradient_edge(output)


def _gflops(rank: Rank, order: VerificationOrder) -> float:
    """The speed of products as large as those of the model's layers, while every rank does the same: 1e9 FLOP/s."""
    model, tokens = order.model, order.micro_batch * order.seq
    dtype = {"fp32": torch.float32, "fp16": torch.float16}.get(order.precision, torch.bfloat16)
    width = max(model.ffn // order.tensor, 1)
    left = torch.ones(tokens, model.hidden, device=rank.device, dtype=dtype)
    right = torch.ones(model.hidden, width, device=rank.device, dtype=dtype)
    left @ right
    rank.synchronize()
    rank.barrier()
    began = time.monotonic()
    for _ in range(_PRODUCTS):
        left @ right
    rank.synchronize()
    return _PRODUCTS * 2 * tokens * model.hidden * width / (time.monotonic() - began) / 1e9


def _all_reduce_gb_s(rank: Rank, order: VerificationOrder) -> float | None:
    """Bus bandwidth, 2 (n-1)/n of the bytes, of all ranks with as much as the model has gradients: 1e9 bytes/s."""
    n = rank.world_size
    if n == 1:
        return None
    model = order.model
    count = model.layers * model.hidden * (2 * model.hidden + 2 * model.ffn) + model.vocab * model.hidden
    size = min(4 * count // (order.tensor * order.pipeline), _LARGEST_EXCHANGE_BYTES)
    values = torch.zeros(size // 4, device=rank.device)
    dist.all_reduce(values)
    rank.synchronize()
    began = time.monotonic()
    for _ in range(_EXCHANGES):
        dist.all_reduce(values)
    rank.synchronize()
    return _EXCHANGES * 2 * (n - 1) / n * size / (time.monotonic() - began) / 1e9
