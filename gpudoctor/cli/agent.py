"""`gpudoctor agent`: what was asked for is checked, then the rounds and the listener run side by side."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from collections.abc import Coroutine, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import msgspec

from gpudoctor.agent.access import Gate, address_of, listening_socket, token_of, url_of
from gpudoctor.agent.quick_run import OUTPUT_BYTES_MAX, environment
from gpudoctor.agent.state import StateDirectory, Subject, default_directory
from gpudoctor.errors import UserError
from gpudoctor.exits import FAILED, OK, UNKNOWN, printable, say, write_stdout
from gpudoctor.facts.model.node import Source
from gpudoctor.process.command import CommandLateError, run_command
from gpudoctor.process.die_with_parent import adopt_orphans
from gpudoctor.process.ending import ENDING_SIGNALS
from gpudoctor.process.own_program import own_gpudoctor
from gpudoctor.report.model import SourceSummary

if TYPE_CHECKING:
    from gpudoctor.agent.answers import Answers
    from gpudoctor.agent.schedule import Plan, Rounds

_ASK_S = 60.0
_EXIT_OF = {"pass": OK, "warn": OK, "fail": FAILED, "unknown": UNKNOWN}
_JITTER_SHARE, _JITTER_MAX_S = 0.1, 60.0


class _Facts(msgspec.Struct):
    source: Source


def agent(args: argparse.Namespace) -> int:
    """Run until SIGINT, SIGTERM or SIGHUP; give 128 + its number. Raise UserError where it cannot start.

    `args.once`: run one check as the agent would, keep its state, write how the node stands, and give the exit
    code of that; nothing listens.
    """
    if args.once:
        return _once(args)
    from gpudoctor.agent.metrics import AgentMetrics  # says where prometheus-client is missing, before all else

    where = address_of(args.listen)
    token = token_of(args.token_file, os.environ, where)
    with ExitStack() as kept:
        listener = kept.enter_context(listening_socket(where))
        rounds = _rounds(args, kept)
        plan = rounds.plan
        from gpudoctor.agent.answers import Answers

        answers = Answers(Gate(token, where.host), AgentMetrics(rounds.tell), rounds.look)
        adopt_orphans()
        url = url_of(where.host, listener.getsockname()[1])
        say(f"{plan.mark}agent on {url} (metrics, healthz, report), a quick check every {plan.interval_s:g} s")
        if not where.is_loopback:
            say("the connection is not encrypted: on a network that you do not trust, put TLS or a tunnel before it")
        return asyncio.run(_serve(listener, answers, rounds))


def _once(args: argparse.Namespace) -> int:
    with ExitStack() as kept:
        rounds = _rounds(args, kept)
        adopt_orphans()
        import asyncio

        ended_by = asyncio.run(_until_signal(rounds.once()))
    if ended_by is not None:
        return 128 + ended_by
    standing, mark = rounds.look()
    write_stdout(f"{mark}{printable(standing.line)}\n")
    return _EXIT_OF[standing.verdict]


def _rounds(args: argparse.Namespace, kept: ExitStack) -> Rounds:
    plan = _plan(args)
    subject = Subject(plan.host, _utf8(args.node), tuple(_utf8(fault) or "" for fault in args.fault))
    state = StateDirectory(args.state or default_directory(os.environ), subject)
    kept.callback(state.close)
    from gpudoctor.agent.schedule import Rounds

    return Rounds(plan, state)


async def _until_signal(work: Coroutine[None, None, None]) -> int | None:
    """Let it run to its end; the number of the signal that ended it before, else None."""
    import asyncio

    task = asyncio.ensure_future(work)
    came: list[int] = []

    def end(number: int) -> None:
        came.append(number)
        task.cancel()

    for number in ENDING_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    with suppress(asyncio.CancelledError):
        await task
    return came[0] if came else None


async def _serve(listener: socket.socket, answers: Answers, rounds: Rounds) -> int:
    from gpudoctor.agent.listener import Listener

    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(number: int) -> None:
        if not ended.done():
            ended.set_result(128 + number)

    for number in ENDING_SIGNALS:
        loop.add_signal_handler(number, end, number)
    server = Listener(answers.to)
    await server.start(listener)
    running = loop.create_task(rounds.run())
    # it ends of itself only by a defect of ours, and then it must not look as if the agent still ran
    running.add_done_callback(lambda _: end(0))
    try:
        code = await ended
        if running.done():
            running.result()
        return code
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await server.stop()


def _plan(args: argparse.Namespace) -> Plan:
    """What is run, once it is known that it can be. Raise UserError for a source or a configuration that is none."""
    from gpudoctor.agent.schedule import Plan, check_command

    options = [] if args.config is None else [f"--config={args.config}"]
    _asked("config", options)
    named = [] if args.node is None else [f"--node={args.node}"]
    named += [f"--fault={fault}" for fault in args.fault]
    return Plan(
        command=check_command(own_gpudoctor(), [*options, *named]),
        host=_utf8(socket.gethostname()) or "",
        source=_source(args, named),
        interval_s=args.interval,
        jitter_s=min(_JITTER_MAX_S, _JITTER_SHARE * args.interval) if args.jitter is None else args.jitter,
        deadline_s=args.deadline,
        strikes=args.strikes,
    )


def _source(args: argparse.Namespace, named: Sequence[str]) -> SourceSummary:
    if args.node is None:
        if args.fault:
            raise UserError("--fault is for simulated nodes and captures: name one with --node (see: gpudoctor nodes)")
        return SourceSummary("live", "")
    if args.node == "-":
        raise UserError("--node -: stdin can be read only once, and an agent reads again and again")
    source = msgspec.json.decode(_asked("facts", named), type=_Facts).source
    return SourceSummary(source.kind, source.name, source.faults)


def _asked(command: str, options: Sequence[str]) -> bytes:
    """stdout of a gpudoctor that reads what we were given, so that this process stays small. Raise UserError."""
    try:
        words = [*own_gpudoctor(), command, *options]
        done = run_command(words, _ASK_S, OUTPUT_BYTES_MAX, environment(os.environ), with_stderr=True)
    except CommandLateError:
        raise UserError(f"gpudoctor {command} {' '.join(options)}: no answer in {_ASK_S:g} s") from None
    except OSError as error:
        raise UserError(f"gpudoctor cannot be started again: {error.strerror or error}") from None
    if done.returncode == 0:
        return done.stdout.encode()
    said = done.stderr.strip().rpartition("\n")[2]
    raise UserError(printable(said.removeprefix("gpudoctor: ").removeprefix("error: ")) or f"{command} failed")


def _utf8(text: str | None) -> str | None:
    """An argument or a host name need not be UTF-8; what is kept as JSON has to be."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()
