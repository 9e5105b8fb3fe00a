"""The collective operations, each with data that reveals a rank left out, counted twice or out of place."""

from __future__ import annotations

import time
from collections.abc import Iterable
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
    """One collective in float32 on buffers of one size; in place if the result is where the rank's share was.

    `size_bytes` is nccl-tests' size column. `enqueue` raises NotOfferedError if the backend lacks the operation.
    `of_parts`: the size is that of all ranks' parts together, rounded down to a multiple of the number of ranks; a
    part has at least one number.
    """

    name = ""
    in_place = False
    of_parts = sends_part = gets_part = False

    def __init__(self, rank: Rank, size_bytes: int) -> None:
        self._rank = rank
        parts = rank.world_size if self.of_parts else 1
        self._count = max(1, size_bytes // FLOAT_BYTES // parts)  # elements of a part, or of the whole
        self._total = self._count * parts
        received = self._count if self.gets_part else self._total
        self._mine = self._share(rank.number, self._count if self.sends_part else self._total)
        self._result = torch.full((received,), _NEVER_SENT, device=rank.device)

    @property
    def size_bytes(self) -> int:
        return self._total * FLOAT_BYTES

    def refresh(self) -> None:
        """Reset the buffers to their state before the first call: sums in place would grow until they are infinite."""
        if self.in_place:
            self._result.copy_(self._mine)
        else:
            self._result.fill_(_NEVER_SENT)

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
        self.refresh()
        with self._rank.blocked():
            self.enqueue()
            self._rank.synchronize()
        wrong, begin = 0, 0
        for right in self._expected():
            wrong += int((self._result[begin : begin + len(right)] != right).sum().item())
            begin += len(right)
        return wrong

    def _expected(self) -> Iterable[torch.Tensor]:
        """The right result, in one piece or several."""
        raise NotImplementedError

    def _share(self, rank_number: int, count: int, start: int = 0) -> torch.Tensor:
        """The elements a rank contributes, from position `start` on: whole numbers, a different sequence on each."""
        return _repeated(_period_of(rank_number, self._rank.device), count, start)

    def _exact_sum(self, count: int, start: int = 0) -> torch.Tensor:
        """The sum of all ranks' shares; exact in float32 for any number of ranks in one node."""
        every = [_period_of(number, self._rank.device) for number in range(self._rank.world_size)]
        return _repeated(torch.stack(every).sum(0), count, start)


class AllReduce(Operation):
    """Every rank gets the sum over all ranks."""

    name = "all_reduce"
    in_place = True

    def enqueue(self) -> None:
        dist.all_reduce(self._result)

    def _expected(self) -> Iterable[torch.Tensor]:
        if self._rank.injected("wrong-sum"):
            self._result[self._total // 2] += 1.0
        yield self._exact_sum(self._total)


class Broadcast(Operation):
    """Every rank gets rank 0's buffer; verified with other senders too, small messages with every sender."""

    name = "broadcast"
    in_place = True
    _sender = 0  # the one that is timed

    def enqueue(self) -> None:
        dist.broadcast(self._result, src=self._sender)

    def wrong_elements(self) -> int:
        everybody = range(self._rank.world_size)
        wrong = 0
        for sender in everybody if self.size_bytes <= _EVERY_SENDER_BYTES else (everybody[-1], 0):
            self._sender = sender
            wrong += super().wrong_elements()
        self._sender = 0
        return wrong

    def _expected(self) -> Iterable[torch.Tensor]:
        yield self._share(self._sender, self._total)


class SendRecv(Operation):
    """A rank sends to one rank and receives from one; by default the next and the previous in a ring of all ranks.

    For a pair, `target` and `source` are the same rank. Size and time are those of one direction.
    """

    name = "sendrecv"

    def __init__(self, rank: Rank, size_bytes: int, *, target: int | None = None, source: int | None = None) -> None:
        super().__init__(rank, size_bytes)
        self._target = (rank.number + 1) % rank.world_size if target is None else target
        self._source = (rank.number - 1) % rank.world_size if source is None else source

    def enqueue(self) -> None:
        both = [
            _dist.P2POp(dist.isend, self._mine, self._target),
            _dist.P2POp(dist.irecv, self._result, self._source),
        ]
        for work in _dist.batch_isend_irecv(both):
            work.wait()

    def _expected(self) -> Iterable[torch.Tensor]:
        yield self._share(self._source, self._total)


class _OfParts(Operation):
    """An operation in several forms, of which the first that the backend has is taken.

    gloo lacks some, and which ones depends on the torch version.
    """

    of_parts = True

    def __init__(self, rank: Rank, size_bytes: int) -> None:
        super().__init__(rank, size_bytes)
        self._forms = [self._with_tensors, self._with_lists]

    def enqueue(self) -> None:
        while True:
            try:
                self._forms[0]()
            except RuntimeError as error:  # refused before anything is sent, and so by all ranks alike
                if "support" not in str(error):
                    raise
                if len(self._forms) == 1:
                    raise NotOfferedError(str(error).splitlines()[0]) from error
                self._forms.pop(0)
            else:
                return

    def _with_tensors(self) -> None:
        raise NotImplementedError

    def _with_lists(self) -> None:
        raise NotImplementedError

    def _parts(self, whole: torch.Tensor) -> list[torch.Tensor]:
        return list(whole.chunk(self._rank.world_size))


class AllGather(_OfParts):
    """Every rank gets the parts of all ranks, in rank order."""

    name = "all_gather"
    sends_part = True

    def _with_tensors(self) -> None:
        _all_gather(self._result, self._mine)

    def _with_lists(self) -> None:
        dist.all_gather(self._parts(self._result), self._mine)

    def _expected(self) -> Iterable[torch.Tensor]:
        return (self._share(sender, self._count) for sender in range(self._rank.world_size))


class ReduceScatter(_OfParts):
    """Every rank gets its own part of the sum over all ranks."""

    name = "reduce_scatter"
    gets_part = True

    def _with_tensors(self) -> None:
        _reduce_scatter(self._result, self._mine)

    def _with_lists(self) -> None:
        _dist.reduce_scatter(self._result, self._parts(self._mine))

    def _expected(self) -> Iterable[torch.Tensor]:
        yield self._exact_sum(self._count, self._rank.number * self._count)


class AllToAll(_OfParts):
    """Every rank sends a different part of its buffer to each rank."""

    name = "all_to_all"

    def _with_tensors(self) -> None:
        _dist.all_to_all_single(self._result, self._mine)

    def _with_lists(self) -> None:
        _dist.all_to_all(self._parts(self._result), self._parts(self._mine))

    def _expected(self) -> Iterable[torch.Tensor]:
        start = self._rank.number * self._count
        return (self._share(sender, self._count, start) for sender in range(self._rank.world_size))


def _period_of(rank_number: int, device: torch.device) -> torch.Tensor:
    position = torch.arange(_PERIOD, device=device)
    return ((position * (rank_number + 1) + 7 * rank_number) % _PERIOD).float()


def _repeated(period: torch.Tensor, count: int, start: int) -> torch.Tensor:
    return period.roll(-start).repeat(count // _PERIOD + 1)[:count].contiguous()
