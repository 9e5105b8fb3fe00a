"""`gpudoctor tui`: what it is asked for becomes a feed and a checker, or one line of error."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpudoctor.errors import UserError
from gpudoctor.tui.feeds import ChildFeed, PlaybackFeed
from gpudoctor.tui.start import TuiRequest, opened
from tests.subprocesses import completed
from tests.tui.doctor_app import recorded


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"node": "hgx-h100-9"}, "did you mean hgx-h100-8"),
        ({"node": "-"}, "the screen needs standard input for its keys"),
        ({"node": "ssh:-oProxyCommand=x"}, "write it as ssh:HOST"),
        ({"node": "ssh:"}, "write it as ssh:HOST"),
        ({"node": "ssh:a b"}, "write it as ssh:HOST"),
        ({"node": "ssh:n7", "faults": ("thermal@2",)}, "not for a machine over ssh"),
        ({"faults": ("thermal@2",)}, "name one with --node"),
        ({"node": "hgx-h100-8", "faults": ("nonsense",)}, "no fault is called 'nonsense'"),
    ],
)
def test_nonsense_is_refused_before_the_screen_is_taken(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        opened(TuiRequest(**given))


def test_faults_on_a_recording_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not for a recorded stream"):
        opened(TuiRequest(str(recorded(tmp_path)), ("thermal@2",)))


def test_a_recorded_stream_is_played_whatever_its_name(tmp_path: Path) -> None:
    path = recorded(tmp_path).rename(tmp_path / "anything")
    feed, _ = opened(TuiRequest(str(path)))
    assert isinstance(feed, PlaybackFeed)
    assert feed.label == "anything"
    feed.close()


def test_another_machine_is_watched_over_the_users_own_ssh() -> None:
    feed, checker = opened(TuiRequest("ssh:alice@n7", interval_s=2.0))
    assert isinstance(feed, ChildFeed)
    assert feed._command[0] == "ssh"
    assert feed._command[-6:] == ["--", "alice@n7", "gpudoctor", "watch", "--interval", "2"]
    assert feed.label == "alice@n7"
    assert checker.command((), "quick")[: len(["ssh"])] == ["ssh"]


def test_the_command_line_gives_one_line_and_exit_code_2() -> None:
    done = completed([sys.executable, "-m", "gpudoctor", "tui", "--node", "hgx-h100-8"], stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "wants a terminal" in done.stderr
