"""Lines between processes: whole, bounded, and in time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic

import pytest

from gpudoctor.process.pipes import (
    Bounded,
    DisturbedError,
    LineReader,
    LongLineError,
    anonymous_file,
    content,
    pipe_with_child,
    read_to_end,
    tail,
    write_all,
)

PATIENT_S = 60.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The reading and the writing end."""
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):  # the test has closed it
            os.close(end)


def is_open(descriptor: int) -> bool:
    """Whether this process has it."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_everything_is_written_even_to_a_full_pipe_that_does_not_block(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.set_blocking(writer, False)
    data, came = os.urandom(1 << 20), bytearray()

    def read() -> None:
        while len(came) < len(data):
            came.extend(os.read(reader, 1 << 16))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    write_all(writer, data)
    thread.join(PATIENT_S)
    assert came == data


def test_lines_come_whole_however_they_were_written(pipe: tuple[int, int]) -> None:
    reader = LineReader(pipe[0])
    os.write(pipe[1], b"a\nb")
    assert reader.lines(PATIENT_S) == [b"a"]
    assert reader.lines(0.0) == []
    os.write(pipe[1], b"c\nhalf")
    assert reader.lines(PATIENT_S) == [b"bc"]
    os.close(pipe[1])
    assert reader.lines(PATIENT_S) is None
    assert reader.rest == b"half"


def test_a_line_without_an_end_is_given_up_or_cut(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"x" * 11)
    with pytest.raises(LongLineError):
        LineReader(pipe[0], 10).lines(PATIENT_S)
    cut = LineReader(pipe[0], 3, cut=True)
    assert cut.split(b"abcdef") == []
    assert cut.split(b"g\n") == [b"defg"]


def test_one_line_in_time_or_none(pipe: tuple[int, int]) -> None:
    assert LineReader(pipe[0]).one(0.0) is None
    os.write(pipe[1], b"first\nsecond\n")
    assert LineReader(pipe[0]).one(PATIENT_S) == b"first"
    os.close(pipe[1])
    assert LineReader(pipe[0]).one(PATIENT_S) is None


def test_what_comes_is_read_to_the_end_and_kept_up_to_the_limit(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"abcdef")
    os.close(pipe[1])
    kept = Bounded(4)
    assert read_to_end({pipe[0]: kept.take}, monotonic() + PATIENT_S)
    assert kept == b"abcd"


def test_at_the_deadline_or_when_it_is_over_nobody_waits_for_the_end(pipe: tuple[int, int]) -> None:
    assert not read_to_end({pipe[0]: Bounded(1).take}, monotonic())
    assert read_to_end({pipe[0]: Bounded(1).take}, monotonic() + PATIENT_S, over=lambda: True)
    os.write(pipe[1], b"enough")
    assert read_to_end({pipe[0]: lambda data: True}, monotonic() + PATIENT_S)


def test_who_is_watched_beside_the_pipes_disturbs(pipe: tuple[int, int]) -> None:
    reader, writer = os.pipe()
    try:
        os.write(pipe[1], b"a word")
        with pytest.raises(DisturbedError):
            read_to_end({reader: Bounded(1).take}, monotonic() + PATIENT_S, watched=pipe[0])
    finally:
        os.close(reader)
        os.close(writer)


def test_a_pipe_for_a_child_leaves_our_end_and_nothing_where_the_child_could_not_be_started() -> None:
    with pipe_with_child("writes") as (ours, theirs):
        os.write(theirs, b"x")
    assert os.read(ours, 2) == b"x"
    assert os.read(ours, 2) == b"", "the other end is closed"
    os.close(ours)
    ends: list[int] = []

    def start() -> None:
        with pipe_with_child("reads") as pair:
            ends.extend(pair)
            os.write(pair[0], b"y")
            assert os.read(pair[1], 2) == b"y"
            raise OSError("no process")

    with pytest.raises(OSError, match="no process"):
        start()
    assert [is_open(end) for end in ends] == [False, False]


def test_what_lies_in_memory_is_read_without_moving_the_writer() -> None:
    memory = anonymous_file()
    try:
        os.write(memory, b"abc")
        assert (content(memory), tail(memory, 2)) == (b"abc", "bc")
        os.write(memory, b"d")
        assert content(memory) == b"abcd"
    finally:
        os.close(memory)
