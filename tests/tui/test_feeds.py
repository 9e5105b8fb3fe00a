"""Feeds: real children that speak, hang, die and talk nonsense; and recordings that are moved about in."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import psutil
import pytest

from gpudoctor.facts.stream.messages import Opening, Tick, WatchLine
from gpudoctor.facts.stream.recording import read_stream
from gpudoctor.tui import feeds
from gpudoctor.tui.feeds import ChildFeed, PlaybackFeed
from gpudoctor.tui.state import FeedFailure
from tests.imported_torch import own_children
from tests.tui.doctor_app import AT_S, node_of, opening_of, tick_of, written


def stream(tmp_path: Path, *seconds: int) -> Path:
    """A recorded stream with a tick at each of these seconds."""
    node = node_of("t4-cloud-4")
    return written(tmp_path / "w.jsonl", opening_of(node), *(tick_of(node, second) for second in seconds))


def child(tmp_path: Path, *then: str, seconds: tuple[int, ...] = (1, 2)) -> ChildFeed:
    """A child that writes a stream and then does what Python says."""
    code = ["import os, signal, sys, time", f"sys.stdout.write(open({str(stream(tmp_path, *seconds))!r}).read())"]
    code += ["sys.stdout.flush()", *then]
    return ChildFeed([sys.executable, "-c", "\n".join(code)], "watch")


def end(feed: ChildFeed) -> None:
    """Close a feed for good; its child may need a moment more than `close` gives it."""
    feed.close()
    feed.close()
    if feed._child is not None:
        feed._child._process.wait()


async def take(feed: ChildFeed | PlaybackFeed, count: int) -> list[WatchLine | FeedFailure]:
    """The first lines of a feed."""
    source = feed.lines()
    return [await anext(source) for _ in range(count)]


async def why_failed(feed: ChildFeed, after: int) -> str:
    """Why the feed fails after so many lines; it is closed then."""
    *_, failure = await take(feed, after + 1)
    end(feed)
    assert isinstance(failure, FeedFailure)
    return failure.why


async def test_a_child_that_ends_is_told_with_its_last_words_and_started_again(tmp_path: Path) -> None:
    feed = child(tmp_path, "sys.exit('ssh: connect to host n7 port 22: Connection refused')", seconds=(1,))
    lines = await take(feed, 5)
    end(feed)
    trouble = lines[2]
    assert isinstance(trouble, FeedFailure)
    assert trouble.why == (
        "watch: ended (exit code 1): ssh: connect to host n7 port 22: Connection refused; trying again in 1 s"
    )
    assert [type(line) for line in lines[3:]] == [Opening, Tick]


async def test_a_child_that_is_not_there_is_told_and_tried_again() -> None:
    feed = ChildFeed(["/nowhere/gpudoctor", "watch"], "n7")
    assert await why_failed(feed, 0) == "n7: /nowhere/gpudoctor: No such file or directory; trying again in 1 s"


async def test_pauses_grow_while_no_tick_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = ChildFeed(["/nowhere/gpudoctor"], "n7")
    waited: list[float] = []

    async def pause(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(feed, "_pause", pause)
    await take(feed, 9)
    assert waited == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_a_child_that_talks_nonsense_is_ended(tmp_path: Path) -> None:
    feed = child(tmp_path, "print('Welcome to node n7!', flush=True); time.sleep(600)")
    why = await why_failed(feed, 3)
    assert "no line of gpudoctor watch" in why
    assert "Welcome to node n7!" in why


async def test_control_characters_of_a_child_do_not_reach_the_screen(tmp_path: Path) -> None:
    feed = child(tmp_path, "sys.exit('\\x1b[2Jgone')", seconds=())
    assert "\x1b" not in await why_failed(feed, 1)


async def test_a_child_that_falls_silent_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "SILENT_S", 0.2)
    monkeypatch.setattr(feeds, "SILENT_INTERVALS", 0.2)

    feed = child(tmp_path, f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))", "time.sleep(600)")
    lines = await take(feed, 4)
    assert isinstance(lines[3], FeedFailure)
    assert "said nothing for" in lines[3].why
    process = feed._child
    assert process is not None
    await asyncio.get_running_loop().run_in_executor(None, process._process.wait)
    assert process._process.returncode == -signal.SIGTERM
    end(feed)


async def test_a_line_without_an_end_is_given_up_and_the_child_not_read_any_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "LINE_BYTES_MAX", 1 << 20)

    wrote = tmp_path / "wrote"
    flood = f"for i in range(100): os.write(1, b'A' * 1_000_000); open({str(wrote)!r}, 'a').write('.')"
    feed = child(tmp_path, flood)
    assert "wrote a line longer than 1 MiB" in await why_failed(feed, 3)
    assert len(wrote.read_text()) <= 4, "of 100 MB more was taken than a line may have"


async def test_a_child_that_floods_keeps_nobody_else_from_his_turn(tmp_path: Path) -> None:
    feed = child(tmp_path, 'line = b\'{"kind":"tick","at_s":5}\\n\' * 1000', "while True: os.write(1, line)")
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    beside = asyncio.ensure_future(other())
    lines = await take(feed, 500)
    beside.cancel()
    end(feed)
    assert not any(isinstance(line, FeedFailure) for line in lines)
    assert turns > 400


async def test_a_cut_off_last_line_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    feed = child(tmp_path, """sys.stdout.write('{"kind":"tick","at_s":5}'); sys.stdout.flush()""")
    assert "ended (exit code 0)" in await why_failed(feed, 3)


async def test_a_child_that_ignores_sigterm_is_gone_when_closed_twice(tmp_path: Path) -> None:
    feed = child(
        tmp_path,
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "helper = __import__('subprocess').Popen([sys.executable, '-c', 'import time; time.sleep(600)'])",
        f"os.write(1, open({str(tmp_path / 'w.jsonl')!r}, 'rb').read())",
        "time.sleep(600)",
    )
    lines = await take(feed, 6)
    assert len(lines) == 6
    process = feed._child
    assert process is not None
    helpers = psutil.Process(process._process.pid).children()
    end(feed)
    assert process._process.returncode == -signal.SIGKILL
    assert len(helpers) == 1
    psutil.wait_procs(helpers, timeout=20)
    assert not helpers[0].is_running() or helpers[0].status() == psutil.STATUS_ZOMBIE


async def test_a_closed_feed_ends_its_lines(tmp_path: Path) -> None:
    feed = child(tmp_path, "time.sleep(600)")
    seen = []
    async for line in feed.lines():
        seen.append(line)
        if len(seen) == 3:
            feed.close()
    assert [type(line) for line in seen] == [Opening, Tick, Tick]
    end(feed)


async def test_a_recording_plays_to_its_end_and_stays_there_paused(tmp_path: Path) -> None:
    feed = PlaybackFeed(read_stream(str(stream(tmp_path, 1, 2, 3))), "w.jsonl")
    feed.faster(9)
    assert feed.playback.speed == 60
    lines = await take(feed, 4)
    assert [line.at_s for line in lines if isinstance(line, Tick)] == [AT_S + 1, AT_S + 2, AT_S + 3]
    rest = asyncio.ensure_future(take(feed, 1))
    while not feed.playback.paused:
        await asyncio.sleep(0)
    assert feed.playback.at_s == AT_S + 3
    assert not rest.done()
    rest.cancel()
    await asyncio.gather(rest, return_exceptions=True)
    feed.close()


def test_a_recording_turned_to_a_moment_gives_what_came_before_it(tmp_path: Path) -> None:
    feed = PlaybackFeed(read_stream(str(stream(tmp_path, *range(1, 41)))), "w.jsonl")
    feed.seek(AT_S + 20.6)
    assert feed.playback.at_s == AT_S + 20
    opening, ticks = feed.before()
    assert len(opening.node.gpus) == 4
    assert [tick.at_s for tick in ticks] == [AT_S + second for second in range(1, 21)]
    feed.seek(AT_S - 100)
    assert feed.playback.at_s == AT_S + 1
    feed.seek(AT_S + 1000)
    assert feed.playback.at_s == AT_S + 40
    feed.close()


async def test_a_paused_recording_goes_on_from_where_it_was_turned_to(tmp_path: Path) -> None:
    feed = PlaybackFeed(read_stream(str(stream(tmp_path, *range(1, 41)))), "w.jsonl")
    feed.faster(9)
    feed.pause()
    feed.seek(AT_S + 30)
    feed.before()
    later = asyncio.ensure_future(take(feed, 1))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not later.done()
    feed.pause()
    [tick] = await later
    assert isinstance(tick, Tick)
    assert tick.at_s == AT_S + 31
    feed.close()


async def test_at_the_end_of_a_recording_space_begins_again(tmp_path: Path) -> None:
    feed = PlaybackFeed(read_stream(str(stream(tmp_path, 1, 2))), "w.jsonl")
    feed.faster(9)
    feed.seek(AT_S + 2)
    feed.playback.paused = True
    feed.pause()
    lines = await take(feed, 2)
    assert isinstance(lines[-1], Tick)
    assert lines[-1].at_s == AT_S + 1
    feed.close()


def test_a_night_without_ticks_is_passed_over(tmp_path: Path) -> None:
    feed = PlaybackFeed(read_stream(str(stream(tmp_path, 1, 30_000))), "w.jsonl")
    feed.seek(AT_S + 1)
    assert feed._gap_s() == 5.0
    feed.faster(1)
    assert feed._gap_s() == 2.5
    feed.close()


def test_this_process_has_no_child_left_of_these_tests() -> None:
    assert [p for p in own_children() if p.status() != psutil.STATUS_ZOMBIE] == []
