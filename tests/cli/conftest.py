"""The command line as a user types it, in this process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from gpudoctor.cli.main import main


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout as exactly one JSON document."""
        return json.loads(self.out)


Gpudoctor = Callable[..., Outcome]


def assert_refused(outcome: Outcome, *words: str) -> None:
    """Exit code 2, nothing on stdout, and one line on stderr that says all of this."""
    assert outcome.out == ""
    assert_error(outcome, *words)


def assert_error(outcome: Outcome, *words: str) -> None:
    """Exit code 2, whatever is on stdout, and one line on stderr that says all of this."""
    assert (outcome.code, outcome.err.count("\n")) == (2, 1), outcome.err
    assert outcome.err.startswith("gpudoctor: error: ")
    assert "internal error" not in outcome.err
    assert [word for word in words if word not in outcome.err] == [], outcome.err


def read_terminal(descriptor: int, enough: Callable[[bytes], bool] = lambda seen: False) -> bytes:
    """What a program writes to a terminal: until that is enough, or nobody holds the other end any more."""
    seen = b""
    while not enough(seen):
        try:
            more = os.read(descriptor, 65536)
        except OSError:
            break
        if not more:
            break
        seen += more
    return seen


@pytest.fixture
def gpudoctor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Gpudoctor:
    """Run `gpudoctor ...` without the user's own configuration and CUDA variables."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    for name in ("CUDA_VISIBLE_DEVICES", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*argv: str) -> Outcome:
        try:
            code = main(argv)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 2
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run
