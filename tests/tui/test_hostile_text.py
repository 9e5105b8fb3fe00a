"""Facts and streams come from strangers: no text of theirs reaches the terminal as anything but text, on any tab."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.segment import Segment
from textual.color import Color
from textual.pilot import Pilot

from gpudoctor.facts.model.gpu import PathKind
from gpudoctor.facts.model.node import KernelEvent, Node, from_json, to_json
from gpudoctor.facts.stream.messages import GpuTick, ProcessTick, Silence, Tick
from gpudoctor.tui.app import Doctor
from gpudoctor.tui.labels import held
from gpudoctor.tui.panes.pane import TABS
from gpudoctor.tui.widgets.lines import PrintableText
from tests.planted_secrets import planted
from tests.tui.doctor_app import HandChecker, doctor, node_of, opening_of, put, tick_of
from tests.tui.screen import screen_text, until

CLIPBOARD = "\x1b]52;c;cHduZWQ=\x07"
MARKUP = "[red]x[/]"
HOSTILE = (CLIPBOARD, "\x9b2J", "\x1b[?1049l", "a\rb\tc", "\u202egnp.exe", "\x00\x08", "\u2028", "\ud7ff\x7f")


def hostile_node(text: str) -> Node:
    def hostile(key: str, value: str) -> str:
        fixed = key in ("bus_id", "uuid") or (key == "path" and value in get_args(PathKind))
        return value if fixed else f"{text}{value}"

    return from_json(json.dumps(planted(json.loads(to_json(node_of("hgx-h100-8", "pcie-width-x8@5"))), hostile)))


def hostile_tick(node: Node, text: str, *, silent: bool = False) -> Tick:
    gpus = {gpu.index: GpuTick(gpu.index, {"utilization_pct": 3.0}, events=(f"{text}x",)) for gpu in node.gpus}
    processes = tuple(
        ProcessTick(gpu.index, 4000 + gpu.index, text, "C", text, 1.0, 2.0, f"{text} train.py", f"{text}job", 0)
        for gpu in node.gpus
    )
    tick = tick_of(node, 2, changed=gpus, processes=processes, silence=Silence(1.0, text) if silent else None)
    return msgspec.structs.replace(tick, kernel=(KernelEvent("xid", f"{text}NVRM: Xid", 63),))


def unprintable(app: Doctor) -> list[str]:
    """What stands on the screen and is no printable character, as the compositor hands it to the terminal."""
    strips = app.screen._compositor.render_strips()
    return [segment.text for strip in strips for segment in strip if not segment.text.isprintable()]


@pytest.mark.wide
async def test_no_field_of_the_facts_or_of_a_stream_reaches_the_terminal_raw() -> None:
    # each one no longer than the longest, so that none of them is cut off
    texts = (CLIPBOARD, "".join(HOSTILE[1:4]), "".join(HOSTILE[4:]), MARKUP)
    nodes = [hostile_node(text) for text in texts]
    checker = HandChecker(nodes[0])

    raw: list[tuple[str, str, list[str]]] = []

    async def look(app: Doctor, pilot: Pilot[Any], node: Node, text: str) -> None:
        checker.judged = node
        put(app, opening_of(node))
        put(app, hostile_tick(node, text))
        await until(pilot, lambda: app.state.node is node and bool(app.state.log))
        runs = len(app.state.runs)
        app.action_run_all()
        await until(pilot, lambda: len(app.state.runs) == runs + 1)
        for name, _ in TABS:
            app.action_tab(name)
            await pilot.pause()
            raw.append((text, name, unprintable(app)))
            if text == MARKUP and name != "ranks":  # where no rank has run, no name of a stranger stands
                assert MARKUP in screen_text(app), name
        raw.append((text, "screenshot", ["escape"] if "\x1b" in app.export_screenshot() else []))
        put(app, hostile_tick(node, text, silent=True))
        await until(pilot, lambda: app.state.trouble is not None)
        raw.append((text, "silent", unprintable(app)))

    app = doctor(checker=checker, first_level=None)
    async with app.run_test(size=(160, 50)) as pilot:
        for node, text in zip(nodes, texts, strict=True):
            await look(app, pilot, node, text)
    assert len(raw) == len(texts) * (len(TABS) + 2)
    assert [shown for shown in raw if shown[2]] == []


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.text(st.characters(), max_size=30), max_size=4))
def test_a_line_keeps_its_width_and_what_can_be_printed(texts: list[str]) -> None:
    segments = [Segment(text) for text in texts]
    shown = PrintableText().apply(segments, Color(0, 0, 0))
    assert [segment.cell_length for segment in shown] == [segment.cell_length for segment in segments]
    assert all(segment.text.isprintable() for segment in shown)
    for text, segment in zip(texts, shown, strict=True):
        assert "".join(c for c in text if c.isprintable() and c != " ") == segment.text.replace(" ", "")


def test_why_clocks_are_held_is_shown_as_text() -> None:
    assert held((CLIPBOARD,)).isprintable()
    assert "\x1b" not in held((CLIPBOARD,))
