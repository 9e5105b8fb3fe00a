"""Runs the agent: checks the request, then runs the schedule and the HTTP server side by side."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpudoctor.agent import DEFAULT_LISTEN
from gpudoctor.agent.node_status import NodeStatus
from gpudoctor.agent.schedule import OUTPUT_BYTES_MAX, TOKEN_VARIABLE, Schedule, SchedulePlan, environment
from gpudoctor.agent.state import StateDirectory, WatchedSubject, default_directory
from gpudoctor.errors import UserError
from gpudoctor.facts.model.node import Source
from gpudoctor.facts.system.environment import node_name
from gpudoctor.http.address import (
    TOKEN_LENGTH_MIN,
    HttpAccess,
    ListenAddress,
    checked_token,
    listen_address,
    read_token,
)
from gpudoctor.http.listener import ended_by_signal
from gpudoctor.process.command import CommandLateError, run_command
from gpudoctor.process.die_with_parent import adopt_orphans
from gpudoctor.process.own_program import own_gpudoctor
from gpudoctor.report.model import SourceSummary
from gpudoctor.text.output import printable, say

if TYPE_CHECKING:
    from gpudoctor.agent.answers import AgentAnswers

_ASK_S = 60.0
_JITTER_SHARE, _JITTER_MAX_S = 0.1, 60.0


class _Facts(msgspec.Struct):
    source: Source


class AgentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent checks, how often, and where it listens; times in seconds.

    `strikes`: consecutive runs with a warn before it is an alarm. `jitter_s` None: a tenth of the interval, 60 s at
    most. `events`: also check when the kernel log or the driver reports something.
    """

    node: str | None = None
    faults: tuple[str, ...] = ()
    interval_s: float = 600.0
    listen: str = DEFAULT_LISTEN
    token_file: Path | None = None
    strikes: int = 3
    jitter_s: float | None = None
    deadline_s: float = 90.0
    state: Path | None = None
    config: Path | None = None
    events: bool = True


def run_agent(request: AgentRequest) -> int:
    """Run until SIGINT, SIGTERM or SIGHUP; return 128 + its number. Raise UserError if the agent cannot start."""
    # first, because these imports raise UserError if a library is missing
    from gpudoctor.agent.answers import AgentAnswers, AgentMetrics

    where = listen_address(request.listen, "--listen", DEFAULT_LISTEN)
    token = token_of(request.token_file, os.environ, where)
    with ExitStack() as retained:
        sockets = [retained.enter_context(each) for each in where.listening_sockets()]
        schedule = _schedule(request, retained)
        plan = schedule.plan
        metrics = AgentMetrics(schedule.scrape_figures)
        answers = AgentAnswers(HttpAccess(token, where.host), metrics, schedule.status, plan.prefix)
        adopt_orphans()
        url = where.url(sockets[0].getsockname()[1])
        say(f"{plan.prefix}agent on {url} (metrics, healthz, report), a quick check every {plan.interval_s:g} s")
        if not where.is_loopback:
            say("the connection is not encrypted: on a network that you do not trust, put TLS or a tunnel before it")
        return asyncio.run(_serve(sockets, answers, schedule))


def token_of(file: Path | None, environ: Mapping[str, str], where: ListenAddress) -> str | None:
    """The token that clients must send; None if none is needed. Raise UserError if it is needed and missing or weak."""
    token = environ.get(TOKEN_VARIABLE) or None if file is None else read_token(file)
    name = TOKEN_VARIABLE if file is None else f"--token-file {file}"
    if token is None:
        if where.is_loopback:
            return None
        raise UserError(
            f"{where.option} {printable(where.host)}: others can reach it, so there must be a token, and none was "
            f"given: --token-file FILE, or {TOKEN_VARIABLE} in the environment"
        )
    return checked_token(token, name, TOKEN_LENGTH_MIN)


