"""`gpudoctor fake-driver`: runs a program with a fake driver that answers like a simulated or captured node.

The driver's library is built from its C source, once for each compiler and driver branch.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from gpudoctor.errors import UserError
from gpudoctor.facts.captures.source import load_source
from gpudoctor.facts.nvml.fake_driver_context import VARIABLE, write_fake_driver_context
from gpudoctor.facts.simulated.load import apply_faults
from gpudoctor.process.command import CommandLateError, run_command
from gpudoctor.process.ending import ENDING_SIGNALS, send_signal
from gpudoctor.process.foreground import CannotStartError, ForegroundCommand
from gpudoctor.process.forked import ForkedProcess
from gpudoctor.process.private_folder import make_private_folder, why_replaceable
from gpudoctor.process.signals import signals_postponed
from gpudoctor.process.temporary_folder import temporary_folder
from gpudoctor.testing.table_node import answers_of, branch_of
from gpudoctor.text.output import printable, say

NOT_FOUND = 127
# longer than any deadline for a call; for a driver that never answers there is the fault driver-hang
LONGEST_CALL_LATENCY_MS = 60_000

LIBRARY = "libnvidia-ml.so.1"
FLAGS = ("-std=gnu11", "-O1", "-fPIC", "-shared", "-pthread", f"-Wl,-soname,{LIBRARY}")
SOURCES = tuple(Path(__file__).parent / name for name in ("nvml.c", "functions.h"))
_COMPILERS = ("cc", "gcc", "clang")
_BUILD_DEADLINE_S = 60.0
_REMOVAL_S = 5.0
_TURN_S = 3600.0


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
    loaded = load_source(request.node)
    node = apply_faults(loaded.node, list(request.faults))
    with _private_folder() as private:
        try:
            write_fake_driver_context(private, node)
            (private / "answers").write_bytes(answers_of(node, latency_ms))
        except OSError as error:
            raise UserError(f"{private}: {error.strerror or error}") from None
        libraries = library_folder(branch_of(node), private, os.environ)
        struck = f" with {', '.join(node.source.faults)}" if node.source.faults else ""
        if shutil.which(request.program[0]) is not None:  # else it sees nothing
            say(f"SIMULATED: {request.program[0]} sees the driver of {node.source.name}{struck}, not this machine's")
        path = os.environ.get("LD_LIBRARY_PATH")
        libraries_path = f"{libraries}:{path}" if path else str(libraries)
        return _run(request.program, {**os.environ, "LD_LIBRARY_PATH": libraries_path, VARIABLE: str(private)})


@contextmanager
def _private_folder() -> Iterator[Path]:
    """A folder that is removed with this process, even if that is killed: a forked process waits for its end."""
    with temporary_folder("gpudoctor-fake-driver-") as folder:
        life, own_end = os.pipe()

        def remove_it_then() -> None:
            for number in ENDING_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            # who reads our output must not wait for this process
            for descriptor in (0, 1, 2, own_end):
                with suppress(OSError):
                    os.close(descriptor)
            os.read(life, 1)  # nothing is written
            shutil.rmtree(folder, ignore_errors=True)

        try:
            guardian = ForkedProcess(remove_it_then, new_group=True)
        finally:
            os.close(life)
        try:
            yield folder
        finally:
            os.close(own_end)
            guardian.send(signal.SIGCONT)  # somebody may have stopped it
            guardian.ends_within(_REMOVAL_S)


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


def _run(program: Sequence[str], environ: dict[str, str]) -> int:
    """Run the program in our place; it must not outlive us: its driver reads the answers in our folder."""
    try:
        command = ForegroundCommand(program, environ, end_with_us=True)
    except CannotStartError as error:
        # perhaps the interpreter of a script is missing
        is_smi = error.exit_code == NOT_FOUND and Path(program[0]).name == "nvidia-smi"
        hint = "; it comes with NVIDIA's driver, not with gpudoctor: take nvitop, gpustat or any program that asks NVML"
        say(f"error: {program[0]}: {error}{hint if is_smi else ''}")
        return error.exit_code
    try:
        interrupts = 1
        while (code := command.step(_TURN_S)) is None:
            # the program got it too, but Python handles SIGINT only after a call that hangs
            if command.signals.count(signal.SIGINT) > interrupts:
                interrupts += 1
                send_signal(command.pid, signal.SIGTERM)
        return code if code >= 0 else 128 - code
    finally:
        command.close()


def library_folder(branch: int, private: Path, environ: Mapping[str, str]) -> Path:
    """A folder with the library of this branch: in the cache, or in `private` if that cannot be used.

    A cache is used only if no one but this user and root could have put a library there, since programs load it.
    Raise UserError if there is no compiler, or if it cannot build the library.
    """
    compiler = find_compiler(environ)
    key, content = _key(compiler, branch), b""
    for folder in (*_cache(environ), private):
        library = folder / "fake-driver" / key / LIBRARY
        try:
            make_private_folder(library.parent)
            why = None if folder == private else why_replaceable(library)
            if why is not None:
                say(f"the library of the fake driver is built anew, not taken from {printable(str(folder))}: {why}")
                continue
            if library.is_file():
                return library.parent
            content = content or _compiled(compiler, branch, private)
            _put(library, content)
        except OSError:  # does not exist, read-only, full: try the next one
            continue
        return library.parent
    raise UserError(f"the library of the fake driver can be written nowhere: neither in the cache nor in {private}")


def _put(library: Path, content: bytes) -> None:
    with signals_postponed():
        number, made = tempfile.mkstemp(dir=library.parent, prefix=".build-")
        os.close(number)
        try:
            Path(made).write_bytes(content)
            Path(made).chmod(0o644)  # the linker's mode depends on the umask
            # concurrent builds replace the same library atomically
            os.replace(made, library)  # noqa: PTH105 - a name, not a Path
        finally:
            Path(made).unlink(missing_ok=True)


def find_compiler(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The command of the C compiler: $CC, else cc, gcc or clang. Raise UserError if there is none."""
    path = environ.get("PATH")
    asked = environ.get("CC", "").strip()
    if asked:
        try:
            parts = shlex.split(asked)
        except ValueError as error:
            raise UserError(f"CC={asked}: {error}") from None
        found = shutil.which(parts[0], path=path)
        if found is None:
            raise UserError(f"CC={asked}: no such compiler; unset CC to take cc, gcc or clang")
        return (found, *parts[1:])
    for name in _COMPILERS:
        found = shutil.which(name, path=path)
        if found is not None:
            return (found,)
    raise UserError(
        "fake-driver builds its library with a C compiler, and there is no cc, gcc or clang here: "
        "apt install gcc libc6-dev, dnf install gcc, or name one with CC"
    )


