"""How CUDA reads the variable, entry by entry."""

from __future__ import annotations

import pytest

from gpudoctor.checks.core.cuda_device_list import resolve
from gpudoctor.facts.model.gpu import MigInstance, Settings
from gpudoctor.facts.model.missing import Missing
from tests.checks.one_check import gpu, gpus, uuid_of

EIGHT = gpus(8)


def mig_settings(*uuids: str) -> Settings:
    instances = tuple(MigInstance(uuid=u, gpu_instance=7 + i, compute_instance=0) for i, u in enumerate(uuids))
    return Settings(mig_enabled=True, mig_instances=instances)


MIG = (
    gpu(0, settings=mig_settings("MIG-aaaa", "MIG-bbbb")),
    gpu(1, settings=mig_settings("MIG-cccc")),
    gpu(2),
)


@pytest.mark.parametrize(
    ("value", "visible"),
    [
        (None, range(8)),
        ("0,1,2", (0, 1, 2)),
        ("2,1", (2, 1)),
        ("1gpu2,2ampere", (1, 2)),
        (" 3, +4,\t5 ", (3, 4, 5)),
        ("007", (7,)),
        ("-0", (0,)),
        ("1.5,2", (1, 2)),
        ("0x1", (0,)),
        ("0,1,", (0, 1)),
        ("0,2,-1", (0, 2)),
        (uuid_of(3), (3,)),
        ("GPU-3333,GPU-1", (3, 1)),
    ],
)
def test_a_list_that_cuda_understands_shows_these_gpus_in_this_order(value: str | None, visible: range) -> None:
    seen = resolve(value, EIGHT)
    assert seen.visible == tuple(visible)
    assert seen.problems == ()
    assert seen.hidden_on_purpose == tuple(i for i in range(8) if i not in visible)
    assert seen.hidden_by_mistake == ()
    assert seen.uuids == tuple(uuid_of(i) for i in visible)


@pytest.mark.parametrize(
    ("value", "visible", "cut_at", "why"),
    [
        ("0,1,9", (0, 1), "9", "9 does not exist on a node with GPUs 0-7"),
        ("0,9,2", (0,), "9", "does not exist"),
        ("0,2,-1,1", (0, 2), "-1", "negative numbers end the list"),
        (",0", (), "", "the entry is empty"),
        ("0,gpu1", (0,), "gpu1", "not a number"),
        ("0," + uuid_of(1), (0,), uuid_of(1), "starts with an index cannot hold UUIDs"),
        (uuid_of(1) + ",0", (1,), "0", "can hold nothing else"),
        (uuid_of(1) + ", " + uuid_of(2), (1,), " " + uuid_of(2), "a blank before the UUID"),
        ("gpu-1111", (), "gpu-1111", "not a number"),
        ("GPU-1111,GPU-ffff", (1,), "GPU-ffff", "no GPU of this node has this UUID"),
        ("GPU-,GPU-1", (), "GPU-", "fits more than one GPU"),
        ("9" * 5000, (), "9" * 5000, "does not exist"),
        ("MIG-1234", (), "MIG-1234", "no MIG instance of this node"),
        ("²", (), "²", "not a number"),
    ],
)
def test_the_first_bad_entry_cuts_the_list_and_is_named(
    value: str, visible: tuple[int, ...], cut_at: str, why: str
) -> None:
    seen = resolve(value, EIGHT)
    assert seen.visible == visible
    assert seen.cut_at == cut_at
    assert why in " ".join(seen.problems)


@pytest.mark.parametrize("value", ["0,0", "1,0, 1", "1gpu,1", f"{uuid_of(2)},GPU-2222", "0,9,0", "9,9"])
def test_a_repeated_entry_leaves_no_gpu_at_all(value: str) -> None:
    seen = resolve(value, EIGHT)
    assert seen.visible == ()
    assert seen.hides_all
    assert "appears twice" in seen.problems[0]


def test_a_repeat_and_an_index_that_does_not_exist_are_both_told() -> None:
    seen = resolve("0,0,9", EIGHT)
    assert seen.visible == ()
    assert seen.hidden_by_mistake == (0,)
    assert seen.problems == (
        "0 appears twice, and CUDA then shows no GPU at all",
        "9 does not exist on a node with GPUs 0-7",
    )


def test_a_repeat_behind_the_end_of_the_list_does_not_count() -> None:
    assert resolve("0,-1,0", EIGHT).visible == (0,)


@pytest.mark.parametrize("value", ["", "  ", "-1", "NoDevFiles", ","])
def test_these_hide_every_gpu_and_mean_it(value: str) -> None:
    seen = resolve(value, EIGHT)
    assert seen.visible == ()
    assert seen.hides_all
    assert seen.problems == ()
    assert seen.hidden_on_purpose == tuple(range(8))


