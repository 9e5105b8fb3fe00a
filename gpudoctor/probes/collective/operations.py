"""The collective operations, each with data that reveals a rank left out, counted twice or out of place."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from gpudoctor.probes.runner.rank import Rank

FLOAT_BYTES = 4

# A prime: no chunk's length is a multiple of it, so chunks in the wrong order differ.
_PERIOD = 1021
_EVERY_SENDER_BYTES = 1 << 20
_NEVER_SENT = -1.0  # shares hold no negative number, so what a rank did not receive is visible

_dist: Any = dist  # not annotated everywhere
# torch 2.13 renamed them and warns about the old names
_all_gather = getattr(_dist, "all_gather_single", None) or _dist.all_gather_into_tensor
_reduce_scatter = getattr(_dist, "reduce_scatter_single", None) or _dist.reduce_scatter_tensor


class NotOfferedError(Exception):
    """This torch's backend lacks the operation; nothing is wrong with the node."""


class Operation:
    """One collective in float32 on buffers of one size.

    `size_bytes` is nccl-tests' size column (for all_gather, reduce_scatter and all_to_all the buffer of
    all ranks together), rounded down to a multiple of the number of ranks; a rank's part has at least one
    number. `enqueue` raises NotOfferedError if the backend lacks the operation.
    """

    name = ""

    def __init__(self, rank: Rank, size_bytes: int) -> None:
        self._rank = rank
        self._count = max(1, size_bytes // FLOAT_BYTES // rank.world_size)  # elements of one rank's part
        self._total = self._count * rank.world_size

    @property
    def size_bytes(self) -> int:
        return self._total * FLOAT_BYTES

    def refresh(self) -> None:
        """Reset the buffers to their state before the first call."""
        raise NotImplementedError

    def enqueue(self) -> None:
        """Start the operation once; on a GPU it may still run on return."""
        raise NotImplementedError

    def timed_s(self, times: int) -> float:
        """Seconds for `times` operations, enqueued back to back and waited for once, as nccl-tests does."""
        with self._rank.blocked():
            start = time.monotonic_ns()
            for _ in range(times):
                self.enqueue()
            self._rank.synchronize()
            return (time.monotonic_ns() - start) / 1e9

    def wrong_elements(self) -> int:
        """Run it once on fresh buffers; the number of elements of this rank's result that are not exactly right."""
        return self._run_once()

    def _run_once(self) -> int:
        self.refresh()
        with self._rank.blocked():
            self.enqueue()
            self._rank.synchronize()
        return self._count_wrong()

    def _count_wrong(self) -> int:
        raise NotImplementedError

    def _share(self, rank_number: int, count: int, start: int = 0) -> torch.Tensor:
        return share(rank_number, count, self._rank.device, start)

    def _unsent(self, count: int) -> torch.Tensor:
        return torch.full((count,), _NEVER_SENT, device=self._rank.device)


class AllReduce(Operation):
    """Every rank gets the sum over all ranks; in place."""

    name = "all_reduce"

    def __init__(self, rank: Rank, size_bytes: int) -> None:
        super().__init__(rank, size_bytes)
        self._count = self._total = max(1, size_bytes // FLOAT_BYTES)
        self._mine = self._share(rank.number, self._count)
        self._buffer = torch.empty_like(self._mine)

    def refresh(self) -> None:
        # Summing in place makes the numbers grow, so they are reset for every batch to stay finite.
        self._buffer.copy_(self._mine)

    def enqueue(self) -> None:
        dist.all_reduce(self._buffer)

    def _count_wrong(self) -> int:
        if self._rank.injected("wrong-sum"):
            self._buffer[self._count // 2] += 1.0
        return _differing(self._buffer, exact_sum(self._rank.world_size, self._count, self._rank.device))


class AllGather(Operation):
    """Every rank gets the parts of all ranks, in rank order."""

    name = "all_gather"

    def __init__(self, rank: Rank, size_bytes: int) -> None:
        super().__init__(rank, size_bytes)
        self._mine = self._share(rank.number, self._count)
        self._gathered = self._unsent(self._total)
        self._forms = [self._as_tensor, self._as_list]

    def refresh(self) -> None:
        self._gathered.fill_(_NEVER_SENT)

    def enqueue(self) -> None:
        _first_offered(self._forms)

    def _as_tensor(self) -> None:
        _all_gather(self._gathered, self._mine)

    def _as_list(self) -> None:
        dist.all_gather(list(self._gathered.chunk(self._rank.world_size)), self._mine)

    def _count_wrong(self) -> int:
        parts = enumerate(self._gathered.chunk(self._rank.world_size))
        return sum(_differing(part, self._share(sender, self._count)) for sender, part in parts)


class ReduceScatter(Operation):
    """Every rank gets its own part of the sum over all ranks."""

    name = "reduce_scatter"

    def __init__(self, rank: Rank, size_bytes: int) -> None:
        super().__init__(rank, size_bytes)
        self._mine = self._share(rank.number, self._total)
        self._sum = self._unsent(self._count)
        self._forms = [self._as_tensor, self._as_list]

    def refresh(self) -> None:
        self._sum.fill_(_NEVER_SENT)

    def enqueue(self) -> None:
        _first_offered(self._forms)

    def _as_tensor(self) -> None:
        _reduce_scatter(self._sum, self._mine)

    def _as_list(self) -> None:
        _dist.reduce_scatter(self._sum, list(self._mine.chunk(self._rank.world_size)))

    def _count_wrong(self) -> int:
        start = self._rank.number * self._count
        return _differing(self._sum, exact_sum(self._rank.world_size, self._count, self._rank.device, start))


class Broadcast(Operation):
    """Every rank gets rank 0's buffer; verified with other senders too, small messages with every sender."""

    name = "broadcast"

    def __init__(self, rank: Rank, size_bytes: int) -> None:
        super().__init__(rank, size_bytes)
        self._count = self._total = max(1, size_bytes // FLOAT_BYTES)
        self._mine = self._share(rank.number, self._count)
        self._buffer = torch.empty_like(self._mine)
        self._sender = 0

    def refresh(self) -> None:
        self._buffer.copy_(self._mine)

    def enqueue(self) -> None:
        dist.broadcast(self._buffer, src=self._sender)

    def wrong_elements(self) -> int:
        everybody = range(self._rank.world_size)
        senders = everybody if self.size_bytes <= _EVERY_SENDER_BYTES else (everybody[-1], 0)
        return sum(self._run_once_from(sender) for sender in senders)

    def _run_once_from(self, sender: int) -> int:
        self._sender = sender
        wrong = self._run_once()
        self._sender = 0  # the sender that is timed
        return wrong

    def _count_wrong(self) -> int:
        return _differing(self._buffer, self._share(self._sender, self._count))


class AllToAll(Operation):
    """Every rank sends a different part of its buffer to each rank."""

    name = "all_to_all"

    def __init__(self, rank: Rank, size_bytes: int) -> None:
        super().__init__(rank, size_bytes)
        self._mine = self._share(rank.number, self._total)
        self._received = self._unsent(self._total)
        self._forms = [self._as_tensor, self._as_list]

    def refresh(self) -> None:
        self._received.fill_(_NEVER_SENT)

    def enqueue(self) -> None:
        _first_offered(self._forms)

    def _as_tensor(self) -> None:
        _dist.all_to_all_single(self._received, self._mine)

    def _as_list(self) -> None:
        ranks = self._rank.world_size
        _dist.all_to_all(list(self._received.chunk(ranks)), list(self._mine.chunk(ranks)))

    def _count_wrong(self) -> int:
        start = self._rank.number * self._count
        parts = enumerate(self._received.chunk(self._rank.world_size))
        return sum(_differing(part, self._share(sender, self._count, start)) for sender, part in parts)


class SendRecv(Operation):
    """A rank sends to one rank and receives from one; by default the next and the previous in a ring of all ranks.

    For a pair, `target` and `source` are the same rank. Size and time are those of one direction.
    """

    name = "sendrecv"

    def __init__(self, rank: Rank, size_bytes: int, *, target: int | None = None, source: int | None = None) -> None:
        super().__init__(rank, size_bytes)
        self._count = self._total = max(1, size_bytes // FLOAT_BYTES)
        self._target = (rank.number + 1) % rank.world_size if target is None else target
        self._source = (rank.number - 1) % rank.world_size if source is None else source
        self._mine = self._share(rank.number, self._count)
        self._received = self._unsent(self._count)

    def refresh(self) -> None:
        self._received.fill_(_NEVER_SENT)

    def enqueue(self) -> None:
        both = [
            _dist.P2POp(dist.isend, self._mine, self._target),
            _dist.P2POp(dist.irecv, self._received, self._source),
        ]
        for work in _dist.batch_isend_irecv(both):
            work.wait()

    def _count_wrong(self) -> int:
        return _differing(self._received, self._share(self._source, self._count))


def share(rank_number: int, count: int, device: torch.device, start: int = 0) -> torch.Tensor:
    """The elements a rank contributes, from position `start` on: whole numbers, a different sequence on each rank."""
    return _repeated(_period_of(rank_number, device), count, start)


def exact_sum(world_size: int, count: int, device: torch.device, start: int = 0) -> torch.Tensor:
    """The sum of all ranks' shares; exact in float32 for any number of ranks in one node."""
    period = torch.stack([_period_of(r, device) for r in range(world_size)]).sum(0)
    return _repeated(period, count, start)


def _period_of(rank_number: int, device: torch.device) -> torch.Tensor:
    position = torch.arange(_PERIOD, device=device)
    return ((position * (rank_number + 1) + 7 * rank_number) % _PERIOD).float()


def _repeated(period: torch.Tensor, count: int, start: int) -> torch.Tensor:
    return period.roll(-start).repeat(count // _PERIOD + 1)[:count].contiguous()


def _differing(found: torch.Tensor, right: torch.Tensor) -> int:
    return int((found != right).sum().item())


def _first_offered(forms: list[Callable[[], None]]) -> None:
    """Call the first form that the backend has; gloo lacks some, and which ones depends on the torch version."""
    while True:
        try:
            forms[0]()
        except RuntimeError as error:  # refused before anything is sent, and so by all ranks alike
            if "support" not in str(error):
                raise
            if len(forms) == 1:
                raise NotOfferedError(str(error).splitlines()[0]) from error
            forms.pop(0)
        else:
            return
