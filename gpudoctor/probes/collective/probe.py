"""The collective probe: correctness of the results on every rank, and bandwidth."""

from __future__ import annotations

import time
from itertools import chain

import msgspec
import torch
import torch.distributed as dist

from gpudoctor.facts.model.missing import Missing
from gpudoctor.probes.collective.merge import Pair, rounds_of
from gpudoctor.probes.collective.operations import (
    FLOAT_BYTES,
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    NotOfferedError,
    Operation,
    ReduceScatter,
    SendRecv,
)
from gpudoctor.probes.runner.messages import CollectiveSample, LeftOut, PairSample
from gpudoctor.probes.runner.plan import FULL_LEVELS
from gpudoctor.probes.runner.rank import Rank
from gpudoctor.text.units import GIB, MIB, size_text

_CODED_RANKS_MAX = 24  # 2^0 + ... + 2^23 is exact in float32
_BFLOAT_RANKS_MAX = 8  # 255 is exact in bfloat16
_OPERATIONS_MAX, _BATCHES_MIN, _BATCHES_MAX = 20, 3, 15
_SLOW_S = 0.05  # no larger size follows one whose operation took this long: over PCIe 256 MiB may take 90 ms
# The first size is small and odd: it takes other code paths than large aligned ones.
_SMALL = 1003 * FLOAT_BYTES
_PAIR_BATCHES = 3


class Sweep(msgspec.Struct, frozen=True):
    """The sizes of one operation, ascending, and its time budget.

    `size_s`: for all batches of one size; `batch_s`: for one batch; after `box_s` no further size begins.
    """

    sizes: tuple[int, ...]
    size_s: float
    batch_s: float
    box_s: float


_CPU_SUM = Sweep((_SMALL, MIB, 16 * MIB), size_s=0.32, batch_s=0.08, box_s=10.0)
_CPU_OTHER = Sweep((_SMALL, MIB, 16 * MIB), size_s=0.05, batch_s=0.01, box_s=1.0)
_GPU_SUM = Sweep((_SMALL, 8 * MIB, 64 * MIB, 256 * MIB), size_s=1.2, batch_s=0.05, box_s=10.0)
_GPU_SUM_FULL = Sweep((*_GPU_SUM.sizes, GIB), size_s=1.2, batch_s=0.05, box_s=15.0)
_GPU_OTHER = Sweep((_SMALL, 64 * MIB, 256 * MIB), size_s=0.4, batch_s=0.05, box_s=3.0)


class _PairSweep(msgspec.Struct, frozen=True):
    """How every pair of ranks is measured; after `box_s` no further pair begins.

    `passes` over all pairs: a disturbance in one pass does not affect the other, and the faster one counts.
    """

    size_bytes: int
    passes: int
    batch_s: float
    box_s: float


_CPU_PAIRS = _PairSweep(MIB, passes=1, batch_s=0.005, box_s=1.5)
_GPU_PAIRS = _PairSweep(64 * MIB, passes=2, batch_s=0.02, box_s=10.0)


class Contributions(msgspec.Struct, frozen=True):
    """Whether every rank's share was in the sum exactly once, and whose was not."""

    ok: bool
    missing_ranks: tuple[int, ...] = ()


class Pace(msgspec.Struct, frozen=True):
    """Operations per batch and number of batches; `once_s`: the time of one operation when they were chosen."""

    operations: int
    batches: int
    once_s: float