def test_gpus_named_behind_the_cut_are_hidden_by_mistake_and_others_on_purpose() -> None:
    seen = resolve("0,9,2", EIGHT)
    assert seen.hidden_by_mistake == (2,)
    assert seen.hidden_on_purpose == (1, 3, 4, 5, 6, 7)


def test_a_node_with_one_gpu_says_so() -> None:
    assert "on a node with GPU 0 only" in resolve("1", gpus(1)).problems[0]


def test_a_node_without_gpus_hides_nothing() -> None:
    assert not resolve("0", ()).hides_all


def test_a_uuid_prefix_is_case_sensitive() -> None:
    named = (gpu(0, uuid="GPU-abcd0000"),)
    assert resolve("GPU-abcd", named).visible == (0,)
    assert resolve("GPU-ABCD", named).visible == ()


def test_unknown_uuids_leave_the_question_open() -> None:
    nameless = (gpu(0, uuid=Missing("not in this capture")), gpu(1))
    seen = resolve("GPU-9999", nameless)
    assert seen.unresolved
    assert not seen.hides_all
    assert resolve("GPU-1111", nameless).visible == (1,)


def test_indices_count_in_bus_order() -> None:
    swapped = (
        gpu(0, uuid="GPU-a"),
        gpu(1, uuid="GPU-b"),
    )
    assert resolve("0", tuple(reversed(swapped))).uuids == ("GPU-a",)


def test_a_mig_instance_is_found_by_its_uuid_and_by_its_place_on_the_gpu() -> None:
    assert resolve("MIG-bbbb", MIG).uuids == ("MIG-bbbb",)
    by_place = resolve(f"MIG-{uuid_of(0)}/8/0", MIG)
    assert (by_place.visible, by_place.uuids) == ((0,), ("MIG-bbbb",))
    assert resolve(f"MIG-{uuid_of(0)}/99/0", MIG).problems


def test_of_several_mig_instances_cuda_uses_the_first() -> None:
    seen = resolve("MIG-bbbb,MIG-cccc", MIG)
    assert seen.uuids == ("MIG-bbbb",)
    assert "one MIG instance and nothing else" in seen.notes[0]


def test_two_instances_of_one_gpu_are_not_a_repeat_but_the_same_one_twice_is() -> None:
    assert resolve("MIG-aaaa,MIG-bbbb", MIG).visible == (0,)
    assert resolve("MIG-aaaa,MIG-aaaa", MIG).visible == ()


def test_a_mig_gpu_by_index_or_uuid_gives_its_first_instance() -> None:
    assert resolve("1", MIG).uuids == ("MIG-cccc",)
    assert resolve(uuid_of(1), MIG).uuids == ("MIG-cccc",)


def test_mig_hides_the_whole_gpus_beside_it() -> None:
    seen = resolve(None, MIG)
    assert (seen.visible, seen.uuids) == ((0,), ("MIG-aaaa",))
    assert seen.hidden_on_purpose == (1, 2)


def test_a_mig_gpu_without_instances_ends_the_list() -> None:
    empty = (gpu(0), gpu(1, settings=Settings(mig_enabled=True, mig_instances=())))
    seen = resolve("0,1", empty)
    assert seen.visible == (0,)
    assert "has no instance" in seen.problems[0]


def test_instances_that_were_not_read_leave_the_question_open() -> None:
    unread = (gpu(0, settings=Settings(mig_enabled=True)),)
    assert resolve("MIG-aaaa", unread).unresolved
    assert resolve("0", unread).visible == (0,)
    nameless = (gpu(0, settings=Settings(mig_enabled=True, mig_instances=(MigInstance(),))),)
    assert resolve("MIG-aaaa", nameless).unresolved


MIXED = (gpu(0, "NVIDIA T400"), gpu(1, "NVIDIA A100"))


@pytest.mark.parametrize(
    ("value", "order", "uncertain"),
    [
        ("0", None, True),
        ("0", "FASTEST_FIRST", True),
        ("0", "PCI_BUS_ID", False),
        ("0,1", None, False),
        (uuid_of(0), None, False),
        (None, None, False),
    ],
)
def test_indices_on_a_mixed_node_are_certain_only_in_bus_order(
    value: str | None, order: str | None, uncertain: bool
) -> None:
    assert resolve(value, MIXED, order).order_uncertain is uncertain


def test_identical_gpus_keep_bus_order_under_fastest_first() -> None:
    assert not resolve("0", EIGHT, "FASTEST_FIRST").order_uncertain
