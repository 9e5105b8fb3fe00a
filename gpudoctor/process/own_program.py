"""The one way to start a Python of our own: files in the working directory are no part of it.

`python -m` and `python -c` search the working directory before the standard library, and so does an empty entry in
PYTHONPATH. In /tmp, anybody's json.py, torch.py or gpudoctor/ would run with the rights of the user who calls us.

This module is imported before all others (__main__.py): it imports only what every interpreter has loaded at its start.
"""

import os
import sys

# The folder that gpudoctor lies in; a zip file counts as one
PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
_STANDARD_LIBRARY = os.path.dirname(os.__file__)  # noqa: PTH120
# What the interpreter finds by itself stays in its order; `front` and `back` are added before and behind it
_PROGRAM = (
    "import sys; own = [e for e in sys.path if e and e not in {dropped!a}]; "
    "sys.path[:] = [e for e in {front!a} if e not in own] + own + [e for e in {back!a} if e not in own]; "
    "from {module} import {function}; {last}"
)


def own_python(module: str, function: str, *arguments: str, python: str | None = None) -> list[str]:
    """The command line of a process that calls a function of our package with these arguments.

    It finds modules where this process finds them, without the working directory. `python`: another interpreter, of
    which nothing is known; there our package is added to what it finds by itself.
    """
    return [*_interpreter(python), "-c", _program(module, function, f"{function}(*sys.argv[1:])", python), *arguments]


def own_gpudoctor(*, elsewhere: bool = False) -> list[str]:
    """The command line, without arguments, of this gpudoctor; `elsewhere`: as other nodes have it at the same path."""
    python = sys.executable if elsewhere else None
    return [*_interpreter(python), "-c", _program("gpudoctor.__main__", "run", "sys.exit(run())", python)]


def forget_working_directory() -> None:
    """Search for modules nowhere in the working directory from here on, unless `import_path` says that it stays."""
    sys.path[:] = import_path()


def import_path() -> list[str]:
    """sys.path without what depends on the working directory.

    The directory stays if it was named: as an absolute path in PYTHONPATH, behind the standard library (by a .pth
    file), or since gpudoctor itself lies there (a checkout).
    """
    front, back = _import_path()
    return front + back


def _interpreter(python: str | None) -> list[str]:
    if python is not None:
        return [python]
    # as shut off as this process is, at least
    flags = ["-I"] if sys.flags.isolated else ["-E"] * sys.flags.ignore_environment + ["-s"] * sys.flags.no_user_site
    return [sys.executable, *flags, *(["-P"] if sys.version_info >= (3, 11) else [])]


def _program(module: str, function: str, last: str, python: str | None) -> str:
    front, back = _import_path() if python is None else ([], [])
    # where gpudoctor was found by an import hook, no entry leads to it
    back += [PACKAGE_ROOT] if PACKAGE_ROOT not in front + back else []
    dropped = sorted(_dropped())
    return _PROGRAM.format(dropped=dropped, front=front, back=back, module=module, function=function, last=last)


def _import_path() -> tuple[list[str], list[str]]:
    """What is searched before the standard library, and the rest; both without the working directory."""
    entries = list(sys.path)
    border = entries.index(_STANDARD_LIBRARY) if _STANDARD_LIBRARY in entries else len(entries)
    dropped = _dropped()
    front = [_absolute(entry) for entry in entries[:border] if entry and entry not in dropped]
    back = [_absolute(entry) for entry in entries[border:] if entry]
    return [entry for entry in front if entry], [entry for entry in back if entry]


def _dropped() -> set[str]:
    """The working directory, and what PYTHONPATH names from there, unless meant (`import_path`)."""
    named = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    entries = named.split(os.pathsep)
    meant = {PACKAGE_ROOT, *(entry for entry in entries if os.path.isabs(entry))}  # noqa: PTH117
    relative = {_absolute(entry) for entry in ("", *entries) if not os.path.isabs(entry)}  # noqa: PTH117
    return relative - meant


def _absolute(entry: str) -> str:
    """The entry as an absolute path; empty if it is relative, and the working directory was removed."""
    try:
        return os.path.abspath(entry)  # noqa: PTH100
    except OSError:
        return ""