def _key(compiler: tuple[str, ...], branch: int) -> str:
    real = os.path.realpath(compiler[0])
    seen = os.stat(real)  # noqa: PTH116 - a name, not a Path
    parts = (*compiler, real, str(seen.st_size), str(seen.st_mtime_ns), str(branch), *FLAGS, os.uname().machine)
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape"))
    for source in SOURCES:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:32]


def _cache(environ: Mapping[str, str]) -> tuple[Path, ...]:
    # the XDG specification: a relative path is to be ignored
    named = environ.get("XDG_CACHE_HOME", "")
    if named.startswith("/"):
        return (Path(named) / "gpudoctor",)
    home = environ.get("HOME", "")
    return (Path(home) / ".cache" / "gpudoctor",) if home.startswith("/") else ()


def _compiled(compiler: tuple[str, ...], branch: int, private: Path) -> bytes:
    """The library. Whatever a compiler that is killed leaves lies in `private`, which is removed in any case."""
    into = private / LIBRARY
    command = (*compiler, *FLAGS, f"-DDRIVER={branch}", "-o", str(into), str(SOURCES[0]))
    try:
        done = run_command(command, _BUILD_DEADLINE_S, environ={**os.environ, "TMPDIR": str(private)}, with_stderr=True)
    except OSError as error:
        raise UserError(f"{compiler[0]} could not be started: {error.strerror or error}") from None
    except CommandLateError:
        raise UserError(f"{compiler[0]} did not end in {_BUILD_DEADLINE_S:g} s") from None
    if done.returncode:
        reported = done.stderr.splitlines()
        lines = [line for line in reported if "error" in line] or reported or ["it said nothing"]
        raise UserError(
            f"{compiler[0]} could not build the library of the fake driver: {lines[0][:200]}; the C library's headers "
            "may be missing: apt install gcc libc6-dev, dnf install gcc glibc-devel"
        )
    return into.read_bytes()
