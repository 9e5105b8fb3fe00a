"""Starts our own Python processes, which never import modules from the working directory.

`python -m` and `python -c` search the working directory before the standard library, and so does an empty entry in
PYTHONPATH. In /tmp, another user's json.py, torch.py or gpudoctor/ would run with the rights of the user who calls us.

This module is imported before all others (__main__.py), so it imports only what every interpreter loads at its start.
"""

import os
import sys

# The folder that contains gpudoctor, or a zip file
PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
_STANDARD_LIBRARY = os.path.dirname(os.__file__)  # noqa: PTH120
# The interpreter's own entries keep their order; `front` and `back` are added before and after them
_PROGRAM = (
    "import sys; own = [e for e in sys.path if e and e not in {dropped!a}]; "
    "sys.path[:] = [e for e in {front!a} if e not in own] + own + [e for e in {back!a} if e not in own]; "
    "from {module} import {function}; {last}"
)


def own_python(module: str, function: str, *arguments: str, python: str | None = None) -> list[str]:
    """The command line of a process that calls a function of our package with these arguments.

    It searches for modules where this process does, without the working directory. `python`: another interpreter, of
    which nothing is known; our package is added to its own search path.
    """
    return [*_interpreter(python), "-c", _program(module, function, f"{function}(*sys.argv[1:])", python), *arguments]


def own_gpudoctor(*, elsewhere: bool = False) -> list[str]:
    """The command line, without arguments, of this gpudoctor; `elsewhere`: of one at the same path on other nodes."""
    python = sys.executable if elsewhere else None
    return [*_interpreter(python), "-c", _program("gpudoctor.__main__", "run", "sys.exit(run())", python)]


def forget_working_directory() -> None:
    """Remove the working directory from the module search path, except as in `import_path`."""
    sys.path[:] = import_path()


def import_path() -> list[str]:
    """sys.path without entries that depend on the working directory.

    The directory stays if it was named: as an absolute path in PYTHONPATH, after the standard library (by a .pth
    file), or because it contains gpudoctor itself (a checkout).
    """
    front, back = _import_path()
    return front + back


def _interpreter(python: str | None) -> list[str]:
    if python is not None:
        return [python]
    # at least as isolated as this process
    flags = ["-I"] if sys.flags.isolated else ["-E"] * sys.flags.ignore_environment + ["-s"] * sys.flags.no_user_site
    return [sys.executable, *flags, *(["-P"] if sys.version_info >= (3, 11) else [])]


def _program(module: str, function: str, last: str, python: str | None) -> str:
    front, back = _import_path() if python is None else ([], [])
    # no entry leads to a gpudoctor that was found by an import hook
    back += [PACKAGE_ROOT] if PACKAGE_ROOT not in front + back else []
    dropped = sorted(_dropped())
    return _PROGRAM.format(dropped=dropped, front=front, back=back, module=module, function=function, last=last)


def _import_path() -> tuple[list[str], list[str]]:
    """The entries before the standard library, and the rest; both without the working directory."""
    entries = list(sys.path)
    border = entries.index(_STANDARD_LIBRARY) if _STANDARD_LIBRARY in entries else len(entries)
    dropped = _dropped()
    front = [_absolute(entry) for entry in entries[:border] if entry and entry not in dropped]
    back = [_absolute(entry) for entry in entries[border:] if entry]
    return [entry for entry in front if entry], [entry for entry in back if entry]


def _dropped() -> set[str]:
    """The working directory and relative entries of PYTHONPATH, except those that stay (`import_path`)."""
    named = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    entries = named.split(os.pathsep)
    meant = {PACKAGE_ROOT, *(entry for entry in entries if os.path.isabs(entry))}  # noqa: PTH117
    relative = {_absolute(entry) for entry in ("", *entries) if not os.path.isabs(entry)}  # noqa: PTH117
    return relative - meant


def _absolute(entry: str) -> str:
    """The entry as an absolute path; empty if it is relative and the working directory no longer exists."""
    try:
        return os.path.abspath(entry)  # noqa: PTH100
    except OSError:
        return ""
