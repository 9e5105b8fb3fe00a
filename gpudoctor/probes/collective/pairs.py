"""Every pair of ranks: send and receive between the two, while all others idle."""

from __future__ import annotations

import time
from itertools import chain

from gpudoctor.probes.collective.merge import rounds_of
from gpudoctor.probes.collective.operations import SendRecv
from gpudoctor.probes.runner.messages import PairSample
from gpudoctor.probes.runner.rank import Rank

_OPERATIONS_MAX = 20
_GPU_PASSES, _CPU_PASSES = 2, 1  # what disturbed one pass does not disturb the other: the better one counts
_GPU_BATCH_S, _CPU_BATCH_S = 0.02, 0.005
_BATCHES = 3
_GPU_BOX_S, _CPU_BOX_S = 10.0, 1.5


def run_pairs(rank: Rank, size_bytes: int) -> None:
    """Measure one pair after the other until time is up, so that each has the machine to itself."""
    began = time.monotonic()
    box_s = _GPU_BOX_S if rank.on_gpu else _CPU_BOX_S
    passes = _GPU_PASSES if rank.on_gpu else _CPU_PASSES
    stumbled = False
    for pair in passes * list(chain.from_iterable(rounds_of(rank.world_size))):
        rank.phase(f"sendrecv of ranks {pair[0]} and {pair[1]}")
        if rank.number in pair and not stumbled:
            rank.stumble("pairs")
            stumbled = True
        _measure(rank, pair, size_bytes)
        if not rank.from_rank_zero(time.monotonic() - began < box_s):
            return


def _measure(rank: Rank, pair: tuple[int, int], size_bytes: int) -> None:
    batch_s = _GPU_BATCH_S if rank.on_gpu else _CPU_BATCH_S
    once_ns = 0
    if rank.number in pair:
        other = pair[1] if rank.number == pair[0] else pair[0]
        operation = SendRecv(rank, size_bytes, target=other, source=other)
        wrong = operation.wrong_elements()
        once_ns = int(operation.timed_s(2) / 2 * 1e9)
    else:
        _stand_by(rank, 2)
    # the slower of the two decides, and everybody must know: moves are counted
    operations = max(1, min(_OPERATIONS_MAX, int(batch_s * 1e9 / max(1, -rank.smallest(-once_ns)))))
    if rank.number not in pair:
        _stand_by(rank, _BATCHES + 1)
        return
    batches = [operation.timed_s(operations) for _ in range(_BATCHES)]
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
    """Be ahead by the moves that the pair makes: where the two hang, they must be the ones that are behind."""
    for _ in range(moves):
        with rank.blocked():
            pass
