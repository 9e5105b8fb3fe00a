"""Recorded streams: read a moment at a time, and as a source of facts."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gpudoctor.facts.captures import SourceError
from gpudoctor.facts.captures.source import load_source
from gpudoctor.facts.model.node import Node, Source
from gpudoctor.facts.simulated.live import ticks_of
from gpudoctor.facts.simulated.load import load_node
from gpudoctor.facts.stream.messages import Opening
from gpudoctor.facts.stream.recording import Recording, is_stream_file, read_stream

BEGIN_S = 1_800_000_000.0
NODE = load_node("rtx4090-4")
Write = Callable[..., str]
Read = Callable[[str], Recording]


def opening(node: Node = NODE, at_s: float = BEGIN_S) -> bytes:
    return msgspec.json.encode(Opening("gpudoctor.watch/1", at_s, 1.0, node)) + b"\n"


def tick(number: int, at_s: float | None = None) -> bytes:
    return msgspec.json.encode(ticks_of(NODE, number, BEGIN_S + number if at_s is None else at_s)) + b"\n"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(*lines: bytes, name: str = "day.jsonl") -> str:
        data = b"".join(lines)
        path = tmp_path / name
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return str(path)

    return write


@pytest.fixture
def read(request: pytest.FixtureRequest) -> Read:
    def read(path: str) -> Recording:
        recording = read_stream(path)
        request.addfinalizer(recording.close)
        return recording

    return read


def times(recording: Recording) -> list[float]:
    return [recording.tick(number).at_s - BEGIN_S for number in range(recording.count)]


@pytest.mark.parametrize("name", ["day.jsonl", "day.jsonl.gz", "any name"])
def test_every_tick_of_a_recording_is_found_by_number_and_by_time(write: Write, read: Read, name: str) -> None:
    recording = read(write(opening(), *(tick(n) for n in range(20)), name=name))
    assert (recording.count, recording.begin_s, recording.end_s) == (20, BEGIN_S, BEGIN_S + 19)
    assert recording.opening_at(0).node == NODE
    assert recording.tick(7) == ticks_of(NODE, 7, BEGIN_S + 7)
    assert recording.tick(3).at_s == BEGIN_S + 3  # back again
    assert [recording.number_at(BEGIN_S + s) for s in (-5, 0, 6.9, 7, 1e6)] == [0, 0, 6, 7, 19]
    assert recording.time_of(4) == BEGIN_S + 4
    for outside in (-1, 20):
        with pytest.raises(IndexError):
            recording.tick(outside)
        with pytest.raises(IndexError):
            recording.time_of(outside)


def test_a_recording_of_the_facts_alone_has_no_ticks(write: Write, read: Read) -> None:
    recording = read(write(opening()))
    assert (recording.count, recording.begin_s, recording.end_s) == (0, BEGIN_S, BEGIN_S)
    assert recording.number_at(BEGIN_S) == 0


def test_facts_that_were_read_anew_hold_from_there_on(write: Write, read: Read) -> None:
    later = msgspec.structs.replace(NODE, gpus=NODE.gpus[:2])
    recording = read(write(opening(), tick(0), tick(1), opening(later), tick(2)))
    assert recording.openings == (0, 2)
    assert recording.count == 3
    assert [len(recording.opening_at(n).node.gpus) for n in range(3)] == [4, 4, 2]


def test_a_last_line_that_is_still_being_written_is_left_out(write: Write, read: Read) -> None:
    recording = read(write(opening(), tick(0), tick(1)[:-40]))
    assert recording.count == 1
    whole_but_its_end = read(write(opening(), tick(0), tick(1)[:-1]))
    assert whole_but_its_end.count == 2


def test_a_packed_recording_that_was_cut_off_is_read_as_far_as_it_goes(
    write: Write, read: Read, tmp_path: Path
) -> None:
    whole = Path(write(opening(), *(tick(n) for n in range(500)), name="day.gz")).read_bytes()
    (tmp_path / "cut.gz").write_bytes(whole[: len(whole) * 3 // 4])
    recording = read(str(tmp_path / "cut.gz"))
    assert 0 < recording.count < 500
    assert times(recording) == [float(n) for n in range(recording.count)]


def test_a_clock_that_was_set_back_does_not_turn_time_around(write: Write, read: Read) -> None:
    recording = read(write(opening(), tick(0), tick(9), tick(2, at_s=BEGIN_S + 2), tick(10)))
    assert [recording.time_of(n) - BEGIN_S for n in range(4)] == [0, 9, 9, 10]
    assert recording.number_at(BEGIN_S + 5) == 0
    assert recording.tick(2).at_s == BEGIN_S + 2, "what was written stays"


@pytest.mark.parametrize(
    ("garbage", "words"),
    [
        (b"NVRM: Xid\n", "line 3: broken JSON"),
        (tick(1)[:-40] + b"\n", "line 3: cut off"),
        (b'{"kind":"tick"}\n', "line 3: Object missing required field `at_s`"),
        (b'{"kind":"tick","at_s":1e300}\n', "line 3: Expected `float`"),
        (b'{"kind":"what","at_s":1}\n', "line 3: Invalid enum value 'what'"),
        (b"[" * 5000 + b"\n", "line 3: "),
    ],
)
def test_garbage_in_the_middle_is_an_error_that_names_the_line(write: Write, garbage: bytes, words: str) -> None:
    path = write(opening(), tick(0), garbage, tick(2))
    with pytest.raises(SourceError) as error:
        read_stream(path)
    assert str(error.value).startswith(f"{path}: {words}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"kind":"tick","at_s":5,"gpus":[{"gpu":"one"}]}', r"Expected `int`, got `str` - at `\$\.gpus\[0\]\.gpu`"),
        (b'{"kind":"tick","at_s":5,"silence":{"since_s":1,"why":"\xff"}}', "not UTF-8 at byte|invalid"),
    ],
)
def test_a_tick_of_wrong_types_is_an_error_when_it_is_asked_for(
    write: Write, read: Read, line: bytes, words: str
) -> None:
    recording = read(write(opening(), tick(0), b"\n", line + b"\n"))
    assert recording.tick(0).gpus
    with pytest.raises(SourceError, match=f"line 4: ({words})"):
        recording.tick(1)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((tick(0), tick(1)), "line 1: a stream of gpudoctor watch starts with its opening"),
        ((opening()[:500],), "line 1: cut off"),
        ((opening()[:500] + b"\n", tick(0)), "line 1: cut off"),
        ((opening().replace(b'"index":2', b'"index":1'),), "line 1: index 1 is there twice"),
        ((opening().replace(b"watch/1", b"watch/2"),), "line 1: Invalid enum value 'gpudoctor.watch/2'"),
    ],
)
def test_a_stream_without_whole_facts_is_no_source(write: Write, lines: tuple[bytes, ...], words: str) -> None:
    for name in ("w.jsonl", "w.jsonl.gz"):
        path = write(*lines, name=name)
        with pytest.raises(SourceError) as error:
            read_stream(path)
        assert str(error.value).startswith(f"{path}: {words}")
        with pytest.raises(SourceError) as error:
            load_source(path)
        assert str(error.value).startswith(f"{path}: {words}")


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"nowhere: cannot be read: No such file"):
        read_stream(str(tmp_path / "nowhere"))
    with pytest.raises(SourceError, match="not a regular file"):
        read_stream(str(tmp_path))
    (tmp_path / "w.gz").write_bytes(gzip.compress(opening())[:30] + b"\0" * 400)
    with pytest.raises(SourceError, match=r"w\.gz: broken \.gz"):
        read_stream(str(tmp_path / "w.gz"))


@pytest.mark.parametrize("name", ["w.jsonl", "w.jsonl.gz"])
def test_a_recording_is_a_source_of_its_facts(write: Write, name: str) -> None:
    path = write(opening(), tick(0), b"garbage that the facts do not need\n", name=name)
    assert is_stream_file(path)
    node = load_source(path).node
    assert node == NODE, "a simulated node stays SIMULATED"
    live = msgspec.structs.replace(NODE, source=Source(kind="live", name="node12"))
    assert load_source(write(opening(live), name=name)).node.source == Source(kind="facts", name=name)


def test_a_recording_is_read_from_stdin_too(write: Write) -> None:
    path = write(opening(), tick(0))
    with Path(path).open("rb") as stdin:
        assert load_source("-", stdin=stdin).node == NODE


def test_other_files_are_not_taken_for_recordings(write: Write, tmp_path: Path) -> None:
    from gpudoctor.facts.model.node import to_json

    assert not is_stream_file(write(to_json(NODE), name="facts.json"))
    assert not is_stream_file(str(tmp_path / "nowhere"))
    assert not is_stream_file(str(tmp_path))
    assert not is_stream_file(write(b"", name="empty"))
    (tmp_path / "broken.gz").write_bytes(b"\x1f\x8bnothing")
    assert not is_stream_file(str(tmp_path / "broken.gz"))


def test_ticks_are_read_as_they_were_written(write: Write, read: Read) -> None:
    made = [ticks_of(NODE, n, BEGIN_S + n) for n in range(70)]
    recording = read(write(opening(), *(msgspec.json.encode(each) + b"\n" for each in made)))
    again = [recording.tick(number) for number in range(recording.count)]
    assert again == made
