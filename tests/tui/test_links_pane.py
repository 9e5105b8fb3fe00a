"""The Links tab: matrices, the pair under the cursor, and what stands beside them."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import msgspec
import pytest

from gpudoctor.facts.captures.source import load_source
from gpudoctor.facts.model.measurements import Launch, Measurements, PairBandwidth, RankInfo
from gpudoctor.facts.model.missing import Missing
from gpudoctor.facts.simulated.load import apply_faults
from gpudoctor.facts.stream.messages import GpuTick
from gpudoctor.tui.panes.link_matrices import METRICS, draw
from gpudoctor.tui.panes.links import LinksPane
from gpudoctor.tui.state import State
from gpudoctor.tui.widgets.matrix import Matrix
from tests.checks.measured import copied, matrix, measured
from tests.tui.doctor_app import sixteen
from tests.tui.pane_app import shown, state_of, text_of
from tests.tui.screen import press

MIB = 2**20
HGX = load_source("hgx-h100-8").node


def pairs(count: int, gb_s: float, slow: dict[tuple[int, int], float] | None = None) -> tuple[PairBandwidth, ...]:
    rates = {pair: (slow or {}).get(pair, gb_s) for pair in combinations(range(count), 2)}
    return tuple(PairBandwidth(a, b, 64 * MIB, 15, 100.0, 1.0, rate) for (a, b), rate in rates.items())


def row(text: str, name: str) -> list[str]:
    """The cells of a row of the matrix; the cursor's sign is none of them."""
    lines = [line.replace(">", " ").split() for line in text.splitlines()]
    return next(line[1:] for line in lines if line[:1] == [name] and "X" in line)


def test_before_anything_is_measured_it_is_the_topology() -> None:
    text = text_of(LinksPane(), state_of(HGX))
    assert "topology" in text.splitlines()[0]
    assert row(text, "3")[:8] == ["NV18", "NV18", "NV18", "X", "NV18", "NV18", "NV18", "NV18"]


def test_nothing_is_said_of_the_links_of_a_lost_gpu() -> None:
    node = apply_faults(HGX, ["gpu-lost@6"])
    text = text_of(LinksPane(), state_of(node))
    assert row(text, "6")[:8] == ["?"] * 6 + ["X", "?"]
    assert row(text, "0")[:8] == ["X", *["NV18"] * 5, "?", "NV18"]
    assert "? of a lost GPU, not to be trusted" in text
    assert "GPU 0 - GPU 6" not in text or "not known, GPU 6 is lost" in text


def test_pcie_paths_stand_in_words_that_are_explained() -> None:
    node = load_source("rtx4090-8").node
    assert not isinstance(node.pairs, Missing)
    text = text_of(LinksPane(), state_of(node))
    shown_words = set(row(text, "0")[:8])
    assert shown_words == {"X"} | {str(pair.path) for pair in node.pairs if pair.a == 0}
    assert all(f"{word} " in text.splitlines()[1] for word in shown_words - {"X"})


def test_copies_become_a_heat_map_that_marks_the_slow_pair_and_says_its_scale() -> None:
    links = matrix(8, 390.0, {(2, 5): 210.0, (5, 2): 150.0})
    text = text_of(LinksPane(), state_of(HGX, measured(HGX, peer_links=links)))
    assert row(text, "2")[:8] == ["390#", "390#", "X", "390#", "390#", "210-", "390#", "390#"]
    assert row(text, "5")[2] == "150."
    scale = text.splitlines()[1]
    assert "# >=90%" in scale
    assert "390 GB/s, the median" in scale
    assert "FAIL    link.peer  GPU 2 - GPU 5" in text


def test_where_all_pairs_are_slow_the_expected_figure_is_the_scale_and_none_looks_full() -> None:
    text = text_of(LinksPane(), state_of(HGX, measured(HGX, peer_links=matrix(8, 200.0))))
    assert row(text, "0")[1:8] == ["200-"] * 7
    assert "link.peer expects" in text.splitlines()[1]


def test_pairs_of_different_kinds_are_each_measured_by_their_own() -> None:
    node = load_source("h100-nvl-4").node
    kinds = {(pair.a, pair.b): bool(pair.nvlinks) for pair in node.pairs if isinstance(pair.nvlinks, int)}  # type: ignore[union-attr]
    slow = {place: 30.0 for a, b in combinations(range(4), 2) if not kinds.get((a, b)) for place in ((a, b), (b, a))}
    assert 0 < len(slow) < 12, "the node has pairs with and without NVLink"
    drawn = draw("peer", node, state_of(node, measured(node, peer_links=matrix(4, 250.0, slow))).report)
    assert {cell.sign for place, cell in drawn.grid.cells.items() if place[0] != place[1]} == {"#"}
    assert "median of its kind" in drawn.scale