def check_once(request: AgentRequest) -> int | tuple[NodeStatus, str]:
    """Run one check now as the agent would and save its state, without the HTTP server. Raise UserError.

    Return the node's status and its prefix (`SchedulePlan.prefix`), or 128 + n if signal n ended the run.
    """
    with ExitStack() as retained:
        schedule = _schedule(request, retained)
        adopt_orphans()
        ended_by = asyncio.run(_until_signal(schedule.once()))
    return (schedule.status(), schedule.plan.prefix) if ended_by is None else ended_by


def _schedule(request: AgentRequest, retained: ExitStack) -> Schedule:
    plan = _plan(request)
    subject = WatchedSubject(plan.host, _utf8(request.node), tuple(_utf8(fault) or "" for fault in request.faults))
    folder = request.state or default_directory(os.environ)
    if request.state is None and request.node is not None and not os.environ.get("STATE_DIRECTORY"):
        folder /= "tried"  # the state of this machine is another one
    state = StateDirectory(folder, subject)
    retained.callback(state.close)
    return Schedule(plan, state)


async def _until_signal(work: Coroutine[None, None, None]) -> int | None:
    """Run `work` to its end and return None, or cancel it on a signal and return 128 + the signal's number."""
    ended, task = ended_by_signal(), asyncio.ensure_future(work)
    try:
        await asyncio.wait((ended, task), return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return ended.result() if ended.done() else None


async def _serve(sockets: Sequence[socket.socket], answers: AgentAnswers, schedule: Schedule) -> int:
    from gpudoctor.http.server import serving

    async with serving(answers.runner(), sockets, answers.listener):
        code = await _until_signal(schedule.run())
    # without a signal the schedule ends only by a bug, and then the process must not seem to be running still
    assert code is not None
    return code


def _plan(request: AgentRequest) -> SchedulePlan:
    """The plan, after checking the source and the configuration. Raise UserError if either is invalid."""
    options = [] if request.config is None else [f"--config={request.config}"]
    _asked("config", options)
    named = [] if request.node is None else [f"--node={request.node}"]
    named += [f"--fault={fault}" for fault in request.faults]
    usual_jitter_s = min(_JITTER_MAX_S, _JITTER_SHARE * request.interval_s)
    return SchedulePlan(
        command=(*own_gpudoctor(), "check", "--level", "quick", "--json", *options, *named),
        host=_utf8(node_name()) or "",
        source=_source(request, named),
        interval_s=request.interval_s,
        jitter_s=usual_jitter_s if request.jitter_s is None else request.jitter_s,
        deadline_s=request.deadline_s,
        strikes=request.strikes,
        events=request.events and request.node is None,
    )


def _source(request: AgentRequest, named: Sequence[str]) -> SourceSummary:
    if request.node is None:
        if request.faults:
            raise UserError("--fault is for simulated nodes and captures: name one with --node (see: gpudoctor nodes)")
        return SourceSummary("live", "")
    if request.node == "-":
        raise UserError("--node -: stdin can be read only once, and an agent reads again and again")
    source = msgspec.json.decode(_asked("facts", named), type=_Facts).source
    return SourceSummary(source.kind, source.name, source.faults)


def _asked(command: str, options: Sequence[str]) -> bytes:
    """stdout of another gpudoctor, which reads the user's input so that this process stays small. Raise UserError."""
    try:
        arguments = [*own_gpudoctor(), command, *options]
        done = run_command(arguments, _ASK_S, OUTPUT_BYTES_MAX, environment(os.environ), with_stderr=True)
    except CommandLateError:
        raise UserError(f"gpudoctor {command} {' '.join(options)}: no answer in {_ASK_S:g} s") from None
    except OSError as error:
        raise UserError(f"gpudoctor cannot be started again: {error.strerror or error}") from None
    if done.returncode == 0:
        return done.stdout.encode()
    reported = done.stderr.strip().rpartition("\n")[2]
    raise UserError(printable(reported.removeprefix("gpudoctor: ").removeprefix("error: ")) or f"{command} failed")


def _utf8(text: str | None) -> str | None:
    """The text with undecodable bytes escaped: arguments and host names need not be UTF-8, the saved JSON must be."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()