def run_collectives(rank: Rank) -> None:
    """Measure all_reduce in float32, at level full also the other collectives and every pair; nothing for one rank."""
    if rank.world_size == 1:
        return
    rank.phase("choose sizes", "collective")
    # two buffers, the expected result, and room for NCCL's own buffers
    largest = rank.smallest(int(torch.cuda.mem_get_info()[0]) // 4) if rank.on_gpu else GIB
    everything = rank.job.level in FULL_LEVELS
    gpu_sum = _GPU_SUM_FULL if everything else _GPU_SUM
    _run_sweep(rank, AllReduce, gpu_sum if rank.on_gpu else _CPU_SUM, largest)
    if everything:
        _run_others(rank, largest)
    if rank.on_gpu:
        torch.cuda.empty_cache()  # the next probes choose their sizes by the free memory


def _run_others(rank: Rank, largest: int) -> None:
    for operation in (AllGather, ReduceScatter, Broadcast, AllToAll, SendRecv):
        try:
            _run_sweep(rank, operation, _GPU_OTHER if rank.on_gpu else _CPU_OTHER, largest)
        except NotOfferedError as error:
            rank.send(LeftOut(operation.name, Missing(str(error), "unsupported")))
    _run_pairs(rank, _GPU_PAIRS if rank.on_gpu else _CPU_PAIRS, largest)


def contributions_to_the_sum(rank: Rank) -> Contributions | None:
    """All-reduce 2^r from every rank r: the bits of the sum show exactly whose share is missing or doubled.

    Equal results on all ranks do not prove that every rank took part; this does. None if there are too many ranks
    for the code to be exact.
    """
    if rank.world_size > _CODED_RANKS_MAX:
        return None
    dtypes = [torch.float32] + ([torch.bfloat16] if rank.world_size <= _BFLOAT_RANKS_MAX else [])
    ok, missing = True, set[int]()
    for dtype in dtypes:
        for count in (256, 100_003):
            values = torch.full((count,), float(2**rank.number), dtype=dtype, device=rank.device)
            with rank.blocked():
                dist.all_reduce(values)
                rank.synchronize()
            found = values.float()
            if bool((found == float(2**rank.world_size - 1)).all()):
                continue
            ok = False
            whole = found.nan_to_num(0.0).to(torch.int64)
            missing |= {r for r in range(rank.world_size) if not bool(((whole >> r) & 1).all())}
    return Contributions(ok, tuple(sorted(missing)))


def _run_sweep(rank: Rank, kind: type[Operation], sweep: Sweep, largest: int) -> None:
    """Measure one operation at increasing sizes, as far as time, memory and the speed of the links allow."""
    began = time.monotonic()
    sizes = [size for size in sweep.sizes if size <= largest]
    for size in sizes:
        rank.phase(f"{kind.name} of {size_text(size)}")
        if size == sizes[-1]:
            rank.fail_if_injected(kind.name)
        contributions = contributions_to_the_sum(rank) if kind is AllReduce and size == sizes[0] else None
        pace = _measure(rank, kind(rank, size), sweep, contributions)
        left_s = sweep.box_s - (time.monotonic() - began)
        if size != sizes[-1] and not rank.from_rank_zero(left_s > 0 and (pace.once_s < _SLOW_S or not rank.on_gpu)):
            rank.fail_if_injected(kind.name)  # faults are injected in the largest size, which turned out to be this one
            return


def _measure(rank: Rank, operation: Operation, sweep: Sweep, contributions: Contributions | None) -> Pace:
    wrong = operation.wrong_elements()
    pace = _pace(rank, operation, sweep)
    batch_s = [_batch_s(rank, operation, pace.operations) for _ in range(pace.batches)]
    wrong = max(wrong, operation.wrong_elements())
    if contributions is not None and not contributions.ok:
        wrong = max(wrong, 1)
    rank.send(
        CollectiveSample(
            op=operation.name,
            size_bytes=operation.size_bytes,
            dtype="float32",
            batch_us=tuple(seconds / pace.operations * 1e6 for seconds in batch_s),
            operations_per_batch=pace.operations,
            wrong_elements=wrong,
            missing_ranks=contributions.missing_ranks if contributions is not None else (),
        )
    )
    return pace


def _pace(rank: Rank, operation: Operation, sweep: Sweep) -> Pace:
    """The number of operations and batches that fit the time budget of one size; the same on all ranks."""
    once_s = max(1, rank.from_rank_zero(int(_batch_s(rank, operation, 2) / 2 * 1e9))) / 1e9
    operations = max(1, min(_OPERATIONS_MAX, int(sweep.batch_s / once_s)))
    batches = max(_BATCHES_MIN, min(_BATCHES_MAX, int(sweep.size_s / (operations * once_s))))
    return Pace(operations, batches, once_s)


def _batch_s(rank: Rank, operation: Operation, operations: int) -> float:
    operation.refresh()
    rank.synchronize()
    rank.barrier()
    return operation.timed_s(operations)


def _run_pairs(rank: Rank, sweep: _PairSweep, largest: int) -> None:
    """Send and receive between two ranks while all others are idle, pair by pair until time is up."""
    began = time.monotonic()
    fault_done = False
    for pair in sweep.passes * list(chain.from_iterable(rounds_of(rank.world_size))):
        rank.phase(f"sendrecv of ranks {pair[0]} and {pair[1]}")
        if rank.number in pair and not fault_done:
            rank.fail_if_injected("pairs")
            fault_done = True
        _measure_pair(rank, pair, min(sweep.size_bytes, largest), sweep.batch_s)
        if not rank.from_rank_zero(time.monotonic() - began < sweep.box_s):
            return


def _measure_pair(rank: Rank, pair: Pair, size_bytes: int, batch_s: float) -> None:
    once_ns = 0
    if rank.number in pair:
        other = pair[1] if rank.number == pair[0] else pair[0]
        operation = SendRecv(rank, size_bytes, target=other, source=other)
        wrong = operation.wrong_elements()
        once_ns = int(operation.timed_s(2) / 2 * 1e9)
    else:
        _stand_by(rank, 2)
    # the slower rank of the pair decides; all ranks take part, since all must make the same moves
    operations = max(1, min(_OPERATIONS_MAX, int(batch_s * 1e9 / max(1, -rank.smallest(-once_ns)))))
    if rank.number not in pair:
        _stand_by(rank, _PAIR_BATCHES + 1)
        return
    batches = [operation.timed_s(operations) for _ in range(_PAIR_BATCHES)]
    rank.send(
        PairSample(
            a=pair[0],
            b=pair[1],
            size_bytes=operation.size_bytes,
            batch_us=tuple(seconds / operations * 1e6 for seconds in batches),
            operations_per_batch=operations,
            wrong_elements=max(wrong, operation.wrong_elements()),
        )
    )


def _stand_by(rank: Rank, moves: int) -> None:
    """Make the pair's moves in advance: if the pair hangs, it must be the pair that is behind."""
    for _ in range(moves):
        with rank.blocked():
            pass