def test_data_that_arrived_wrong_is_marked_whatever_its_speed() -> None:
    links = list(matrix(8, 390.0))
    links[0] = msgspec.structs.replace(links[0], wrong_elements=3)
    text = text_of(LinksPane(), state_of(HGX, measured(HGX, peer_links=tuple(links))))
    assert row(text, "0")[1] == "390!"
    assert "! arrived wrong" in text
    assert "3 elements arrived WRONG" in text


def test_figures_of_cpu_ranks_are_called_so_and_are_on_a_scale_of_their_own() -> None:
    launch = Launch("gloo", 4, tuple(RankInfo(rank, "cpu") for rank in range(4)))
    slow = Measurements(launch=launch, pairs=pairs(4, 2.0, {(1, 3): 0.5}))
    text = text_of(LinksPane(), state_of(HGX, slow))
    assert text.splitlines()[0].startswith("Links: CPU ranks (gloo), not judged")
    assert "of the highest here, 2.0 GB/s" in text.splitlines()[1]
    assert row(text, "r1")[:4] == ["2.0#", "X", "2.0#", ".50."]
    assert "rank 0 - rank 1: sendrecv 2.0 GB/s each way" in text


def test_ranks_are_shown_as_the_gpus_they_sat_on() -> None:
    launch = Launch("nccl", 2, (RankInfo(0, "cuda", 0, HGX.gpus[6].uuid), RankInfo(1, "cuda", 1, HGX.gpus[2].uuid)))  # type: ignore[arg-type]
    drawn = draw("pairs", HGX, state_of(HGX, Measurements(launch=launch, pairs=pairs(2, 300.0))).report)
    assert drawn.grid.names == ("6", "2")
    assert drawn.row_gpus == (6, 2)


async def test_m_goes_through_all_metrics_and_says_what_was_not_measured() -> None:
    async with shown(LinksPane(), state_of(HGX), focus=Matrix) as (app, pilot):
        await pilot.press("down", "down")
        titles = []
        for _ in METRICS:
            titles.append(app.text.splitlines()[0])
            if "both ways at once" in titles[-1]:
                assert "not measured: not in a run so far" in app.text
            await pilot.press("m")
        assert len(set(titles)) == len(METRICS)
        assert app.text.splitlines()[0] == titles[0]
        assert "GPU 2 - GPU 1" in app.text, "the cursor is where it was"


async def test_r_asks_for_the_links_to_be_measured() -> None:
    async with shown(LinksPane(), state_of(HGX), focus=Matrix) as (app, pilot):
        await press(pilot, "r")
        assert app.asked == [(("link", "collective"), "full")]


async def test_the_arrow_keys_turn_to_a_pair_and_its_gpus_path_is_shown() -> None:
    async with shown(LinksPane(), state_of(HGX), focus=Matrix) as (app, pilot):
        await press(pilot, "down", "down", "right", "right", "up")
        assert "GPU 1 - GPU 3: NV18, P2P read OK write OK" in app.text
        assert "PCIe path of GPU 1" in app.text
        assert app.asked[-1] == ("gpu", 1)
        await pilot.press("left")
        await press(pilot, *["left"] * 9)
        assert "GPU 1 - GPU 0" in app.text, "at the edge the cursor stays"


async def test_a_click_turns_to_the_cell_under_the_mouse() -> None:
    async with shown(LinksPane(), state_of(HGX)) as (app, pilot):
        lines = app.text.splitlines()
        y = next(number for number, line in enumerate(lines) if line.startswith("  4 "))
        x = lines[y - 4 - 1].index(" 6 ") + 1
        await pilot.click(offset=(x, y))
        await pilot.pause()
        assert "GPU 4 - GPU 6" in app.text


async def test_another_gpu_chosen_elsewhere_moves_the_cursor_to_its_row() -> None:
    async with shown(LinksPane(), state_of(HGX)) as (app, pilot):
        app.state.selected_gpu = 5
        app.pane.show(app.state)
        await pilot.pause()
        assert "PCIe path of GPU 5" in app.text
        assert "GPU 5 - GPU 1" in app.text


