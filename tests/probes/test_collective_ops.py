"""What verification detects: every operation in a world of threads, in which received data can be corrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from tests.needs import module

torch = module("torch")

from gpudoctor.probes.collective import operations as collective_ops  # noqa: E402
from gpudoctor.probes.collective import probe as collectives  # noqa: E402
from gpudoctor.probes.collective.operations import (  # noqa: E402
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    NotOfferedError,
    Operation,
    ReduceScatter,
    SendRecv,
)
from gpudoctor.probes.runner.rank import Rank  # noqa: E402
from tests.probes.conftest import raising  # noqa: E402

WORLD = 4
OPERATIONS: tuple[type[Operation], ...] = (AllReduce, AllGather, ReduceScatter, Broadcast, AllToAll, SendRecv)
Parts = list[Any]  # one tensor a rank: what each of them gives


class Network:
    """Carries what each rank gives to all. `spoil` is what goes wrong on the way; a rank gets the result of the one
    `shift` further.
    """

    def __init__(self, spoil: Callable[[Parts], Parts], shift: int) -> None:
        self._spoil, self._shift = spoil, shift
        self._given: Parts = [None] * WORLD
        self._met = threading.Barrier(WORLD, timeout=30)
        self.me = threading.local()

    def _exchange(self, given: Any) -> Parts:
        self._given[self.me.rank] = given.clone()
        self._met.wait()
        arrived = self._spoil(list(self._given))
        self._met.wait()
        return arrived

    def _place(self) -> int:
        return cast(int, (self.me.rank + self._shift) % WORLD)

    def all_reduce(self, buffer: Any) -> None:
        buffer.copy_(sum(self._exchange(buffer)))

    def all_gather(self, gathered: Any, mine: Any) -> None:
        gathered.copy_(torch.cat(self._exchange(mine)))

    def reduce_scatter(self, part: Any, mine: Any) -> None:
        part.copy_(torch.stack(self._exchange(mine)).sum(0).chunk(WORLD)[self._place()])

    def broadcast(self, buffer: Any, src: int) -> None:
        buffer.copy_(self._exchange(buffer)[src])

    def all_to_all_single(self, received: Any, mine: Any) -> None:
        received.copy_(torch.cat([part.chunk(WORLD)[self._place()] for part in self._exchange(mine)]))

    def batch_isend_irecv(self, both: list[Any]) -> list[Any]:
        (_, sent, _), (_, received, source) = both
        received.copy_(self._exchange(sent)[source])
        return []


def rank(number: int) -> Rank:
    """The parts of a rank that an operation uses."""
    cpu = torch.device("cpu")
    parts = {"blocked": nullcontext, "synchronize": lambda: None, "injected": lambda kind: None}
    return cast(Rank, SimpleNamespace(number=number, world_size=WORLD, device=cpu, **parts))


def carried_by(monkeypatch: pytest.MonkeyPatch, network: Any) -> None:
    names = ("all_reduce", "broadcast", "all_to_all_single", "batch_isend_irecv")
    calls = {name: getattr(network, name) for name in names}
    fake = SimpleNamespace(**calls, P2POp=lambda *what: what, isend="isend", irecv="irecv")
    monkeypatch.setattr(collective_ops, "dist", fake)
    monkeypatch.setattr(collective_ops, "_dist", fake)
    monkeypatch.setattr(collective_ops, "_all_gather", network.all_gather)
    monkeypatch.setattr(collective_ops, "_reduce_scatter", network.reduce_scatter)


def wrong_by_rank(
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Operation],
    spoil: Callable[[Parts], Parts] = lambda parts: parts,
    shift: int = 0,
) -> list[int]:
    """How many wrong elements each rank finds."""
    network = Network(spoil, shift)
    carried_by(monkeypatch, network)
    found = [-1] * WORLD

    def run(number: int) -> None:
        network.me.rank = number
        found[number] = kind(rank(number), 4 * 8 * 1003).wrong_elements()

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(WORLD)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("kind", OPERATIONS)
def test_what_arrives_as_it_should_is_right_on_every_rank(
    monkeypatch: pytest.MonkeyPatch, kind: type[Operation]
) -> None:
    assert wrong_by_rank(monkeypatch, kind) == [0] * WORLD


def _rotated(parts: Parts) -> Parts:
    return parts[1:] + parts[:1]


def _swapped(parts: Parts) -> Parts:
    return [parts[1], parts[0], *parts[2:]]


def _dropped(parts: Parts) -> Parts:
    return [torch.zeros_like(parts[0]), *parts[1:]]


def _doubled(parts: Parts) -> Parts:
    return [parts[1], *parts[1:]]


def _one_bit(parts: Parts) -> Parts:
    for part in parts:
        part[17] += 1
    return parts


# a sum does not depend on the order of the ranks
ORDERED = (AllGather, Broadcast, AllToAll, SendRecv)


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [(kind, spoil) for kind in OPERATIONS for spoil in (_dropped, _doubled, _one_bit)]
    + [(kind, spoil) for kind in ORDERED for spoil in (_rotated, _swapped)],
)
def test_a_rank_out_of_place_left_out_doubled_or_off_by_one_shows(
    monkeypatch: pytest.MonkeyPatch, kind: type[Operation], spoil: Callable[[Parts], Parts]
) -> None:
    assert max(wrong_by_rank(monkeypatch, kind, spoil)) > 0


@pytest.mark.parametrize("kind", [ReduceScatter, AllToAll])
def test_the_part_that_belongs_to_the_next_rank_is_wrong_nearly_everywhere(
    monkeypatch: pytest.MonkeyPatch, kind: type[Operation]
) -> None:
    assert min(wrong_by_rank(monkeypatch, kind, shift=1)) > 1000


@pytest.mark.parametrize("kind", OPERATIONS)
def test_a_call_that_moves_nothing_is_wrong(monkeypatch: pytest.MonkeyPatch, kind: type[Operation]) -> None:
    carried_by(monkeypatch, MagicMock(**{"batch_isend_irecv.return_value": []}))
    assert kind(rank(1), 4 * 8 * 1003).wrong_elements() > 0


@pytest.mark.parametrize(("size", "senders"), [(4012, [0, 1, 2, 3]), (4 << 20, [3, 0])])
def test_a_broadcast_is_verified_from_other_senders_too_and_timed_from_rank_0(
    monkeypatch: pytest.MonkeyPatch, size: int, senders: list[int]
) -> None:
    seen = []

    def broadcast(buffer: Any, src: int) -> None:
        seen.append(src)
        buffer.copy_(operation._share(src, buffer.numel()))

    monkeypatch.setattr(collective_ops, "dist", SimpleNamespace(broadcast=broadcast))
    operation = Broadcast(rank(1), size)
    assert operation.wrong_elements() == 0
    assert seen == senders
    operation.timed_s(2)
    assert seen[-2:] == [0, 0]


@pytest.mark.parametrize("world_size", range(2, 17))
def test_no_two_parts_of_a_buffer_hold_the_same_numbers(world_size: int) -> None:
    sweeps = (collectives._CPU_OTHER, collectives._GPU_OTHER)
    for size in {size for sweep in sweeps for size in sweep.sizes}:
        assert (size // 4 // world_size) % collective_ops._PERIOD != 0


@pytest.mark.parametrize("kind", [AllGather, ReduceScatter, AllToAll])
def test_sizes_are_those_of_the_whole_buffer_and_divide_among_the_ranks(kind: type[Operation]) -> None:
    operation = kind(rank(0), 1 << 20)
    assert operation.size_bytes == 1 << 20
    assert kind(rank(0), 4012).size_bytes == 4000
    assert kind(rank(0), 4).size_bytes == 4 * WORLD, "never less than one number a rank"


def test_the_list_form_is_taken_where_the_backend_lacks_the_tensor_form(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_gather(parts: list[Any], mine: Any) -> None:
        for number, part in enumerate(parts):
            part.copy_(operation._share(number, part.numel()))

    monkeypatch.setattr(
        collective_ops, "_all_gather", raising(RuntimeError("no support for _allgather_base in Gloo process group"))
    )
    monkeypatch.setattr(collective_ops, "dist", SimpleNamespace(all_gather=all_gather))
    operation = AllGather(rank(3), 4012)
    assert operation.wrong_elements() == 0


def test_an_operation_that_the_backend_lacks_in_every_form_is_told_apart_from_one_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = raising(RuntimeError("ProcessGroupGloo does not support reduce_scatter\nsecond line"))
    monkeypatch.setattr(collective_ops, "_reduce_scatter", refused)
    monkeypatch.setattr(collective_ops, "_dist", SimpleNamespace(reduce_scatter=refused))
    with pytest.raises(NotOfferedError, match=r"^ProcessGroupGloo does not support reduce_scatter$"):
        ReduceScatter(rank(0), 4012).enqueue()
    monkeypatch.setattr(collective_ops, "_reduce_scatter", raising(RuntimeError("Connection closed by peer")))
    with pytest.raises(RuntimeError, match="closed by peer"):
        ReduceScatter(rank(0), 4012).enqueue()
