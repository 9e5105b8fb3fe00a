"""The table of strategies, and the probe that runs them."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import msgspec
import torch
import torch.distributed as dist

from gpudoctor.facts.model.missing import Missing
from gpudoctor.lazy import lazy_pattern
from gpudoctor.probes.runner.errors import meaning_of
from gpudoctor.probes.runner.messages import StrategyLeftOut, StrategyShared
from gpudoctor.probes.runner.rank import Rank
from gpudoctor.probes.runner.torch_device import in_one_line
from gpudoctor.probes.strategies.bench import Bench
from gpudoctor.probes.strategies.checkpointing import run_checkpointing
from gpudoctor.probes.strategies.data_parallel import run_ddp, run_dp, run_fsdp, run_fsdp1, run_zero1
from gpudoctor.probes.strategies.deepspeed import run_deepspeed
from gpudoctor.probes.strategies.model import STEPS, shape_for
from gpudoctor.probes.strategies.pipeline import run_pipeline
from gpudoctor.probes.strategies.tensor import run_3d, run_tensor, why_not_3d

_OTHERS_WAIT_S = 15.0
# in messages: the file of a module that lacks a name, and the address of a closed connection
_NOISE = lazy_pattern(r" \((/[^)]*|unknown location)\)$| \[\S+\]:\d+")


class ProbeStrategy(msgspec.Struct, frozen=True):
    """One way to train on several ranks.

    `why_not`: why this number of ranks, on GPUs or not, cannot run it; None if they can. `of_torch`: runs if no
    strategy is named; strategies of other libraries have separate runs.
    """

    name: str
    run: Callable[[Rank, Bench], None]
    why_not: Callable[[int, bool], str | None] = lambda ranks, on_gpu: None
    of_torch: bool = True


def run_strategies(rank: Rank) -> None:
    """Train under each strategy in turn; send its results, or why there are none.

    If a strategy raises on some rank, that is reported and the next one follows, as long as the ranks stay in step:
    a rank that failed waits some seconds for the others, and gives up if they do not arrive.
    """
    rank.phase("prepare strategies", "strategy")
    if rank.world_size == 1:
        return
    with _plain_arithmetic(rank):
        with rank.blocked():
            in_step = dist.new_group(backend="gloo")  # separate: a failed strategy may leave the default group unusable
        bench = Bench(rank, shape_for(rank.world_size, on_gpu=rank.on_gpu))
        if rank.number == 0:
            rank.send(StrategyShared(bench.shape, STEPS, bench.reference()))
        names = rank.job.strategies
        for strategy in [each for each in STRATEGIES if (each.name in names if names else each.of_torch)]:
            why_not = strategy.why_not(rank.world_size, rank.on_gpu)
            if why_not is not None:
                rank.send(StrategyLeftOut(strategy.name, Missing(why_not)))
                continue
            _begin(rank, bench, strategy.name)
            error: Exception | None = None
            lacking: Missing | None = None
            try:
                strategy.run(rank, bench)
            except Exception as failure:  # whatever it is, the other strategies can still run
                error, lacking = failure, _own_failure(rank, failure)
                if lacking is None:
                    raise
            _rendezvous(rank, in_step, error)
            if lacking is not None:  # sent only now: for a rank that lost the others this was not the reason
                rank.send(StrategyLeftOut(strategy.name, lacking))


def _begin(rank: Rank, bench: Bench, name: str) -> None:
    bench.strategy = name
    rank.phase(f"strategy {name}", "strategy")
    if rank.on_gpu:
        torch.cuda.set_device(0)  # the rank's own; an earlier strategy may have changed it
    bench.begin_variant()


def _own_failure(rank: Rank, failure: Exception) -> Missing | None:
    """Why a strategy failed; None if the error is not the strategy's but a GPU's, or lack of memory."""
    text = _NOISE.sub("", in_one_line(failure))
    if isinstance(failure, (ImportError, NotImplementedError)):
        version = str(torch.__version__)
        return Missing(f"this torch ({version}) does not offer it: {text}", "unsupported")
    meaning = meaning_of(str(failure))
    if meaning is not None and meaning.kind == "refused":  # DataParallel needs a second process on each GPU
        return Missing(f"{meaning.plain} ({text})", "denied")
    if isinstance(failure, MemoryError) or meaning is not None:
        return None
    return Missing(f"rank {rank.number}: {type(failure).__name__}: {text}", "failed")


def _rendezvous(rank: Rank, group: dist.ProcessGroup | None, error: Exception | None) -> None:
    """Wait for the other ranks; raise `error` if they do not arrive.

    If the wait timed out, the others are still running and this rank left them: the error is its own. If they have
    ended, they left this rank, and an error raised while it waited for them remains an error of waiting.
    """
    waited = rank.waiting
    with rank.blocked():
        most_moves = torch.tensor([rank.board.entry(rank.number).moves])
        work = dist.all_reduce(most_moves, dist.ReduceOp.MAX, group=group, async_op=True)
        assert work is not None
        try:
            if error is None:
                work.wait()
            else:
                work.wait(datetime.timedelta(seconds=_OTHERS_WAIT_S))
        except RuntimeError:
            if error is None:
                raise
            rank.waiting = waited and work.is_completed()
            raise error from None
        rank.board.set_moves(rank.number, int(most_moves))  # a rank that failed has made fewer moves than the others


@contextmanager
def _plain_arithmetic(rank: Rank) -> Iterator[None]:
    """Use the same arithmetic for a whole batch and for a part of it, whatever a library would choose for each size.

    fp32 products in fp32 (TF32, which an image may have enabled, exceeds the tolerance), bf16 products accumulated in
    fp32, and attention by plain operations, since the fused kernels for it vary with versions and GPUs.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    precision = torch.get_float32_matmul_precision()
    products = torch.backends.cuda.matmul
    reduced = products.allow_bf16_reduced_precision_reduction
    torch.set_float32_matmul_precision("highest")
    products.allow_bf16_reduced_precision_reduction = False
    try:
        with sdpa_kernel(SDPBackend.MATH) if rank.on_gpu else nullcontext():
            yield
    finally:
        products.allow_bf16_reduced_precision_reduction = reduced
        torch.set_float32_matmul_precision(precision)


def _only_on_gpus(ranks: int, on_gpu: bool) -> str | None:
    if on_gpu:
        return None
    return f"it spreads one process over GPUs; these are {ranks} CPU ranks, where it would use one device"


STRATEGIES = (
    ProbeStrategy("ddp", run_ddp),
    ProbeStrategy("dp", run_dp, _only_on_gpus),
    ProbeStrategy("zero1", run_zero1),
    ProbeStrategy("fsdp", run_fsdp),
    ProbeStrategy("fsdp1", run_fsdp1),
    ProbeStrategy("checkpointing", run_checkpointing),
    ProbeStrategy("tensor", run_tensor),
    ProbeStrategy("pipeline", run_pipeline),
    ProbeStrategy("3d", run_3d, why_not_3d),
    ProbeStrategy("deepspeed", run_deepspeed, of_torch=False),
)
