"""Runs a program with a fake driver that answers like a simulated or captured node: `gpudoctor fake-driver`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from gpudoctor.errors import UserError
from gpudoctor.exits import say
from gpudoctor.facts.captures.source import load_source
from gpudoctor.facts.nvml.fake_driver_context import VARIABLE, write_fake_driver_context
from gpudoctor.facts.simulated.load import apply_faults
from gpudoctor.fakes.library_build import library_folder
from gpudoctor.fakes.table_node import answers_of, branch_of
from gpudoctor.process.die_with_parent import die_with_parent
from gpudoctor.process.ending import ENDING_SIGNALS
from gpudoctor.process.spawn import Child

NOT_FOUND = 127
NOT_EXECUTABLE = 126
_PASSED_ON = (*ENDING_SIGNALS, signal.SIGUSR1, signal.SIGUSR2)
# longer than any deadline for a call; for a driver that never answers there is the fault driver-hang
LONGEST_CALL_LATENCY_MS = 60_000


class FakeDriverRequest(msgspec.Struct, frozen=True):
    """Which program sees the driver of which node. `call_latency`: milliseconds per call, as typed by the user."""

    node: str
    faults: tuple[str, ...]
    call_latency: str | None
    program: tuple[str, ...]


def run_program(request: FakeDriverRequest) -> int:
    """Run the program; return its exit code, 128 + n if signal n ended it.

    As in shells, 127 means that there is no such program, and 126 that it cannot be started. Raise UserError for a node
    that cannot be read, and if the library cannot be built.
    """
    latency_ms = _call_latency_ms(request.call_latency)
    if VARIABLE in os.environ:
        raise UserError("this is running under gpudoctor fake-driver already: one driver at a time")
    loaded = load_source(request.node, stdin=sys.stdin.buffer if request.node == "-" and sys.stdin else None)
    node = apply_faults(loaded.node, list(request.faults))
    with TemporaryDirectory(prefix="gpudoctor-fake-driver-") as name:
        private = Path(name)
        try:
            write_fake_driver_context(private, node)
            (private / "answers").write_bytes(answers_of(node, latency_ms))
        except OSError as error:
            raise UserError(f"{private}: {error.strerror or error}") from None
        libraries = library_folder(branch_of(node), private, os.environ)
        struck = f" with {', '.join(node.source.faults)}" if node.source.faults else ""
        say(f"SIMULATED: {request.program[0]} sees the driver of {node.source.name}{struck}, not this machine's")
        return _run(request.program, _environment(os.environ, libraries, private))


def _call_latency_ms(asked: str | None) -> float:
    if asked is None:
        return 0.0
    try:
        milliseconds = float(asked)
    except ValueError:
        milliseconds = -1.0
    if not 0 <= milliseconds <= LONGEST_CALL_LATENCY_MS:
        raise UserError(
            f"--call-latency {asked[:40]}: a number of milliseconds from 0 to {LONGEST_CALL_LATENCY_MS} is wanted"
        )
    return milliseconds


def _environment(environ: Mapping[str, str], libraries: Path, private: Path) -> dict[str, str]:
    path = environ.get("LD_LIBRARY_PATH")
    return {
        **environ,
        "LD_LIBRARY_PATH": f"{libraries}:{path}" if path else str(libraries),
        VARIABLE: str(private),
    }


def _run(program: Sequence[str], environ: dict[str, str]) -> int:
    """Start the program and wait for its end; pass signals on to it."""
    wanted = (*_PASSED_ON, signal.SIGCHLD)
    # blocked, so that no signal is lost between the start and the wait
    before = signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    try:
        return _wait(_start(program, environ, before), wanted)
    except FileNotFoundError as error:
        # perhaps the interpreter of a script is missing
        say(f"error: {program[0]}: {error.strerror or error}")
        return NOT_FOUND
    except OSError as error:
        say(f"error: {program[0]}: {error.strerror or error}")
        return NOT_EXECUTABLE
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(program: Sequence[str], environ: dict[str, str], mask: set[signal.Signals | int]) -> Child:
    parent = os.getpid()

    def in_child() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        # it must not outlive us: its driver reads the answers in our folder
        die_with_parent(parent, signal.SIGTERM)

    return Child(program, stdin=None, stdout=None, stderr=None, env=environ, new_session=False, in_child=in_child)


def _wait(process: Child, wanted: tuple[signal.Signals, ...]) -> int:
    asked_to_end = 0
    while True:
        info = signal.sigwaitinfo(wanted)
        if info.si_signo == signal.SIGCHLD:
            code = process.poll()
            if code is not None:
                return code if code >= 0 else 128 - code
        elif info.si_code <= 0:  # sent by a process, perhaps only to us
            process.send(info.si_signo)
        elif info.si_signo == signal.SIGINT:
            # from the terminal: the program got it too, but Python handles SIGINT only after a call that hangs
            asked_to_end += 1
            if asked_to_end > 1:
                process.send(signal.SIGTERM)
