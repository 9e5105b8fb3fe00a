"""Whenever a signal comes, no temporary folder or file is left."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpudoctor.process import temporary_folder
from gpudoctor.process.signals import InterruptedBySignal, catch_signals, signals_postponed
from gpudoctor.process.temporary_folder import temporary_file
from gpudoctor.process.temporary_folder import temporary_folder as new_folder


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files are made, unknown to `tempfile` as in a new process; signals end as in a command."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    catch_signals()
    yield tmp_path
    for number, handler in before.items():
        signal.signal(number, handler)


def then_strike(call: Callable[..., object], number: int) -> Callable[..., object]:
    """The call, with a signal as soon as it has done its work."""

    def struck(*words: object, **named: object) -> object:
        result = call(*words, **named)
        signal.raise_signal(number)
        return result

    return struck


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("call", ["open", "mkdir"])  # of the file with which tempfile tries a folder; of the folder
def test_a_signal_while_a_folder_is_made_leaves_none(
    call: str, number: int, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, call, then_strike(getattr(os, call), number))
    with pytest.raises(InterruptedBySignal) as stop, new_folder("gpudoctor-"):
        raise AssertionError("the block began")
    assert stop.value.number == number
    assert list(place.iterdir()) == []


def test_a_signal_while_a_file_is_made_leaves_none(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "open", then_strike(os.open, signal.SIGINT))
    with pytest.raises(InterruptedBySignal), temporary_file():
        raise AssertionError("the block began")
    assert list(place.iterdir()) == []


def test_a_signal_while_a_folder_is_removed_leaves_none(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def removed(folder: Path, *, ignore_errors: bool) -> None:
        signal.raise_signal(signal.SIGTERM)
        shutil.rmtree(folder, ignore_errors=ignore_errors)

    with pytest.raises(InterruptedBySignal):
        with_answers(monkeypatch, removed)
    assert list(place.iterdir()) == []


def with_answers(monkeypatch: pytest.MonkeyPatch, removed: Callable[..., None]) -> None:
    with new_folder("gpudoctor-") as folder:
        (folder / "answers").write_bytes(b"x")
        monkeypatch.setattr(temporary_folder, "shutil", SimpleNamespace(rmtree=removed))


def test_what_the_caller_ignores_stays_ignored_and_the_handler_is_that_of_before() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    before = signal.getsignal(signal.SIGTERM)
    with signals_postponed():
        signal.raise_signal(signal.SIGHUP)
    assert (signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGTERM)) == (signal.SIG_IGN, before)
