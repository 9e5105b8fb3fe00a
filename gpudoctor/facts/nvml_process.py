"""Starts the collector process, listens to it, and ends it without fail."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic

import msgspec

from gpudoctor.facts.gpu import Gpu, GpuPair
from gpudoctor.facts.node import Driver, Unanswered
from gpudoctor.facts.nvml_channel import SLOW_CALLS, Crumbs, InFlight, Message, make_memory

_TICK_S = 0.05
_GRACE_S = 0.3
_SLACK_S = 0.5
_MAX_LINE_BYTES = 16 << 20
_MAX_WORDS = 300
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
_BOOT = "import sys; sys.path[:] = sys.argv[2].split(chr(0x1f)); from gpudoctor.facts.nvml_child import main; "
_PROGRAM = _BOOT + "main(sys.argv[1])"

Progress = Callable[[str], None]


class Collected:
    """What came from the collector, and how it ended.

    `unanswered` are the calls that did not return; `failure` says in words why the rest is
    missing, None where all was said.
    """

    def __init__(self, failure: str | None = None) -> None:
        self.driver: Driver | None = None
        self.gpus: dict[int, Gpu] = {}
        self.done: set[int] = set()
        self.pairs: list[GpuPair] = []
        self.handle_errors: dict[int, str] = {}
        self.ended = False
        self.unanswered: tuple[Unanswered, ...] = ()
        self.failure = failure

    def take(self, message: Message) -> None:
        if message.driver is not None:
            self.driver = message.driver
        if message.gpu is not None:
            self.gpus[message.gpu.index] = message.gpu
            if message.done:
                self.done.add(message.gpu.index)
        if message.handle_error is not None:
            index, words = message.handle_error
            self.handle_errors[index] = words
        self.pairs.extend(message.pairs)
        self.ended = self.ended or message.end


class Collector:
    """The process, in its own session and process group.

    `end` and then `close` must be called; `end` waits only for a moment for a process that will not die.
    Raise OSError where the process cannot be started.
    """

    def __init__(self, root: Path, nvml: str | None = None) -> None:
        self._started_s = monotonic()
        with ExitStack() as opened, ExitStack() as kept:
            memory = make_memory()
            opened.callback(os.close, memory)
            self._errors = make_memory()
            kept.callback(os.close, self._errors)
            self._pipe, write_end = os.pipe()
            kept.callback(os.close, self._pipe)
            opened.callback(os.close, write_end)
            self._crumbs = Crumbs(memory)
            kept.callback(self._crumbs.close)
            order = {"pipe": write_end, "crumbs": memory, "parent_pid": os.getpid(), "root": str(root), "nvml": nvml}
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, msgspec.json.encode(order).decode(), "\x1f".join(_import_path())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(write_end, memory),
                start_new_session=True,
            )
            kept.pop_all()
        self._rest = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def listen(self, deadline_s: float, call_deadline_s: float, progress: Progress | None = None) -> Collected:
        """Take messages until the end, the deadline, or until every thread that is left sits in a hung call.

        Deadlines count from the start of the process. nvmlInit and the handle lookup may take
        the whole deadline: without persistence mode they start the GPUs.
        """
        collected = Collected()
        said = ""
        while not collected.ended:
            now = monotonic()
            calls, between = self._crumbs.read()
            if now - self._started_s > deadline_s or (not between and _all_hang(calls, now, call_deadline_s)):
                # what was written until now is still taken
                with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                    while monotonic() < now + _SLACK_S and self._take(collected, 0.0):
                        pass
                if not collected.ended:
                    self._give_up(collected, calls, now, deadline_s, call_deadline_s)
                return collected
            if progress is not None and (words := _progress(collected, calls, now)) != said:
                progress(words)
                said = words
            try:
                open_still = self._take(collected, _TICK_S) is not None
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                # whoever wrote it: nothing that follows can be trusted
                collected.failure = f"the collector sent something that is no message: {error}"[:_MAX_WORDS]
                return collected
            if not open_still and not collected.ended:
                self._died(collected)
                return collected
        if collected.gpus.keys() - collected.done:
            collected.failure = f"a reader stopped early: {self._last_words()}"
        return collected

    def _take(self, collected: Collected, wait_s: float) -> bool | None:
        """Take what the pipe holds; False where nothing came in time, None at its end."""
        if not select.select([self._pipe], [], [], wait_s)[0]:
            return False
        data = os.read(self._pipe, 1 << 16)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MAX_LINE_BYTES:
            raise msgspec.DecodeError("a line without an end")
        for line in lines:
            collected.take(msgspec.json.decode(line, type=Message))
        return True

    def _give_up(
        self, collected: Collected, calls: tuple[InFlight, ...], now: float, deadline_s: float, call_deadline_s: float
    ) -> None:
        collected.unanswered = tuple(
            Unanswered(call.call, call.gpu, round(now - call.started_s, 3))
            for call in calls
            if now - call.started_s > call_deadline_s
        )
        if not collected.unanswered:
            # no call is to blame: a slow disk, a machine without a moment to spare, a short deadline
            busy = f" (it is in {calls[0].call})" if calls else ""
            collected.failure = f"the collector did not finish in {deadline_s:g} s{busy}"
            return
        first = collected.unanswered[0]
        where = "" if first.gpu is None else f" on GPU {first.gpu}"
        collected.failure = f"{first.call}{where} {first.reason} in {first.waited_s:.1f} s"

    def _died(self, collected: Collected) -> None:
        """The pipe ended before the last message: the process crashed in the driver, failed, or was killed.

        Only a crash is laid at the door of the driver's calls.
        """
        try:
            status: int | None = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            status = None  # it is still on its way out: writing a core, or inside the driver
        errors = self._read_errors()
        calls, _ = self._crumbs.read()
        how = f"the collector died by {_signal_name(-status)}" if status is not None and status < 0 else ""
        if status is None or -status in _CRASHES:
            how = how or "the collector died"
            # faulthandler: Current thread 0x00007f... (most recent call first):
            current = re.search(r"^Current thread 0x([0-9a-f]+)", errors, re.MULTILINE)
            thread = int(current.group(1), 16) if current else None
            guilty = tuple(call for call in calls if call.thread == thread) or calls
            now = monotonic()
            collected.unanswered = tuple(
                Unanswered(call.call, call.gpu, round(now - call.started_s, 3), f"{how} in {call.call}")
                for call in guilty
            ) or (Unanswered("collector", None, now - self._started_s, how),)
            collected.failure = collected.unanswered[0].reason
            return
        collected.failure = how or f"the collector ended with status {status}: {self._last_words()}"

    def _last_words(self) -> str:
        return self._read_errors().strip().rpartition("\n")[2][:_MAX_WORDS] or "it said nothing"

    def _read_errors(self) -> str:
        # the memory is zeroed and longer than what was written
        size = os.fstat(self._errors).st_size
        tail = os.pread(self._errors, 1 << 16, max(0, size - (1 << 16)))
        return tail.rstrip(b"\0").decode("utf-8", "replace")

    def close(self) -> None:
        """Let go of pipe and memory, once nobody listens."""
        os.close(self._pipe)
        os.close(self._errors)
        self._crumbs.close()

    def end(self) -> bool:
        """End the process and its group; True where nothing is left of it."""
        if self._process.returncode is not None:  # already reaped: its number may be another's
            return True
        for number in (signal.SIGTERM, signal.SIGKILL):
            # a collector that has said all ends by itself; this only hurries one that has not
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            try:
                self._process.wait(_GRACE_S)
                return True
            except subprocess.TimeoutExpired:
                continue
        # in the kernel and not to be killed: its parent's end, or the driver's, will free it
        self._process.returncode = -signal.SIGKILL
        return False


def _import_path() -> list[str]:
    """Our own path without the working directory, so that no file in it can pose as a module.

    Where gpudoctor itself lies in the working directory (a checkout), that stays.
    """
    home = Path(__file__).resolve().parents[2]
    try:
        here = Path().resolve()
    except OSError:  # the working directory was removed
        return [entry for entry in sys.path if Path(entry).is_absolute()]
    return [entry for entry in sys.path if (place := Path(entry).resolve()) != here or place == home]


def _all_hang(calls: tuple[InFlight, ...], now: float, call_deadline_s: float) -> bool:
    """Every thread that has not finished sits in a call for too long: nothing more will come."""
    return bool(calls) and all(call.call not in SLOW_CALLS and now - call.started_s > call_deadline_s for call in calls)


def _progress(collected: Collected, calls: tuple[InFlight, ...], now: float) -> str:
    if not collected.gpus:
        slow = next((call for call in calls if now - call.started_s > 1.0), None)
        return f"{slow.call}: the driver is starting the GPUs" if slow else "reading the driver"
    return f"reading GPUs: {len(collected.done)} of {len(collected.gpus)}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
