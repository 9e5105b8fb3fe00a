"""Builds the fake driver library from its C source, once for each compiler and driver branch."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gpudoctor.errors import UserError
from gpudoctor.exits import printable, say
from gpudoctor.private_folder import make_private_folder, why_replaceable
from gpudoctor.process.command import CommandLateError, run_command

LIBRARY = "libnvidia-ml.so.1"
FLAGS = ("-std=gnu11", "-O1", "-fPIC", "-shared", "-pthread", f"-Wl,-soname,{LIBRARY}")
SOURCES = tuple(Path(__file__).parent / name for name in ("nvml.c", "functions.h"))
_COMPILERS = ("cc", "gcc", "clang")
_BUILD_DEADLINE_S = 60.0


def library_folder(branch: int, private: Path, environ: Mapping[str, str]) -> Path:
    """A folder with the library of this branch: in the cache, or in `private` if that cannot be used.

    A cache is used only if no one but this user and root could have put a library there, since programs load it.
    Raise UserError if there is no compiler, or if it cannot build the library.
    """
    compiler = find_compiler(environ)
    key = _key(compiler, branch)
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
            number, made = tempfile.mkstemp(dir=library.parent, prefix=".build-")
        except OSError:  # does not exist, read-only, full: try the next one
            continue
        os.close(number)
        try:
            _compile(compiler, branch, made)
            Path(made).chmod(0o644)  # the linker's mode depends on the umask
            # concurrent builds replace the same library atomically
            os.replace(made, library)  # noqa: PTH105 - a name, not a Path
        except OSError:
            continue
        finally:
            Path(made).unlink(missing_ok=True)
        return library.parent
    raise UserError(f"the library of the fake driver can be written nowhere: neither in the cache nor in {private}")


def find_compiler(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The command of the C compiler: $CC, else cc, gcc or clang. Raise UserError if there is none."""
    path = environ.get("PATH")
    asked = environ.get("CC", "").strip()
    if asked:
        try:
            words = shlex.split(asked)
        except ValueError as error:
            raise UserError(f"CC={asked}: {error}") from None
        found = shutil.which(words[0], path=path)
        if found is None:
            raise UserError(f"CC={asked}: no such compiler; unset CC to take cc, gcc or clang")
        return (found, *words[1:])
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


def _compile(compiler: tuple[str, ...], branch: int, into: str) -> None:
    command = (*compiler, *FLAGS, f"-DDRIVER={branch}", "-o", into, str(SOURCES[0]))
    try:
        done = run_command(command, _BUILD_DEADLINE_S, with_stderr=True)
    except OSError as error:
        raise UserError(f"{compiler[0]} could not be started: {error.strerror or error}") from None
    except CommandLateError:
        raise UserError(f"{compiler[0]} did not end in {_BUILD_DEADLINE_S:g} s") from None
    if done.returncode:
        said = done.stderr.splitlines()
        lines = [line for line in said if "error" in line] or said or ["it said nothing"]
        raise UserError(
            f"{compiler[0]} could not build the library of the fake driver: {lines[0][:200]}; the C library's headers "
            "may be missing: apt install gcc libc6-dev, dnf install gcc glibc-devel"
        )
