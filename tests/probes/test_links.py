"""The link probe: on CPU ranks it has nothing to measure; on played GPUs it takes its steps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.needs import module

torch = module("torch")

from gpudoctor.facts.model.measurements import TorchView  # noqa: E402
from gpudoctor.facts.model.missing import Missing  # noqa: E402
from gpudoctor.probes.link import peer_copies  # noqa: E402
from gpudoctor.probes.link import probe as links  # noqa: E402
from gpudoctor.probes.runner import messages  # noqa: E402
from gpudoctor.probes.runner.plan import ProbePlan  # noqa: E402
from gpudoctor.probes.runner.rank_starter import visible_gpus  # noqa: E402
from gpudoctor.probes.runner.torch_device import numbered, power_of_two, require_usable  # noqa: E402
from tests.narrowed import missing, present  # noqa: E402
from tests.probes.conftest import Played, collecting, measure, raising  # noqa: E402
from tests.probes.fake_gpus import GpuRank  # noqa: E402

pytestmark = pytest.mark.usefixtures("forked_starters")

MIB = 1 << 20


def test_cpu_ranks_have_no_link_and_that_is_no_problem() -> None:
    found = measure(ProbePlan("gloo", ranks=2, probes=("link",), level="full"))
    assert (found.problems, found.host_links, found.peer_links) == ((), (), ())
    assert found.not_run["link"] == Missing("CPU ranks have no link to a GPU")


def test_host_copies_are_timed_both_ways_and_compared(played: Played) -> None:
    one = played()
    links.run_links(one)
    sample = one.one(messages.LinkSample)
    host = present(sample.host)
    assert host.size_bytes == 16 * MIB, "a quarter of what is free, as a power of two"
    assert host.h2d_alone_gb_s == host.d2h_alone_gb_s == pytest.approx(16 * MIB / 1e-3 / 1e9)
    assert host.wrong_bytes == 0
    missing(host.h2d_together_gb_s)
    assert sample.peers == ()
    assert sample.no_peers == Missing("one GPU: there is no other to copy to")


def test_a_byte_that_is_lost_on_the_way_is_counted(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    one = played()
    honest, copies = torch.Tensor.copy_, iter(range(9))

    def lossy(target: Any, source: Any, non_blocking: bool = False) -> Any:
        honest(target, source)
        if next(copies) == 1:  # 0 fills what is sent, 1 brings it to the GPU, 2 fetches it
            target[5] ^= 1 << 9
        return target

    monkeypatch.setattr(torch.Tensor, "copy_", lossy)
    monkeypatch.setattr(links, "_copy_gb_s", lambda *_: 1.0)
    links.run_links(one)
    assert one.one(messages.LinkSample).host.wrong_bytes == 1


@pytest.mark.parametrize("lost", [1, 2])
def test_a_copy_that_never_arrives_is_not_taken_for_the_one_before(
    played: Played, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    one = played()
    made = present(links._allocated(one, 16 * MIB))
    made.device.copy_(made.sent)
    made.returned.copy_(made.sent)
    monkeypatch.setattr(links, "_buffers", lambda _rank: made)
    monkeypatch.setattr(links, "_copy_gb_s", lambda *_: 1.0)
    honest, copies = torch.Tensor.copy_, iter((1, 2))
    monkeypatch.setattr(torch.Tensor, "copy_", lambda target, source: next(copies) == lost or honest(target, source))
    links.run_links(one)
    assert one.one(messages.LinkSample).host.wrong_bytes > 15 * MIB


def test_pinned_memory_that_runs_out_makes_smaller_copies(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    one, honest = played(free_bytes=128 * MIB), torch.empty

    def short(count: int, **options: Any) -> Any:
        if options.get("pin_memory") and count * 4 > 20 * MIB:
            raise RuntimeError("CUDA error: out of memory")
        return honest(count, **options)

    monkeypatch.setattr(torch, "empty", short)
    links.run_links(one)
    assert one.one(messages.LinkSample).host.size_bytes == 16 * MIB


def test_no_pinned_memory_at_all_is_told(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    one = played()
    monkeypatch.setattr(torch, "empty", raising(RuntimeError("CUDA error: out of memory")))
    with pytest.raises(RuntimeError, match="not even 32 MiB of pinned host memory"):
        links.run_links(one)
    monkeypatch.setattr(torch, "empty", raising(RuntimeError("CUDA error: unspecified launch failure")))
    with pytest.raises(RuntimeError, match="launch failure"):
        links.run_links(one)


@pytest.fixture
def host_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "measure_peers", lambda _rank: ((), None))


@pytest.mark.parametrize(
    ("cpulist", "near"), [("{own}", True), ("4000-4007", False), ("", "names no CPUs"), (None, "No such file")]
)
def test_the_copies_run_near_the_gpu_where_that_is_allowed(
    played: Played,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    host_only: None,
    cpulist: str | None,
    near: bool | str,
) -> None:
    one = played()
    allowed = os.sched_getaffinity(0)
    first = min(allowed)
    folder = tmp_path / "GPU-0"
    folder.mkdir()
    if cpulist is not None:
        (folder / "local_cpulist").write_text(cpulist.format(own=first) + "\n")
    monkeypatch.setattr(links, "_DEVICES", tmp_path)
    monkeypatch.setattr(links, "_copy_gb_s", lambda *_: 1.0)
    during: list[set[int]] = []
    rates = links._rates

    def watched(buffers: Any) -> Any:
        during.append(os.sched_getaffinity(0))
        return rates(buffers)

    monkeypatch.setattr(links, "_rates", watched)
    links.run_links(one)
    found = one.one(messages.LinkSample).host.near_cpus
    assert str(near) in found.missing if isinstance(found, Missing) else found is near
    assert during[0] == ({first} if near is True else allowed)
    assert os.sched_getaffinity(0) == allowed


@pytest.mark.parametrize("number", [0, 1, 2])
def test_each_rank_copies_to_every_other_gpu_in_turn(played: Played, number: int) -> None:
    one = played(gpus=3, number=number)
    found, why_not = peer_copies.measure_peers(one)
    assert why_not is None
    others = [n for n in range(3) if n != number]
    assert [(link.source, link.target) for link in found] == [(number, other) for other in others]
    assert all(link.p2p is True and link.wrong_elements == 0 for link in found)
    assert all(link.gb_s == pytest.approx(link.size_bytes / 1e-3 / 1e9) for link in found)
    measured = [isinstance(link.both_ways_gb_s, float) for link in found]
    assert measured == [number < other for other in others], "once a pair, from its lower end"
    assert one.barriers == 6, "all ranks wait for each other after every turn"
    assert one.phases[1:] == [f"copies from rank {a}'s GPU to rank {b}'s" for a in range(3) for b in range(3) if a != b]


def test_the_own_gpu_is_the_first_and_the_others_follow_in_the_order_of_ranks() -> None:
    uuids = ["a", "b", "c", "d"]
    for number in range(4):
        shown = visible_gpus(number, uuids, ["link"])
        assert shown[0] == uuids[number]
        assert [shown[peer_copies.device_of(number, o).index] for o in range(4) if o != number] == [
            u for u in uuids if u != uuids[number]
        ]
        assert visible_gpus(number, uuids, ["train"]) == [uuids[number]]


def test_elements_that_arrive_changed_are_counted(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    one, honest = played(gpus=2), torch.Tensor.copy_

    def lossy(target: Any, source: Any, non_blocking: bool = False) -> Any:
        honest(target, source)
        if non_blocking:
            target[3:5] += 1
        return target

    monkeypatch.setattr(torch.Tensor, "copy_", lossy)
    [link], _ = peer_copies.measure_peers(one)
    assert link.wrong_elements == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "exclusive mode"),
        ("CUDA out of memory.", "no memory for a second process"),
    ],
)
def test_a_gpu_that_takes_no_second_process_is_no_fault(
    played: Played, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    one = played(gpus=2)
    monkeypatch.setattr(torch, "zeros", raising(RuntimeError(text)))
    found, why_not = peer_copies.measure_peers(one)
    assert found == ()
    missing(why_not, "denied", words)


def test_another_error_of_the_other_gpu_is_not_swallowed(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    one = played(gpus=2)
    monkeypatch.setattr(torch, "zeros", raising(RuntimeError("CUDA error: unspecified launch failure")))
    with pytest.raises(RuntimeError, match="launch failure"):
        peer_copies.measure_peers(one)


def test_gpus_that_a_cgroup_hides_are_said(played: Played) -> None:
    found, why_not = peer_copies.measure_peers(played(gpus=1, world_size=2))
    assert (found, why_not) == ((), Missing("this process may open 1 of the 2 GPUs only", "denied"))


@pytest.mark.parametrize(("free_mib", "sizes"), [(7, []), (64, [2 * MIB, 2 * MIB]), (8, [MIB, MIB])])
def test_on_a_nearly_full_gpu_copies_shrink_and_then_there_are_none(
    played: Played, monkeypatch: pytest.MonkeyPatch, free_mib: int, sizes: list[int]
) -> None:
    """Never copies of nothing, at 0 GB/s; memory that another process takes meanwhile makes them smaller still."""
    ranks = [played(gpus=2, free_bytes=free_mib * MIB, number=number) for number in range(2)]
    honest = torch.empty

    def full(count: int, **options: Any) -> Any:
        if count * 4 > 2 * MIB:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return honest(count, **options)

    monkeypatch.setattr(torch, "empty", full)
    found = []
    for one in ranks:
        links, why_not = peer_copies.measure_peers(one)
        found += [link.size_bytes for link in links]
    assert found == sizes
    none_left = Missing("no memory for copies: the fullest GPU has 7 MiB left", "denied")
    assert why_not == (None if sizes else none_left)


FULL = raising(torch.cuda.OutOfMemoryError("CUDA out of memory."))


def test_a_second_pair_of_buffers_that_does_not_fit_costs_only_the_rate_of_both_ways(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = played(gpus=2)
    monkeypatch.setattr(torch, "empty_like", FULL)
    [link], _ = peer_copies.measure_peers(one)
    assert link.both_ways_gb_s == Missing("no memory for a second pair of buffers")
    assert link.gb_s > 0


def test_a_gpu_without_room_for_the_smallest_copy_is_out_of_memory(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = played(gpus=2)
    monkeypatch.setattr(torch, "empty", FULL)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        peer_copies.measure_peers(one)


def test_more_peers_than_cuda_maps_leave_out_pairs_and_say_so(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    one = played(gpus=3)
    ways = iter((peer_copies._one_way, raising(RuntimeError("CUDA error: peer mapping resources exhausted"))))

    def limited(pair: Any, give_s: float) -> Any:
        return next(ways)(pair, give_s)

    monkeypatch.setattr(peer_copies, "_one_way", limited)
    found, why_not = peer_copies.measure_peers(one)
    assert [link.target for link in found] == [1]
    missing(why_not, "unsupported", "maps no more peers")


def test_the_pattern_tells_places_and_senders_apart() -> None:
    pattern = numbered(1 << 16, 3, torch.device("cpu"))
    assert len(set(pattern.tolist())) == 1 << 16
    assert int((pattern == numbered(1 << 16, 4, torch.device("cpu"))).sum()) == 0
    assert [power_of_two(256, share) for share in (1000, 100, 1, 0)] == [256, 64, 1, 1]


def _view(count: int, uuids: tuple[str, ...] | Missing) -> TorchView:
    return TorchView("2.9.1+cu128", "12.8", "2.27.5", True, count, uuids)


@pytest.mark.parametrize(
    ("views", "count"),
    [
        ([_view(2, ("GPU-0", "GPU-1")), _view(2, ("GPU-1", "GPU-0"))], 2),
        ([_view(1, ("GPU-0",)), _view(1, ("GPU-1",))], 2),
        ([_view(2, Missing("old")), _view(2, Missing("old"))], 2),
        ([_view(1, Missing("old")), _view(1, Missing("old"))], 2),
    ],
)
def test_every_gpu_counts_once_however_many_ranks_saw_it(tmp_path: Path, views: list[TorchView], count: int) -> None:
    gpus = ((0, "GPU-0", "a"), (1, "GPU-1", "b"))
    outcome = collecting(ProbePlan("nccl", 2, gpus, probes=("link",)), tmp_path)
    for number, view in enumerate(views):
        outcome.take(number, messages.TorchSeen(view))
    merged = present(outcome.measurements().torch_view)
    assert merged.device_count == count
    assert merged.visible_uuids in (("GPU-0", "GPU-1"), Missing("old"))


def test_why_there_are_no_copies_between_gpus_is_kept(tmp_path: Path) -> None:
    outcome = collecting(ProbePlan("nccl", 1, ((0, "GPU-0", "a"),), probes=("link",)), tmp_path)
    outcome.take(0, messages.LinkSample(no_peers=Missing("one GPU")))
    assert outcome.measurements().not_run["peer"] == Missing("one GPU")


@pytest.mark.parametrize(("count", "refused"), [(0, True), (1, False), (2, False), (3, True)])
def test_a_rank_accepts_to_see_its_own_gpu_only_and_no_stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, refused: bool
) -> None:
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    one = GpuRank(tmp_path, world_size=2)
    view = _view(count, ("GPU-0", "GPU-1")[:count])
    if refused:
        with pytest.raises(RuntimeError, match=f"sees {count} GPUs"):
            require_usable(one, view)
    else:
        require_usable(one, view)
