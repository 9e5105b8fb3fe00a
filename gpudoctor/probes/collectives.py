"""all_reduce at a few sizes: is the sum right on every rank, and how fast does it come."""

from __future__ import annotations

import time

import msgspec
import torch
import torch.distributed as dist

from gpudoctor.probes.messages import CollectiveSample
from gpudoctor.probes.rank import Rank

KIB, MIB = 1 << 10, 1 << 20
_FLOAT_BYTES = 4

# The first size is small and odd: it takes other code paths than large aligned ones.
CPU_SIZES = (1003 * _FLOAT_BYTES, 1 * MIB, 16 * MIB)
GPU_SIZES = (1003 * _FLOAT_BYTES, 8 * MIB, 64 * MIB, 256 * MIB)

# A prime: no chunk of a ring is a multiple of it, so that a chunk summed in the wrong place shows.
_PERIOD = 1021
_CODED_RANKS_MAX = 24  # 2^0 + ... + 2^23 is exact in float32
_BFLOAT_RANKS_MAX = 8  # 255 is exact in bfloat16


class Contributions(msgspec.Struct, frozen=True):
    """Whether every rank's share was in the sum, exactly once; and whose was not."""

    ok: bool
    missing_ranks: tuple[int, ...] = ()


class _Pace(msgspec.Struct, frozen=True):
    operations: int
    batches: int


def run_collectives(rank: Rank) -> None:
    """Measure all_reduce in float32 at sizes that fit the device; nothing to do for one rank."""
    if rank.world_size == 1:
        return
    rank.phase("choose sizes", "collective")
    fitting = _sizes(rank)
    contributions: Contributions | None = None
    for index, size in enumerate(fitting):
        rank.phase(f"all_reduce of {size_text(size)}")
        if index == len(fitting) - 1:
            rank.stumble("all_reduce")
        if index == 0:
            contributions = contributions_to_the_sum(rank)
        rank.send(_measure(rank, size, contributions if index == 0 else None))


def size_text(size_bytes: int) -> str:
    """A size as people write it: 64 MiB, 4012 B."""
    if size_bytes % MIB == 0:
        return f"{size_bytes // MIB} MiB"
    return f"{size_bytes // KIB} KiB" if size_bytes % KIB == 0 else f"{size_bytes} B"


def contributions_to_the_sum(rank: Rank) -> Contributions | None:
    """Every rank r gives 2^r: the sum tells exactly whose share is missing or doubled.

    Equal results on all ranks do not prove that every rank took part; this does. None where
    there are too many ranks for the code.
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


def share(rank_number: int, count: int, device: torch.device) -> torch.Tensor:
    """What one rank gives: whole numbers below the period, another sequence on each rank."""
    return _repeated(_period_of(rank_number, device), count)


def exact_sum(world_size: int, count: int, device: torch.device) -> torch.Tensor:
    """What the sum of all shares must be; exact in float32 for any number of ranks in one node."""
    period = torch.stack([_period_of(r, device) for r in range(world_size)]).sum(0)
    return _repeated(period, count)


def _period_of(rank_number: int, device: torch.device) -> torch.Tensor:
    position = torch.arange(_PERIOD, device=device)
    return ((position * (rank_number + 1) + 7 * rank_number) % _PERIOD).float()


def _repeated(period: torch.Tensor, count: int) -> torch.Tensor:
    return period.repeat(count // _PERIOD + 1)[:count].contiguous()


def _sizes(rank: Rank) -> list[int]:
    if not rank.on_gpu:
        return list(CPU_SIZES)
    largest = rank.smallest(int(torch.cuda.mem_get_info()[0]) // 4)  # three buffers and room for NCCL's own
    return [size for size in GPU_SIZES if size <= largest]


def _measure(rank: Rank, size: int, contributions: Contributions | None) -> CollectiveSample:
    """Time batches of operations, enqueued back to back and waited for once, as nccl-tests does."""
    count = size // _FLOAT_BYTES
    mine = share(rank.number, count, rank.device)
    buffer = torch.empty_like(mine)
    wrong = _wrong_elements(rank, mine, buffer)
    pace = _pace(rank, mine, buffer)
    batch_us = []
    for _ in range(pace.batches):
        batch_us.append(_batch_s(rank, mine, buffer, pace.operations) / pace.operations * 1e6)
    wrong = max(wrong, _wrong_elements(rank, mine, buffer))
    if contributions is not None and not contributions.ok:
        wrong = max(wrong, 1)
    return CollectiveSample(
        op="all_reduce",
        size_bytes=size,
        dtype="float32",
        batch_us=tuple(batch_us),
        operations_per_batch=pace.operations,
        wrong_elements=wrong,
        missing_ranks=contributions.missing_ranks if contributions is not None else (),
    )


def _wrong_elements(rank: Rank, mine: torch.Tensor, buffer: torch.Tensor) -> int:
    buffer.copy_(mine)
    with rank.blocked():
        dist.all_reduce(buffer)
        rank.synchronize()
    if rank.injected("wrong-sum"):
        buffer[buffer.numel() // 2] += 1.0
    return int((buffer != exact_sum(rank.world_size, buffer.numel(), rank.device)).sum().item())


def _pace(rank: Rank, mine: torch.Tensor, buffer: torch.Tensor) -> _Pace:
    """How many operations a batch and how many batches fit the time that one size may take."""
    budget_s, batch_s = (1.2, 0.05) if rank.on_gpu else (0.3, 0.02)
    once_s = rank.from_rank_zero(int(_batch_s(rank, mine, buffer, 2) / 2 * 1e9)) / 1e9
    operations = max(1, min(20, int(batch_s / once_s)))
    return _Pace(operations, max(3, min(15, int(budget_s / (operations * once_s)))))


def _batch_s(rank: Rank, mine: torch.Tensor, buffer: torch.Tensor, operations: int) -> float:
    # Summing in place grows the numbers each time: start afresh so that they stay finite.
    buffer.copy_(mine)
    rank.synchronize()
    rank.barrier()
    with rank.blocked():
        start = time.monotonic_ns()
        for _ in range(operations):
            dist.all_reduce(buffer)
        rank.synchronize()
        return (time.monotonic_ns() - start) / 1e9
