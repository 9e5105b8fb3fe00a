"""Starts the screen: turns the options of `gpudoctor tui` into a feed, a checker and an App."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpudoctor.errors import UserError
from gpudoctor.facts.system.environment import node_name
from gpudoctor.lazy import lazy_imports, lazy_pattern
from gpudoctor.process.die_with_parent import die_with_parent
from gpudoctor.process.own_program import own_gpudoctor
from gpudoctor.text.output import is_terminal, printable

with lazy_imports():
    from gpudoctor.api import node_check
    from gpudoctor.facts.stream import recording
    from gpudoctor.report import progress
    from gpudoctor.run import live
    from gpudoctor.tui import app as screen
    from gpudoctor.tui import check_runner, feeds, labels

if TYPE_CHECKING:
    from gpudoctor.tui.feeds import Feed

_SSH = "ssh:"
# user@host, an address, or a Host of the user's ssh_config; never an option
_HOST = lazy_pattern(r"[A-Za-z0-9_\[][A-Za-z0-9_.@:%\[\]-]*")
# ssh options: a broken connection is noticed within 15 s
_NOTICES_BREAKS = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")


class TuiRequest(msgspec.Struct, frozen=True):
    """The options of the screen. `interval_s`: seconds between samples. `config`: for the checks that it runs."""

    node: str | None = None
    faults: tuple[str, ...] = ()
    interval_s: float = 1.0
    theme: str | None = None
    config: Path | None = None
    read_only: bool = False


def start(request: TuiRequest) -> int:
    """Show the screen until the user quits and return the exit code. Raise UserError before the screen is set up."""
    if "TEXTUAL_DRIVER" in os.environ:  # in a browser: Textual's web driver draws, standard streams are pipes
        die_with_parent(sent=signal.SIGTERM)  # Textual's web driver does not notice when the server dies
    elif not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        raise UserError("tui wants a terminal on standard input and output; without one: gpudoctor watch, or check")
    if os.environ.get("SSH_CONNECTION"):
        # Textual reads these on import; frames are expensive over a slow line
        os.environ.setdefault("TEXTUAL_FPS", "15")
        os.environ.setdefault("TEXTUAL_ANIMATIONS", "basic")
    feed, checker = opened(request)
    theme = request.theme or "dark"
    if theme not in labels.THEMES:
        raise UserError(f"--theme {printable(theme)}: there are {', '.join(labels.THEMES)}")
    # only of this machine
    live_runs = None if request.node is not None or request.faults else live.LiveRuns().read
    app = screen.Doctor(feed, checker, read_only=request.read_only, theme=theme, live_runs=live_runs)
    try:
        app.run()
    finally:
        feed.close()
    return app.return_code or 0


def opened(request: TuiRequest) -> tuple[Feed, check_runner.Checker]:
    """The feed and the checker for `--node`. Raise UserError for a source that cannot be read."""
    source: str | None = request.node
    if source is not None and source.startswith(_SSH):
        host = ssh_host(source)
        if request.faults:
            raise UserError("--fault is for simulated nodes and captures, not for a machine over ssh")
        if request.config:
            raise UserError("--config: a machine over ssh is judged with its own configuration")
        watch = [*check_runner.ssh_prefix(host, *_NOTICES_BREAKS), "watch", "--interval", f"{request.interval_s:g}"]
        return feeds.ChildFeed(watch, host), check_runner.Checker(check_runner.ssh_prefix(host), [])
    arguments = [] if source is None else ["--node", source]
    arguments += [word for fault in request.faults for word in ("--fault", fault)]
    options = ["--config", str(request.config)] if request.config else []
    checker = check_runner.Checker(own_gpudoctor(), arguments, options=options)
    if source is not None and source != "-" and recording.is_stream_file(source):
        if request.faults:
            raise UserError("--fault is for simulated nodes and captures, not for a recorded stream")
        return feeds.PlaybackFeed(recording.read_stream(source), _file_name(source)), checker
    _refuse(source, request.faults)
    watch = [*own_gpudoctor(), "watch", "--interval", f"{request.interval_s:g}", *arguments]
    label = node_name().partition(".")[0] if source is None else _file_name(source)
    return feeds.ChildFeed(watch, label), checker


def ssh_host(source: str) -> str:
    """The host in `ssh:HOST`. Raise UserError if it is no host name, above all if ssh would parse it as an option."""
    host = source[len(_SSH) :]
    if not _HOST.fullmatch(host):
        raise UserError(f"--node {printable(source)}: write it as ssh:HOST or ssh:USER@HOST")
    return host


def _refuse(source: str | None, faults: tuple[str, ...]) -> None:
    """Raise UserError, as `check` does, for a source without a node."""
    if source == "-":
        raise UserError("--node -: the screen needs standard input for its keys; write the stream into a file first")
    if source is None and not faults:
        return  # this machine: errors show on the screen
    node_check.read_source(source, faults, 10.0, progress=progress.terminal_progress())


def _file_name(source: str) -> str:
    return os.path.basename(os.path.normpath(source)) or source  # noqa: PTH119 - a name for display, as typed