def test_the_path_is_drawn_from_the_cpu_to_the_gpu_and_a_narrow_link_is_marked_at_both_ends() -> None:
    node = apply_faults(HGX, ("pcie-width-x8@5",))
    state = state_of(node, Measurements())
    state.selected_gpu = 5
    text = text_of(LinksPane(), state, (140, 50))
    column = next(line.index("  CPU, NUMA") for line in text.splitlines() if "  CPU, NUMA" in line)
    drawn = [line[column:].strip() for line in text.splitlines() if len(line) > column]
    start = drawn.index("CPU, NUMA node 1")
    assert drawn[start + 1 : start + 9] == [
        "┃",
        "root port  0000:a8:01.0  Gen5 x16",
        "┃",
        "bridge     0000:a9:00.0  Gen5 x16",
        "┃",
        "bridge     0000:aa:00.0  Gen5 x8 of Gen5 x16",
        "│ narrow",
        "GPU 5      0000:ab:00.0  Gen5 x8 of Gen5 x16  FAIL pcie.link-width",
    ]


def test_nvlinks_host_copies_numa_and_adapters_stand_beside_it() -> None:
    state = state_of(HGX, measured(HGX, host_links=copied(*[52.0] * 7, 20.0)))
    state.latest[3] = GpuTick(3, links_up=17, links=18)
    text = text_of(LinksPane(), state, (160, 50))
    assert "18/18 up, errors: 0 crc, 0 replay, 0 recovery  GPU 0-2, 4-7" in text
    assert "17/18 up" in text, "the newest reading counts"
    [slow] = [line for line in text.splitlines() if "GPU 7 " in line and "20.0" in line]
    assert "FAIL" in slow
    assert "node 0  GPU 0-3, node 1  GPU 4-7" in text
    assert "near GPU 4-7 (NUMA node 1): mlx5_4:1" in text


@pytest.mark.wide(every=5)
@pytest.mark.parametrize("node", ["gh200-1", "rtx4090-4", "hgx-h100-8", "sixteen", "cpu-only"])
async def test_it_fits_the_screen_with_any_number_of_gpus(node: str) -> None:
    async with shown(LinksPane(), state_of(sixteen() if node == "sixteen" else node), size=(80, 24)) as (app, pilot):
        for width, height in ((80, 24), (120, 36), (200, 60)):
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            lines = app.text.splitlines()
            assert len(lines) <= height
            assert max(map(len, lines)) <= width
            assert lines[0].startswith("Links: ")


@pytest.mark.wide
async def test_of_sixteen_gpus_on_a_narrow_screen_the_columns_follow_the_cursor() -> None:
    async with shown(LinksPane(), state_of(sixteen()), size=(80, 18), focus=Matrix) as (app, pilot):
        head = app.text.splitlines()[2].split()
        assert head[-1] == ">", "there is more to the right"
        assert "15" not in head
        await press(pilot, *["right"] * 15)
        assert app.text.splitlines()[2].split()[0] == "<", "there is more to the left"
        assert app.text.splitlines()[2].split()[-1] == "15"
        await press(pilot, *["down"] * 15)
        assert "GPU 15 (" in app.text.splitlines()[-1]
        assert any(line.startswith(" 15 ") for line in app.text.splitlines())


def test_without_facts_and_without_a_path_it_says_so() -> None:
    assert "no facts yet" in text_of(LinksPane(), State())
    facts: dict[str, Any] = {"path": Missing("sysfs is not readable", "denied")}
    gpu = msgspec.structs.replace(HGX.gpus[0], pcie=msgspec.structs.replace(HGX.gpus[0].pcie, **facts))
    node = msgspec.structs.replace(HGX, gpus=(gpu,), pairs=Missing("nvidia-smi topo was not in it"))
    text = text_of(LinksPane(), state_of(node))
    assert "not known: sysfs is not readable" in text
    assert "not known: nvidia-smi topo was not in it" in text


async def test_names_from_strangers_are_not_markup() -> None:
    gpu = msgspec.structs.replace(HGX.gpus[0], name="[red]H100[/] \x1b[2J")
    node = msgspec.structs.replace(HGX, gpus=(gpu, *HGX.gpus[1:]))

    async with shown(LinksPane(), state_of(node), focus=Matrix) as (app, pilot):
        await press(pilot, "left")
        assert "[red]H100[/] \\x1b[2J" in app.text.splitlines()[-1]


def test_without_colours_every_sign_and_word_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_of(HGX, measured(HGX, peer_links=matrix(8, 390.0, {(2, 5): 150.0, (5, 2): 150.0})))
    coloured = text_of(LinksPane(), state)
    monkeypatch.setenv("NO_COLOR", "1")
    assert text_of(LinksPane(), state) == coloured
    assert "150." in coloured
    assert "FAIL" in coloured
